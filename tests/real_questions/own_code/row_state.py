import copy
import random
from itertools import cycle, islice

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from real_questions.parts import own_part
from real_questions.question import question


class ArrowExamples:
    """The rows of one file, with how far one is in it."""

    def __init__(self, shard):
        self.table = np.random.default_rng(shard).normal(size=(200, 64)).astype(np.float32)
        self.state = {"shard_idx": shard, "shard_example_idx": 0, "type": "ArrowExamples"}

    def state_dict(self):
        return copy.deepcopy(self.state)

    def __iter__(self):
        for row in cycle(self.table):
            self.state["shard_example_idx"] += 1
            yield row


class CyclingExamples:
    """A row of each file in turn."""

    def __init__(self, sources):
        self.sources = sources
        self.state = {
            "ex_iterable_idx": 0,
            "ex_iterables": [source.state for source in sources],
            "type": "CyclingExamples",
        }

    def state_dict(self):
        return copy.deepcopy(self.state)

    def __iter__(self):
        for number, iterator in cycle(enumerate([iter(source) for source in self.sources])):
            self.state["ex_iterable_idx"] = number
            yield next(iterator)


class BufferShuffledExamples(IterableDataset):
    """Rows in some other order, which can go on from where they were broken off."""

    def __init__(self, shards=128, buffer_size=100):
        self.sources = [ArrowExamples(shard) for shard in range(shards)]
        self.buffer_size = buffer_size
        self.state = {"ex_iterable": None, "num_examples_since_previous_state": 0}

    def __iter__(self):
        buffer = []
        ex_iterable = CyclingExamples(own_part(self.sources))
        for row in islice(ex_iterable, 1_000_000):
            self.state["ex_iterable"] = ex_iterable.state_dict()
            if len(buffer) < self.buffer_size:
                buffer.append(row)
                continue
            number = random.randrange(self.buffer_size)
            yield buffer[number]
            buffer[number] = row


@question(
    source="datasets #8387",
    report="the state is deep-copied on every row and 'blocks the CPU'; a fast copy",
    step_s=0.003,
    causes=("one-transform",),
    place=r"state_dict|deepcopy|CyclingExamples|BufferShuffledExamples",
    lever=r"shallow|deep|less often|seldom|\bcop(y|ies|ied|ying)\b|\bonce\b|out of",
)
def rows_with_state(_folder):
    """Copy for each row how far one is in all files."""
    return DataLoader(BufferShuffledExamples(), batch_size=32, num_workers=2)
