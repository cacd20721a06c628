"""Loops that stand still for a planted reason, alone and in pairs; and for none at all."""

from __future__ import annotations

from dataclasses import replace

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

        assert ("workers_together", workers) == (row["pattern"], row["period"])
        assert f"the {workers} workers finish together, then all are awaited" in row["title"]
        assert row["title"].startswith(f"Every {workers}{ {2: 'nd', 3: 'rd'}.get(workers, 'th') }")
        assert row["share"] > 0.8
        assert row["chance"] < 1e-6

    @pytest.mark.parametrize(("workers", "steps"), [(3, 20), (4, 20), (8, 40)])
    def test_few_steps_suffice(self, workers, steps):
        """A short run is enough, if it is clear."""
        row = only(looped(noisy(100.0, steps), 40.0 / workers, workers=workers))

        assert ("workers_together", workers) == (row["pattern"], row["period"])
        assert row["chance"] < 0.01

    def test_a_phase_that_drifts_over_epochs_does_no_harm(self):
        """Epochs of 30 batches are no multiple of 4 workers; every 4th step waits all the same."""
        row = only(looped(noisy(80.0, 240), 10.0, per_epoch=30))

        assert ("workers_together", 4) == (row["pattern"], row["period"])

    def test_says_only_what_was_seen(self):
        """Without the workers' times, it is not claimed that they finish together."""
        row = only(stopped(at(range(0, STEPS, 4), 50.0)))

        assert "workers_together" == row["pattern"]
        assert "they probably finish together" in row["title"]

    def test_compares_the_round_where_they_take_turns(self):
        """Workers of varying speed are a bottleneck too: a round of theirs against its steps."""
        makes = np.random.default_rng(1).lognormal(np.log(100), 0.3, STEPS)

        row = found(looped(makes, 10.0))[0]

        assert "workers_together" == row["pattern"]
        assert row["title"].endswith(" to make a batch, 4 steps take 40 ms")

    def test_compares_what_sending_takes_where_that_is_more(self):
        """A worker that sends one batch while it makes the next is as slow as the slower one."""
        evidence = looped(noisy(100.0), 10.0)
        sent = pl.col("made_ns") + 60_000_000 * (1 + pl.col("batch") % 4)
        deliveries = evidence.deliveries.with_columns(
            taken_ns=pl.col("made_ns") - 5_000_000, pickle_ns=sent - 90_000_000, sent_ns=sent
        )

        row = found(replace(evidence, deliveries=deliveries))[0]

        assert "each takes 90 ms to send a batch" in row["title"]

    def test_takes_in_the_small_waits_of_the_round(self):
        """The waits for the second and third worker belong to that for the first."""
        row = only(stopped(np.tile([100.0, 3.0, 2.0, 0.0], 50)))

        assert 150 == row["stalls"]
        assert row["share"] > 0.999
        assert list(range(0, STEPS, 4)) == row["named"]


class TestSlowWorker:
    def test_is_named(self):
        """Stalls for one worker's batches, which take longer to make, are that worker's."""
        makes = noisy(40.0)
        makes[2::4] *= 4

        row = only(looped(makes, 25.0))

        assert ("slow_worker", 4) == (row["pattern"], row["period"])
        assert row["title"].startswith("Worker 2 is slow: its batches take 158 ms")
        assert row["chance"] < 1e-6

    def test_equally_fast_workers_are_not_blamed(self):
        """All stalls wait for worker 0 where workers finish together; it is no slower for it."""
        evidence = looped(noisy(100.0), 10.0)

        waited = evidence.steps.filter(pl.col("wait_s") > 0.03)["worker"].unique().to_list()
        assert [0] == waited
        assert ["workers_together"] == names(evidence)

    def test_the_smaller_last_batch_of_an_epoch_makes_nobody_slow(self):
        """Of epochs of two batches one worker always makes the second, of half the samples."""
        makes = noisy(100.0)
        makes[1::2] /= 2

        assert "slow_worker" not in names(looped(makes, 5.0, workers=2, per_epoch=2))

    def test_a_little_slower_is_not_enough(self):
        """A worker that takes 10% longer is not why every 4th step waits."""
        makes = noisy(100.0)
        makes[2::4] *= 1.1

        assert "workers_together" == names(looped(makes, 5.0))[0]

    def test_is_told_with_its_rank(self):
        """Of two ranks, the one whose worker is slow is named."""
        slow = np.where(np.arange(STEPS) % 4 == 2, 120.0, 40.0)
        own = stopped(at(range(2, STEPS, 4), 60.0), makes=slow + noisy(1.0), rank=1)

        row = only(together(stopped(np.zeros(STEPS), makes=noisy(40.0)), own))

        assert ("slow_worker", 1) == (row["pattern"], row["rank"])
        assert row["title"].endswith("(rank 1)")


