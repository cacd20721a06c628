"""Workers that hang and die, full disks, interrupts, and unusual user code."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.faults import VERBS, generators, record_slowly, seeded, use
from support.faulty_datasets import (
    Hangs,
    Movable,
    Opaque,
    Parsed,
    Swallows,
    Whose,
    as_nested,
    as_ragged,
    as_record,
    as_texts,
    without_none,
)
from support.loaders import Dies, Endless, Fails, Noise, NoiseStream, Slow
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_utils

import stallscope as ss
from stallscope.files import workspace
from stallscope.run.script import watching


@pytest.fixture
def impatient(monkeypatch):
    """Let torch wait half a second, not five, before it kills a worker that hangs."""
    monkeypatch.setattr(torch_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)


every_verb = pytest.mark.parametrize("verb", VERBS)
workers = pytest.mark.parametrize("workers", [0, 2])


def exits(_: int) -> None:
    """End a worker at its start."""
    os._exit(3)


class TestWorkersThatFail:
    @pytest.mark.slow
    def test_a_worker_that_hangs_until_a_timeout(self, impatient):
        """Torch's RuntimeError names the worker's place in a note, and the run ends there."""
        used = use("record", DataLoader(Hangs(), 2, num_workers=2, timeout=2))

        assert RuntimeError is type(used.error)
        assert "timed out after 2 seconds" in str(used.error)
        assert "'fetch' of batch 4" in used.notes
        assert "index 9 of the dataset" in used.notes
        assert 4 == used.run.all_steps.height

    @pytest.mark.usefixtures("lost_interrupts_come_again")
    def test_a_worker_that_hangs_until_an_interrupt(self, impatient):
        """The KeyboardInterrupt carries the same note."""
        interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        left = iter([False, False, False, True])

        def step(_: Any) -> None:
            if next(left):  # the next batch is the one that never comes
                interrupt.start()

        used = use("record", DataLoader(Hangs(), 2, num_workers=2), step)

        assert KeyboardInterrupt is type(used.error)
        assert "'fetch' of batch 4" in used.notes

    def test_a_worker_that_is_killed_from_outside(self, impatient):
        loader = DataLoader(Slow(64), 2, num_workers=2, multiprocessing_context="fork")
        steps = []

        def step(_: Any) -> None:
            steps.append(1)
            if len(steps) == 3:
                worker = multiprocessing.active_children()[0]
                worker.kill()
                # While it dies, its batches fail with the system's own error. Who takes its status
                # from torch's handler would wait for the loader's timeout, of a minute and more
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)

        used = use("record", loader, step)

        assert RuntimeError is type(used.error)
        assert "DataLoader worker" in str(used.error)
        assert "stallscope: " in used.notes
        assert used.run.all_steps.height >= 2
        assert {0, 1} == set(used.run.all_spans["worker"])

    def test_a_worker_that_kills_itself_is_located(self):
        """The op that a killed worker was inside of is named."""
        used = use("record", DataLoader(Dies(), 4, num_workers=2))

        assert isinstance(used.error, (RuntimeError, ConnectionError, EOFError))
        assert "'augment_it'" in used.notes
        assert "index 33 of the dataset" in used.notes
        assert 32 in used.run.all_samples["index"].to_list()

    def test_a_worker_that_exits_at_its_start_is_named(self):
        used = use("record", DataLoader(Noise(), 4, num_workers=1, worker_init_fn=exits))

        assert isinstance(used.error, RuntimeError)
        assert "exit code 3" in f"{used.error} {used.notes}"  # torch may be first to say so

    @pytest.mark.parametrize(("verb", "method"), [("all", "fork"), ("record", None)])
    def test_a_dataset_that_raises(self, verb, method):
        context = {"num_workers": 2, "multiprocessing_context": method} if method else {}
        used = use(verb, DataLoader(Fails(), 4, **context))

        assert KeyError is type(used.error)
        assert "index 17 of the dataset" in used.notes
        assert "'getitem' of batch 4" in used.notes
        assert used.run.all_steps.height in (3, 4)
        assert not used.run.all_spans.is_empty()


class TestTheProcessIsKilled:
    def test_its_workers_die_and_its_folder_is_swept(self, tmp_path):
        """The files of a killed recording are deleted at the next start."""
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
        """The run has the steps before the kill, and a note of it."""
        with _recording("watch", tmp_path) as process:
            process.kill()
            process.join()

        run = ss.load(tmp_path / "run")

        assert run.all_steps.height >= 4
        assert {0, 1} == set(run.all_spans["worker"])
        assert any("before it could save" in note for note in run.notes)
        assert not run.stages().is_empty()


@contextmanager
def _recording(what: str, folder: Path) -> Iterator[Any]:
    """Start a process that records slow batches; the block begins after its fourth batch."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=record_slowly, args=(what, folder, signals := context.Queue()))
    process.start()
    try:
        for _ in range(4):
            signals.get(timeout=60)
        yield process
    finally:
        process.kill()
        process.join()


