import gc
import random

import torch
from torch.utils.data import DataLoader, IterableDataset

from real_questions.parts import own_part
from real_questions.question import question


class Caption:
    """A text that belongs to an image, with where it is from."""

    def __init__(self, key):
        self.key, self.parts, self.tokens = key, [key], [key % 97, key % 89, key % 83]


class CaptionBatches(IterableDataset):
    """Batches of images with their captions, of all of which something is kept."""

    def __init__(self, count=40_000):
        self.captions = [Caption(key) for key in range(count)]
        self.images = torch.randint(0, 255, (64, 3, 64, 64), dtype=torch.uint8)

    def __iter__(self):
        own_captions = own_part(self.captions)
        for _ in range(10_000):
            captions = random.sample(own_captions, 16)
            images = self.images[[caption.key % 64 for caption in captions]]
            yield images, torch.tensor([caption.tokens for caption in captions])


class GcDataset(IterableDataset):
    """Lets no garbage pile up in a worker."""

    def __init__(self, dataset, every_n_iter=1):
        self.dataset, self.every_n_iter = dataset, every_n_iter

    def __iter__(self):
        for number, sample in enumerate(self.dataset):
            if number % self.every_n_iter == 0:
                gc.collect()
            yield sample


@question(
    source="Megatron-Energon #66, #40",
    report="'GC collect is slowing down the iteration'; every 10, frozen",
    step_s=0.01,
    causes=("one-transform",),
    place=r"GcDataset|gc\.collect|[Gg]arbage",
    lever=r"less often|seldom|rarely|freeze|disable|garbage|gc\.|every (n|few|so|ten|\d+)|out of",
)
def batches_with_garbage(_folder):
    """Go through all objects there are, for each batch."""
    return DataLoader(GcDataset(CaptionBatches()), batch_size=None, num_workers=2)
