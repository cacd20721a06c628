import random

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.question import question


class DataList(IterableDataset):
    """The utterances that a worker reads, one after the other."""

    def __init__(self, count=200_000):
        draw = np.random.default_rng(0)
        lengths = draw.integers(120_000, 200_000, count)
        self.lists = lengths.tolist()
        self.wave = torch.from_numpy(draw.normal(0, 0.1, 200_000).astype(np.float32))

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, len(self.lists), info.num_workers):
            yield {"key": number, "wav": self.wave[: self.lists[number]]}


class Processor(IterableDataset):
    """A stage of a pipeline: what a function makes of what comes before."""

    def __init__(self, source, f, *args):
        self.source, self.f, self.args = source, f, args

    def __iter__(self):
        return self.f(iter(self.source), *self.args)


def compute_fbank(data, num_mel_bins=80):
    window = torch.hann_window(400)
    banks = torch.rand(257, num_mel_bins)
    for sample in data:
        frames = sample["wav"].unfold(0, 400, 160) * window
        power = torch.fft.rfft(frames, 512).abs().square()
        yield {"key": sample["key"], "feat": (power @ banks).clamp(min=1e-6).log()}


def shuffle(data, shuffle_size):
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= shuffle_size:
            random.shuffle(buf)
            yield from buf
            buf = []
    random.shuffle(buf)
    yield from buf


def sort(data, sort_size):
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= sort_size:
            buf.sort(key=lambda sample: sample["feat"].size(0))
            yield from buf
            buf = []
    buf.sort(key=lambda sample: sample["feat"].size(0))
    yield from buf


def static_batch(data, batch_size):
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= batch_size:
            yield buf
            buf = []


def padding(data):
    for batch in data:
        feats = [sample["feat"] for sample in batch]
        lengths = torch.tensor([feat.size(0) for feat in feats])
        padded = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True)
        yield [sample["key"] for sample in batch], padded, lengths


@question(
    source="wenet #656, #2095",
    report="after a shuffle's size one waits long for the next; prefetching helps",
    step_s=0.035,
    causes=("too-little-prefetch", "slow-samples"),
    place=r"[Pp]refetch|ahead|[Bb]urst|uneven|buffer|shuffle|\bsort\b|one in|now and then|at times",
    lever=r"[Pp]refetch|shuffle_size|sort_size|buffer",
)
def utterances_shuffled(_folder):
    """Fill a buffer with utterances before the first of them is handed on."""
    dataset = Processor(DataList(), compute_fbank)
    dataset = Processor(dataset, shuffle, 192)
    dataset = Processor(dataset, sort, 96)
    dataset = Processor(dataset, static_batch, 16)
    return DataLoader(Processor(dataset, padding), batch_size=None, num_workers=2)
