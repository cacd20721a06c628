"""What the loop does itself, beside waiting and training."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import polars as pl
import pytest
from support.build_facts import COPIES, IDLE, WAITS_IN_FETCH, known
from support.build_storage import a_storage

from stallscope.diagnose.accounting import accounting
from stallscope.diagnose.facts import Gain, Spikes, ThreadTimes
from stallscope.diagnose.rules import (
    computes_in_python,
    copies,
    idle_device,
    no_worker,
    own_parts,
    own_threads,
)
from stallscope.diagnose.verdict import judge, side_notes
from stallscope.loops.cached_values import BatchBytes
from stallscope.model.batch_times import Quartiles
from stallscope.model.exposure import CROWDED, group_of
from stallscope.model.lifecycle import KIND_OF, MAIN_GARBAGE
from stallscope.model.starts import Starts
from stallscope.stages import GARBAGE

CALM = {"stalled": 0.01, "load": 0.4}
HERE = {"setup": {"num_workers": 0}}


class TestOwnParts:
    def test_garbage_and_logging_add_up(self):
        """Parts that are each too small for a finding are one together, named by the longest."""
        parts = {"logging": 0.15, "garbage collection": 0.1, "step": 0.7}

        found = own_parts(known(**CALM, own_parts=parts))

        assert "logging" in found.title
        assert 0.25 == pytest.approx(found.severity)

    def test_the_step_is_no_part_where_no_model_is_seen(self):
        """A step of which nothing is known may be all model."""
        assert own_parts(known(**CALM, own_parts={"step": 0.9})) is None

    def test_the_rest_of_a_step_with_a_model_is_one(self):
        """Where forward and backward are seen, what is left of the step is something else."""
        found = own_parts(known(**CALM, own_parts={"step": 0.5}, model_share=0.4))

        assert "outside of the model" in found.title

    def test_a_sampler_that_computes_is_the_main_process(self):
        """Stalls in the loader's own work in the main process are no work of the workers."""
        slow = known(work={("main process", "main"): 0.9, ("Blur", "transform"): 0.1}, load=0.4)

        assert "main-process" == judge(slow)[0].code

    def test_a_sampler_of_the_users_is_named(self):
        """Where it draws is what to change, and not the workers."""
        place = "Balanced.__iter__ (mine.py:7)"
        work = {("main process", "main"): 0.9, ("Blur", "transform"): 0.1}

        found = judge(known(work=work, load=0.4, setup={"sampler": place}))[0]

        assert place in found.title
        assert "draw indices beforehand" in found.next_step

    def test_a_process_that_computes_more_than_its_workers_is_the_bottleneck(self):
        """A wrapper that takes batches apart, where others have cores, too: no part is a half."""
        work = {
            ("main process", "main"): 0.3,
            (CROWDED, CROWDED): 0.3,
            ("unpickle", "sending"): 0.15,
            ("getitem", "getitem"): 0.15,
            ("collate", "collate"): 0.1,
        }
        here = {"worker_cpu": 0.25, "loop_cpu": 0.5}

        assert "main-process" == judge(known(stalled=0.74, work=work, use=here))[0].code
        assert "main-process" != judge(known(stalled=0.74, work=work))[0].code

    def test_iterators_of_one_batch_are_said(self):
        """Workers that start for each batch: keep one iterator."""
        once = Starts(extra_s=0.3, epoch_s=0.05, epochs=30, batches=1, again=True)
        place = "Batches.__iter__ (mine.py:7)"

        work = {("start workers", "start"): 0.6, ("Blur", "transform"): 0.4}
        facts = known(stalled=0.97, work=work, starts=once, setup={"sampler": place})

        found = judge(facts)[0]

        assert "start-up" == found.code
        assert place in found.title
        assert "iter(loader)" in found.next_step
        longer = replace(facts, starts=replace(once, batches=50))
        assert "persistent" in judge(longer)[0].next_step


SMALL = Spikes(usual_s=2e-6)


