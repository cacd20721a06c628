import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Prepared(Dataset):
    """Annotations that each worker reads at its first sample, and keeps."""

    def __init__(self, folder):
        self.path, self.boxes = folder / "boxes.txt", None
        self.path.write_text("".join(f"{n} {n % 7} {n % 5}\n" for n in range(150_000)))

    def __len__(self):
        return 240

    def __getitem__(self, index):
        if self.boxes is None:
            self.boxes = self.read_annotations()
        return torch.zeros(3, 64, 64), torch.tensor(self.boxes[index])

    def read_annotations(self):
        lines = self.path.read_text().splitlines()
        return [[float(number) for number in line.split()] for line in lines]


@question(
    source="pytorch forum 177390",
    report="annotations are loaded again at each epoch's begin",
    step_s=0.01,
    causes=("start-up",),
    place=r"every epoch",
    lever=r"persistent_workers",
)
def annotations_of_workers(folder):
    """Read a large table in each worker, again at each epoch."""
    return DataLoader(_Prepared(folder), batch_size=8, shuffle=True, num_workers=2)
