import copy
import time
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


@dataclass
class DGBatch:
    """Edges of a graph that changes, with what a model needs to know of them."""

    src: torch.Tensor
    dst: torch.Tensor
    time: torch.Tensor
    edge_feats: torch.Tensor
    nbr_nids: torch.Tensor
    nbr_feats: torch.Tensor
    neg_batch_list: list[torch.Tensor]


class _Edges(Samples):
    """Batches of edges, in the order of their times."""

    def __init__(self, size=16):
        self.size = size
        self.feats = torch.randn(5000, 172)

    def __getitem__(self, index):
        some = torch.randint(0, 5000, (3 * self.size, 20))
        return DGBatch(
            some[: self.size, 0],
            some[: self.size, 1],
            torch.arange(self.size) + index * self.size,
            self.feats[some[: self.size, 0]],
            some,
            self.feats[some.view(-1), :64].view(3 * self.size, 20, 64),
            [torch.randint(0, 5000, (20,)) for _ in range(self.size)],
        )


class Evaluation:
    """Ranks each edge among edges that are none."""

    def score(self, batch):
        return torch.cat([batch.dst, batch.src])

    def evaluate(self, batch):
        for number, neg_batch in enumerate(batch.neg_batch_list):
            copy_batch = copy.deepcopy(batch)
            copy_batch.src = batch.src[number].repeat(len(neg_batch) + 1)
            copy_batch.dst = torch.cat([batch.dst[number].unsqueeze(0), neg_batch])
            self.score(copy_batch)
        time.sleep(0.01)  # the model, on a device


def evaluate(batch):
    Evaluation().evaluate(batch)


@question(
    source="tgm #235",
    report="a deep copy for each edge of a batch; one for each batch, 2 to 3 h to 1 h",
    step_s=0.01,
    causes=("main-process",),
    place=r"deepcopy|evaluate",
    lever=r"\bonce\b|out of the loop|outside|shallow|less often|fewer|\bcop(y|ies)\b",
    step=lambda: evaluate,
)
def edges_of_graph(_folder):
    """Gather edges and their neighbours, which takes little time."""
    return DataLoader(_Edges(), batch_size=None, num_workers=2)
