"""Parts of the stalls: the work that the training loop waited for."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.model.attribution import (
    EXPOSED,
    MAIN_GARBAGE,
    PARTS,
    STALLS,
    find_stalls,
    stall_parts,
    table,
)
from stallscope.run.decode import SPANS
from stallscope.run.result import DELIVERIES, STEPS

MAIN, WORKER = 1, 100
"""Process ids."""
MILESTONES = ("asked", "taken", "made", "pickle", "sent", "arrived")
USUAL = {"asked": 10, "taken": 20, "made": 60, "pickle": 65, "sent": 75, "arrived": 80}
"""Milliseconds. The spans that go with it are `SPANS_OF_USUAL`."""
SPANS_OF_USUAL = [("decode", 20, 45), ("Crop", 45, 58)]


def ns(ms):
    return None if ms is None else round(ms * 1e6)


def delivery(batch=0, *, pid=WORKER, worker=0, epoch=0, **ms):
    """Return a row of the deliveries; milestones without a time were not seen."""
    return (0, pid, worker, epoch, batch, *(ns(ms.get(name)) for name in MILESTONES))


def elsewhere():
    """Return a much earlier batch of the same epoch and worker, so that no batch is the first."""
    return delivery(90, **dict.fromkeys(MILESTONES, -1000))


def span(stage, begin, end, *, batch=0, kind=None, pid=WORKER, worker=0):
    """A row of the spans."""
    kind = kind or {"decode": "decode", "fetch": "fetch", "pin": "pin"}.get(stage, "transform")
    return (0, pid, worker, 0, batch, None, stage, kind, ns(begin), ns(end), None)


def beside(stage, begin, end, *, batch=0, kind="other"):
    return span(stage, begin, end, batch=batch, kind=kind, pid=MAIN, worker=None)


def stall(begin, end, *, batch=0, step=0, epoch=0):
    return (0, step, epoch, batch, 0, ns(begin), ns(end), (end - begin) / 1e3, 0.0)


def frame(rows, schema):
    return pl.DataFrame(rows, schema, orient="row")


def cut(waits, deliveries=(), spans=(), side_spans=()):
    """Return the parts of these stalls."""
    return stall_parts(
        frame(waits, STALLS),
        frame(deliveries, DELIVERIES),
        frame(spans, SPANS),
        frame(side_spans, SPANS),
    )


def in_ms(divided, step=0):
    """Milliseconds of each part of one stall."""
    rows = divided.filter(pl.col("step") == step).iter_rows(named=True)
    return {row["part"]: round(row["exposed_s"] * 1e3, 6) for row in rows}


def parts_ms(begin, end, spans=(), side_spans=(), also=(), **ms):
    """Return the milliseconds of each part of the stall for one batch of a warm worker."""
    rows = [elsewhere(), *also, delivery(**ms)]
    work = [span(*row) for row in spans]
    return in_ms(cut([stall(begin, end)], rows, work, side_spans))


class TestParts:
    def test_follows_the_batch_through_a_stall(self):
        """The parts are queue, stages, feeder thread, pipe and main process, in this order."""
        divided = parts_ms(12, 83, SPANS_OF_USUAL, **USUAL)

        assert list(divided.items()) == [
            ("queued", 8 + 5),
            ("decode", 25),
            ("Crop", 13),
            ("unattributed", 2),
            ("send", 10),
            ("unpickle", 5),
            ("main process", 3),
        ]

    def test_counts_only_what_overlaps_the_stall(self):
        """Work before the wait is hidden, and work after the wait does not count."""
        assert {"decode": 15, "Crop": 5} == parts_ms(30, 50, SPANS_OF_USUAL, **USUAL)

    def test_gives_a_batch_that_was_there_to_the_main_process(self):
        """A wait that begins after the batch arrived is the loop's own bookkeeping."""
        assert {"main process": 10} == parts_ms(100, 110, SPANS_OF_USUAL, **USUAL)

    def test_finds_the_worker_on_an_earlier_batch(self):
        """While the worker makes an earlier batch, the wait counts as that batch's."""
        earlier = delivery(7, asked=0, taken=5, made=18)

        assert {"earlier batch": 6, "queued": 2, "decode": 10} == parts_ms(
            12, 30, SPANS_OF_USUAL, also=[earlier], **USUAL
        )

    def test_separates_pinning_from_waiting_for_the_pin_thread(self):
        """Between arrival and pinning the batch is queued, after it the loop has to take it."""
        pin = beside("pin", 84, 90, kind="pin")

        assert {"queued": 4, "pin": 6, "main process": 2} == parts_ms(
            80, 92, (), [pin], **{**USUAL, "arrived": 80}
        )

    def test_says_when_a_batch_was_not_recorded(self):
        """A batch without any span was left out by the recorder; one with spans has gaps."""
        assert {"not recorded": 40} == parts_ms(20, 60, **USUAL)
        assert {"unattributed": 40} == parts_ms(20, 60, [("decode", 0, 1)], **USUAL)

    def test_separates_ranks(self):
        """The same batch number and process id on another rank is another batch."""
        mine, theirs = (0, *elsewhere()[1:]), (1, *delivery(**USUAL)[1:])

        assert {"unattributed": 10} == in_ms(cut([stall(30, 40)], [mine, theirs], []))

    def test_calls_the_time_before_the_first_task_start(self):
        """`iter(loader)` starts workers, then asks; a new process gets ready before it takes."""
        divided = in_ms(cut([stall(0, 60)], [delivery(**USUAL)], [span("decode", 20, 60)]))

        assert {"start workers": 20, "decode": 40} == divided


