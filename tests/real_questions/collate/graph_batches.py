import random

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class Data:
    """A graph: what is known of its nodes and of its edges."""

    def __init__(self, **mapping):
        self.mapping = mapping
        self.num_nodes = len(mapping["x"])

    @property
    def keys(self):
        return sorted(key for key, value in self.mapping.items() if value is not None)

    def __getitem__(self, key):
        return self.mapping[key]

    def __cat_dim__(self, key):
        return -1 if "index" in key else 0

    def __inc__(self, key):
        return self.num_nodes if "index" in key else 0


class Batch:
    """Graphs that are made one large graph."""

    @staticmethod
    def from_data_list(data_list):
        keys = data_list[0].keys
        batch = {key: [] for key in keys}
        cumsum = dict.fromkeys(keys, 0)
        slices = {key: [0] for key in keys}
        numbers = []
        for i, data in enumerate(data_list):
            for key in data.keys:
                item = data[key]
                if torch.is_tensor(item) and item.dtype != torch.bool:
                    item = item + cumsum[key]
                size = item.size(data.__cat_dim__(key)) if torch.is_tensor(item) else 1
                slices[key].append(size + slices[key][-1])
                cumsum[key] = cumsum[key] + data.__inc__(key)
                batch[key].append(item)
            numbers.append(torch.full((data.num_nodes,), i, dtype=torch.long))
        whole = {key: torch.cat(batch[key], data_list[0].__cat_dim__(key)) for key in keys}
        return {**whole, "batch": torch.cat(numbers)}


class MoleculeDataset(Dataset):
    """Small molecules, in memory."""

    def __init__(self, count=4000):
        self.data_list = []
        for _ in range(count):
            nodes = random.randint(8, 20)
            self.data_list.append(
                Data(
                    x=torch.rand(nodes, 9),
                    pos=torch.rand(nodes, 3),
                    edge_index=torch.randint(0, nodes, (2, 3 * nodes)),
                    edge_attr=torch.rand(3 * nodes, 4),
                    y=torch.rand(1),
                )
            )

    def __len__(self):
        return 2_000_000

    def __getitem__(self, index):
        return self.data_list[index % len(self.data_list)]


@question(
    source="pytorch_geometric #572",
    report="a loop over all of each graph makes large batches slow; rewritten",
    step_s=0.004,
    causes=("collate",),
    place=r"from_data_list|[Cc]ollat",
    lever=r"vector|NumPy|at once|whole|\bonce\b|concat|torch\.cat|beforehand|in advance",
)
def molecules_of_batch(_folder):
    """Make large batches of small graphs, going through all they are made of."""
    return DataLoader(
        MoleculeDataset(), batch_size=512, num_workers=2, collate_fn=Batch.from_data_list
    )
