import math
import random

import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import ONCE, question


def sinc_resample_kernel(old, new, width=6):
    base = min(old, new) * 0.99
    wide = math.ceil(width * old / base)
    places = torch.arange(-wide, wide + old, dtype=torch.float64)[None] / old
    times = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + places) * base
    times = times.clamp(-width, width)
    window = torch.cos(times * math.pi / width / 2) ** 2
    return (torch.sinc(times) * window * base / old).float()[:, None], wide


def resample(wave, old, new):
    common = math.gcd(old, new)
    old, new = old // common, new // common
    kernel, wide = sinc_resample_kernel(old, new)
    padded = torch.nn.functional.pad(wave[None, None], (wide, wide + old))
    return torch.nn.functional.conv1d(padded, kernel, stride=old)[0].T.reshape(-1)


class SpeedPerturb:
    """Plays a recording faster or slower."""

    def __call__(self, wave):
        return resample(wave, 16_000, 20 * random.randint(725, 875))


class ChunkSwap:
    """Swaps two chunks of a recording."""

    def __call__(self, wave):
        first, second = random.sample(range(8), 2)
        chunks = list(wave.chunk(9))
        chunks[first], chunks[second] = chunks[second], chunks[first]
        return torch.cat(chunks)


class _Speech(Samples):
    """Three seconds of speech each."""

    def __init__(self):
        self.waves = torch.randn(40, 48_000)
        self.augment = transforms.Compose([SpeedPerturb(), ChunkSwap()])

    def __getitem__(self, index):
        return self.augment(self.waves[index % 40])[:40_000]


@question(
    source="wav2aug #5",
    report="a resampler's filters are made for each recording; kept",
    step_s=0.02,
    causes=("one-transform", "transforms"),
    place=r"kernel|SpeedPerturb|resample",
    lever=ONCE,
)
def perturbed_speech(_folder):
    """Make the filters of a resampler for each recording."""
    return DataLoader(_Speech(), batch_size=8, shuffle=True, num_workers=2)
