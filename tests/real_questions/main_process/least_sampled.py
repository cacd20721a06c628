import random

import torch
from torch.utils.data import DataLoader, Sampler

from real_questions.parts import Samples
from real_questions.question import question


class LeastSampledClassSampler(Sampler):
    """Draws of the class that was drawn least."""

    def __init__(self, labels, indices):
        self.labels, self.indices = labels, indices
        self.num_classes = labels.shape[1]
        self.class_indices = [
            torch.nonzero(labels[:, class_])[:, 0].tolist() for class_ in range(self.num_classes)
        ]
        self.counts = torch.zeros(self.num_classes, dtype=torch.long)

    def __len__(self):
        return len(self.indices)

    def sample(self):
        classes = torch.nonzero(self.counts == self.counts.min(), as_tuple=True)[0]
        chosen = random.choice(self.class_indices[random.choice(classes.tolist())])
        for class_, indicator in enumerate(self.labels[self.indices[chosen]]):
            if indicator == 1:
                self.counts[class_] += 1
        return chosen

    def __iter__(self):
        for _ in range(len(self)):
            yield self.sample()


class _Labelled(Samples):
    """Small pictures in memory, of which each belongs to several classes."""

    def __init__(self):
        self.pictures = torch.randint(0, 255, (2000, 3, 32, 32), dtype=torch.uint8)
        self.labels = (torch.rand(20_000, 80) < 0.05).long()

    def __getitem__(self, index):
        return self.pictures[index % 2000], self.labels[index]


@question(
    source="pytorch-multilabel-balanced-sampler #8, #9",
    report="the sampler's loop; over a minute to 9 s",
    step_s=0.01,
    causes=("main-process",),
    place=r"[Ss]ampler|\bsample\b",
    lever=r"vector|NumPy|tensor|\bloop|\bonce\b|beforehand|in advance",
)
def samples_of_classes(_folder):
    """Choose each sample with a loop over its labels."""
    dataset = _Labelled()
    sampler = LeastSampledClassSampler(dataset.labels, list(range(len(dataset))))
    return DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2)