class TestEpochBoundary:
    def test_first_steps_wait(self):
        """When nothing is ready at the start of an epoch, its first step waits."""
        row = only(looped(noisy(100.0), 50.0, per_epoch=50, restart=300.0))

        assert "epoch_boundary" == row["pattern"]
        assert row["title"].startswith("4 epochs begin with a wait of 398 ms")
        assert "iter(loader) takes 300 ms of it" in row["title"]
        assert 0 in row["steps"]

    def test_two_epochs_are_enough(self):
        """Two long waits in a hundred steps, both at an epoch's begin, are no accident."""
        row = only(stopped(at([50, 100], 400.0, 130), per_epoch=50))

        assert ("epoch_boundary", 2) == (row["pattern"], row["stalls"])

    def test_one_epoch_is_not(self):
        """A single wait at a single boundary is nothing to speak of."""
        assert [] == names(stopped(at([50], 400.0, 100), per_epoch=50))

    def test_beside_the_workers_rhythm(self):
        """The restart stands out of the stalls that come every 4th step anyway."""
        rows = found(looped(noisy(100.0, 300), 10.0, per_epoch=50, restart=300.0))

        assert ["workers_together", "epoch_boundary"] == [row["pattern"] for row in rows]


class TestGarbageCollection:
    PLACES = tuple(range(10, 400, 50))

    def test_of_the_main_process(self):
        """Waits that a collection fills are due to it, and it comes every 50 steps."""
        evidence = stopped(at(self.PLACES, 52.0, 400), garbage=dict.fromkeys(self.PLACES, 50.0))

        row = only(evidence)

        assert ("garbage_collection", 50) == (row["pattern"], row["period"])
        assert "garbage collection in the main process takes 50 ms of it" in row["title"]

    def test_of_the_workers(self):
        """So are waits for batches that took longer, by a collection where they were made."""
        makes = noisy(80.0, 400) + at(self.PLACES, 60.0, 400)
        exposed = dict.fromkeys(self.PLACES, 50.0)

        row = only(stopped(at(self.PLACES, 52.0, 400), exposed=exposed, makes=makes))

        assert ("garbage_collection", 50) == (row["pattern"], row["period"])
        assert "where the batch is made" in row["title"]

    def test_short_collections_are_not_blamed(self):
        """A collection that takes little of the wait is not its reason."""
        garbage = dict.fromkeys(self.PLACES, 5.0)

        assert "garbage_collection" not in names(
            stopped(at(self.PLACES, 52.0, 400), garbage=garbage)
        )

    def test_as_a_long_step(self):
        """A collection during the step makes the step long."""
        busy = noisy(20.0) + at(range(19, STEPS, 20), 240.0)
        parts = {"garbage collection": dict.fromkeys(range(19, STEPS, 20), 240.0)}

        row = only(stopped(np.zeros(STEPS), busy=busy, parts=parts))

        assert ("garbage_collection", "step", 20) == (row["pattern"], row["side"], row["period"])


