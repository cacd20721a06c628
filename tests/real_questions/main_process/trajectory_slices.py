import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class ReplayStorage(Dataset):
    """Steps of many episodes, one after another; takes the steps of a batch at a time."""

    def __init__(self, steps=6_000_000, episode_length=500):
        self.episode = torch.arange(steps) // episode_length
        self.observation = torch.randn(steps, 4)
        self.action = torch.randn(steps, 2)

    def __getitem__(self, steps):
        steps = torch.tensor(steps)
        return self.observation[steps], self.action[steps]


class SliceSampler:
    """Draws short slices, each of them within one episode."""

    def __init__(self, storage, num_slices=256, slice_length=4, batches=1000):
        self.storage, self.batches = storage, batches
        self.num_slices, self.slice_length = num_slices, slice_length

    def __len__(self):
        return self.batches

    def find_trajectories(self):
        episode = self.storage.episode
        stops = torch.nonzero(episode[1:] != episode[:-1]).squeeze(1)
        stops = torch.cat([stops, torch.tensor([len(episode) - 1])])
        starts = torch.cat([torch.tensor([0]), stops[:-1] + 1])
        return starts, stops - starts + 1

    def __iter__(self):
        for _ in range(self.batches):
            starts, lengths = self.find_trajectories()
            chosen = torch.randint(len(starts), (self.num_slices,))
            room = lengths[chosen] - self.slice_length + 1
            begin = starts[chosen] + (torch.rand(self.num_slices) * room).long()
            steps = begin[:, None] + torch.arange(self.slice_length)
            yield steps.flatten().tolist()


@question(
    source="pytorch/rl #2669, #2031",
    report="the sampler looks for all trajectories in each draw: 5 ms, or 1.6 s for a large "
    "buffer; they are kept (cache_values)",
    step_s=0.005,
    causes=("main-process",),
    place=r"SliceSampler|find_trajectories|[Ss]ampler",
    lever=r"\bonce\b|beforehand|in advance|[Kk]eep|\bkept|cach|precomput|only when|incremental",
)
def slices_of_episodes(_folder):
    """Look through the whole buffer for the ends of episodes, for each batch."""
    storage = ReplayStorage()
    return DataLoader(storage, batch_size=None, sampler=SliceSampler(storage), num_workers=2)
