import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _Dialogues(Dataset):
    """Half a million dialogues as Python objects."""

    def __init__(self, count=500_000):
        self.rows = [{"speaker": n % 7, "text": f"utterance {n}"} for n in range(count)]
        self.features = torch.zeros(64, 3, 32, 32)

    def __len__(self):
        return 640

    def __getitem__(self, index):
        return self.features[index % 64], self.rows[index]["speaker"]


@question(
    source="pytorch forum 104098",
    report="the dataset is pickled for new workers at each iterator",
    step_s=0.005,
    causes=("start-up",),
    place=r"every epoch",
    lever=r"persistent_workers|fewer workers",
)
def pickled_to_workers(_folder):
    """Send the dataset to new workers at each epoch."""
    return DataLoader(
        _Dialogues(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="spawn"
    )
