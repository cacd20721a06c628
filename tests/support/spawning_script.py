"""Script that starts its ranks by itself: one has a slow loader, and none a DistributedSampler."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

RANKS, SLOW_RANK = 2, 1
SLOW_S, QUICK_S = 0.02, 0.001


class Waiting(Dataset):
    def __init__(self, wait_s):
        self.wait_s = wait_s

    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.tensor(index)


def train(rank, store):
    """One epoch; the ranks wait for each other at each step."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    wait_s = SLOW_S if rank == SLOW_RANK else QUICK_S
    for _ in DataLoader(Waiting(wait_s), 8, num_workers=1):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, (f"file://{Path('meeting').absolute()}",), nprocs=RANKS)
    if "--own" in sys.argv:
        for _ in DataLoader(Waiting(QUICK_S), 8):
            time.sleep(0.01)
    print("trained")
