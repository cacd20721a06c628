import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class AtomsDataset(Samples):
    """Fingerprints of the atoms of an image, and their derivatives by the positions."""

    def __init__(self, images=64, atoms=12, features=5):
        draw = np.random.default_rng(0)
        self.images = [
            {
                "fingerprints": torch.from_numpy(draw.random((atoms, features), np.float32)),
                "fprimes": torch.from_numpy(draw.random((atoms * features, atoms * 3), np.float32)),
                "energy": float(draw.random()),
            }
            for _ in range(images)
        ]

    def __getitem__(self, index):
        return self.images[index % len(self.images)]


def factorize_data(images):
    """Put the derivatives of all images on the diagonal of one matrix."""
    fingerprints = torch.empty(0, images[0]["fingerprints"].shape[1])
    fprimes = torch.empty(0, 0)
    for image in images:
        fingerprints = torch.cat((fingerprints, image["fingerprints"]))
        block = image["fprimes"]
        right = torch.zeros(fprimes.shape[0], block.shape[1])
        left = torch.zeros(block.shape[0], fprimes.shape[1])
        fprimes = torch.cat(
            (torch.cat((fprimes, right), dim=1), torch.cat((left, block), dim=1)), dim=0
        )
    return fingerprints, fprimes


def collate_amp(images):
    fingerprints, fprimes = factorize_data(images)
    energies = torch.tensor([image["energy"] for image in images])
    return fingerprints, fprimes, energies


@question(
    source="amptorch #11, #13",
    report="torch.cat copies both matrices for every image; zeros are made once and filled",
    step_s=0.01,
    causes=("collate",),
    place=r"collate_amp|factorize_data|torch\.cat|fprimes|[Cc]ollate",
    lever=r"[Aa]llocat|zeros|\bfill|block_diag|torch\.cat|\bonce\b|single|sparse|[Vv]ectori[sz]",
)
def block_diagonal(_folder):
    """Grow a matrix by concatenation."""
    return DataLoader(
        AtomsDataset(), batch_size=48, shuffle=True, num_workers=2, collate_fn=collate_amp
    )
