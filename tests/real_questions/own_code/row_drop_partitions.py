import random

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from real_questions.parts import own_part
from real_questions.question import question


class ParquetReader(IterableDataset):
    """Batches of a table, shuffled by pieces of its row groups."""

    def __init__(self, path, row_groups, shuffle_row_drop_partitions=10, num_epochs=12):
        self.path, self.row_groups = path, row_groups
        self.partitions, self.num_epochs = shuffle_row_drop_partitions, num_epochs

    def load_piece(self, row_group, partition):
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            table = file.read_row_group(row_group, use_threads=False)
        rows = table.num_rows // self.partitions
        piece = table.slice(partition * rows, rows)
        return np.stack([column.to_numpy() for column in piece.columns], axis=1)

    def __iter__(self):
        pieces = [(g, p) for g in range(self.row_groups) for p in range(self.partitions)]
        for _ in range(self.num_epochs):
            mine = own_part(pieces)
            random.shuffle(mine)
            for row_group, partition in mine:
                rows = torch.from_numpy(self.load_piece(row_group, partition)).float()
                yield from rows[torch.randperm(len(rows))].split(1000)


@question(
    source="petastorm #329, #36",
    report="shuffle_row_drop_partitions of 10 takes 361 s, 5 take 202 s: 'don't set' it, a row "
    "group is read again for each",
    step_s=0.004,
    causes=("one-transform", "decode", "storage-bandwidth"),
    place=r"row_group|load_piece|[Pp]artition|[Pp]arquet|__iter__",
    lever=r"[Pp]artition|row.groups?\b|\bonce\b|[Kk]eep|\bcach|buffer|again|whole",
)
def pieces_of_row_groups(folder):
    """Read a row group for a tenth of its rows, and drop the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row_groups, rows, columns = 8, 20_000, 60
    draw = np.random.default_rng(0)
    values = {f"x{n}": draw.integers(0, 1000, row_groups * rows) / 10 for n in range(columns)}
    path = folder / "table.parquet"
    pq.write_table(pa.table(values), path, row_group_size=rows, use_dictionary=False)
    return DataLoader(ParquetReader(str(path), row_groups), batch_size=None, num_workers=2)
