import gc
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from real_questions.question import question


class MetaMathDataset(Dataset):
    """Questions and answers as tokens, in lists, as a tokenizer returns them."""

    def __init__(self, texts=10_000, length=128):
        draw = np.random.default_rng(0)
        self.examples = []
        for _ in range(texts):
            ids = draw.integers(0, 32_000, draw.integers(length // 2, length)).tolist()
            example = {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [*ids[1:], 2]}
            self.examples.append(example)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


def pad_batch(examples):
    longest = max(len(example["input_ids"]) for example in examples)
    batch = {}
    for name in ("input_ids", "attention_mask", "labels"):
        values = [example[name] for example in examples]
        batch[name] = torch.tensor([value + [0] * (longest - len(value)) for value in values])
    return batch


def free_memory():
    gc.collect()


class Trainer:
    """Trains on a batch, and makes room for the next."""

    def __call__(self, batch):
        time.sleep(0.06)  # the model, on a device
        free_memory()


@question(
    source="peft #2894",
    report="gc.collect() after each step; without it 250 steps take 65 s, not 108",
    step_s=0.06,
    causes=("garbage", "main-process"),
    place=r"gc\b|[Gg]arbage|free_memory|[Cc]ollect(ion|s|ed|ing|or)|Trainer",
    lever=r"[Rr]emove|[Ll]eave .*out|less often|every|[Dd]rop|freeze|disable|without|fewer|rarely",
    step=Trainer,
)
def questions_of_mathematics(_folder):
    """Pad short texts, which takes next to no time."""
    dataset = MetaMathDataset()
    some = RandomSampler(dataset, num_samples=600)
    return DataLoader(dataset, batch_size=4, sampler=some, num_workers=2, collate_fn=pad_batch)
