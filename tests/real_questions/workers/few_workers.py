from torch.utils.data import DataLoader

from real_questions.parts import PlainSamples
from real_questions.question import question


@question(
    source="geti #5958",
    report="the GPU is idle 70 to 92% of the time",
    step_s=0.012,
    causes=("too-few-workers",),
    place=r"worker",
    lever=r"num_workers",
)
def one_worker(_folder):
    """Let one worker do what several could."""
    return DataLoader(PlainSamples(0.001, 0.0015), batch_size=8, num_workers=1)
