"""Planted loaders make their batches as torch does, or as their recipe says."""

import torch

from stallscope.planted import batches


class TestBatches:
    def test_the_default_is_one_tensor(self):
        """A batch is one tensor, as torch makes it."""
        batch = batches.Collate(0.0, "tensor")([torch.zeros(2), torch.ones(2)])

        assert batch.tolist() == [[0.0, 0.0], [1.0, 1.0]]

    def test_arrays_are_pickled(self):
        """A batch of arrays goes through the pipe, for torch does not know them as its own."""
        batch = batches.Collate(0.0, "arrays")([torch.zeros(2)])

        assert type(batch[0]).__name__ == "ndarray"

    def test_the_sampler_draws_all(self):
        """The slow sampler gives every index, in order."""
        assert list(batches.SlowSampler(range(5), 2, 0.0)) == [0, 1, 2, 3, 4]