class TestSmallSamples:
    @pytest.mark.parametrize(
        "more",
        [
            {"work": {("collate", "collate"): 1.0}},
            {"work": {("getitem", "getitem"): 1.0}},
            {"work": {("collate", "collate"): 1.0}, "setup": {"num_workers": 0}},
        ],
    )
    def test_samples_that_are_one_look_into_an_array_are_to_be_taken_at_once(self, more):
        """Two microseconds for a sample: what takes the time is that there are so many."""
        assert "__getitems__" in judge(known(**more, spikes=SMALL))[0].next_step
        assert "__getitems__" not in judge(known(**more))[0].next_step


class TestComputesInPython:
    def test_a_step_that_computes_for_a_half_is_asked_about(self):
        """Half waiting for a device, half computing, and no model within reach."""
        facts = known(
            **CALM, setup={"simulated": False}, use={"loop_cpu": 0.5}, own_parts={"step": 0.95}
        )

        assert "ss.stage" in computes_in_python(facts).next_step

    def test_a_step_that_computes_all_the_time_may_be_the_model(self):
        """A model on the CPU is no fault."""
        facts = known(
            **CALM, setup={"simulated": False}, use={"loop_cpu": 0.95}, own_parts={"step": 0.97}
        )

        assert computes_in_python(facts) is None

    def test_a_step_that_computes_and_waits_for_a_core_is_the_same(self):
        """Workers that have the cores at times are no device that it waits for."""
        queued = {"loop_cpu": 0.75, "loop_queued_share": 0.2}
        facts = known(**CALM, setup={"simulated": False}, use=queued, own_parts={"step": 0.95})

        assert computes_in_python(facts) is None


class TestDevice:
    def test_a_gpu_that_is_idle_though_batches_are_there_waits_for_the_host(self):
        """No stall, and a GPU that is read as 30% busy."""
        facts = known(**CALM, setup={"on_gpu": True}, use={"gpu_busy_share": 0.3})

        assert "main-process" == idle_device(facts).code

    @pytest.mark.parametrize(("setup", "says"), [({"simulated": True}, True), ({}, False)])
    def test_a_device_whose_own_time_is_known_is_judged_by_that(self, setup, says):
        """Also a simulated one; events of a GPU beside a step on the host say nothing."""
        found = idle_device(
            known(**CALM, setup={"simulated": False} | setup, device_busy_share=0.3)
        )

        assert says == (found is not None)
        assert not says or "the device is busy for 30%" in found.title

    def test_without_a_gpu_nothing_is_said_of_one(self):
        """What was not read is not judged."""
        assert idle_device(known(**CALM)) is None

    def test_a_copy_is_marked_as_not_tested(self):
        """Pinning that holds half of the loop's time is named, and that nobody tried the rule."""
        found = copies(known(stalled=0.5, work={("pin", "pin"): 1.0}))

        assert "copy" == found.code
        assert not found.tested


LEAK = replace(COPIES, copied_share=0.0, end_bytes=None, left_s=4 * 3600.0, limit="container")


class TestMemoryGrowth:
    def test_other_processes_do_not_hide_that_memory_grows(self):
        """Without them the loop would hardly wait; its workers grow all the same."""
        crowd = {"worker_cpu": 0.3, "queued_share": 0.6}
        crowded = known(load=1.2, use=crowd, others_share=0.7, memory_growth=COPIES)

        assert "memory-growth" == judge(crowded)[0].code
        assert "inconclusive" == judge(replace(crowded, memory_growth=None))[0].code

    def test_a_healthy_loop_whose_workers_grow_is_told_so(self):
        """No stall, and 40 MB a second: the pages of Python objects are copied."""
        found = judge(known(**CALM, memory_growth=COPIES))[0]

        assert "memory-growth" == found.code
        assert "2.4 GB a minute in 2 workers, 1.0 GB per 1,000 samples" in found.title
        assert found.title.endswith("ends at 9.0 GB at most")
        assert "reference count" in found.next_step

    def test_new_memory_is_a_leak_with_a_time_left(self):
        """Nothing of it copied: the limit is named, and when it is met."""
        found = judge(known(**CALM | {"setup": {"persistent": True}}, memory_growth=LEAK))[0]

        assert found.title.endswith("the memory of the container is full in 4.0 hours")
        assert "cache without a limit" in found.next_step

    def test_workers_that_end_before_it_is_full_give_it_back(self):
        """A thousand batches of an epoch take less than four hours; they end with it."""
        found = judge(known(**CALM, memory_growth=LEAK))[0]

        assert "the workers end with the epoch, in 101 s at most, and give it back" in found.title

    def test_a_loop_that_starves_hears_of_it_beside_its_cause(self):
        """What costs time now comes first."""
        first, *rest = judge(known(work={("decode", "decode"): 1.0}, memory_growth=COPIES))

        assert "decode" == first.code
        assert "memory-growth" in [one.code for one in rest]

    @pytest.mark.parametrize("less", [{"grown_bytes": 40e6}, {"share_per_min": 0.01}])
    def test_a_cache_that_fills_is_no_finding(self, less):
        """A few megabytes, or a few per cent a minute, are what a young process grows by."""
        assert "healthy" == judge(known(**CALM, memory_growth=replace(COPIES, **less)))[0].code


