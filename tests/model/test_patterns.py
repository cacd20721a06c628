"""Loops that stall for a planted reason, alone and in pairs, or for no reason.

All planted times are milliseconds.
"""

import numpy as np
import polars as pl
import pytest
from support.build_run import deliveries_of, spans_of, steps_of
from support.virtual_loop import a_loop

from stallscope.model.attribution import PARTS, find_stalls
from stallscope.model.patterns import PATTERNS, patterns, rhythm
from stallscope.model.reasons import Evidence
from stallscope.stages import GARBAGE

STEPS = 200
SAMPLES = {
    **dict.fromkeys(("epoch", "batch", "sample"), pl.Int32),
    **dict.fromkeys(("worker", "rank"), pl.Int16),
    **dict.fromkeys(("index", "start_ns"), pl.Int64),
    "total_s": pl.Float64,
    "path": pl.String,
}


def stopped(
    waits,
    *,
    busy=20.0,
    per_epoch=1 << 30,
    workers=4,
    rank=0,
    makes=None,
    slow=None,
    files=0,
    garbage=None,
    exposed=None,
) -> Evidence:
    """Make a loop with planted waits.

    Args:
        waits: wait of each step.
        busy: work of each step; a number stands for all steps.
        per_epoch: batches in an epoch.
        workers: 0: the main process.
        rank: rank of the process.
        makes: time to make each batch; its worker is then ready when the wait ends.
        slow: time of the first sample of some batches, by step; samples take 1 ms.
        files: batches in a file (shard) of each worker; 0: every sample is a file.
        garbage: collections of the main process at the beginning of some waits, by step.
        exposed: garbage collections of the workers: their part of some stalls, by step.
    """
    number = np.arange(len(waits))
    batch = number % per_epoch
    steps = steps_of(
        (np.asarray(waits, dtype=float) / 1e3).tolist(),
        epoch=(number // per_epoch).tolist(),
        batch=batch.tolist(),
        worker=(batch % workers).tolist() if workers else None,
        step_s=(np.broadcast_to(busy, number.shape) / 1e3).tolist(),
        other_s=0.0,
        rank=rank,
        restart_s=[None if place else 0.0 for place in batch],
    )
    rows = steps.to_dicts()
    deliveries = (
        {name: row[name] for name in ("rank", "worker", "epoch", "batch")}
        | {"taken_ns": row["end_ns"] - round(ms * 1e6)}
        | {"made_ns": row["end_ns"], "arrived_ns": row["end_ns"]}
        for row, ms in zip(rows, () if makes is None else makes, strict=False)
    )
    collections = (
        {name: rows[step][name] for name in ("rank", "epoch", "batch", "start_ns")}
        | {"stage": GARBAGE.name, "worker": None}
        | {"end_ns": rows[step]["start_ns"] + round(ms * 1e6)}
        for step, ms in (garbage or {}).items()
    )
    return Evidence(
        steps=steps,
        parts=_parts(steps, exposed or {}),
        samples=_samples(rows, slow or {}, files, workers),
        deliveries=deliveries_of(*deliveries),
        side_spans=spans_of(*collections),
        num_workers=workers,
    )


def _parts(steps, exposed) -> pl.DataFrame:
    stalls = find_stalls(steps).select("rank", "step", "stall_s")
    garbage_s = pl.Series([exposed.get(step, 0.0) / 1e3 for step in stalls["step"]], dtype=float)
    rest = stalls.select("rank", "step", part=pl.lit("decode"), kind=pl.lit("decode"))
    rest = rest.with_columns(exposed_s=stalls["stall_s"] - garbage_s)
    own = stalls.select("rank", "step", part=pl.lit(GARBAGE.name), kind=pl.lit("other"))
    both = pl.concat([rest, own.with_columns(exposed_s=garbage_s)])
    return both.filter(pl.col("exposed_s") > 0).cast(PARTS)


def _samples(steps, slow, files, workers, size=4) -> pl.DataFrame:
    rows = []
    for step in steps if slow or files else ():
        for place in range(size):
            batch, worker = step["batch"], step["worker"]
            index = batch * size + place
            ms = slow.get(step["step"], 1.0) if place == 0 else 1.0 + 0.01 * (index % 7)
            shard = batch // max(workers, 1) // files if files else 0
            path = f"data/{worker}-{shard}.tar" if files else f"data/{index}.jpg"
            key = (step["epoch"], batch, place, worker, step["rank"])
            rows.append((*key, index, step["end_ns"] + place, ms / 1e3, path))
    return pl.DataFrame(rows, SAMPLES, orient="row")


def looped(makes, busy=5.0, *, workers=4, per_epoch=STEPS, restart=0.0) -> Evidence:
    """Make a loop that waits for each batch as long as its workers take, as torch's does."""
    run = a_loop(
        lambda number, _: {"collate": makes[number]},
        workers=workers,
        batches=per_epoch,
        epochs=len(makes) // per_epoch,
        send=0.0,
        unpickle=0.0,
        using={"forward": busy},
        restart=restart,
        warmup=0,
    )
    tables = (run.steps(), run.parts(), run.samples(), run.deliveries, run.side_spans)
    return Evidence(*tables, num_workers=workers)


def together(*ranks: Evidence) -> Evidence:
    tables = ("steps", "parts", "samples", "deliveries", "side_spans")
    joined = {name: pl.concat([getattr(rank, name) for rank in ranks]) for name in tables}
    return Evidence(**joined, num_workers=ranks[0].num_workers)


def rows_of(evidence):
    """The rows of the table, by the stall time that it explains, longest first."""
    return patterns(evidence).to_dicts()


def names(evidence):
    return [row["pattern"] for row in rows_of(evidence)]


def only(evidence):
    (row,) = rows_of(evidence)
    return row


def at(places, length, size=STEPS):
    """Return waits of this length at these steps."""
    waits = np.zeros(size)
    waits[list(places)] = length
    return waits


def noisy(length, size=STEPS, spread=0.03):
    """Return about equally long times."""
    return length * np.random.default_rng(size).normal(1.0, spread, size)


def scattered(count, size=STEPS, seed=3):
    """Return random steps, sorted."""
    return sorted(np.random.default_rng(seed).choice(size, count, replace=False).tolist())


class TestWorkersTogether:
    @pytest.mark.parametrize("workers", [2, 3, 4, 8])
    def test_the_period_is_the_number_of_workers(self, workers):
        """Slow workers finish together: every n-th step waits for all n workers."""
        row = only(looped(noisy(100.0), 40.0 / workers, workers=workers))

        assert "workers_together" == row["pattern"]
        assert f"the {workers} workers finish together, then all are awaited" in row["title"]
        assert row["title"].startswith(f"Every {workers}{ {2: 'nd', 3: 'rd'}.get(workers, 'th') }")
        assert row["share"] > 0.8
        assert row["chance"] < 1e-6


class TestSlowWorker:
    def test_is_named(self):
        makes = noisy(40.0)
        makes[2::4] *= 4

        row = only(looped(makes, 25.0))

        assert "slow_worker" == row["pattern"]
        assert row["title"].startswith("Worker 2 is slow: its batches take 158 ms")
        assert row["chance"] < 1e-6

    def test_equally_fast_workers_are_not_blamed(self):
        """Workers that finish together all wait for worker 0, which is not called slow."""
        evidence = looped(noisy(100.0), 10.0)

        waited = evidence.steps.filter(pl.col("wait_s") > 0.03)["worker"].unique().to_list()
        assert [0] == waited
        assert ["workers_together"] == names(evidence)

    def test_a_worker_with_the_longer_batches_is_not_blamed(self):
        """The rule is that of the verdict: batches differ more than workers do."""
        makes = noisy(100.0)
        makes *= np.random.default_rng(3).lognormal(sigma=0.8, size=makes.size)
        makes[2::4] *= 2.2

        assert "slow_worker" not in names(looped(makes, 25.0))

    def test_a_slightly_slower_worker_is_not_blamed(self):
        """A worker that takes 10% longer is not the reason that every 4th step waits."""
        makes = noisy(100.0)
        makes[2::4] *= 1.1

        assert "workers_together" == names(looped(makes, 5.0))[0]


class TestEpochBoundary:
    def test_first_steps_wait(self):
        row = only(looped(noisy(100.0), 50.0, per_epoch=50, restart=300.0))

        assert "epoch_boundary" == row["pattern"]
        assert row["title"].startswith("4 epochs begin with a wait of 398 ms")
        assert "iter(loader) takes 300 ms of it" in row["title"]
        assert 0 in row["steps"]

    def test_one_epoch_is_no_pattern(self):
        assert [] == names(stopped(at([50], 400.0, 100), per_epoch=50))


class TestGarbageCollection:
    PLACES = tuple(range(10, 400, 50))

    def test_of_the_main_process(self):
        """Waits filled by a collection have it as their cause."""
        evidence = stopped(at(self.PLACES, 52.0, 400), garbage=dict.fromkeys(self.PLACES, 50.0))

        row = only(evidence)

        assert ("garbage_collection", 8) == (row["pattern"], row["stalls"])
        assert "garbage collection in the main process takes 50 ms of it" in row["title"]

    def test_of_the_workers(self):
        """Waits for batches delayed by a collection in the worker have it as their cause."""
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
        """A loader that is always too slow is one constant pattern."""
        row = only(stopped(noisy(30.0), workers=0))

        assert ("constant", STEPS) == (row["pattern"], row["stalls"])
        assert row["title"].startswith("Every step waits 30 ms")

    def test_ranks_that_agree_are_one_row(self):
        """The same pattern on four ranks is one row, with all stalls."""
        ranks = [stopped(at(range(0, STEPS, 4), 50.0), rank=rank) for rank in range(4)]

        row = only(together(*ranks))

        assert 200 == row["stalls"]
        assert row["share"] > 0.999
        assert row["title"].endswith("(4 of 4 ranks)")
        assert list(range(0, STEPS, 4)) == row["steps"]


class TestNothing:
    @pytest.mark.parametrize("workers", [0, 1, 4])
    def test_a_loop_that_never_waits(self, workers):
        """Without waits the table has no rows, but all of its columns."""
        table = patterns(stopped(np.zeros(STEPS), workers=workers))

        assert table.is_empty()
        assert PATTERNS == dict(table.schema)

    def test_no_steps(self):
        assert PATTERNS == dict(patterns(stopped([])).schema)


def bursts(generator, size):
    """Return times whose level changes now and then."""
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
        """Random waits lead to no more false claims than the chance of a claim allows.

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
        rows = [row for row in rows_of(evidence) if row["pattern"] not in ("constant", "irregular")]
        return [row["title"] for row in rows]


def flags_at(places, size):
    return np.isin(np.arange(size), list(places))


def every(period, size, first=1):
    """Return flags at every `period`-th step."""
    return flags_at(range(first, size, period), size)


def switching(generator, size):
    """Return on and off for random times, like the stalls of a busy disk."""
    lengths = generator.geometric(0.2, size) * (1 + 3 * (np.arange(size) % 2))
    return np.repeat(np.arange(size) % 2 == 0, lengths)[:size]


def crowded(generator, size):
    """Return bunches of events."""
    centres = np.flatnonzero(generator.random(size) < 0.02)
    bunches = [centre + generator.integers(0, 30, generator.poisson(5)) for centre in centres]
    return flags_at(np.concatenate([[0], *bunches]), size)


NOISE = {
    "independent": lambda generator, size: (
        generator.random(size) < generator.choice([0.02, 0.1, 0.3, 0.6])
    ),
    "switching": switching,
    "crowded": crowded,
    "heavy-tailed distances": lambda generator, size: flags_at(
        np.cumsum(np.ceil(generator.pareto(1.2, size) + 0.01)).astype(int), size
    ),
    "waves": lambda generator, size: (
        np.convolve(generator.standard_normal(size + 19), np.ones(20), "valid") > 3
    ),
    "loose distances": lambda generator, size: flags_at(
        np.cumsum(generator.integers(5, 16, size)), size
    ),
}


class TestRhythm:
    def test_finds_a_period_among_other_events(self):
        """A few missing and a few extra events do not hide the period."""
        generator = np.random.default_rng(0)
        flags = every(8, 400) & (generator.random(400) < 0.8) | (generator.random(400) < 0.03)

        chance, starts = rhythm(flags, np.ones(400, dtype=bool), 8)

        assert chance < 1e-4
        assert np.flatnonzero(starts & ~every(8, 400)).size <= 2

    def test_two_events_are_no_rhythm(self):
        """Two events, no events and a loop without steps have no rhythm."""
        for flags in (every(10, 20), every(9, 0), np.zeros(50, dtype=bool), every(1, 90)):
            assert rhythm(flags, np.ones(flags.size, dtype=bool), 4)[0] == 1.0

    @pytest.mark.parametrize("noise", NOISE)
    def test_false_alarms_are_rarer_than_stated(self, noise):
        """Events without a period get a chance below a limit no more often than that limit."""
        generator = np.random.default_rng(0)
        flags = (NOISE[noise](generator, size) for size in [30, 60, 300] * 200)
        chances = np.array([rhythm(each, np.ones(each.size, dtype=bool), 4)[0] for each in flags])

        for limit in (0.01, 0.05, 0.2):
            assert np.mean(chances < limit) <= limit
