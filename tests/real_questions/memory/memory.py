from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Annotations(Dataset):
    """Two million annotations as Python objects."""

    def __init__(self, count=2_000_000):
        self.rows = [(f"images/{number:08d}.jpg", number % 100) for number in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        path, label = self.rows[index]
        return len(path) + label


@question(
    source="pytorch #13246",
    report="memory grows until the process is killed",
    step_s=0.02,
    causes=("memory-growth",),
    place=r"copy what they share",
    lever=r"NumPy|array",
)
def list_of_objects(_folder):
    """Read Python objects in forked workers, which copies the pages that hold them."""
    return DataLoader(_Annotations(), batch_size=512, shuffle=True, num_workers=2)