SPINNING = {"use": {"threads": 67.0}, "extra_threads_share": 0.8}
"""Sixty-four threads beside the usual ones, which take most of the workers' CPU time."""


class TestSlowedStep:
    def test_threads_that_slow_the_step_are_the_cause_without_a_stall(self):
        """The ladder gains a fifth though the loop hardly waits."""
        found = judge(known(stalled=0.03, load=0.4, gain=Gain(1.2, 1.15, 1.25), **SPINNING))[0]

        assert "oversubscription" == found.code
        assert 1 - 1 / 1.2 == pytest.approx(found.severity)

    def test_the_same_threads_are_no_cause_where_nothing_is_to_be_had(self):
        """A ladder that gains nothing: the step is not slower beside the workers."""
        facts = known(stalled=0.03, load=0.4, gain=Gain(1.01, 0.98, 1.04), **SPINNING)

        assert "healthy" == judge(facts)[0].code


RESIZED = {("decode", "decode"): 0.35, ("Resize", "transform"): 0.35, ("Blur", "transform"): 0.3}


class TestLargeImages:
    def test_decoding_and_resizing_of_large_images_is_one_cause(self):
        """The fix is one: store them smaller, or decode them smaller."""
        found = judge(known(work=RESIZED, megapixels=12.0))[0]

        assert "decode" == found.code
        assert "Resize" in found.title
        assert "store them so" in found.next_step

    def test_small_images_are_not_stored_too_large(self):
        """Where the images are small already, resizing is a transform like any other."""
        assert "decode" != judge(known(work=RESIZED, megapixels=0.2))[0].code


class TestLocks:
    def test_a_lock_of_a_file_is_seen_while_the_loop_runs(self):
        """What one worker alone does says nothing where files are cached by then."""
        waits = known(
            work={("getitem", "getitem"): (0.9, 1.0), ("Blur", "transform"): 0.1},
            use={"worker_cpu": 0.1, "file_lock_share": 0.6},
        )

        assert "lock" == judge(waits)[0].code
        assert "lock of a file 60%" in judge(waits)[0].title


class TestCaches:
    def test_a_cache_that_is_lost_with_its_workers_is_said(self):
        """Of workers that live on, the cache does, too."""
        waits = known(
            work={("fetch", "fetch"): (0.9, 1.0), ("Blur", "transform"): 0.1},
            use={"worker_cpu": 0.1},
            setup={"cache": "self.kept"},
            starts=Starts(again=True),
        )

        assert judge(waits)[0].next_step.startswith("persistent_workers=True: what self.kept")
        assert "persistent" not in judge(replace(waits, starts=Starts()))[0].next_step


class TestRepeats:
    def test_what_is_done_many_times_for_a_sample_is_asked_about(self):
        """A row of sixteen frames is decoded for the numbers beside them."""
        work = {("decode", "decode"): 0.6, ("Blur", "transform"): 0.4}

        assert (
            "16 times for each sample"
            in judge(known(work=work, calls={"decode": 16.0}))[0].next_step
        )
        assert "times" not in judge(known(work=work, calls={"decode": 2.0}))[0].next_step