class TestStepsThatFail:
    @workers
    def test_record_keeps_the_run_and_says_so(self, workers):
        """The step's exception passes unchanged, with a note, and the run ends there."""
        used = use("record", DataLoader(Noise(48), 4, num_workers=workers), _fails_at(3))

        assert ZeroDivisionError is type(used.error)
        assert ("third",) == used.error.args
        assert "2 batches" in used.notes
        assert 2 == used.error.run.all_steps.height

    @workers
    @pytest.mark.parametrize("verb", ["given", "all"])
    def test_instrumented_lets_it_pass(self, verb, workers):
        used = use(verb, DataLoader(Noise(48), 4, num_workers=workers), _fails_at(3))

        assert ZeroDivisionError is type(used.error)
        assert "" == used.notes
        assert 3 == used.run.all_steps.height

    @pytest.mark.parametrize(
        ("verb", "raised"),
        [("record", KeyboardInterrupt), ("given", SystemExit), ("all", KeyboardInterrupt)],
    )
    def test_base_exceptions_pass(self, verb, raised):
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


@workers
def test_samples_that_are_swallowed_are_counted(workers):
    """The samples that raised and those that are None are counted."""
    loader = DataLoader(Swallows(48), 8, num_workers=workers, collate_fn=without_none)

    with ss.instrumented() as watch:
        list(loader)

    notes = watch.run.notes
    assert "UnidentifiedImageError in fetch in 12 of 48 samples, which the dataset caught" in notes
    assert "12 of 48 samples are None: batches are smaller without them" in notes


class Incomparable(Noise):
    """A dataset that raises when it is compared, hashed, shown or asked for its truth."""

    def _raises(self, *_: Any) -> Any:
        raise RuntimeError("planted")

    __eq__ = __ne__ = __hash__ = __bool__ = __repr__ = _raises  # type: ignore[assignment]


@workers
def test_a_dataset_that_cannot_be_compared_is_recorded(workers):
    loader = DataLoader(Incomparable(48), 8, num_workers=workers)

    run = ss.record(loader, batches=4, warmup=0)

    assert set(range(32)) <= set(run.samples(steady=False)["index"])


class TestBatches:
    @pytest.mark.parametrize("collate", [as_record, as_texts, as_ragged, Movable])
    def test_of_any_kind(self, collate):
        """The step gets the batches of plain iteration, of their class, whatever that is."""
        loader = DataLoader(Noise(16), 4, collate_fn=collate, num_workers=1)
        torch.manual_seed(0)
        plain = list(loader)
        torch.manual_seed(0)
        used = use("record", loader, batches=3)

        assert used.error is None
        assert _content(plain[: len(used.batches)]) == _content(used.batches)
        assert type(plain[0]) is type(used.batches[0])
        assert len(used.batches) == used.run.all_steps.height

    @pytest.mark.parametrize("collate", [as_record, as_nested, Opaque])
    def test_on_their_way_to_a_device(self, collate):
        """With `device`, objects that cannot move and the batch's classes are unchanged."""
        loader = DataLoader(Noise(16), 4, collate_fn=collate)
        plain, used = list(loader), []

        ss.record(loader, used.append, device="cpu", batches=3, warmup=0)

        assert type(plain[0]) is type(used[0])
        assert getattr(plain[0], "size", None) == getattr(used[0], "size", None)


