import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class GraphDataset(Dataset):
    """Small graphs, each in a file of its own."""

    def __init__(self, folder, graphs=1500):
        self.folder, self.graphs = folder, graphs
        for number in range(graphs):
            nodes = 10 + number % 30
            graph = {
                "x": torch.randn(nodes, 16),
                "edge_index": torch.randint(0, nodes, (2, 3 * nodes)),
                "y": torch.tensor(number % 6),
            }
            torch.save(graph, folder / f"data_{number}.pt")

    def __len__(self):
        return 60_000

    def get(self, index):
        return torch.load(self.folder / f"data_{index}.pt")

    def __getitem__(self, index):
        return self.get(index % self.graphs)


def batch_of_graphs(graphs):
    sizes = torch.tensor([len(graph["x"]) for graph in graphs])
    shifts = torch.cumsum(sizes, 0) - sizes
    edges = [graph["edge_index"] + shift for graph, shift in zip(graphs, shifts, strict=True)]
    return {
        "x": torch.cat([graph["x"] for graph in graphs]),
        "edge_index": torch.cat(edges, dim=1),
        "y": torch.stack([graph["y"] for graph in graphs]),
        "batch": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
    }


@question(
    source="pytorch_geometric #1294",
    report="from InMemoryDataset to Dataset the speed drops: it 'is re-loading graphs' for every "
    "batch; the author stays with memory",
    step_s=0.005,
    causes=("one-transform", "decode", "storage-latency", "storage-bandwidth"),
    place=r"torch\.load|\bload\(|\bget\b|__getitem__|GraphDataset|\.pt\b|\bread|\bfiles\b",
    lever=r"memory|\bonce\b|[Kk]eep|\bcach|beforehand|(one|single|fewer|larger) files?|"
    r"(several|many) (graphs|samples)|together|\bpack|mmap|lmdb|LMDB",
)
def graphs_in_files(folder):
    """Load a hundred files for a batch."""
    dataset = GraphDataset(folder)
    return DataLoader(
        dataset, batch_size=128, shuffle=True, num_workers=2, collate_fn=batch_of_graphs
    )