def test_what_workers_collect_is_told_from_what_the_main_process_collects():
    """Both are garbage; only the workers' is something that is done to samples."""
    of_worker = group_of(GARBAGE.name, GARBAGE.kind)
    work = {(GARBAGE.name, of_worker): 0.8, ("decode", "decode"): 0.2}

    verdict = judge(known(work=work))[0]

    assert "one-transform" == verdict.code
    assert "garbage collector" in verdict.title
    assert "gc.freeze()" in verdict.next_step
    assert "main" == group_of(MAIN_GARBAGE, KIND_OF[MAIN_GARBAGE])


class TestStarts:
    @pytest.mark.parametrize(
        ("streams", "slow", "helps"),
        [
            (True, "first_s", "buffer"),
            (True, "drawn_s", "buffer"),
            (False, "first_s", "persistent"),
            (False, "drawn_s", "draw"),
        ],
    )
    def test_a_slow_begin_is_told_by_what_takes_most_of_it(self, streams, slow, helps):
        """A stream's shuffle buffer is filled anew, also by workers that live on."""
        starts = Starts(1.0, 2.0, 3, again=True, **{slow: 0.9})

        found = judge(known(stalled=0.05, starts=starts, setup={"streams": streams}))[0]

        assert "start-up" == found.code
        assert helps in found.next_step.partition(";")[0]

    @pytest.mark.parametrize(("ended", "helps"), [(True, "persistent"), (False, "make one iter")])
    def test_a_loader_of_two_batches_is_not_begun_anew(self, ended, helps):
        """Its epochs are no longer; one of many that gives two is asked for a new iterator."""
        starts = Starts(1.0, 2.0, 3, batches=2, ended=ended, again=True)

        found = judge(known(stalled=0.05, starts=starts))[0]

        assert "start-up" == found.code
        assert found.next_step.startswith(helps)


class TestReading:
    @pytest.mark.parametrize(
        ("latency_s", "code"),
        [({1: 0.002, 8: 0.0025}, "latency"), ({1: 0.0002, 8: 0.0007}, "bandwidth")],
    )
    def test_a_measured_device_tells_requests_from_bytes(self, latency_s, code):
        """Whether a first epoch's samples come as fast as its bytes do, whatever workers share."""
        setup = {"storage": a_storage(latency_s)}
        for alone_s in (None, 0.01):
            waits = known(work=WAITS_IN_FETCH, use=IDLE, setup=setup, alone_waiting_s=alone_s)

            found = judge(waits)[0]

            assert f"storage-{code}" == found.code
            assert 8 == found.evidence["storage_cold_readers"]
            assert 1 < found.evidence["storage_spare_factor"]

    def test_own_code_that_waits_longer_beside_others_is_no_full_storage(self):
        """Where nothing was seen to read, no bytes per second are the limit."""
        work = {("getitem", "getitem"): (0.9, 0.6), ("Blur", "transform"): 0.1}
        waits = known(work=work, use={"worker_cpu": 0.5}, alone_waiting_s=0.05, lock_frames=0.0)

        assert "storage-bandwidth" not in [one.code for one in judge(waits)]


class TestDecode:
    def test_what_is_no_image_gets_no_images_advice(self):
        """PIL's draft is for images that PIL opened, and for no video, sound or text."""
        work = {("decode", "decode"): 1.0}
        images, others = (judge(known(work=work, megapixels=one))[0] for one in (0.3, None))

        assert "PIL" in images.next_step
        assert "PIL" not in others.next_step


class TestThreads:
    WORK: ClassVar = {("getitem", "getitem"): (0.9, 0.0), ("Blur", "transform"): 0.1}

    def test_own_code_that_waits_for_its_own_threads_is_no_storage(self):
        """A codec that decodes in threads of its own computes, though Python waits for it."""
        found = judge(known(work=self.WORK, threads_compute=True))[0]

        assert "one-transform" == found.code
        assert "threads of its own" in found.title

    def test_what_takes_whole_batches_is_told_of_a_batch(self):
        """The time of a function that gets whole batches is a batch's."""
        found = judge(known(work={("augment", "transform"): 1.0}, whole_batches={"augment"}))[0]

        assert "per batch" in found.title


