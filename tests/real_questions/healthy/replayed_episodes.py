import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from real_questions.parts import noise, own_part
from real_questions.question import question


class ReplayBuffer(IterableDataset):
    """Steps of episodes that were written to files, drawn by workers that keep what they read."""

    def __init__(self, folder, samples=9600, nstep=3, fetch_every=1000):
        self.folder, self.samples = folder, samples
        self.nstep, self.fetch_every = nstep, fetch_every
        self.episodes = {}

    def fetch(self):
        for path in own_part(sorted(self.folder.glob("*.npz"))):
            if path.name not in self.episodes:
                with np.load(path) as episode:
                    self.episodes[path.name] = {name: episode[name] for name in episode.files}

    def sample(self, draw):
        episode = list(self.episodes.values())[draw.integers(len(self.episodes))]
        step = draw.integers(len(episode["reward"]) - self.nstep)
        after = step + self.nstep
        reward = (episode["reward"][step:after] * 0.99 ** np.arange(self.nstep)).sum()
        observations = episode["observation"]
        return observations[step], episode["action"][step], np.float32(reward), observations[after]

    def __iter__(self):
        draw = np.random.default_rng(torch.initial_seed())
        for number in range(self.samples):
            if number % self.fetch_every == 0:
                self.fetch()
            yield self.sample(draw)


@question(
    source="drqv2 #17",
    report="a buffer in memory in place of the loader and its files: frames/s are 'identical'",
    step_s=0.05,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def steps_of_episodes(folder):
    """Draw steps from the files of episodes, for an agent that takes far longer."""
    draw = np.random.default_rng(0)
    frames = noise(60, 9, 64, 64)
    for number in range(12):
        np.savez(
            folder / f"episode_{number}.npz",
            observation=np.roll(frames, number, axis=0),
            action=draw.normal(size=(60, 6)).astype(np.float32),
            reward=draw.random(60, dtype=np.float32),
        )
    return DataLoader(ReplayBuffer(folder), batch_size=64, num_workers=2)
