import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from real_questions.question import question


class _Mnist(Dataset):
    """Digits in memory."""

    def __init__(self):
        self.data = torch.randint(0, 255, (60_000, 28, 28), dtype=torch.uint8)
        self.transform = transforms.Compose(
            [transforms.ToPILImage(), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]
        )

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), index % 10


class TrainingBatches:
    """The batches of a loop that asks the loader for `next(iter(loader))` in each of its steps."""

    def __init__(self, loader, steps):
        self.loader, self.steps = loader, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            yield next(iter(self.loader))


@question(
    source="continuous-thought-machines #19",
    report="a new iterator for each step; one: 2 to 3 times",
    step_s=0.01,
    causes=("start-up", "main-process"),
    place=r"every|each|iter",
    lever=r"iter\(|iterator",
)
def new_iterator(_folder):
    """Start the loader anew for each batch."""
    loader = DataLoader(_Mnist(), batch_size=64, shuffle=True, num_workers=1)
    return TrainingBatches(loader, 10_000)
