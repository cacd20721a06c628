import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class TextLibraryDataset(Dataset):
    """Parts of poems, letter by letter."""

    def __init__(self, length=64, letters=96):
        self.length, self.letters = length, letters
        self.encoded = torch.randint(0, letters, (300_000,))

    def __len__(self):
        return len(self.encoded) - self.length - 1

    def __getitem__(self, index):
        part = self.encoded[index : index + self.length + 1]
        one_hot = torch.nn.functional.one_hot(part[:-1], self.letters).float()
        return one_hot, part[1:]


@question(
    source="torch-poet #1",
    report="one-hot on the GPU lessens loading, yet 'resulting performance seems same'",
    step_s=0.06,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def letters_of_poems(_folder):
    """Make vectors of letters on the host, which is quick enough."""
    return DataLoader(TextLibraryDataset(), batch_size=64, shuffle=True, num_workers=2)