class TestSamples:
    def test_slow_ones_are_named(self):
        """Stalls for batches with one very slow sample name three of these and count the rest."""
        places = scattered(8, 400)

        row = only(stopped(at(places, 200.0, 400), slow=dict.fromkeys(places, 230.0)))

        assert ("slow_samples", None) == (row["pattern"], row["period"])
        assert places == row["steps"]
        assert f"index {places[0] * 4} ({places[0] * 4}.jpg)" in row["title"]
        assert row["title"].endswith("and 5 more")
        assert "(230 ms; usual is 1.0 ms)" in row["title"]

    def test_two_are_enough(self):
        """Two stalls in two hundred steps, both with a slow sample, are no accident."""
        row = only(stopped(at([40, 133], 200.0), slow={40: 230.0, 133: 210.0}))

        assert row["title"].endswith("index 160 (160.jpg) and index 532 (532.jpg)")

    def test_win_over_a_rhythm_alone(self):
        """One slow sample in 200, read in order, is the reason; that it is periodic is said too."""
        places = list(range(13, 400, 50))
        makes = noisy(80.0, 400) + at(places, 300.0, 400)
        samples = stopped(np.zeros(400), slow=dict.fromkeys(places, 300.0)).samples

        row = found(replace(looped(makes, 25.0), samples=samples))[0]

        assert ("slow_samples", 50) == (row["pattern"], row["period"])
        assert row["title"].startswith("Every 50th step waits")

    def test_that_nobody_waits_for_are_not_blamed(self):
        """Slow samples whose batches were ready in time have nothing to do with the stalls."""
        slow = dict.fromkeys(scattered(20), 230.0)
        waits = [step for step in scattered(20, seed=8) if step not in slow]

        assert ["irregular"] == names(stopped(at(waits, 200.0), slow=slow))

    def test_that_are_too_short_are_not_blamed(self):
        """A slow sample of 30 ms does not explain a wait of 200 ms."""
        places = scattered(8)

        assert ["irregular"] == names(stopped(at(places, 200.0), slow=dict.fromkeys(places, 30.0)))

    def test_at_the_begin_of_a_shard(self):
        """Stalls where a worker comes to a new file of many samples are the file's."""
        places = [step for step in range(64, 400) if step % 64 < 4]

        row = only(stopped(at(places, 80.0, 400), files=16, slow=dict.fromkeys(places, 60.0)))

        assert ("shard_boundary", 24) == (row["pattern"], row["stalls"])
        assert "new file of about 6" in row["title"]
        assert "its first one takes 60 ms, the others 1.0 ms" in row["title"]

    def test_at_the_begin_of_a_shard_that_only_its_first_sample_names(self):
        """A file that is opened once is still the file of the samples after that one."""
        places = [step for step in range(64, 400) if step % 64 < 4]
        named = stopped(at(places, 80.0, 400), files=16, slow=dict.fromkeys(places, 60.0))
        again = pl.col("path") == pl.col("path").shift(1).over("worker")
        first = pl.when(again.fill_null(False)).then(None).otherwise("path").alias("path")
        samples = named.samples.sort("start_ns").with_columns(first)

        assert "shard_boundary" == only(replace(named, samples=samples))["pattern"]

    def test_of_many_ranks_are_told_apart(self):
        """The samples of one rank are not laid over the steps of another."""
        places = scattered(8)
        one = stopped(at(places, 200.0), slow=dict.fromkeys(places, 230.0))
        other = stopped(at(scattered(8, seed=9), 200.0), rank=1)

        assert "slow_samples" in names(together(one, other))


class TestLongSteps:
    BUSY = noisy(20.0) + at(range(19, STEPS, 20), 240.0)

    def test_without_a_name(self):
        """A rhythm in the loop's own code is told with how much longer it takes."""
        row = only(stopped(np.zeros(STEPS), busy=self.BUSY))

        assert ("periodic_step", "step", 20) == (row["pattern"], row["side"], row["period"])
        assert row["title"].startswith("Every 20th step is 13 times as long as usual (240 ms more)")
        assert "(a checkpoint or logging?)" in row["title"]

    def test_with_a_name(self):
        """The user's own name for a part is used where that part takes the time."""
        parts = {
            "checkpoint": dict.fromkeys(range(19, STEPS, 20), 240.0),
            "logging": dict.fromkeys(range(9, STEPS, 10), 5.0),
        }

        row = only(stopped(np.zeros(STEPS), busy=self.BUSY, parts=parts))

        assert ("named_part", 20) == (row["pattern"], row["period"])
        assert row["title"].endswith("13 times as long as usual: checkpoint takes 240 ms")

    def test_in_a_part_of_the_model(self):
        """Where the backward pass is longer every 20th step, it is told, not blamed."""
        backward = {step: 250.0 if step % 20 == 19 else 10.0 for step in range(STEPS)}

        row = only(stopped(np.zeros(STEPS), busy=self.BUSY, parts={"backward": backward}))

        assert "periodic_step" == row["pattern"]
        assert row["title"].endswith("mostly in backward")

    def test_a_loop_over_another_loader(self):
        """Validation after every epoch is told as what was seen of it."""
        places = range(49, STEPS, 50)
        parts = {"another loader": dict.fromkeys(places, 900.0)}

        row = only(stopped(np.zeros(STEPS), busy=20 + at(places, 900.0), per_epoch=50, parts=parts))

        assert "named_part" == row["pattern"]
        assert "a loop over another loader (validation?) takes 900 ms" in row["title"]

    def test_at_the_end_of_epochs(self):
        """Without a name, it is the end of the epoch that such steps have in common."""
        busy = noisy(20.0) + at(range(49, STEPS, 50), 900.0)

        row = only(stopped(np.zeros(STEPS), busy=busy, per_epoch=50))

        assert ("epoch_end", 4) == (row["pattern"], row["stalls"])

    def test_two_rhythms_in_one(self):
        """Logging every 10 steps and a checkpoint every 100 are two patterns."""
        busy = (
            noisy(20.0, 400)
            + at(range(9, 400, 10), 60.0, 400)
            + at(range(99, 400, 100), 900.0, 400)
        )

        rows = found(stopped(np.zeros(400), busy=busy))

        assert [100, 10] == [row["period"] for row in rows]

    def test_without_any_pattern(self):
        """Long steps by chance are called irregular."""
        busy = 20 + np.random.default_rng(4).pareto(1.2, STEPS) * 5

        rows = found(stopped(np.zeros(STEPS), busy=busy))

        assert [("irregular", "step", None)] == [
            (row["pattern"], row["side"], row["chance"]) for row in rows
        ]


