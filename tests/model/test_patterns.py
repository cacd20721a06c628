"""Loops that stand still for a planted reason, alone and in pairs; and for none at all."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from support.build_stalls import looped, stopped, together

from stallscope.model.patterns import PATTERNS, patterns

STEPS = 200


def found(evidence):
    """The rows of the table, the one that explains most first."""
    return patterns(evidence).to_dicts()


def names(evidence):
    return [row["pattern"] for row in found(evidence)]


def only(evidence):
    (row,) = found(evidence)
    return row


def at(places, length, size=STEPS):
    """Waits of this length at these steps."""
    waits = np.zeros(size)
    waits[list(places)] = length
    return waits


def noisy(length, size=STEPS, spread=0.03):
    """Times that are about equally long."""
    return length * np.random.default_rng(size).normal(1.0, spread, size)


def scattered(many, size=STEPS, seed=3):
    """Steps without any order."""
    return sorted(np.random.default_rng(seed).choice(size, many, replace=False).tolist())


class TestWorkersTogether:
    @pytest.mark.parametrize("workers", [2, 3, 4, 8])
    def test_the_period_is_their_number(self, workers):
        """Workers that are too slow finish together: every so manyth step waits for all."""
        row = only(looped(noisy(100.0), 40.0 / workers, workers=workers))

        assert "workers_together" == row["pattern"]
        assert f"the {workers} workers finish together, then all are awaited" in row["title"]
        assert row["title"].startswith(f"Every {workers}{ {2: 'nd', 3: 'rd'}.get(workers, 'th') }")
        assert row["share"] > 0.8
        assert row["chance"] < 1e-6


class TestSlowWorker:
    def test_is_named(self):
        """Stalls for one worker's batches, which take longer to make, are that worker's."""
        makes = noisy(40.0)
        makes[2::4] *= 4

        row = only(looped(makes, 25.0))

        assert "slow_worker" == row["pattern"]
        assert row["title"].startswith("Worker 2 is slow: its batches take 158 ms")
        assert row["chance"] < 1e-6

    def test_equally_fast_workers_are_not_blamed(self):
        """All stalls wait for worker 0 where workers finish together; it is no slower for it."""
        evidence = looped(noisy(100.0), 10.0)

        waited = evidence.steps.filter(pl.col("wait_s") > 0.03)["worker"].unique().to_list()
        assert [0] == waited
        assert ["workers_together"] == names(evidence)

    def test_a_little_slower_is_not_enough(self):
        """A worker that takes 10% longer is not why every 4th step waits."""
        makes = noisy(100.0)
        makes[2::4] *= 1.1

        assert "workers_together" == names(looped(makes, 5.0))[0]


class TestEpochBoundary:
    def test_first_steps_wait(self):
        """When nothing is ready at the start of an epoch, its first step waits."""
        row = only(looped(noisy(100.0), 50.0, per_epoch=50, restart=300.0))

        assert "epoch_boundary" == row["pattern"]
        assert row["title"].startswith("4 epochs begin with a wait of 398 ms")
        assert "iter(loader) takes 300 ms of it" in row["title"]
        assert 0 in row["steps"]

    def test_one_epoch_is_not(self):
        """A single wait at a single boundary is nothing to speak of."""
        assert [] == names(stopped(at([50], 400.0, 100), per_epoch=50))


class TestGarbageCollection:
    PLACES = tuple(range(10, 400, 50))

    def test_of_the_main_process(self):
        """Waits that a collection fills are due to it."""
        evidence = stopped(at(self.PLACES, 52.0, 400), garbage=dict.fromkeys(self.PLACES, 50.0))

        row = only(evidence)

        assert ("garbage_collection", 8) == (row["pattern"], row["stalls"])
        assert "garbage collection in the main process takes 50 ms of it" in row["title"]

    def test_of_the_workers(self):
        """So are waits for batches that took longer, by a collection where they were made."""
        makes = noisy(80.0, 400) + at(self.PLACES, 60.0, 400)
        exposed = dict.fromkeys(self.PLACES, 50.0)

        row = only(stopped(at(self.PLACES, 52.0, 400), exposed=exposed, makes=makes))

        assert ("garbage_collection", 8) == (row["pattern"], row["stalls"])
        assert "where the batch is made" in row["title"]


class TestSamples:
    def test_slow_ones_are_named(self):
        """Stalls for batches with one very slow sample name three of these and count the rest."""
        places = scattered(8, 400)

        row = only(stopped(at(places, 200.0, 400), slow=dict.fromkeys(places, 230.0)))

        assert "slow_samples" == row["pattern"]
        assert places == row["steps"]
        assert f"index {places[0] * 4} ({places[0] * 4}.jpg)" in row["title"]
        assert row["title"].endswith("and 5 more")
        assert "(230 ms; usual is 1.0 ms)" in row["title"]

    def test_two_are_enough(self):
        """Two stalls in two hundred steps, both with a slow sample, are no accident."""
        row = only(stopped(at([40, 133], 200.0), slow={40: 230.0, 133: 210.0}))

        assert row["title"].endswith("index 160 (160.jpg) and index 532 (532.jpg)")

    def test_at_the_begin_of_a_shard(self):
        """Stalls where a worker comes to a new file of many samples are the file's."""
        places = [step for step in range(64, 400) if step % 64 < 4]

        row = only(stopped(at(places, 80.0, 400), files=16, slow=dict.fromkeys(places, 60.0)))

        assert ("shard_boundary", 24) == (row["pattern"], row["stalls"])
        assert "new file of about 6" in row["title"]
        assert "its first one takes 60 ms, the others 1.0 ms" in row["title"]


