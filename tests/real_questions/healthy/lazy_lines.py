import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class LazyTextDataset(Dataset):
    """Lines of a file, each of which is read and split when it is asked for."""

    def __init__(self, path, vocabulary, block_size=128):
        self.path, self.file = path, None
        self.vocabulary, self.block_size = vocabulary, block_size
        self.offsets = [0]
        with path.open("rb") as lines:
            self.offsets.extend(self.offsets[-1] + len(line) for line in lines)
        self.offsets.pop()

    def __len__(self):
        return len(self.offsets)

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(self.offsets[index])
        words = self.file.readline().decode().lower().split()
        ids = [self.vocabulary.get(word, 1) for word in words[: self.block_size]]
        return torch.tensor(ids)


def pad_lines(lines):
    return torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)


@question(
    source="transformers #3083",
    report="seeks each line in the file instead of memory: 'the same iters/second'",
    step_s=0.06,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def lines_of_file(folder):
    """Read lines one by one, for a model that takes far longer."""
    draw = np.random.default_rng(0)
    words = [f"Word{number}" for number in range(20_000)]
    path = folder / "corpus.txt"
    with path.open("w") as file:
        for _ in range(5000):
            chosen = draw.integers(0, len(words), draw.integers(20, 120))
            file.write(" ".join(words[number] for number in chosen) + "\n")
    vocabulary = {word.lower(): number + 2 for number, word in enumerate(words)}
    dataset = LazyTextDataset(path, vocabulary)
    return DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, collate_fn=pad_lines)
