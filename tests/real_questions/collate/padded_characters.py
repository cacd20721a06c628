import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class Sentences(Dataset):
    """Sentences as lists of words, and each word as a list of its characters."""

    def __init__(self, sentences=500):
        draw = np.random.default_rng(0)
        self.indexed = []
        for _ in range(sentences):
            lengths = draw.integers(1, 12, draw.integers(20, 50))
            lengths[0] = 40  # an address, or a chain of dashes
            self.indexed.append([draw.integers(1, 256, length).tolist() for length in lengths])

    def __len__(self):
        return 60_000

    def __getitem__(self, index):
        return self.indexed[index % len(self.indexed)]


def pad_sequence_to_length(sequence, desired_length, default_value):
    padded = list(sequence)
    while len(padded) < desired_length:
        padded.insert(0, default_value())
    return padded


def no_character():
    return 0


def allennlp_collate(sentences):
    most_words = max(len(words) for words in sentences)
    most_characters = max(len(word) for words in sentences for word in words)
    padded = []
    for sentence in sentences:
        words = pad_sequence_to_length(sentence, most_words, list)
        padded.append(
            [pad_sequence_to_length(word, most_characters, no_character) for word in words]
        )
    return torch.tensor(padded)


@question(
    source="allennlp #3956",
    report="lists are padded value by value: 'lots of insertion and append'; at once is faster",
    step_s=0.004,
    causes=("collate", "one-transform"),
    place=r"pad_sequence_to_length|allennlp_collate|[Pp]add|[Cc]ollat",
    lever=r"at once|\bextend|multipl|vector|NumPy|np\.|\barrays?\b|torch\.(zeros|full|nn)|"
    r"one tensor|prealloc|pad_sequence\b|without .*loop|beforehand|\bonce\b|[Kk]eep|\bcache",
)
def characters_of_words(_folder):
    """Pad each word to the longest, character by character."""
    return DataLoader(
        Sentences(), batch_size=32, shuffle=True, num_workers=2, collate_fn=allennlp_collate
    )
