"""Workers that hang and die, full disks, interrupts, and user code that does as it likes."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from support import leftovers
from support.faults import VERBS, generators, record_slowly, seeded, use
from support.faulty_datasets import (
    Brief,
    Hangs,
    Movable,
    Opaque,
    Parsed,
    Whose,
    as_nested,
    as_number,
    as_ragged,
    as_record,
    as_texts,
)
from support.loaders import Dies, Endless, Fails, Noise, NoiseStream, Slow
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_utils

import stallscope as ss
from stallscope.files import workspace
from stallscope.hooks import patches
from stallscope.hooks.probe import Probe
from stallscope.run.script import watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def impatient(monkeypatch):
    """Torch waits five seconds for a worker that hangs before it kills it; here, half a one."""
    monkeypatch.setattr(torch_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)


every_verb = pytest.mark.parametrize("verb", VERBS)
verbs = pytest.mark.parametrize("verb", ["record", pytest.param("all", marks=pytest.mark.thorough)])
"""All three go through one probe."""
workers = pytest.mark.parametrize("workers", [0, 2])


class TestWorkersThatFail:
    @pytest.mark.slow
    @verbs
    def test_one_that_hangs_under_a_timeout(self, verb, impatient):
        """Torch's own RuntimeError, with a note of where the worker is; the run until then."""
        used = use(verb, DataLoader(Hangs(), 2, num_workers=2, timeout=2))

        assert RuntimeError is type(used.error)
        assert "timed out after 2 seconds" in str(used.error)
        assert "'fetch' of batch 4" in used.notes
        assert "index 9 of the dataset" in used.notes
        assert 4 == used.run.all_steps.height

    @pytest.mark.usefixtures("lost_interrupts_come_again")
    @verbs
    def test_one_that_hangs_until_the_user_gives_up(self, verb, impatient):
        """KeyboardInterrupt, with the same note."""
        interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        left = iter([False, False, False, True])

        def step(_: Any) -> None:
            if next(left):  # the next batch is the one that never comes
                interrupt.start()

        used = use(verb, DataLoader(Hangs(), 2, num_workers=2), step)

        assert KeyboardInterrupt is type(used.error)
        assert "'fetch' of batch 4" in used.notes

    @pytest.mark.parametrize(
        ("verb", "method"),
        [
            ("record", "fork"),
            pytest.param("all", "fork", marks=pytest.mark.slow),
            pytest.param("record", "spawn", marks=pytest.mark.thorough),
        ],
    )
    def test_one_that_is_killed_from_outside(self, verb, method, impatient):
        """Torch's error names the worker; what came before is kept."""
        loader = DataLoader(Slow(64), 2, num_workers=2, multiprocessing_context=method)
        steps = []

        def step(_: Any) -> None:
            steps.append(1)
            if len(steps) == 3:
                worker = multiprocessing.active_children()[0]
                worker.kill()
                # While it dies, its batches fail with the system's own error. Who takes its status
                # from torch's handler would wait for the loader's timeout, of a minute and more
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)

        used = use(verb, loader, step)

        assert RuntimeError is type(used.error)
        assert "DataLoader worker" in str(used.error)
        assert "stallscope: " in used.notes
        assert used.run.all_steps.height >= 2
        assert {0, 1} == set(used.run.all_spans["worker"])

    @every_verb
    def test_one_that_kills_itself_is_told_where_it_was(self, verb):
        """The op that a killed worker was inside of is named."""
        used = use(verb, DataLoader(Dies(), 4, num_workers=2))

        assert isinstance(used.error, (RuntimeError, ConnectionError, EOFError))
        assert "'augment_it'" in used.notes
        assert "index 33 of the dataset" in used.notes
        assert 32 in used.run.all_samples["index"].to_list()

    def test_one_that_dies_while_the_recording_ends(self, monkeypatch):
        """Torch's handler may raise at any line of ours: the hooks come off all the same."""
        loader = DataLoader(Slow(64), 2, num_workers=2)
        iterator = None

        def dies(writer: Any) -> None:
            discard(writer)
            if isinstance(writer, Probe):
                monkeypatch.undo()
                worker = iterator._workers[0]
                worker.kill()
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)

        with ss.instrumented(loader) as watch:
            iterator = iter(loader)
            next(iterator)
            discard = patches.in_this_process.discard
            monkeypatch.setattr(patches.in_this_process, "discard", dies)

        assert not leftovers.hooks()
        assert watch.run.all_spans.height
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            list(iterator)

    @pytest.mark.parametrize(
        ("verb", "method"),
        [
            ("given", None),
            ("all", "fork"),
            ("record", None),
            ("record", "fork"),
            pytest.param("record", "spawn", marks=pytest.mark.thorough),
            pytest.param("all", "forkserver", marks=pytest.mark.thorough),
        ],
    )
    def test_a_dataset_that_raises(self, verb, method):
        """Its own exception, with sample and stage in a note; the run until then."""
        context = {"num_workers": 2, "multiprocessing_context": method} if method else {}
        used = use(verb, DataLoader(Fails(), 4, **context))

        assert KeyError is type(used.error)
        assert "index 17 of the dataset" in used.notes
        assert "'getitem' of batch 4" in used.notes
        assert used.run.all_steps.height in (3, 4)
        assert not used.run.all_spans.is_empty()


