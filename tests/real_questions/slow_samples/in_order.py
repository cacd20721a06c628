import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, compute
from real_questions.question import question


class _FewSlow(Samples):
    """One sample in forty takes forty times as long."""

    def __getitem__(self, index):
        compute(0.2 if index % 40 == 7 else 0.002)
        return torch.zeros(100)


@question(
    source="pytorch #141833",
    report="waits for one worker, others are ready",
    step_s=0.01,
    causes=("slow-samples",),
    place=r"one in",
    lever=r"in_order=False",
)
def few_slow_samples(_folder):
    """Return batches in order, whatever one of them takes."""
    return DataLoader(_FewSlow(), batch_size=2, num_workers=2)
