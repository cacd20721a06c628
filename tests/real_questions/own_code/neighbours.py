import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import ONCE, question


class CachedNeighborList(torch.nn.Module):
    """Reads the pairs of atoms that were found once."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def forward(self, inputs):
        return inputs | torch.load(self.folder / f"cache_{inputs['idx']}.pt")


class FilterNeighbors(torch.nn.Module):
    """Leaves pairs within the slab out."""

    def forward(self, inputs):
        slab = inputs["filtered_out"].tolist()
        kept = []
        for pair in range(len(inputs["idx_i"])):
            first, second = inputs["idx_i"][pair].item(), inputs["idx_j"][pair].item()
            if first not in slab or second not in slab:
                kept.append(pair)
        return inputs | {name: inputs[name][kept] for name in ("idx_i", "idx_j", "offsets")}


class CastTo32(torch.nn.Module):
    """Makes floats of doubles."""

    def forward(self, inputs):
        return {
            name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in inputs.items()
        }


class AtomsDataset(Samples):
    """A molecule on a surface in two hundred places."""

    def __init__(self, folder):
        self.positions = torch.randn(60, 3, dtype=torch.float64)
        for number in range(200):
            pairs = {name: torch.randint(0, 60, (1500,)) for name in ("idx_i", "idx_j")}
            offsets = torch.zeros(1500, 3, dtype=torch.float64)
            torch.save(pairs | {"offsets": offsets}, folder / f"cache_{number}.pt")
        self.transforms = [CachedNeighborList(folder), FilterNeighbors(), CastTo32()]

    def __getitem__(self, idx):
        properties = {"idx": idx % 200, "positions": self.positions}
        properties["filtered_out"] = torch.arange(50)
        for transform in self.transforms:
            properties = transform(properties)
        return properties


def collate_atoms(batch):
    shift = torch.arange(len(batch)) * 60
    joined = {name: torch.cat([one[name] for one in batch]) for name in ("positions", "offsets")}
    for name in ("idx_i", "idx_j"):
        moved = [one[name] + by for one, by in zip(batch, shift, strict=True)]
        joined[name] = torch.cat(moved)
    return joined


@question(
    source="schnetpack #458",
    report="pairs are filtered each time; filtered before they are cached: 3 times",
    step_s=0.02,
    causes=("one-transform", "transforms"),
    place=r"FilterNeighbors",
    lever=ONCE,
)
def neighbours_of_atoms(folder):
    """Filter the cached pairs each time, in a loop."""
    return DataLoader(
        AtomsDataset(folder), batch_size=8, shuffle=True, num_workers=2, collate_fn=collate_atoms
    )
