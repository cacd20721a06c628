"""Long recordings: the logs stay small, cover the whole time, and can always be read."""

import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks import recording_folder
from stallscope.hooks.event_log import MAIN, Mark, ProcessLog, read_log
from stallscope.hooks.loader_access import shut_down
from stallscope.hooks.recording_folder import LogPlace
from stallscope.run import record
from stallscope.run.load import collect

MOST_BYTES = 2_000_000
STEPS = 480
STEPS_PER_STRETCH = 12


@pytest.fixture
def steps_of(monkeypatch):
    """Give recordings little room, and count their stretches in steps instead of seconds."""
    steps = multiprocessing.Value("q", 0)

    def small(folder, _capacity, **_):
        return LogPlace(folder, 12_000, most_bytes=MOST_BYTES)

    monkeypatch.setattr(record, "LogPlace", small)
    monkeypatch.setattr(LogPlace, "stretch", lambda _: steps.value // STEPS_PER_STRETCH)
    monkeypatch.setattr(LogPlace, "stretch_ends_ns", lambda _: 0)  # so it is looked at each mark
    monkeypatch.setattr(recording_folder, "_LEAST_BYTES", 16384)
    return steps


@dataclass
class Loop:
    """Loop with its run, its own times, and the largest size of its logs."""

    run: Any
    times_ns: np.ndarray
    largest_bytes: int


def iterate(loader, steps, folder):
    """Iterate the loader for this many steps."""
    times_ns, sizes = [], []
    with ss.instrumented(warmup=0) as watch:
        (logs,) = folder.glob("stallscope-*")
        while steps.value < STEPS:
            for _ in loader:
                steps.value += 1
                times_ns.append(time.perf_counter_ns())
                sizes.append(sum(path.stat().st_size for path in logs.iterdir()))
    if loader._iterator is not None:
        shut_down(loader._iterator)
    return Loop(watch.run, np.array(times_ns), max(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "respawned"])
def test_the_logs_stay_small_and_cover_the_whole_recording(
    steps_of, tmp_path, monkeypatch, persistent
):
    """Pieces of the whole recording are kept, however long workers live, and the run has a note.

    In each piece steps and batches belong together, and no step reaches over a gap.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loader = DataLoader(range(240), 2, num_workers=2, persistent_workers=persistent)

    loop = iterate(loader, steps_of, tmp_path)

    run, steps = loop.run, loop.run.all_steps
    assert loop.largest_bytes < MOST_BYTES
    assert 40 < steps.height < 0.6 * STEPS
    deliveries = run.deliveries.drop_nulls("made_ns")
    for seen_ns in (steps["start_ns"], deliveries["made_ns"]):
        early, late = np.quantile(loop.times_ns - loop.times_ns[0], [0.3, 0.7])
        first = (steps["start_ns"] + steps["wait_s"] * 1e9).min()  # when its batch came
        assert seen_ns.min() - first < early < late < seen_ns.max() - first
    assert steps.join(deliveries, on=["epoch", "batch"]).height > 0.7 * steps.height
    notes = [note for note in run.notes if "parts of the recording were kept" in note]
    assert 1 == len(notes), run.notes
    assert not any("left no log" in note for note in run.notes)


def test_a_step_does_not_reach_over_a_gap(tmp_path):
    """The step before deleted files is left out, and no step reaches over the gap."""
    place = LogPlace(tmp_path, 100, stretch_ns=1)
    log = ProcessLog(place, MAIN)
    key = recording_folder.epoch_key(1, 0)
    log.mark(Mark.ITER, key)
    log.mark(Mark.ITERATED, key)
    for number in range(12):
        log.mark(Mark.WAIT, key)
        log.mark(Mark.GOT, key, number)
    log.retire()
    for path in place.logs():
        if read_log(path).turn in range(2 + 2 * 4, 2 + 2 * 7):  # each mark begins a file
            path.unlink()

    run = collect(place).run

    # Those in the files; the last one before the gap has no end, the first one after it no past
    assert [0, 1, 2, 8, 9, 10, 11] == run.all_steps["batch"].to_list()
    assert any(note.startswith("2 parts of the recording were kept") for note in run.notes)


class TestStretches:
    def test_deletes_whole_stretches_but_not_the_first_and_the_latest(self, tmp_path):
        """The files of a number are deleted together, and the rest fits into half of the room."""
        place = LogPlace(tmp_path, 0, most_bytes=40 << 16)
        for number in range(50):
            for kind in ("events", "paths"):
                (tmp_path / f"7-0-{number}-{number}.{kind}").touch()
        (tmp_path / "7-0-1.names").touch()
        (tmp_path / "samples.resources").touch()

        place.thin()

        left = {int(path.stem.split("-")[-1]) for path in tmp_path.glob("7-*.events")}
        assert {0, 48, 49} < left
        assert len(left) == len([*tmp_path.glob("7-*.paths")]) <= 10
        assert max(b - a for a, b in zip(sorted(left), sorted(left)[1:], strict=False)) < 20
        assert (tmp_path / "samples.resources").exists()
        assert (tmp_path / "7-0-1.names").exists()