class TestTheProcessIsKilled:
    def test_its_workers_die_and_its_folder_is_swept(self, tmp_path):
        """What a killed recording leaves behind is gone after the next start."""
        with _recording("record", tmp_path) as process:
            children = psutil.Process(process.pid).children()
            process.kill()
            process.join()
        gone, alive = psutil.wait_procs(children, timeout=60)

        assert 3 == len(gone)  # two workers, and who samples the resources
        assert [] == alive
        assert 1 == len(list(tmp_path.glob(f"stallscope-{process.pid}-*")))
        with workspace(tmp_path):
            assert [] == list(tmp_path.glob(f"stallscope-{process.pid}-*"))

    def test_a_run_folder_can_be_loaded_afterwards(self, tmp_path):
        """The steps until then, and a note that the process was killed."""
        with _recording("watch", tmp_path) as process:
            process.kill()
            process.join()

        run = ss.load(tmp_path / "run")

        assert run.all_steps.height >= 4
        assert {0, 1} == set(run.all_spans["worker"])
        assert any("before it could save" in note for note in run.notes)
        assert not run.stages().is_empty()

    def test_a_script_that_ends_at_once(self, tmp_path):
        """`os._exit` inside of the block: its code is the script's, the next start sweeps."""
        with _recording("exit", tmp_path) as process:
            process.join(20)

        assert 7 == process.exitcode
        with workspace(tmp_path):
            assert [] == list(tmp_path.glob(f"stallscope-{process.pid}-*"))


@contextmanager
def _recording(what: str, folder: Path) -> Iterator[Any]:
    """A process that records slow batches; in the block it has made four."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=record_slowly, args=(what, folder, made := context.Queue()))
    process.start()
    try:
        for _ in range(4):
            made.get(timeout=60)
        yield process
    finally:
        process.kill()
        process.join()


class TestNoQueues:
    @verbs
    def test_where_shared_memory_cannot_be_written(self, verb):
        """The system's own error, and none of clearing away what there never was."""

        class ReadOnly(multiprocessing.context.ForkContext):
            def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802 - Python's name
                raise OSError(errno.EROFS, "Read-only file system")

        loader = DataLoader(Noise(), num_workers=1, multiprocessing_context=ReadOnly())
        used = use(verb, loader)

        assert (OSError, errno.EROFS) == (type(used.error), used.error.errno)


