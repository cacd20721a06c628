import os

from torch.utils.data import DataLoader

from real_questions.parts import PlainSamples
from real_questions.question import question


def _confine(_worker):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@question(
    source="several",
    report="workers confined to one core",
    step_s=0.012,
    causes=("few-cores",),
    place=r"confined",
    lever=r"affinity",
)
def one_core(_folder):
    """Let all workers run on one core."""
    plain = PlainSamples(0.0, 0.002)
    return DataLoader(plain, batch_size=8, num_workers=2, worker_init_fn=_confine)