def _content(batch: Any) -> Any:
    """Return a batch as plain values that can be compared bit for bit."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: _content(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_content(value) for value in batch]
    return _content(batch.samples) if isinstance(batch, Opaque) else batch


class TestLoaders:
    @pytest.mark.parametrize(("data", "workers"), [(Endless(), 2), (NoiseStream(90), 0)])
    def test_without_length(self, data, workers):
        """A stream without a length is recorded, with an end or without one."""
        used = use("record", DataLoader(data, 4, num_workers=workers), batches=12)

        assert used.error is None
        assert len(used.batches) == used.run.all_steps.height >= 12

    @pytest.mark.parametrize("in_order", [True, False])
    def test_batches_out_of_order(self, in_order):
        """Each step knows its batch, and the worker that made it."""
        loader = DataLoader(Whose(slow=0), 4, num_workers=2, in_order=in_order)
        used = use("record", loader, batches=10)

        truth = [(int(batch[0, 0]) // 4, int(batch[0, 1])) for batch in used.batches]
        assert truth == used.run.all_steps.select("batch", "worker").rows()
        assert not in_order or truth[0] == (0, 0)

    def test_a_generator_of_the_users(self):
        """The generator gives the order that it would have given; `record` puts it back."""
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(
            Whose(), 4, shuffle=True, generator=generator, timeout=30, num_workers=1
        )
        begun = generator.get_state()
        plain = list(loader)
        generator.set_state(begun)

        used = use("record", loader, batches=11)

        assert torch.equal(torch.cat(plain), torch.cat(used.batches))
        assert torch.equal(begun, generator.get_state())


class TestProcessesOfTheirOwn:
    @workers
    def test_a_child_that_ends_by_itself(self, workers):
        """The child of a loop that forks writes nothing, and the parent is still recorded."""

        def step(_: Any) -> None:
            if (pid := os.fork()) == 0:
                os._exit(len(list(DataLoader(Noise(8), 4))))
            assert 2 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        used = use("record", DataLoader(Noise(32), 4, num_workers=workers), step, batches=6)

        assert used.error is None
        assert len(used.batches) == used.run.all_steps.height
        assert len(used.batches) <= used.run.batches.filter("complete").height

    @pytest.mark.parametrize("verb", ["all", "watch"])
    def test_a_child_that_leaves_the_block(self, verb, tmp_path):
        """The child ends nothing of its parent's: folder, logs, hooks, workers."""
        loader = DataLoader(Noise(32), 4, num_workers=1)
        watch = {
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


class TestBlocks:
    def test_one_loader_inside_of_all(self):
        """Both blocks see the inner loader; the outer one sees the other loader, too."""
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
        for target in (loader, None):
            with ss.instrumented(target, warmup=0) as watch:
                batches = iter(loader)
                next(batches)
                run = ss.record(loader, batches=4, warmup=0)
                rest = list(batches)

            assert 5 == len(rest)
            assert 5 == run.all_steps.height
            assert 6 in [recording.all_steps.height for recording in (watch.run, *watch.run.others)]

    @workers
    def test_an_iterator_that_was_begun_before(self, workers):
        """The batches are unchanged, the waits are recorded, and a note names what is missing."""
        loader = DataLoader(Whose(32), 4, num_workers=workers)
        batches = iter(loader)
        first = [next(batches), next(batches)]
        with ss.instrumented(warmup=0) as watch:
            rest = list(batches)

        assert torch.equal(torch.cat([*first, *rest])[:, 0], torch.arange(32.0))
        assert list(range(2, 8)) == watch.run.all_steps["batch"].to_list()
        assert bool(workers) == any("before the recording" in note for note in watch.run.notes)
        assert not any("left no log" in note for note in watch.run.notes)

    @workers
    @pytest.mark.parametrize("verb", ["given", "all"])
    def test_an_iterator_that_goes_on_afterwards(self, verb, workers):
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
        """Every epoch of the first block is recorded in full; of later blocks, the waits are."""
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
        assert any("before the recording" in note for note in second.run.notes)


class TestNamedParts:
    @workers
    def test_in_the_dataset(self, workers):
        """Nested, recursive and raising parts are stages of the samples."""
        used = use("record", DataLoader(Parsed(24), 4, num_workers=workers), batches=5)

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
        """Nested, decorated, recursive and raising parts are parts of the step."""

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
        """Outside of a recording, `stage` only passes on results and exceptions."""

        @ss.stage("named")
        def double(x: int) -> int:
            return 2 * x

        with pytest.raises(ZeroDivisionError), ss.stage("fails"):
            double(1 // 0)
        assert 6 == double(3)
