"""From samples to the table of resources, out of planted numbers."""

from __future__ import annotations

from stallscope import stages
from stallscope.run.decode import RESOURCES, table

SECOND = 1_000_000_000


def sampled(*samples, **entry):
    """Lines as a sampler writes them: one a second from second 10 on."""
    lines = [{"time_ns": (10 + at) * SECOND, "read": read} for at, read in enumerate(samples)]
    return [entry, *lines] if entry else lines


def made(entries, **columns):
    return table(entries, **{"origin_ns": 9 * SECOND, "rank": 0} | columns)


def test_a_counter_becomes_a_rate_over_the_time_between_two_samples():
    """1 s, then 1.25 s of CPU time: a quarter of a core, from the first sample to the second."""
    frame = made(sampled({stages.WORKER: {"7": 1.0}}, {stages.WORKER: {"7": 1.25}}))

    row = (0, SECOND, 2 * SECOND, stages.WORKER, "7", 0.25, None)
    assert [row] == frame.rows()
    assert list(RESOURCES) == frame.columns


def test_what_is_no_counter_stays_as_it_is():
    """Bytes in use at the end of the interval."""
    frame = made(sampled({stages.MEMORY: {"machine": 5}}, {stages.MEMORY: {"machine": 3}}))

    assert [3.0] == frame["value"].to_list()


def test_what_is_read_seldom_lasts_from_one_reading_to_the_next():
    """A sample without it is passed over."""
    read = {stages.SHM: {"/dev/shm": 1}}
    frame = made(sampled(read, {}, {}, read))

    assert [(SECOND, 4 * SECOND)] == frame.select("start_ns", "end_ns").rows()


def test_a_limit_stands_beside_each_value():
    """That of the resource on the device; others have none."""
    read = {stages.DISK_BUSY: {"a": 0.0, "b": 0.0}}
    frame = made(sampled(read, read, limits={stages.DISK_BUSY: {"a": 1.0}}))

    assert {"a": 1.0, "b": None} == dict(frame.select("device", "limit").iter_rows())


def test_what_is_missing_is_null():
    """One row without a value, never a 0."""
    frame = made(sampled(missing=[stages.GPU, stages.GPU_MEMORY]))

    assert [(stages.GPU, None), (stages.GPU_MEMORY, None)] == frame.select(
        "resource", "value"
    ).rows()
