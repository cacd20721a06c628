import json
import random
import re

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from real_questions.question import question


class Tokenizer:
    """Makes numbers of the pieces of a text."""

    def __init__(self):
        self.pattern = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\w+| ?[^\s\w]+|\s+")
        self.merges: dict[str, int] = {}

    def encode(self, text):
        ids = []
        for piece in self.pattern.findall(text):
            for start in range(0, len(piece), 3):
                part = piece[start : start + 3]
                ids.append(self.merges.setdefault(part, len(self.merges)))
        return ids


class JsonlDataset(Dataset):
    """Documents, a line each."""

    def __init__(self, path, tokenizer):
        self.path, self.tokenizer = path, tokenizer
        self.offsets = [0]
        with path.open("rb") as lines:
            for line in lines:
                self.offsets.append(self.offsets[-1] + len(line))

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        with self.path.open("rb") as lines:
            lines.seek(self.offsets[index])
            text = json.loads(lines.readline())["text"]
        return torch.tensor(self.tokenizer.encode(text))


class StreamingTokenBlockDataset(IterableDataset):
    """Blocks of tokens out of documents, one after the other."""

    def __init__(self, dataset, block_size):
        self.dataset, self.block_size = dataset, block_size

    def __iter__(self):
        tokens = torch.empty(0, dtype=torch.int64)
        order = random.Random(1)
        for _ in range(20_000):
            tokens = torch.cat([tokens, self.dataset[order.randrange(len(self.dataset))]])
            while len(tokens) >= self.block_size:
                yield tokens[: self.block_size]
                tokens = tokens[self.block_size :]


class PartitionedStreamingDataset(IterableDataset):
    """What one of several readers of a stream keeps of it."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        info = get_worker_info()
        for number, block in enumerate(self.dataset):
            if number % info.num_workers == info.id:
                yield block


@question(
    source="metaseq #746",
    report="each tokenizes every sample, and keeps its part; partitioned before",
    step_s=0.006,
    causes=("repeated-work",),
    place=r"worker|PartitionedStreamingDataset",
    lever=r"shard|split|divid|partition|get_worker_info|own part|before",
)
def blocks_of_documents(folder):
    """Tokenize all documents in each worker, and divide the blocks then."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(3000)]
    path = folder / "shard.jsonl"
    with path.open("w") as lines:
        for _ in range(1000):
            lines.write(json.dumps({"text": " ".join(draw.choices(words, k=600))}) + "\n")
    blocks = StreamingTokenBlockDataset(JsonlDataset(path, Tokenizer()), 512)
    return DataLoader(PartitionedStreamingDataset(blocks), batch_size=32, num_workers=2)