class TestRest:
    def test_a_rhythm_of_unknown_reason(self):
        """A period that nothing explains is told as such."""
        row = only(stopped(at(range(0, STEPS, 7), 30.0)))

        assert ("periodic", 7) == (row["pattern"], row["period"])
        assert row["title"] == "Every 7th step waits 30 ms; nothing that was recorded explains it"

    def test_every_step_waits(self):
        """A loader that is slower throughout has no period."""
        row = only(stopped(noisy(30.0), workers=0))

        assert ("constant", None, STEPS) == (row["pattern"], row["period"], row["stalls"])
        assert row["title"].startswith("Every step waits 30 ms")

    def test_a_wait_of_its_own_out_of_the_same_everywhere(self):
        """Slow samples are found where every step waits."""
        places = scattered(8, 400)
        waits = noisy(30.0, 400) + at(places, 200.0, 400)

        rows = found(stopped(waits, slow=dict.fromkeys(places, 230.0)))

        assert ["constant", "slow_samples"] == [row["pattern"] for row in rows]
        assert places == rows[1]["steps"]
        assert [392, 8] == [row["stalls"] for row in rows]

    def test_collections_out_of_the_same_everywhere(self):
        """So are collections every 50 steps, and the rest has no period because of the holes."""
        places = range(10, 400, 50)
        waits = noisy(30.0, 400) + at(places, 52.0, 400)

        rows = found(stopped(waits, garbage=dict.fromkeys(places, 50.0)))

        assert ["constant", "garbage_collection"] == [row["pattern"] for row in rows]
        assert [None, 50] == [row["period"] for row in rows]

    def test_a_checkpoint_beside_the_workers(self):
        """Both sides of the loop are explained, each by its own."""
        busy = np.where(np.arange(STEPS) % 20 == 19, 240.0, 8.0)

        rows = found(looped(noisy(100.0), busy))

        assert {("periodic_step", 20), ("workers_together", 4)} == {
            (row["pattern"], row["period"]) for row in rows
        }
        assert abs(1.0 - sum(row["share"] for row in rows)) < 0.05

    def test_slow_samples_beside_the_workers(self):
        """Slow samples stand out of the stalls of the workers' rhythm."""
        places = scattered(8, 400)
        makes = noisy(80.0, 400) + at(places, 300.0, 400)
        samples = stopped(np.zeros(400), slow=dict.fromkeys(places, 300.0)).samples

        rows = found(replace(looped(makes, 10.0), samples=samples))

        assert ["workers_together", "slow_samples"] == [row["pattern"] for row in rows]

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

    def test_steps_of_which_little_is_known(self):
        """Steps without times are no stalls."""
        evidence = stopped(at(range(0, STEPS, 4), 50.0))
        nothing = [
            pl.lit(None, pl.Int64).alias("start_ns"),
            pl.lit(None, pl.Int64).alias("end_ns"),
            pl.lit(None, pl.Float64).alias("step_s"),
        ]

        assert patterns(replace(evidence, steps=evidence.steps.with_columns(nothing))).is_empty()

    def test_twenty_thousand_steps(self):
        """Long runs are explained as short ones are."""
        size = 20_000
        waits = at(range(0, size, 4), 50.0, size) + at(scattered(500, size), 20.0, size)

        assert "workers_together" == names(stopped(waits))[0]


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

        Each of 64 loops also has collections, slow samples, files and epochs, at random. A claim
        has a chance below 1%: more than 4 false ones would come in less than one of a thousand.
        """
        generator = np.random.default_rng(5)
        claims = [self._claims(RANDOM[kind], generator) for _ in range(64)]

        assert sum(map(bool, claims)) <= 4

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

    def test_loaders_of_random_speed_have_no_period(self):
        """Batches whose making takes wildly varying times make stalls without any rhythm."""
        generator = np.random.default_rng(6)
        claims = [
            row["period"]
            for _ in range(60)
            for row in found(looped(generator.lognormal(4.6, 1.0, STEPS), 80.0))
            if row["period"]
        ]

        assert len(claims) <= 3
