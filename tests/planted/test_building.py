"""A recipe is a loader that real workers can run, forked or started."""

from stallscope.planted.building import build
from stallscope.planted.recipe import Op, Recipe


class TestWorkers:
    def test_a_started_worker_finds_everything(self):
        """Locks, shared storage and all the code reach a worker that was not forked."""
        recipe = Recipe(
            step_s=0.01, batch=2, workers=1, epoch=1, start_method="spawn",
            reads_files=True, bytes_per_s=1e9, ops=(Op("Sharpen", 0.0),), lock_s=1e-6,
            threads=2, regions=1, sampler_s=1e-6,
        )  # fmt: skip
        loader, step = build(recipe)

        (batch,) = list(loader)
        step(batch)
        assert batch[:, 0, 0, 0].tolist() == [0.0, 1.0]

    def test_forked_workers_have_the_same_batches(self):
        """A forked worker gives what the main process gives."""
        recipe = Recipe(step_s=0.01, batch=2, workers=2, epoch=3, ops=(Op("Blur", 1e-4),))
        forked = [batch[:, 0, 0, 0].tolist() for batch in build(recipe)[0]]

        assert forked == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