class TestOwnThreads:
    SLOWED = ThreadTimes(threads=8, own_s=1.5, one_s=0.087)

    def test_a_loop_that_would_not_wait_with_one_thread(self):
        """What the loop's threads cost is the verdict, though one thread is quick enough."""
        verdict = judge(known(**CALM, **HERE, own_threads=self.SLOWED))[0]

        assert "main-process" == verdict.code
        assert "1.5 s with your loop's 8 torch threads, and 87 ms with one" in verdict.title

    def test_a_loop_that_waits_with_one_thread_too(self):
        """Both times are said, and are evidence."""
        found = no_worker(known(stalled=0.98, **HERE, own_threads=self.SLOWED))

        assert "with one torch thread; a batch takes 1.5 s" in found.title
        assert (1.5, 0.087) == tuple(
            found.evidence[f"batch_{which}_s"] for which in ("own_threads", "one_thread")
        )

    @pytest.mark.parametrize(("batches", "keeps"), [(10, True), (100_000, False), (None, False)])
    def test_workers_for_a_short_epoch_are_kept_alive(self, batches, keeps):
        """Starting them anew may take what they gain."""
        found = no_worker(known(setup={"num_workers": 0, "epoch_batches": batches}))

        assert keeps == ("persistent_workers=True, as an epoch takes" in found.next_step)

    def test_a_difference_that_a_neighbour_makes_is_none(self):
        """Times that are nearly the same are evidence, and no cause."""
        facts = known(**HERE, own_threads=ThreadTimes(2, 0.1, 0.08))

        assert own_threads(facts) is None
        assert "torch thread" not in no_worker(facts).title


class TestScaledBytes:
    COLLATES: ClassVar = {"work": {("collate", "collate"): 0.7, ("Blur", "transform"): 0.3}}
    SENDS: ClassVar = {"work": {("send", "sending"): 0.9, ("Blur", "transform"): 0.1}, "load": 0.4}

    @pytest.mark.parametrize("slow", [COLLATES, SENDS])
    def test_floats_that_uint8_would_hold_are_sent_as_uint8(self, slow):
        """The remedy says that the conversion follows on the device, and the title how much."""
        found = judge(known(**slow, batch=BatchBytes(100_000_000, 96_000_000, 24_000_000)))[0]

        assert found.code == judge(known(**slow))[0].code
        assert "96 MB a batch are floats that 24 MB of uint8 would hold" in found.title
        assert all(word in found.next_step for word in ("uint8", "on the device", "the same"))

    @pytest.mark.parametrize("slow", [COLLATES, SENDS])
    def test_other_floats_are_not(self, slow):
        """Of a batch that is mostly something else, uint8 is no remedy."""
        other = BatchBytes(100_000_000, 40_000_000, 10_000_000)

        assert judge(known(**slow)) == judge(known(**slow, batch=other))

    CONVERTS: ClassVar = {
        ("ToTensor", "transform"): 0.35,
        ("Normalize", "transform"): 0.35,
        ("Flip", "transform"): 0.1,
        ("decode", "decode"): 0.2,
    }

    def test_transforms_that_convert_can_follow_on_the_device(self):
        """Two of three transforms, together most of all, make floats that uint8 would hold."""
        scaled = BatchBytes(100_000_000, 96_000_000, 24_000_000)

        found = judge(known(work=self.CONVERTS, batch=scaled))[0]

        assert "one-transform" == found.code
        assert "ToTensor" in found.title
        assert "on the device" in found.next_step
        assert 0.35 == pytest.approx(found.severity)

    def test_other_transforms_are_no_conversion(self):
        """A blur stays what it is, whatever a batch holds."""
        scaled = BatchBytes(100_000_000, 96_000_000, 24_000_000)
        blurs = {("Blur", "transform"): 0.5, ("ToTensor", "transform"): 0.3}
        facts = known(work=blurs | {("decode", "decode"): 0.2})

        assert judge(facts) == judge(replace(facts, batch=scaled))