@pytest.mark.slow
class TestNoRoom:
    def test_in_shared_memory_or_for_the_logs(self):
        """Full /dev/shm: torch's error with a note. A full temporary folder: a run without spans.

        In a process with file systems of its own, of a few MB.
        """
        mounts = (
            "mount -t tmpfs -o size=6m none /dev/shm && mount -t tmpfs -o size=64m none /mnt && "
            f"TMPDIR=/mnt TQDM_DISABLE=1 exec {sys.executable} -m support.faults"
        )
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", mounts],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if "unshare" in done.stderr or "mount:" in done.stderr:
            pytest.skip("no right to mount a file system of its own")
        assert 0 == done.returncode, done.stderr

        said = json.loads(done.stdout.splitlines()[-1])
        for verb in VERBS:
            memory, logs = said[f"memory {verb}"], said[f"logs {verb}"]
            assert "RuntimeError" == memory["error"], memory
            assert "Bus error" in memory["text"] or "shared memory" in memory["text"]
            assert "run" in memory["notes"]
            assert [] == memory["left"]
            assert (None, 0) == (logs["error"], logs["spans"]), logs
            assert logs["batches"] == logs["steps"] >= 10
            assert "2 workers left no log" in logs["run"]
            assert [] == logs["left"]
        assert "WorkspaceError" == said["no room at all"]["error"]
        assert "TMPDIR" in said["no room at all"]["text"]


class TestStepsThatFail:
    @workers
    def test_record_keeps_the_run_and_says_so(self, workers):
        """The step's own exception, unchanged, with a note and the run until then."""
        used = use("record", DataLoader(Noise(48), 4, num_workers=workers), _fails_at(3))

        assert ZeroDivisionError is type(used.error)
        assert ("third",) == used.error.args
        assert "2 batches" in used.notes
        assert 2 == used.error.run.all_steps.height

    @workers
    @pytest.mark.parametrize("verb", ["given", "all"])
    def test_instrumented_lets_it_pass(self, verb, workers):
        """Nothing is added to what the workers have no part in; the run is there."""
        used = use(verb, DataLoader(Noise(48), 4, num_workers=workers), _fails_at(3))

        assert ZeroDivisionError is type(used.error)
        assert "" == used.notes
        assert 3 == used.run.all_steps.height

    @every_verb
    @pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_what_is_no_exception(self, verb, raised):
        """Whatever ends the loop passes, and the run is there."""

        def step(_: Any) -> None:
            raise raised

        used = use(verb, DataLoader(Noise(), 4), step)

        assert raised is type(used.error)
        assert used.run is not None

    def test_a_dataset_that_raises_and_goes_on(self):
        """A loop that skips a batch gets the others, each under its own number."""
        seen = []
        with ss.instrumented(warmup=0) as watch:
            batches = iter(DataLoader(Fails(), 4))
            for _ in range(16):
                try:
                    seen.append(next(batches)[0, 0].item())
                except KeyError:  # noqa: PERF203 - a loop that goes on is what is tested
                    continue

        assert [4.0 * n for n in range(16) if n != 4] == seen
        assert [n for n in range(16) if n != 4] == watch.run.all_steps["batch"].to_list()


def _fails_at(number: int) -> Callable[[Any], None]:
    seen = []

    def step(batch: Any) -> None:
        seen.append(batch)
        if len(seen) == number:
            raise ZeroDivisionError("third")

    return step


class TestBatches:
    @verbs
    @pytest.mark.parametrize(
        "collate",
        [
            as_record, as_nested, as_texts, as_ragged, as_number,
            Opaque, Movable,
        ],
    )  # fmt: skip
    def test_of_any_kind(self, verb, collate):
        """The step gets the batches of plain iteration, of their class, whatever that is."""
        loader = DataLoader(Noise(16), 4, collate_fn=collate, num_workers=1)
        torch.manual_seed(0)
        plain = list(loader)
        torch.manual_seed(0)
        used = use(verb, loader, batches=3)

        assert used.error is None
        assert _content(plain[: len(used.batches)]) == _content(used.batches)
        assert type(plain[0]) is type(used.batches[0])
        assert len(used.batches) == used.run.all_steps.height

    @pytest.mark.parametrize("collate", [as_record, as_nested, Opaque])
    def test_on_their_way_to_a_device(self, collate):
        """With `device`, what cannot move stays as it is, and classes stay what they are."""
        loader = DataLoader(Noise(16), 4, collate_fn=collate)
        plain, used = list(loader), []

        ss.record(loader, used.append, device="cpu", batches=3, warmup=0)

        assert type(plain[0]) is type(used[0])
        assert getattr(plain[0], "size", None) == getattr(used[0], "size", None)

    def test_that_move_themselves(self):
        """A `to` of the user's gets the device alone, and may return nothing."""
        used = []

        loader = DataLoader(Noise(16), 4, collate_fn=Movable)
        ss.record(loader, used.append, device="cpu", batches=3, warmup=0)

        assert all(batch.moved for batch in used)


