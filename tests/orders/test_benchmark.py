"""What loaders are raced over, and what is kept of their samples."""

from __future__ import annotations

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from stallscope.orders.benchmark import Benchmark, same_batches
from stallscope.orders.loader_parts import CachedPrefix


class Bulk:
    """A dataset that is asked for a whole batch at once, by a list."""

    asked = 0

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        self.asked += 1
        return torch.tensor(indices)


def test_a_batch_may_be_one_index():
    """Torch's own way of loading in bulk: the sampler gives lists, which are no keys."""
    sampler = BatchSampler(SequentialSampler(range(12)), 4, drop_last=False)
    loader = DataLoader(Bulk(), sampler=sampler, batch_size=None)

    _, samples = same_batches(loader)

    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] == samples


def test_what_a_list_asks_for_is_kept():
    """The dataset is asked once."""
    bulk = Bulk()
    head = CachedPrefix(bulk, None, ())

    assert [[1, 2], [1, 2]] == [head[[1, 2]].tolist() for _ in range(2)]
    assert 1 == bulk.asked


def test_batches_without_a_sample_are_no_time():
    """A collate function may leave nothing over of a batch."""
    loader = DataLoader(range(64), 4, collate_fn=lambda _: torch.zeros(0, 3))
    benchmark = Benchmark(0.05, first_lap_s=1.0)

    benchmark.run({0: same_batches(loader)[0]}, deadline_ns=0)

    assert benchmark.laps().is_empty()
