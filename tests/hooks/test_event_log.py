"""The event log on disk."""

import threading

import numpy as np
import pytest

from stallscope.errors import RunFormatError
from stallscope.hooks.event_log import Mark, ProcessLog, Tag, read_log
from stallscope.hooks.recording_folder import LogPlace
from stallscope.run.decode import MarkRow, marks
from stallscope.stages import FORWARD


@pytest.fixture
def place(tmp_path):
    return LogPlace(tmp_path, 160)


def read(place):
    """Return the logs of a recording in order."""
    return [read_log(path) for path in place.logs()]


def marks_in(pages):
    return [MarkRow(*row) for row in marks(pages).tolist()]


def test_words_read_back_while_the_log_is_open(place):
    log = ProcessLog(place, 3)
    here = log.here()
    for number in (5, 6, 7):
        here.words[here.place()] = Tag.SAMPLE | number

    (pages,) = read(place)

    assert [5, 6, 7] == (pages.words & 0xFF).tolist()
    assert (3, log.started_ns) == (pages.worker, pages.started_ns)
    log.retire()


def test_space_is_reserved_when_the_log_is_made(tmp_path):
    """The file reserves its full size on disk at the start, so no later write can fail."""
    place = LogPlace(tmp_path, 1 << 16)
    log = ProcessLog(place, 0)

    assert place.logs()[0].stat().st_blocks * 512 >= (1 << 16) * 8
    log.retire()
    assert place.logs()[0].stat().st_size < 1000


def test_each_thread_has_a_log(place):
    log = ProcessLog(place, -1)
    begin, end = log.part(FORWARD)
    log.mark(Mark.GOT, 1 << 20, 4)
    thread = threading.Thread(target=lambda: (log.put(begin), log.put(end)))
    thread.start()
    thread.join()
    log.retire()

    first, second = read(place)

    (got,) = marks_in(first)
    assert (Mark.GOT, 1 << 20, 4) == (got.what, got.key, got.number)
    assert [Mark.BEGIN, Mark.END] == [row.what for row in marks_in(second)]
    assert first.thread != second.thread
    assert {1: FORWARD} == first.names.stages == second.names.stages


@pytest.mark.parametrize("days", [0, 2, 4, 40])
def test_parts_are_timed_however_long_the_process_lives(place, monkeypatch, days):
    """The clock of the parts wraps every few days; the log's start time resolves the wrap."""
    now_ns = place.origin_ns + days * 86_400 * 10**9
    monkeypatch.setattr("stallscope.hooks.event_log.perf_counter_ns", lambda: now_ns)
    log = ProcessLog(place, -1, place.origin_ns)

    log.put(log.part(FORWARD)[0])
    log.retire()

    ((begin,),) = map(marks_in, read(place))
    assert now_ns == begin.time_ns


def test_a_full_log_says_so(place):
    log = ProcessLog(place, 3)
    here = log.here()
    for number in range(400):
        here.words[here.place()] = Tag.BATCH | number + 1

    (pages,) = read(place)

    assert list(range(1, 160)) == (pages.words & 0xFFFF).tolist()
    assert pages.is_full
    log.retire()


def test_a_retired_log_takes_no_more_events(place):
    """Hooks that outlive the log write nothing, even in new threads."""
    log = ProcessLog(place, -1)
    mark = log.mark
    log.retire()
    mark(Mark.WAIT)
    thread = threading.Thread(target=mark, args=(Mark.WAIT,))
    thread.start()
    thread.join()
    log.say(note="late")

    (pages,) = read(place)

    assert not pages.words.size
    assert not pages.names.notes
    assert [] == list(place.failures.sentences())


def test_another_file_is_refused(tmp_path):
    np.arange(100).tofile(tmp_path / "b.events")

    with pytest.raises(RunFormatError, match=r"b\.events"):
        read_log(tmp_path / "b.events")