def _content(thing: Any) -> Any:
    """What can be compared bit for bit."""
    if isinstance(thing, torch.Tensor):
        return thing.tolist()
    if isinstance(thing, dict):
        return {key: _content(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_content(value) for value in thing]
    return _content(thing.samples) if isinstance(thing, Opaque) else thing


class TestLoaders:
    @verbs
    @workers
    @pytest.mark.parametrize("data", [Endless(), NoiseStream(90)])
    def test_without_length(self, verb, workers, data):
        """A stream, with an end or without one."""
        used = use(verb, DataLoader(data, 4, num_workers=workers), batches=12)

        assert used.error is None
        assert len(used.batches) == used.run.all_steps.height >= 12

    @pytest.mark.slow
    @verbs
    def test_shorter_than_its_workers(self, verb):
        """Workers that get nothing to do have no part in the run."""
        used = use(verb, DataLoader(Noise(4), 4, num_workers=3), batches=1)

        assert used.error is None
        assert {0} == set(used.run.all_spans["worker"])
        assert not any("left no log" in note for note in used.run.notes)

    @pytest.mark.slow
    @verbs
    def test_a_stream_shorter_than_its_workers(self, verb):
        """Most of the workers end at once."""
        used = use(verb, DataLoader(Brief(), 4, num_workers=3), batches=1)

        assert used.error is None
        assert (1, 2) == used.batches[0].shape

    @pytest.mark.thorough
    def test_with_128_workers(self):
        """All of them are seen."""
        used = use("record", DataLoader(Noise(4096), 4, num_workers=128), batches=300)

        assert used.error is None
        assert set(range(128)) == set(used.run.all_spans["worker"])

    @verbs
    @pytest.mark.parametrize("in_order", [True, False])
    def test_batches_out_of_order(self, verb, in_order):
        """Each step knows its batch, and the worker that made it."""
        loader = DataLoader(Whose(slow=0), 4, num_workers=2, in_order=in_order)
        used = use(verb, loader, batches=10)

        truth = [(int(batch[0, 0]) // 4, int(batch[0, 1])) for batch in used.batches]
        assert truth == used.run.all_steps.select("batch", "worker").rows()
        assert not in_order or truth[0] == (0, 0)

    @verbs
    def test_a_generator_of_the_users(self, verb):
        """It gives the order that it would have given; `record` puts it back."""
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(
            Whose(), 4, shuffle=True, generator=generator, timeout=30, num_workers=1
        )
        begun = generator.get_state()
        plain, moved = list(loader), generator.get_state()
        generator.set_state(begun)

        used = use(verb, loader, batches=11 if verb == "record" else 12)

        assert torch.equal(torch.cat(plain), torch.cat(used.batches))
        assert torch.equal(begun if verb == "record" else moved, generator.get_state())


class TestProcessesOfTheirOwn:
    @verbs
    @workers
    def test_a_child_that_ends_by_itself(self, verb, workers):
        """A loop that forks: the child writes nothing, the parent goes on being recorded."""

        def step(_: Any) -> None:
            if (pid := os.fork()) == 0:
                os._exit(len(list(DataLoader(Noise(8), 4))))
            assert 2 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        used = use(verb, DataLoader(Noise(32), 4, num_workers=workers), step, batches=6)

        assert used.error is None
        assert len(used.batches) == used.run.all_steps.height
        assert len(used.batches) <= used.run.batches.filter("complete").height

    @pytest.mark.parametrize(
        "verb", [pytest.param("given", marks=pytest.mark.slow), "all", "watch"]
    )
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_child_that_leaves_the_block(self, verb, workers, tmp_path):
        """It ends nothing that is its parent's: folder, logs, hooks, workers."""
        loader = DataLoader(Noise(32), 4, num_workers=workers)
        watch = {
            "given": lambda: ss.instrumented(loader),
            "all": ss.instrumented,
            "watch": lambda: watching(tmp_path / "run", name="", warmup=0, done=runs.append),
        }[verb]
        runs, parent, child = [], os.getpid(), -1
        try:
            with watch() as watch:
                batches = iter(loader)  # kept: a child that drops it ends its parent's workers
                for number, _ in enumerate(batches):
                    if number == 2 and (child := os.fork()) == 0:
                        break
                    if number == 3:
                        os.waitpid(child, 0)
        finally:
            if os.getpid() != parent:
                os._exit(0)

        run = runs[0] if verb == "watch" else watch.run
        assert 8 == run.all_steps.height == run.batches.filter("complete").height

    @verbs
    def test_multiprocessing_in_the_loop(self, verb):
        """Their own pools and processes work as ever."""

        def step(_: Any) -> None:
            with multiprocessing.get_context("fork").Pool(1) as pool:
                assert [3.0] == pool.map(abs, [-3.0])

        used = use(verb, DataLoader(Noise(16), 4, num_workers=1), step, batches=3)

        assert used.error is None
        assert len(used.batches) == used.run.all_steps.height


class TestBlocks:
    def test_one_loader_inside_of_all(self):
        """Both see it; the outer one sees the other loader, too."""
        a, b = DataLoader(Noise(16), 4, num_workers=1), DataLoader(Whose(12), 4)
        with ss.instrumented(warmup=0) as outer:
            with ss.instrumented(a, warmup=0) as inner:
                assert 4 == len(list(a))
                assert 3 == len(list(b))
            assert 3 == len(list(b))

        assert 4 == inner.run.all_steps.height == inner.run.batches.height
        assert () == inner.run.others
        assert {4, 6} == {run.all_steps.height for run in (outer.run, *outer.run.others)}

    def test_record_inside_of_a_block(self):
        """An experiment is possible while a loop is watched, also over the same loader."""
        loader = DataLoader(Noise(24), 4, num_workers=1)
        for given in (loader, None):
            with ss.instrumented(given, warmup=0) as watch:
                batches = iter(loader)
                next(batches)
                run = ss.record(loader, batches=4, warmup=0)
                rest = list(batches)

            assert 5 == len(rest)
            assert 5 == run.all_steps.height
            assert 6 in [one.all_steps.height for one in (watch.run, *watch.run.others)]

    @pytest.mark.slow
    def test_a_background_thread_that_iterates_another_loader(self):
        """`record` neither measures it nor ends its workers; a block for all measures it."""
        seen, stop = [], threading.Event()

        def iterate() -> None:
            while not stop.is_set():
                seen.append(len(list(DataLoader(Noise(16), 4, num_workers=1))))

        thread = threading.Thread(target=iterate)
        thread.start()
        run = ss.record(DataLoader(Slow(24), 4, num_workers=1), batches=5, warmup=0)
        with ss.instrumented(warmup=0) as watch:
            list(DataLoader(Slow(24), 4))
        stop.set()
        thread.join()

        assert () == run.others
        assert {4} == set(seen)
        assert 6 in [one.all_steps.height for one in (watch.run, *watch.run.others)]

    @workers
    def test_an_iterator_that_was_begun_before(self, workers):
        """Its batches come as they would; its waits are seen, and a note says what is not."""
        loader = DataLoader(Whose(32), 4, num_workers=workers)
        batches = iter(loader)
        first = [next(batches), next(batches)]
        with ss.instrumented(warmup=0) as watch:
            rest = list(batches)

        assert torch.equal(torch.cat([*first, *rest])[:, 0], torch.arange(32.0))
        assert list(range(2, 8)) == watch.run.all_steps["batch"].to_list()
        assert bool(workers) == any("lived already" in note for note in watch.run.notes)
        assert not any("left no log" in note for note in watch.run.notes)

    @workers
    @pytest.mark.parametrize("verb", ["given", "all"])
    def test_an_iterator_that_goes_on_afterwards(self, verb, workers):
        """The rest of its batches are those of plain iteration."""
        loader = DataLoader(Noise(48), 4, shuffle=True, num_workers=workers)
        seeded(3)
        plain, after = list(loader), generators()
        seeded(3)
        with ss.instrumented(loader if verb == "given" else None, warmup=0) as watch:
            batches = iter(loader)
            first = [next(batches) for _ in range(5)]
        rest = list(batches)

        assert torch.equal(torch.cat(plain), torch.cat([*first, *rest]))
        assert after == generators()
        assert 5 == watch.run.all_steps.height

    def test_persistent_workers_over_epochs_and_blocks(self):
        """Every epoch of the first block is recorded; of later ones, the waits."""
        loader = DataLoader(Noise(24), 4, num_workers=2, persistent_workers=True)
        with ss.instrumented(warmup=0) as first:
            for _ in range(3):
                list(loader)
        list(loader)
        with ss.instrumented(warmup=0) as second:
            for _ in range(2):
                list(loader)
        loader._iterator._shutdown_workers()

        assert {0, 1, 2} == set(first.run.batches["epoch"])
        assert 18 == first.run.all_steps.height
        assert 12 == second.run.all_steps.height
        assert second.run.all_spans.is_empty()
        assert any("lived already" in note for note in second.run.notes)

    @pytest.mark.slow
    @every_verb
    def test_those_who_look_after_garbage_themselves(self, verb):
        """`gc.disable` and `gc.freeze` stay what they were."""
        gc.disable()
        gc.freeze()
        frozen = gc.get_freeze_count()
        try:
            used = use(verb, DataLoader(Noise(16), 4, num_workers=1), lambda _: gc.collect())

            assert used.error is None
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 0.9 * frozen
        finally:
            gc.unfreeze()
            gc.enable()


class TestNamedParts:
    @verbs
    @workers
    def test_in_the_dataset(self, verb, workers):
        """Nested, recursive and raising ones are stages of the samples."""
        used = use(verb, DataLoader(Parsed(24), 4, num_workers=workers), batches=5)

        assert used.error is None
        stages = dict(used.run.stages().select("stage", "kind").rows())
        assert ("fetch", "other", "other") == (
            stages["read it"], stages["down"], stages["refuses"],
        )  # fmt: skip
        samples = used.run.samples(steady=False)
        counted = used.run.all_spans.group_by("stage").len()
        assert dict(counted.rows())["down"] >= samples.height

    @every_verb
    def test_in_the_loop(self, verb):
        """Parts of the step, nested, as a decorator, recursive, and one that raises."""

        @ss.stage("deep")
        def deep(left: int) -> None:
            time.sleep(0.001)
            if left:
                deep(left - 1)

        def step(_: Any) -> None:
            with ss.stage("outer"):
                deep(2)
                try:
                    with ss.stage("raises"):
                        raise ValueError  # noqa: TRY301 - the part that raises is what is tested
                except ValueError:
                    time.sleep(0.001)
                with ss.stage("outer"):
                    pass

        used = use(verb, DataLoader(Noise(24), 4), step, batches=5)

        assert used.error is None
        spans = used.run.side_spans.filter(used.run.side_spans["kind"] == "other")
        assert {"outer", "deep", "raises"} <= set(spans["stage"])
        steps = used.run.all_steps
        assert (steps["other_s"][:-1] >= 0.003).all()

    def test_where_nobody_records(self):
        """It does nothing, returns what the function returns, and raises what it raises."""

        @ss.stage("named")
        def double(x: int) -> int:
            return 2 * x

        with pytest.raises(ZeroDivisionError), ss.stage("fails"):
            double(1 // 0)
        assert 6 == double(3)

    def test_one_object_in_several_threads(self):
        """A `stage` that is kept and shared names the part in each thread."""
        part = ss.stage("shared")

        def enter(_: Any = None) -> None:
            for _ in range(50):
                with part:
                    pass

        with ss.instrumented(warmup=0) as watch:
            for _ in DataLoader(Noise(16), 4):
                threads = [threading.Thread(target=enter) for _ in range(3)]
                for thread in threads:
                    thread.start()
                enter()
                for thread in threads:
                    thread.join()

        assert "shared" in set(watch.run.side_spans["stage"])
