import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class PreTrainedTokenizer:
    """A tokenizer in Python, whose special tokens are attributes."""

    SPECIAL_TOKENS_ATTRIBUTES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

    def __init__(self):
        self.vocab = {
            f"[{name.upper()}]": n for n, name in enumerate(self.SPECIAL_TOKENS_ATTRIBUTES)
        }
        self.vocab |= {f"piece{number}": number for number in range(7, 30_000)}
        self.pieces = {number: piece for piece, number in self.vocab.items()}
        for name in self.SPECIAL_TOKENS_ATTRIBUTES:
            setattr(self, f"_{name}_token", f"[{name.upper()}]")

    @property
    def all_special_tokens(self):
        tokens = [getattr(self, f"_{name}_token") for name in self.SPECIAL_TOKENS_ATTRIBUTES]
        return list(dict.fromkeys(str(token) for token in tokens))

    @property
    def all_special_ids(self):
        return [self.vocab[token] for token in self.all_special_tokens]

    def convert_ids_to_tokens(self, ids, *, skip_special_tokens=False):
        tokens = []
        for index in ids:
            if skip_special_tokens and index in self.all_special_ids:
                continue
            tokens.append(self.pieces[index])
        return tokens


class DataCollatorForWholeWordMask:
    """Masks whole words of a batch."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, examples):
        longest = max(map(len, examples))
        batch = torch.full((len(examples), longest), 4)
        masked = torch.zeros(len(examples), longest, dtype=torch.bool)
        for row, ids in enumerate(examples):
            tokens = self.tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True)
            chosen = [place for place in range(len(tokens)) if random.random() < 0.15]
            batch[row, : len(ids)] = torch.tensor(ids)
            masked[row, chosen] = True
        labels = batch.masked_fill(~masked, -100)
        return {"input_ids": batch.masked_fill(masked, 6), "labels": labels}


class _Sequences(Samples):
    def __init__(self):
        draw = np.random.default_rng(0)
        self.ids = [draw.integers(7, 30_000, 256).tolist() for _ in range(500)]

    def __getitem__(self, index):
        return self.ids[index % 500]


@question(
    source="transformers #19018, #32184",
    report="special tokens are listed anew for each token; kept",
    step_s=0.01,
    causes=("collate",),
    place=r"special|convert_ids_to_tokens",
    lever=r"[Kk]eep|cache|in __init__",
)
def special_tokens(_folder):
    """Make the list of special tokens anew for each token."""
    collator = DataCollatorForWholeWordMask(PreTrainedTokenizer())
    return DataLoader(_Sequences(), batch_size=32, shuffle=True, num_workers=2, collate_fn=collator)