class TestReleasedBatches:
    LARGE: ClassVar = {"stalled": 0.1, "load": 0.5, "own_parts": {"step": 0.5, "other": 0.4}}

    def test_what_letting_go_of_a_batch_takes_is_sending(self):
        """Its shared memory is given back in the loop's own code, which is not to blame."""
        half = 0.5 * known(**self.LARGE).making.period_s
        batch = BatchBytes(100_000_000, 96_000_000, 24_000_000, release_s=half)

        before, found = judge(known(**self.LARGE))[0], judge(known(**self.LARGE, batch=batch))

        assert "main-process" == before.code
        assert "sending" == found[0].code
        assert "shared memory of a batch (100 MB)" in found[0].title
        assert "uint8" in found[0].next_step
        assert 0.4 == pytest.approx(found[0].evidence["release_share"])  # no more than there is
        assert "main-process" not in {one.code for one in found}

    def test_of_a_small_batch_is_not(self):
        """What the loop's code takes beyond it stays the loop's."""
        batch = BatchBytes(1_000_000, 0, 0, release_s=1e-4)

        assert "main-process" == judge(known(**self.LARGE, batch=batch))[0].code

    def test_accounts_have_it_as_sending(self):
        """And they add up to the loop's time."""
        facts = known(**self.LARGE, batch=BatchBytes(100_000_000, 0, 0, release_s=1.0))
        half_s = facts.time.step_s / 2
        time = replace(facts.time, step_s=half_s, other_s=half_s)
        accounts = accounting(replace(facts, time=time))

        released = accounts.filter(pl.col("part") == "memory of batches, given back")
        assert ["send"] == released["kind"].to_list()
        assert 0.4 == pytest.approx(released["loop_share"].item())
        assert 1.0 == pytest.approx(accounts["loop_share"].sum(), abs=1e-6)


@pytest.mark.parametrize(
    ("backward", "steps"),
    [
        (0.6, {"forward (until backward)": 0.2, "backward": 0.6, "rest of the step": 0.2}),
        (0.9, {"step": 1.0}),  # longer than the step itself: nothing would add up
    ],
)
@pytest.mark.parametrize("slowed", [False, True])
def test_accounts_have_the_step_in_its_parts(backward, steps, slowed):
    """By the names that the run has; of a step that is slower beside the workers each part is."""
    facts = known(stalled=0.1, gain=Gain(1.25, 1.2, 1.3) if slowed else None)
    parts = {"forward (until backward)": 0.2, "backward": backward}
    times = [(name, "step", part * facts.time.step_s) for name, part in parts.items()]
    accounts = accounting(replace(facts, time=replace(facts.time, parts=tuple(times))))

    own = dict(accounts.filter(~pl.col("stalled")).select("part", "loop_share").iter_rows())
    whole = 0.9
    if slowed:
        assert 0.1 == pytest.approx(own.pop("step, slower beside the workers"))
        whole = 0.8
    assert own == pytest.approx({name: whole * part for name, part in steps.items()})
    assert 1.0 == pytest.approx(accounts["loop_share"].sum(), abs=1e-6)


@pytest.mark.parametrize(("drawn_s", "title"), [(1.5, "drawing its indices"), (0.5, "workers")])
def test_epochs_that_begin_with_drawing_are_told_from_those_that_start_workers(drawn_s, title):
    """Workers that live on save nothing where the main process draws."""
    starts = Starts(2.0, epoch_s=2.0, epochs=3, again=True, drawn_s=drawn_s)

    found = judge(known(starts=starts, setup={"drawn_by": "WeightedRandomSampler"}))

    (told,) = (one for one in found if one.code == "start-up")
    assert title in told.title
    assert ("persistent_workers" in told.next_step) == ("WeightedRandomSampler" not in told.title)


@pytest.mark.parametrize(("extra_s", "begins"), [(2.0, [0.2]), (0.5, [])])
def test_accounts_have_the_begin_of_epochs(extra_s, begins):
    """Where it is a finding; all is a share of an epoch then, and adds up as before."""
    facts = known(stalled=0.5, starts=Starts(extra_s, epoch_s=8.0, epochs=3, again=True))
    accounts = accounting(facts)

    begin = accounts.filter(pl.col("part") == "begin of the epochs")
    assert begins == pytest.approx(begin["loop_share"].to_list())
    assert 1.0 == pytest.approx(accounts["loop_share"].sum(), abs=1e-6)
    steady = accounting(replace(facts, starts=Starts()))
    alone = judge(replace(facts, starts=Starts()))
    costs = {found.code: found.severity for found in judge(facts) if found.code != "start-up"}
    assert costs == pytest.approx({one.code: one.severity * (1 - sum(begins)) for one in alone})
    each = accounts.filter(pl.col("part") != "begin of the epochs")
    assert (steady["loop_share"] * (1 - sum(begins))).to_list() == pytest.approx(
        each["loop_share"].to_list()
    )