class TestUnseenMilestones:
    def test_has_only_unattributed_time_without_a_delivery(self):
        """Without a delivery, the spans of a batch explain nothing."""
        assert {"unattributed": 50} == in_ms(cut([stall(0, 50)], [], [span("decode", 0, 50)]))

    def test_follows_a_loader_in_the_main_process(self):
        """Without workers the parts are sampler, stages and bookkeeping."""
        rows = [delivery(pid=MAIN, worker=None, taken=5, made=40)]
        spans = [span("decode", 6, 40, pid=MAIN, worker=None)]

        divided = in_ms(cut([stall(0, 42)], rows, spans))

        assert {"main process": 5 + 2, "unattributed": 1, "decode": 34} == divided

    def test_garbage_collection_replaces_what_the_main_process_should_have_done(self):
        """A collection that delays the receipt of a batch counts as the stall's cause."""
        divided = parts_ms(70, 100, (), [beside("garbage collection", 78, 90)], **USUAL)

        assert {"send": 5, "unpickle": 3, MAIN_GARBAGE: 12, "main process": 10} == divided


class TestExactSums:
    moments = st.integers(0, 400).map(lambda ms: ms * 1000)  # minutes, as a run is long
    some_spans = st.lists(
        st.tuples(moments, moments, st.integers(0, 3), st.sampled_from(["decode", "Crop"])),
        max_size=8,
    )
    rows = st.lists(st.tuples(*[st.none() | moments] * 6, st.booleans()), min_size=0, max_size=4)

    @pytest.mark.slow
    @settings(deadline=None)
    @given(rows, some_spans, some_spans, st.lists(st.tuples(moments, moments), max_size=5))
    def test_parts_add_up_to_the_stall(self, rows, spans, side_spans, windows):
        deliveries = [
            (0, *((WORKER, 0) if in_worker else (MAIN, None)), 0, number, *map(ns, times))
            for number, (*times, in_worker) in enumerate(rows)
        ]
        work = [span(name, *sorted([a, b]), batch=n) for a, b, n, name in spans]
        names = {"decode": ("pin", "pin"), "Crop": ("garbage collection", "other")}
        main = [
            beside(names[name][0], *sorted([a, b]), batch=n, kind=names[name][1])
            for a, b, n, name in side_spans
        ]
        work, main = (
            [(*r[:8], r[8] // 10**6, r[9] // 10**6, None) for r in s] for s in (work, main)
        )
        waits = [
            stall(*sorted(window), batch=number, step=number)
            for number, window in enumerate(windows)
        ]

        divided = cut(waits, deliveries, work, main)

        whole = divided.with_columns(ns=(pl.col("exposed_s") * 1e9).round().cast(pl.Int64))
        assert (whole["ns"] > 0).all()
        sums = dict(whole.group_by("step").agg(pl.col("ns").sum()).iter_rows())
        assert sums == {row[1]: row[6] - row[5] for row in waits if row[6] > row[5]}


def step(wait_ms, *, start_ms=0, restart_ms=None, step_ms=10.0, number=0):
    seconds = (wait_ms / 1e3, None, None, step_ms / 1e3, None)
    window = (ns(start_ms), ns(start_ms + wait_ms))
    restart_s = None if restart_ms is None else restart_ms / 1e3
    return (number, 0, number, 0, *seconds, 0, *window, restart_s, True)


class TestStalls:
    def test_leaves_out_waits_of_up_to_a_millisecond(self):
        """The threshold for short steps is a millisecond."""
        stalls = find_stalls(
            frame([step(ms, number=i) for i, ms in enumerate([0.5, 1.0, 1.1])], STEPS)
        )

        assert [2] == stalls["step"].to_list()

    def test_leaves_out_waits_of_up_to_a_hundredth_of_a_step(self):
        """The threshold for long steps is 1% of the median period, wait included."""
        rows = [step(ms, number=i, step_ms=500.0) for i, ms in enumerate([4.0, 4.0, 5.0, 5.2, 9.0])]

        assert [3, 4] == find_stalls(frame(rows, STEPS))["step"].to_list()

    def test_begins_with_the_restart(self):
        """The training loop stalls in `iter(loader)` too."""
        stalls = find_stalls(frame([step(5.0, start_ms=100, restart_ms=40.0)], STEPS))

        assert [(ns(60), ns(105), 0.045)] == stalls.select("start_ns", "end_ns", "stall_s").rows()
        assert stalls.schema == pl.Schema(STALLS)

    def test_is_the_end_of_a_wait_in_which_the_device_is_idle(self):
        """Time that the device hides is no stall, nor is a wait with unknown hidden time."""
        steps = frame([step(50.0, start_ms=100 * i, number=i) for i in range(4)], STEPS)
        hidden = steps.with_columns(hidden_s=pl.Series([0.0, 0.03, 0.0495, None]))

        stalls = find_stalls(hidden)

        expected = [(ns(0), ns(50), 0.05, 0.0), (ns(130), ns(150), 0.02, 0.03)]
        assert expected == stalls.select("start_ns", "end_ns", "stall_s", "hidden_s").rows()


def part(name, seconds, *, step=0, kind="other"):
    return (0, step, name, kind, seconds)


class TestTable:
    def test_adds_up_over_stalls(self):
        """The longest part comes first, with its share and its number of stalls."""
        rows = [part("decode", 1.0, kind="decode"), part("queued", 0.5, kind="send")]
        rows += [part("decode", 2.0, step=1, kind="decode"), part("unattributed", 0.5, kind=None)]

        sums = table(frame(rows, PARTS))

        assert sums.rows() == [
            ("decode", "decode", 3.0, 0.75, 2),
            ("queued", "send", 0.5, 0.125, 1),
            ("unattributed", None, 0.5, 0.125, 1),
        ]

    def test_recorded_batches_represent_the_others(self):
        """Unrecorded worker time is divided in proportion to the recorded stages."""
        rows = [
            part("decode", 0.3, kind="decode"),
            part("Crop", 0.1, kind="transform"),
            part("queued", 5.0, kind="send"),
            part("earlier batch", 5.0),
            part("not recorded", 0.8, step=1),
            part("send", 0.2, step=1, kind="send"),
        ]
        sums = dict(table(frame(rows, PARTS)).select("part", "exposed_s").iter_rows())

        assert sums == pytest.approx(
            {"decode": 0.9, "Crop": 0.3, "queued": 5.0, "earlier batch": 5.0, "send": 0.2}
        )

    def test_empty_tables_stay_empty(self):
        """A loop that never waited has no parts, and the tables keep their columns."""
        none = cut([])

        assert find_stalls(frame([], STEPS)).schema == pl.Schema(STALLS)
        assert none.is_empty()
        assert none.schema == pl.Schema(PARTS)
        assert table(none).schema == pl.Schema(EXPOSED)
