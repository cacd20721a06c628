from torch.utils.data import DataLoader

from real_questions.parts import PlainSamples
from real_questions.question import question


@question(
    source="DALI #892",
    report="loading is 10 times as fast, training is not",
    step_s=0.05,
    causes=("healthy",),
    place=r"hardly",
    lever=r"model",
)
def bound_by_the_model(_folder):
    """Load faster than the model can use it."""
    return DataLoader(PlainSamples(0.0005, 0.0005), batch_size=8, num_workers=2)
