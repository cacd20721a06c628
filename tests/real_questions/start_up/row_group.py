import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from real_questions.parts import own_part
from real_questions.question import question


def write_digits(folder, files=2, rows=20_000):
    """Write images as PNG, in the one group of rows that the default size makes."""
    draw = np.random.default_rng(0)
    encoded = []
    for _ in range(100):
        content = io.BytesIO()
        Image.fromarray(draw.integers(0, 255, (28, 28), dtype=np.uint8)).save(content, "PNG")
        encoded.append(content.getvalue())
    for number in range(files):
        table = pa.table(
            {
                "image": [encoded[row % 100] for row in range(rows)],
                "digit": [row % 10 for row in range(rows)],
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=rows)
    return sorted(folder.glob("*.parquet"))


def decode_row(row):
    image = np.array(Image.open(io.BytesIO(row["image"])))
    return torch.from_numpy(image)[None] / 255, row["digit"]


class ParquetReader(IterableDataset):
    """Rows of the files, one group of rows after the other."""

    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in own_part(self.paths):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group).to_pylist()
                decoded = [decode_row(row) for row in rows]
                yield from decoded


@question(
    source="petastorm #398, datasets #6701",
    report="all 60,000 images of the only row group are decoded before the first row; smaller "
    "groups give the first samples right away",
    step_s=0.006,
    causes=("start-up", "slow-samples"),
    place=r"[Ff]irst|[Ss]tart|[Ee]poch|ParquetReader|__iter__|decode_row|row.?group",
    lever=r"row.?group|[Ss]maller|iter_batches|[Ll]az|\byield|piece|as it (is read|goes)|on demand"
    r"|[Kk]eep|\bcache",
)
def group_before_row(folder):
    """Decode a whole group of rows before its first row."""
    return DataLoader(ParquetReader(write_digits(folder)), batch_size=64, num_workers=2)