def test_begins_within_the_steady_state_count_once():
    """Workers that live on begin the later epochs there; what is left is of an epoch, too."""
    works = {("decode", "decode"): 0.2, ("Blur", "transform"): 0.2}
    starts = Starts(2.0, epoch_s=8.0, epochs=3, again=True)
    facts = known(stalled=0.5, work={("start workers", "start"): 0.6, **works}, starts=starts)

    parts = dict(accounting(facts).select("part", "loop_share").iter_rows())
    costs = {one.code: one.severity for one in judge(facts)}

    assert "start-up" in costs
    # Of what was seen 30% are begins, 10% each stage and 50% the step: 80% of an epoch is steady
    steady = {"step": 50, "decode": 10, "Blur": 10}
    whole = {name: 0.8 * part / 70 for name, part in steady.items()}
    assert parts == pytest.approx(whole | {"begin of the epochs": 0.2})
    assert whole["decode"] == pytest.approx(costs["decode"])


@pytest.mark.parametrize(("epoch_s", "code"), [(1.0, "start-up"), (9.0, "decode")])
def test_starts_that_cost_more_of_an_epoch_than_its_stalls_come_first(epoch_s, code):
    """Epochs of a batch, all stalls: of the seconds that are no begin, decoding is less."""
    works = {("start workers", "start"): 0.3, ("decode", "decode"): 0.7}
    starts = Starts(2.0, epoch_s=epoch_s, epochs=3, batches=1, ended=True, again=True)

    assert code == judge(known(stalled=0.9, work=works, starts=starts))[0].code


def test_a_finding_about_all_stalls_costs_no_more_than_those_that_are_no_begins():
    """One worker that all stalls wait for: the begins among them are a finding of their own."""
    works = {("start workers", "start"): 0.4, ("decode", "decode"): 0.6}
    starts = Starts(2.0, epoch_s=18.0, epochs=3, again=True)
    slow = {"making": {"by_worker": {0: Quartiles(0.3, 0.3, 0.3), 1: Quartiles(0.1, 0.1, 0.1)}}}
    facts = known(stalled=0.9, work=works, starts=starts, stalled_by_worker={0: 1.0}, **slow)

    costs = {one.code: one.severity for one in judge(facts)}

    assert 0.9 * 0.54 / 0.64 == pytest.approx(costs["slow-worker"])


class TestLateBegin:
    LATE = Starts(before=700, before_s=9.5, epoch_s=300.0, extra_s=9.4, again=True)

    def test_is_the_verdict_where_nothing_else_can_be_told(self):
        """Where one step was seen, it is said why there are not more."""
        facts = known(starts=self.LATE)
        short = replace(facts, time=replace(facts.time, steps=1))

        (found,) = judge(short)

        assert "start-up" == found.code
        assert "9.5 s go by before its first step, in which 700 batches" in found.title
        assert "sampler" in found.next_step
        assert not side_notes(short, (found,))

    def test_is_a_note_beside_any_other(self):
        """It happens once."""
        facts = known(starts=self.LATE)
        found = judge(facts)

        assert "start-up" not in {one.code for one in found}
        assert "700 batches" in side_notes(facts, found)[0]
        assert not side_notes(known(starts=replace(self.LATE, before=3)), found)


def test_a_validation_is_told_beside_the_verdict():
    """It is another loop, which may wait as well."""
    assert "validation" in side_notes(known(validation_share=0.3), ())[0]
    assert not side_notes(known(validation_share=0.05), ())


def test_cores_that_cannot_keep_up_are_behind():
    """Also where each worker would be quick enough with a core for itself."""
    assert known(load=0.5).pace.is_behind
    assert not known(load=0.5, use={"worker_cpu": 0.1}).pace.is_behind
    assert known(load=2.0, use={"worker_cpu": 0.1}).pace.is_behind
