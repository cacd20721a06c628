import random
from collections import deque
from itertools import cycle, islice

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from real_questions.question import question


class SimpleReplayBuffer:
    """The last million transitions of an agent."""

    def __init__(self, capacity=1_000_000):
        draw = np.random.default_rng(0)
        some = [
            (draw.normal(size=24).astype(np.float32), draw.normal(size=6).astype(np.float32), 1.0)
            for _ in range(1000)
        ]
        self._storage = deque(islice(cycle(some), capacity), maxlen=capacity)

    def sample(self, batch_size):
        transitions = random.sample(self._storage, batch_size)
        states, actions, rewards = zip(*transitions, strict=True)
        return np.stack(states), np.stack(actions), np.array(rewards, np.float32)


class _Transitions(IterableDataset):
    def __init__(self):
        self.buffer = SimpleReplayBuffer()

    def __iter__(self):
        for _ in range(20_000):
            yield self.buffer.sample(256)


@question(
    source="coax #25, SocialRobot #5, handson-ml #204",
    report="a deque is slow in its middle; a list",
    step_s=0.002,
    causes=("one-transform",),
    place=r"\bsample\b",
    lever=r"\ba list\b|NumPy|an array",
)
def replay_of_deque(_folder):
    """Reach into the middle of a linked list."""
    return DataLoader(_Transitions(), batch_size=None, num_workers=2)
