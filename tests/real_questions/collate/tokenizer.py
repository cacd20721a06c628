import re

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Texts(Samples):
    """Documents of some hundred words."""

    def __init__(self):
        draw = np.random.default_rng(0)
        words = ["".join(draw.choice(list("abcdefghij"), 6)) for _ in range(2000)]
        self.documents = [" ".join(draw.choice(words, 400)) for _ in range(500)]

    def __getitem__(self, index):
        return self.documents[index % len(self.documents)]


class Tokenizer:
    """Split words into pieces by the longest match, in plain Python."""

    def __init__(self):
        self.pieces = {
            piece: number
            for number, piece in enumerate(
                map("".join, zip("abcdefghij", "jihgfedcba", strict=True))
            )
        }

    def encode(self, text):
        numbers = []
        for word in re.findall(r"\w+|[^\w\s]", text.lower()):
            place = 0
            while place < len(word):
                for length in (4, 3, 2, 1):
                    piece = word[place : place + length]
                    if piece in self.pieces or length == 1:
                        numbers.append(self.pieces.get(piece, 0))
                        break
                place += length
        return numbers


class Collator:
    """Tokenise and pad a batch."""

    def __init__(self):
        self.tokenizer = Tokenizer()

    def __call__(self, texts):
        encoded = [self.tokenizer.encode(text)[:512] for text in texts]
        longest = max(map(len, encoded))
        return torch.tensor([numbers + [0] * (longest - len(numbers)) for numbers in encoded])


@question(
    source="ModernBERT #236",
    report="a third of the reported speed",
    step_s=0.01,
    causes=("collate",),
    place=r"encode|Collator|__call__",
    lever=r"beforehand|once",
)
def tokenised_while_loading(_folder):
    """Tokenise in the collator, each epoch anew."""
    return DataLoader(_Texts(), batch_size=16, num_workers=2, collate_fn=Collator())
