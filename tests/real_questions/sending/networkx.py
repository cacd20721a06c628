import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _SnapGraph:
    """A graph as tensors, with the NetworkX graph that it was made from."""

    def __init__(self, number):
        import networkx as nx

        self.G = nx.gnp_random_graph(19, 0.18, seed=number)
        for node in self.G.nodes:
            self.G.nodes[node]["node_feature"] = torch.ones(4)
        self.x = torch.ones(19, 4)
        edges = list(self.G.edges)
        self.edge_index = torch.tensor(edges).T if edges else torch.zeros(2, 0, dtype=torch.long)


class _SnapGraphs(Dataset):
    def __init__(self):
        self.graphs = [_SnapGraph(number) for number in range(1000)]

    def __len__(self):
        return 5000

    def __getitem__(self, index):
        return self.graphs[index % 1000]


def collate_graphs(graphs):
    return {
        "x": torch.cat([graph.x for graph in graphs]),
        "edge_index": torch.cat([graph.edge_index for graph in graphs], dim=1),
        "G": [graph.G for graph in graphs],
    }


@question(
    source="deepsnap #51",
    report="NetworkX graphs are collated with the rest; removed, it is fast",
    step_s=0.004,
    causes=("sending",),
    place=r"[Ss]ending",
    lever=r"objects|leave out|only what",
)
def graphs_of_networkx(_folder):
    """Send what no step uses."""
    graphs = _SnapGraphs()
    return DataLoader(graphs, batch_size=32, shuffle=True, num_workers=2, collate_fn=collate_graphs)
