import numpy as np
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class GeneExpressionDataset(Dataset):
    """The counts of the genes of cells, in a sparse matrix."""

    def __init__(self, cells=20_000, genes=720):
        import scipy.sparse

        draw = np.random.default_rng(0)
        self.X = scipy.sparse.random(cells, genes, 0.1, "csr", np.float32, draw)
        self.local_means = draw.random((cells, 1), dtype=np.float32)
        self.local_vars = draw.random((cells, 1), dtype=np.float32)
        self.batch_indices = np.zeros((cells, 1), np.int64)
        self.all_labels = draw.integers(0, 7, (cells, 1))

    def __len__(self):
        return 400_000

    def __getitem__(self, idx):
        idx %= len(self.all_labels)
        return (
            self.X[idx].toarray()[0],
            self.local_means[idx],
            self.local_vars[idx],
            self.batch_indices[idx],
            self.all_labels[idx],
        )


@question(
    source="scVI-dev #63",
    report="'Slow indexing', 2.16 s or 0.27 s a pass; yet training takes 482 s or 479 s",
    step_s=0.06,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def cells_row_by_row(_folder):
    """Index a sparse matrix for each cell, which is quick enough for the model."""
    return DataLoader(GeneExpressionDataset(), batch_size=32, shuffle=True)
