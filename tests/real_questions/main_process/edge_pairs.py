import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from real_questions.question import question


class UMAPDataset(Dataset):
    """The two ends of each edge of a graph of neighbours."""

    def __init__(self, data, edges=300_000):
        self.data = data
        self.vertices_a = torch.randint(len(data), (edges,))
        self.vertices_b = torch.randint(len(data), (edges,))

    def __len__(self):
        return len(self.vertices_a)

    def __getitem__(self, index):
        return self.data[self.vertices_a[index]], self.data[self.vertices_b[index]]


@question(
    source="glass-box-umap #24",
    report="edges are read one by one; a batch by one index is 22 times as fast",
    step_s=0.03,
    causes=("main-process", "collate", "one-transform"),
    place=r"UMAPDataset|__getitem__|[Cc]ollat|main process|own process|num_workers|no workers",
    lever=r"__getitems__|whole batch|at once|vector|batch_sampler|index_select|num_workers|workers",
)
def edges_one_by_one(_folder):
    """Take the ends of thousands of edges out of one tensor, edge by edge."""
    dataset = UMAPDataset(torch.rand(20_000, 64))
    sampler = WeightedRandomSampler(torch.rand(len(dataset)), len(dataset), replacement=True)
    return DataLoader(dataset, batch_size=4000, sampler=sampler)
