import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Songs(Samples):
    """Excerpts of music at another rate than that of the model."""

    def __init__(self):
        import scipy.signal  # noqa: F401 - where its author imports it, workers have it already

        self.audio = np.random.default_rng(0).normal(size=(4, 2, 149_993)).astype(np.float32)

    def __getitem__(self, index):
        return torch.from_numpy(self.resampled(self.audio[index % 4]))

    @staticmethod
    def resampled(audio):
        from scipy import signal

        return signal.resample(audio, 27_893, axis=1).astype(np.float32)


@question(
    source="Wave-U-Net #25, TTS #405",
    report="almost all of the time; resample before training",
    step_s=0.005,
    causes=("one-transform",),
    place=r"resampled",
    lever=r"once|beforehand",
)
def resampled_songs(_folder):
    """Resample each excerpt while loading."""
    return DataLoader(_Songs(), batch_size=4, shuffle=True, num_workers=2)
