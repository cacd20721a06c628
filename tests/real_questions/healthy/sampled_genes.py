import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class CellDataset(Samples):
    """The genes that cells express, and how much of each."""

    def __init__(self, cells=1000, genes=3000):
        self.genes = torch.stack([torch.randperm(30_000)[:genes] for _ in range(cells)])
        self.expressions = torch.poisson(torch.full((cells, genes), 3.0))

    def __getitem__(self, index):
        number = index % len(self.genes)
        return {"genes": self.genes[number], "expressions": self.expressions[number]}


class DataCollator:
    """Makes batches of some of the genes of each cell."""

    def __init__(self, max_length=1200):
        self.max_length = max_length

    def _sample(self, genes, expressions):
        order = torch.randperm(len(genes))[: self.max_length - 1]
        return genes[order], expressions[order]

    def __call__(self, examples):
        drawn = [self._sample(example["genes"], example["expressions"]) for example in examples]
        genes = torch.stack([genes for genes, _ in drawn])
        return {"gene": genes, "expr": torch.stack([expr for _, expr in drawn])}


@question(
    source="scGPT #118",
    report="genes are drawn in the collator; 'not that slow', it is done ahead",
    step_s=0.08,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def genes_of_samples(_folder):
    """Draw genes where batches are made, which is quick enough."""
    return DataLoader(
        CellDataset(), batch_size=32, shuffle=True, num_workers=2, collate_fn=DataCollator()
    )
