import numpy as np
import pyarrow as pa
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class Column:
    """Column of a table, whose elements are formatted one by one as they are asked for."""

    def __init__(self, table, name):
        self.table, self.name = table, name

    def __len__(self):
        return self.table.num_rows

    def __getitem__(self, index):
        return self.table.slice(index, 1).to_pydict()[self.name][0]


class Documents(Dataset):
    """Token numbers of documents, and a table with their lengths."""

    def __init__(self, documents=100_000):
        draw = np.random.default_rng(0)
        lengths = draw.integers(16, 500, documents)
        self.table = pa.table({"document": np.arange(documents), "length": lengths})
        self.tokens = torch.from_numpy(draw.integers(0, 50_000, 1_000_000))

    def __getitem__(self, name_or_index):
        if isinstance(name_or_index, str):
            return Column(self.table, name_or_index)
        length = int(self.table["length"][name_or_index].as_py())
        start = name_or_index * 7
        return self.tokens[start : start + length]

    def __len__(self):
        return self.table.num_rows


def allocate_batches(lengths, most_tokens):
    """Put documents of similar length together, as many as fit into a batch when padded."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True)
    batches, batch, longest = [], [], 0
    for index in order:
        longest = max(longest, lengths[index])
        if batch and (len(batch) + 1) * longest > most_tokens:
            batches.append(batch)
            batch, longest = [], lengths[index]
        batch.append(index)
    return [*batches, batch]


class TokenBatchSampler:
    """Batches of about the same number of tokens, in a new order each epoch."""

    def __init__(self, lengths, most_tokens=32_768):
        self.lengths, self.most_tokens = lengths, most_tokens

    def __iter__(self):
        batches = allocate_batches(self.lengths, self.most_tokens)
        for number in torch.randperm(len(batches)).tolist():
            yield batches[number]


@question(
    source="bergson #167",
    report="an element of an Arrow column is 1000 times as slow as one of a list; the lengths are "
    "made a list before batches are allocated",
    step_s=0.005,
    causes=("start-up", "main-process"),
    place=r"[Ss]ampler|allocate_batches|Column|lengths",
    lever=r"\blist\b|tolist|to_pylist|to_numpy|NumPy|numpy|\barray|\bonce\b|beforehand|[Kk]eep"
    r"|[Pp]re-?comput|\bcache|[Vv]ectori[sz]|ahead of",
)
def lengths_of_a_column(_folder):
    """Sort by lengths that are read one by one."""
    documents = Documents()
    return DataLoader(
        documents,
        batch_sampler=TokenBatchSampler(documents["length"]),
        num_workers=2,
        collate_fn=lambda batch: pad_sequence(batch, batch_first=True),
    )
