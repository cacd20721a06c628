import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.question import question


class NodeCollator:
    """Makes a batch of nodes and their neighbours."""

    def __init__(self, nodes):
        draw = np.random.default_rng(0)
        self.neighbours = torch.from_numpy(draw.integers(0, nodes, (nodes, 10)))

    def __call__(self, items):
        seeds = torch.tensor(items)
        around = self.neighbours[seeds]
        return seeds, around, torch.unique(around)


@question(
    source="dgl #2716",
    report="a list of 1024 tensors for the collator; three times as fast with one",
    step_s=0.004,
    causes=("collate", "one-transform"),
    place=r"NodeCollator|__call__|collat|TensorDataset|__getitem__|[Tt]ensor",
    lever=r"stack|one tensor|whole batch|__getitems__|batch_size=None",
)
def scalars_of_nodes(_folder):
    """Collate a thousand tensors of one number."""
    nodes = torch.arange(200_000)
    collator = NodeCollator(len(nodes))
    return DataLoader(nodes, batch_size=1024, shuffle=True, num_workers=2, collate_fn=collator)
