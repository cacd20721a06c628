import sqlite3
from uuid import uuid4

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class SQLiteDatabase:
    """Graphs in a file of SQLite."""

    def __init__(self, path, name):
        self.path, self.name = path, name
        self._connection: sqlite3.Connection | None = None

    @property
    def connection(self):
        if self._connection is None:
            self._connection = sqlite3.connect(self.path, timeout=300)
            self._connection.execute("PRAGMA synchronous = OFF")
        return self._connection

    def close(self):
        self.connection.close()
        self._connection = None

    def multi_insert(self, rows):
        with self.connection as connection:
            connection.execute(f"CREATE TABLE {self.name} (id INTEGER PRIMARY KEY, data BLOB)")
            query = f"INSERT INTO {self.name} (id, data) VALUES (?, ?)"  # noqa: S608
            connection.executemany(query, enumerate(rows))

    def multi_get(self, indices):
        join = f"{self.name}__join__{uuid4().hex}"
        with self.connection as connection:
            connection.execute(f"CREATE TABLE {join} (id INTEGER, row_id INTEGER)")
            rows = zip(indices, range(len(indices)), strict=True)
            query = f"INSERT INTO {join} (id, row_id) VALUES (?, ?)"  # noqa: S608
            connection.executemany(query, rows)
            data_list = connection.execute(
                f"SELECT {self.name}.data FROM {self.name} INNER JOIN {join} "  # noqa: S608
                f"ON {self.name}.id = {join}.id ORDER BY {join}.row_id"
            ).fetchall()
            connection.execute(f"DROP TABLE {join}")
        return [data for (data,) in data_list]


class OnDiskDataset(Dataset):
    """Graphs that do not fit into memory."""

    def __init__(self, folder, count=2000):
        self.count = count
        self.db = SQLiteDatabase(folder / "sqlite.db", "dataset")
        draw = np.random.default_rng(0)
        rows = [draw.normal(size=(64, 128)).astype(np.float32).tobytes() for _ in range(count)]
        self.db.multi_insert(rows)
        self.db.close()

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        data_list = self.db.multi_get([index % self.count for index in indices])
        return [np.frombuffer(data, np.float32).reshape(64, 128) for data in data_list]


def stack_graphs(graphs):
    return torch.from_numpy(np.stack(graphs))


@question(
    source="pytorch_geometric #8661, #9140",
    report="workers lock the database; a temporary table does not",
    step_s=0.003,
    causes=("lock",),
    place=r"multi_get|[Ll]ock|SQLite|sqlite|execute",
    lever=r"\block|[Tt]emp|of its own|\bown\b|read-only|without writing|cop(y|ies)",
)
def graphs_on_disk(folder):
    """Write a table for each batch, which but one worker can do at a time."""
    return DataLoader(
        OnDiskDataset(folder),
        batch_size=128,
        shuffle=True,
        num_workers=4,
        collate_fn=stack_graphs,
    )
