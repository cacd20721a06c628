import io
import random

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.parts import blocks
from real_questions.question import question


class _Shuffled(IterableDataset):
    """A stream of small photographs, shuffled in a buffer that is filled before the first comes."""

    def __init__(self, size=1500):
        photograph = io.BytesIO()
        Image.fromarray(blocks(96, 96, 3)).save(photograph, "JPEG")
        self.bytes, self.size = photograph.getvalue(), size

    def __iter__(self):
        worker = get_worker_info()
        buffer: list[torch.Tensor] = []
        for _ in range(4096 // (worker.num_workers if worker else 1)):
            image = Image.open(io.BytesIO(self.bytes)).convert("RGB")
            sample = torch.from_numpy(np.array(image))
            if len(buffer) < self.size:
                buffer.append(sample)
                continue
            place = random.randrange(self.size)
            buffer[place], sample = sample, buffer[place]
            yield sample
        random.shuffle(buffer)
        yield from buffer


@question(
    source="deeplake #1760",
    report="90 s before each epoch, none without the shuffle's buffer",
    step_s=0.02,
    causes=("start-up",),
    place=r"every epoch",
    lever=r"buffer",
)
def shuffle_buffer(_folder):
    """Fill a large buffer at each epoch's begin."""
    return DataLoader(_Shuffled(), batch_size=32, num_workers=2)
