import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.question import question


def densify(x):
    return x.toarray()


class IterableDistributedAnnDataCollectionDataset(IterableDataset):
    """Counts of the genes of cells, by batches."""

    def __init__(self, cells=4000, genes=20_000, batch_size=256):
        import scipy.sparse

        draw = np.random.default_rng(0)
        self.x = scipy.sparse.random(cells, genes, 0.02, "csr", np.float32, draw)
        self.batch_size = batch_size

    def __iter__(self):
        info = get_worker_info()
        starts = range(0, self.x.shape[0] - self.batch_size, self.batch_size)
        for number in range(info.id, 20_000, info.num_workers):
            start = starts[number % len(starts)]
            yield {"x_ng": densify(self.x[start : start + self.batch_size])}


@question(
    source="cellarium-ml #387",
    report="workers pass dense matrices; kept sparse, an epoch of 30 min takes 12",
    step_s=0.006,
    causes=("sending",),
    place=r"[Ss]end|densify|toarray|\bMB\b|bytes",
    lever=r"sparse|smaller|fewer|compact|on the device|float16|uint8",
)
def genes_of_cells(_folder):
    """Send matrices that are nearly all zeros from the workers."""
    dataset = IterableDistributedAnnDataCollectionDataset()
    return DataLoader(dataset, batch_size=None, num_workers=2)
