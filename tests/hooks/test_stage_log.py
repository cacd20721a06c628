"""The event log on disk."""

from __future__ import annotations

import numpy as np
import pytest

from stallscope.errors import RunFormatError
from stallscope.hooks.stage_log import Header, LogWriter, Tag, read_log
from stallscope.stages import Stage


def writer(path, capacity=16):
    """A log of worker 3."""
    return LogWriter(path, worker=3, born_ns=1000, capacity=capacity)


def test_words_read_back_while_the_log_is_open(tmp_path):
    """What was written can be read before the writer has closed the log."""
    log = writer(tmp_path / "a.events")
    for number in (5, 6, 7):
        log.words[log.place()] = Tag.SAMPLE << 58 | number

    pages = read_log(tmp_path / "a.events")

    assert [5, 6, 7] == (pages.words & 0xFF).tolist()
    assert (3, 1000) == (pages.worker, pages.born_ns)
    log.close()


def test_space_is_reserved_when_the_log_is_made(tmp_path):
    """The file takes its whole room on the disk from the start, so that no later write can fail."""
    log = writer(tmp_path / "a.events", capacity=1 << 16)

    assert (tmp_path / "a.events").stat().st_blocks * 512 >= (1 << 16) * 8
    log.close()


def test_a_wrapped_log_is_read_from_its_oldest_whole_batch(tmp_path):
    """After wrapping, the cut-off batch is left out and the loss is counted."""
    log = writer(tmp_path / "a.events", capacity=8)
    for number in range(5):
        log.words[log.place()] = Tag.BATCH << 58 | number
        log.words[log.place()] = 2000 + number * 10
        log.words[log.place()] = 2001 + number * 10
    log.header[Header.LAPS] = 1

    pages = read_log(tmp_path / "a.events")

    assert [3, 4] == (pages.words[(pages.words >> 58) == Tag.BATCH] & 0xFF).tolist()
    assert 9 == pages.dropped
    log.close()


def test_names_survive_a_half_written_line(tmp_path):
    """A process that is killed while it writes a name loses that name only."""
    log = writer(tmp_path / "a.events")
    log.say(code=1, stage=Stage("decode", "decode"))
    log.say(file=1, path="/data/\udcff.jpg")
    with (tmp_path / "a.names").open("a") as names:
        names.write('{"code": 2, "sta')

    pages = read_log(tmp_path / "a.events")

    assert {1: Stage("decode", "decode")} == pages.stages
    assert {1: "/data/\udcff.jpg"} == pages.files
    log.close()


def test_another_file_is_refused(tmp_path):
    """A file that is no log is named in the error."""
    np.arange(100).tofile(tmp_path / "b.events")

    with pytest.raises(RunFormatError, match=r"b\.events"):
        read_log(tmp_path / "b.events")
