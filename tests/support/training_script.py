"""A script that trains, as people write them: nothing in it knows of stallscope."""

import argparse
import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    """Samples that take a moment and depend on the worker's generator."""

    def __init__(self, takes_s: float = 0.002) -> None:
        self.takes_s = takes_s

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.takes_s)
        return torch.rand(4) + index


def main() -> None:  # noqa: C901 - as people write them
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", help="start method of the workers")
    parser.add_argument("--by-hand", action="store_true", help="torch.optim takes 5 s to import")
    parser.add_argument("--end", choices=["raise", "exit", "_exit", "kill", "fork"])
    parser.add_argument("--slow-rank", help="the rank whose samples take longer")
    args = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    trained = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = None if args.by_hand else torch.optim.SGD(trained.parameters(), 1e-4)
    is_slow = args.slow_rank is not None and os.environ["RANK"] == args.slow_rank
    data = Numbers(0.05) if is_slow else Numbers()
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = DataLoader(
        data,
        4,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=args.workers,
        multiprocessing_context=args.start,
    )
    held_out = DataLoader(Numbers(), 8)
    for epoch in range(args.epochs):
        for batch in loader:
            model.zero_grad()
            loss = trained(batch).square().mean()
            loss.backward()
            if optimizer is not None:
                optimizer.step()
        with torch.no_grad():
            score = sum(model(batch).mean().item() for batch in held_out)
        print(f"epoch {epoch}: loss {loss.item():.6f}, held out {score:.6f}", flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()
    if args.end == "fork":
        child = os.fork()
        if not child:
            print("a child of its own", flush=True)
            return
        os.waitpid(child, 0)
    elif args.end == "raise":
        raise ValueError("the end")
    elif args.end == "exit":
        sys.exit(7)
    elif args.end == "_exit":
        os._exit(7)
    elif args.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