class TestRest:
    def test_every_step_waits(self):
        """As of a loader that is slower throughout."""
        row = only(stopped(noisy(30.0), workers=0))

        assert ("constant", STEPS) == (row["pattern"], row["stalls"])
        assert row["title"].startswith("Every step waits 30 ms")

    def test_ranks_that_agree_are_one_row(self):
        """The same pattern on four ranks is told once, with all stalls."""
        ranks = [stopped(at(range(0, STEPS, 4), 50.0), rank=rank) for rank in range(4)]

        row = only(together(*ranks))

        assert 200 == row["stalls"]
        assert row["share"] > 0.999
        assert row["title"].endswith("(4 of 4 ranks)")
        assert list(range(0, STEPS, 4)) == row["steps"]


class TestNothing:
    @pytest.mark.parametrize("workers", [0, 1, 4])
    def test_a_loop_that_never_waits(self, workers):
        """It has no patterns, and the table has its columns all the same."""
        table = patterns(stopped(np.zeros(STEPS), workers=workers))

        assert table.is_empty()
        assert PATTERNS == dict(table.schema)

    def test_no_steps(self):
        """An empty run gives an empty table."""
        assert PATTERNS == dict(patterns(stopped([])).schema)


def bursts(generator, size):
    """Times whose level changes now and then."""
    levels = generator.choice([0.1, 0.5, 20.0], size)
    return generator.exponential(np.repeat(levels, generator.geometric(0.08, size))[:size])


RANDOM = {
    "lognormal": lambda generator, size: generator.lognormal(
        1.0, generator.choice([0.5, 1, 2]), size
    ),
    "pareto": lambda generator, size: generator.pareto(generator.choice([0.8, 1.2, 2]), size),
    "exponential": lambda generator, size: generator.exponential(generator.choice([0.5, 3]), size),
    "sparse": lambda generator, size: np.where(
        generator.random(size) < 0.2, generator.lognormal(3, 1, size), 0.0
    ),
    "bursts": bursts,
}


class TestFalseAlarms:
    @pytest.mark.parametrize("kind", RANDOM)
    def test_random_waits_have_no_reason(self, kind):
        """Of waits by chance, none of the claims is made more often than they may be wrong.

        Each of 24 loops also has collections, slow samples, files and epochs, at random. A claim
        has a chance below 1%: more than 2 false ones would come in less than one of 500.
        """
        generator = np.random.default_rng(5)
        claims = [self._claims(RANDOM[kind], generator) for _ in range(24)]

        assert sum(map(bool, claims)) <= 2

    @staticmethod
    def _claims(draw, generator):
        size = int(generator.choice([20, 50, 100, 200]))
        places = np.flatnonzero(generator.random(size) < 0.05).tolist()
        waits = draw(generator, size)
        evidence = stopped(
            waits,
            busy=20 + draw(generator, size),
            workers=int(generator.choice([2, 3, 4, 8])),
            per_epoch=int(generator.choice([10, 25, 1000])),
            makes=generator.lognormal(4, 0.5, size),
            slow=dict.fromkeys(places, 60.0),
            files=3,
        )
        rows = [row for row in found(evidence) if row["pattern"] not in ("constant", "irregular")]
        return [row["title"] for row in rows]
