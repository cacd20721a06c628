import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from real_questions.question import question


class RareEvents(Dataset):
    """Very many events, of which few are of interest."""

    def __init__(self, count=6_000_000):
        self.count = count
        self.signal = torch.randn(10_000, 32)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.signal[index % len(self.signal)], index % 2


@question(
    source="pytorch #32221",
    report="WeightedRandomSampler without replacement takes very long; with it not",
    step_s=0.01,
    causes=("start-up", "main-process"),
    place=r"[Ss]ampler|multinomial|epoch",
    lever=r"replacement|[Ss]ampler|num_samples|longer epoch|fewer epoch|draw|beforehand|in advance",
)
def events_without_replacement(_folder):
    """Draw a few hundred of millions for each epoch, none of them twice."""
    dataset = RareEvents()
    weights = torch.tensor([0.1, 0.9, 0.4, 0.7, 3.0, 0.6]).repeat(len(dataset) // 6)
    sampler = WeightedRandomSampler(weights, 512, replacement=False)
    return DataLoader(
        dataset, batch_size=32, sampler=sampler, num_workers=2, persistent_workers=True
    )
