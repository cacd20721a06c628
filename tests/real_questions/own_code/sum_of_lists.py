import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class Gpt2Tokenizer:
    """Joins the pieces of words into one list."""

    def __init__(self):
        self.cache: dict[str, list[int]] = {}

    def _tokenize(self, word):
        if word not in self.cache:
            self.cache[word] = [hash(word[n : n + 3]) % 50_000 for n in range(0, len(word), 3)]
        return self.cache[word]

    def tokenize(self, text):
        return sum((self._tokenize(word) for word in text.split()), [])  # noqa: RUF017 - as asked


class _TextDataset(Samples):
    """Long documents, tokenised when they are asked for."""

    def __init__(self):
        draw = np.random.default_rng(0)
        words = ["".join(draw.choice(list("abcdefghij"), 6)) for _ in range(2000)]
        self.documents = [" ".join(draw.choice(words, 4000)) for _ in range(100)]
        self.tokenizer = Gpt2Tokenizer()

    def __getitem__(self, index):
        return torch.tensor(self.tokenizer.tokenize(self.documents[index % 100])[:1024])


@question(
    source="transformers #1830",
    report="slow because of sum() over lists of tokens",
    step_s=0.01,
    causes=("one-transform",),
    place=r"tokenize",
    lever=r"once|beforehand|extend|chain",
)
def sum_of_lists(_folder):
    """Copy the list anew for each word."""
    return DataLoader(_TextDataset(), batch_size=4, shuffle=True, num_workers=2)
