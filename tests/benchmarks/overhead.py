"""Measure the cost of recording a JPEG pipeline, beside seven other tools in the same run.

A batch is made by torch's own fetcher in this process, with one torch thread as in a worker, from
2,000 JPEG files of about 533x800: open, decode, RandomResizedCrop, flip, ToTensor, Normalize,
collate. Our recorder is put on through the real hooks, as for `num_workers=0`; its reading of the
CPU clock at every k-th sample is part of what is measured, and so are the pages of its log. Every
batch is recorded, whatever that costs.

Each condition has a process of its own, as a worker has, where the recorder's hooks stay on; all
are forked anew for each round, as a process may be fast or slow by where its memory lies. A round
begins with batches of two samples that no clock sees; then each makes the same batches, drawn with
the same seeds, in random order: without a tool, with the recorder, once more without (the control)
and with one of the peers, which take turns. A peer is put on before each batch, and two samples
warm it up. The clock is the process's CPU time. The ratio is a round's time without over that with
the tool: 1.000 is free, 0.990 costs 1%.

Rounds are added until the recorder's 95% interval is narrower than +-0.5%, or the time is up.

Then what one span costs in a hot loop, in ns, where nothing else pushes it out of the caches. Each
way of recording runs in a loop of its own; they take turns in a random order. A "record" is the two
words of a span as the recorder writes them, with their clock reads. A "hooked op" is a call of an
object whose class the recorder has hooked, minus the bare call: the wrapper, the check of the
thread and the `finally` included. With a second instance of the class the stage is looked up.
"""

import gc
import itertools
import multiprocessing
import random
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from benchkit import peers
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import Estimate, centre, in_turns, ratio
from PIL import Image
from torch.profiler import record_function
from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torchvision import transforms
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from stallscope.files import log_capacity, workspace
from stallscope.hooks.event_log import MAIN, ProcessLog
from stallscope.hooks.fetchers import Hooks
from stallscope.hooks.find_ops import Ops
from stallscope.hooks.hot_path import Recorder
from stallscope.hooks.patches import Patches
from stallscope.hooks.recording_folder import LogPlace
from stallscope.stages import Stage
from stallscope.targets.sample import sample_folder

Loop = Callable[[int], int]

PLAIN, CONTROL, OURS = "nothing", "nothing, again", "stallscope's recorder"
TARGET = 0.99
WARM_UP, WARM_UP_BATCHES = 2, 12
SHRINK = (0.96, 0.98, 1.0)
"""A crop keeps one of these shares of the width and of the height: 533x800 at most."""
QUALITIES = (75, 80, 85, 90)

Pairs = dict[str, list[tuple[int, int]]]


@dataclass(frozen=True)
class Condition:
    """A way to make a batch."""

    name: str
    fetcher: Any
    """torch's fetcher over the dataset, or over the dataset in a peer's wrapping."""
    on: Callable[[], Any] = nullcontext
    """A `with` block inside of which batches are recorded."""
    stays_on: bool = False
    """True: one such block holds all batches of a process."""


def main() -> None:
    options = arguments(
        __doc__,
        files=Option(2000, 12, "JPEG files to make"),
        batch=Option(32, 2, "samples in a batch"),
        batches=Option(4, 1, "of a round"),
        rounds=Option(24, 8, "the fewest; with fewer than six for each peer, no interval"),
        half_width=Option(0.005, 10.0, "aim"),
        turns=Option(200, 3, "of each loop over spans"),
        length=Option(2000, 200, "spans in a turn"),
        minutes=Option(5.0, 0.1, "stop after this time"),
        seed=Option(random.randrange(1 << 30), 0, "of the draws; new each time"),
    )
    torch.set_num_threads(1)
    with _photographs(options.files) as folder:
        dataset = ImageFolder(str(folder), _pipeline())
        fetcher = _fetcher(dataset)
        ours = Condition(OURS, fetcher, _our_hooks, stays_on=True)
        always = [Condition(PLAIN, fetcher), Condition(CONTROL, fetcher), ours]
        pairs = _measure(always, _peers(dataset, fetcher, folder / "lines.txt"), options)
        print(_report(pairs, options))
    with tempfile.TemporaryDirectory(prefix="benchmark-spans-") as name:
        loops = _loops(Path(name))
        print(_span_report(_span_turns(loops, options.turns, options.length)))


@contextmanager
def _photographs(count: int) -> Iterator[Path]:
    """A temporary folder of two classes with so many JPEG files; deleted after the block.

    They are crops of the sample photographs, each encoded anew, and differ in size and content as
    a real folder's do; the recipe has no chance in it.
    """
    sources = sorted(sample_folder().glob("*/*.jpg"))
    with tempfile.TemporaryDirectory(prefix="benchmark-photographs-") as name:
        for number in tqdm(range(count), desc="making the files", unit="file", leave=False):
            source = sources[number % len(sources)]
            folder = Path(name, source.parent.name)
            folder.mkdir(exist_ok=True)
            variant = number // len(sources)
            _crop(source, variant).save(folder / f"{number}.jpg", quality=_quality(variant))
        yield Path(name)


def _quality(variant: int) -> int:
    return QUALITIES[variant % len(QUALITIES)]


def _crop(source: Path, variant: int) -> Image.Image:
    """Another part of the photograph for each variant, now and then mirrored."""
    with Image.open(source) as image:
        wide = round(image.width * SHRINK[variant % len(SHRINK)])
        high = round(image.height * SHRINK[variant // len(SHRINK) % len(SHRINK)])
        left = (image.width - wide) * (variant % 5) // 4
        top = (image.height - high) * (variant % 7) // 6
        part = image.crop((left, top, left + wide, top + high))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if variant % 2 else part


def _pipeline() -> transforms.Compose:
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def _fetcher(dataset: Any, collate: Any = default_collate) -> Any:
    return _MapDatasetFetcher(dataset, auto_collation=True, collate_fn=collate, drop_last=False)


@contextmanager
def _our_hooks() -> Iterator[None]:
    """The real hooks, as `hooks.probe.Probe` puts them on."""
    with workspace() as place:
        recorder = Recorder(ProcessLog(LogPlace(place, log_capacity(place, 1)), MAIN))
        hooks = Hooks(recorder)
        hooks.number = 0
        hooks.put_on()
        try:
            yield
        finally:
            hooks.take_off()


def _peers(dataset: ImageFolder, fetcher: Any, lines: Path) -> list[Condition]:
    """Every peer that is installed."""
    labelled = peers.Wrapped(dataset, peers.labelled)
    appending = peers.Wrapped(dataset, peers.appending(lines))
    makers: dict[str, Callable[[], Any]] = {
        "VizTracer": peers.viztracer,
        "VizTracer, no C functions": lambda: peers.viztracer(ignore_c_function=True),
        "line_profiler": lambda: peers.line_profiler(dataset),
        "pyinstrument": peers.pyinstrument,
        "yappi": peers.yappi,
    }
    conditions = [
        Condition(
            "torch.profiler, record_function",
            _fetcher(labelled, labelled.collate),
            peers.torch_profiler,
        ),
        Condition("a line of text per op", _fetcher(appending, appending.collate)),
        Condition("cProfile", fetcher, peers.cprofile),
    ]
    switches = {name: peers.installed(name, make) for name, make in makers.items()}
    return conditions + [Condition(name, fetcher, on) for name, on in switches.items() if on]


def _measure(always: list[Condition], others: list[Condition], options: Namespace) -> Pairs:
    """A round's CPU times in ns, without a tool and with it, by tool."""
    draw = random.Random(options.seed)
    pairs: Pairs = {condition.name: [] for condition in (*always[1:], *others)}
    gc.collect()
    gc.freeze()
    turns = itertools.cycle(others)
    deadline = time.monotonic() + 60 * options.minutes
    with tqdm(desc="comparing", unit="round") as bar:
        while not _enough(pairs, options) and time.monotonic() < deadline:
            conditions = [*always, *itertools.islice(turns, 1)]
            _round(conditions, draw, options, pairs)
            bar.update()
            bar.set_postfix_str(_so_far(pairs, options), refresh=False)
    gc.unfreeze()
    return pairs


def _round(
    conditions: list[Condition], draw: random.Random, options: Namespace, pairs: Pairs
) -> None:
    """Make the same batches under each condition, in random order."""
    makers = {condition.name: _Maker(condition) for condition in conditions}
    times = dict.fromkeys(makers, 0)
    for turn in range(-WARM_UP_BATCHES, options.batches):
        index = draw.sample(range(options.files), WARM_UP if turn < 0 else options.batch)
        seed = draw.getrandbits(32)
        for name in draw.sample(list(makers), len(makers)):
            taken_ns = makers[name].batch_ns(index, seed)
            times[name] += taken_ns if turn >= 0 else 0
    without = times.pop(PLAIN)
    for name, with_tool in times.items():
        pairs[name].append((without, with_tool))
    for maker in makers.values():
        maker.end()


class _Maker:
    """A forked process that makes batches under one condition."""

    def __init__(self, condition: Condition) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_make, args=(condition, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def batch_ns(self, index: list[int], seed: int) -> int:
        """CPU time of making one batch."""
        self._pipe.send((index, seed))
        taken: int = self._pipe.recv()
        return taken

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _make(condition: Condition, pipe: Connection) -> None:
    """Make batches as asked for, in a process of its own."""
    each = nullcontext if condition.stays_on else condition.on
    with condition.on() if condition.stays_on else nullcontext():
        for index, seed in iter(pipe.recv, None):
            gc.collect()
            with each():
                if not condition.stays_on:
                    condition.fetcher.fetch(index[-WARM_UP:])
                torch.manual_seed(seed)
                began = time.process_time_ns()
                condition.fetcher.fetch(index)
                taken = time.process_time_ns() - began
            pipe.send(taken)


def _estimate(pairs: Pairs, name: str) -> Estimate:
    without, with_tool = np.array(pairs[name]).T
    return ratio(without, with_tool)


def _enough(pairs: Pairs, options: Namespace) -> bool:
    enough = len(pairs[OURS]) >= options.rounds
    return enough and _estimate(pairs, OURS).half_width < options.half_width


def _so_far(pairs: Pairs, options: Namespace) -> str:
    if len(pairs[OURS]) < options.rounds:
        return ""
    now = _estimate(pairs, OURS)
    return f"recorder {now.centre:.4f} +-{now.half_width:.4f}"


def _report(pairs: Pairs, options: Namespace) -> str:
    estimates = {name: _estimate(pairs, name) for name in pairs if pairs[name]}
    rows = [
        (
            name,
            f"{e.centre:.4f}",
            e.interval(".4f"),
            f"{1 / e.centre - 1:+.1%}",
            f"{len(pairs[name]):,}",
        )
        for name, e in sorted(estimates.items(), key=lambda item: -item[1].centre)
    ]
    head = ("recorded by", "CPU time without / with", "95% interval", "cost", "rounds")
    return "\n".join([table(head, rows), "", *_sentences(pairs, estimates, options)])


def _sentences(pairs: Pairs, estimates: dict[str, Estimate], options: Namespace) -> Iterator[str]:
    ours = estimates[OURS]
    plain_ms = np.median(pairs[OURS], axis=0)[0] / 1e6 / options.batch / options.batches
    best = max(e.centre for name, e in estimates.items() if name not in (OURS, CONTROL))
    yield f"batches of {options.batch} samples; a sample takes {plain_ms:.2f} ms of CPU time"
    if ours.half_width >= options.half_width:
        yield f"the time was up at +-{ours.half_width:.4f}; the aim was +-{options.half_width}"
    yield f"target: from {TARGET} at the lower end -> {met(ours.low >= TARGET)} ({ours.low:.4f})"
    yield f"target: above every peer -> {met(ours.low > best)} (the best peer: {best:.4f})"


# ---- one span in a hot loop ----------------------------------------------------------------------

TARGETS_NS = {"record alone": 150, "hooked op": 400}
CAPACITY = 1 << 20
EMPTY, BARE = "empty loop", "bare call"


class Op:
    """A transform that does nothing."""

    def __call__(self, x: Any) -> Any:
        return x


def _loops(folder: Path) -> dict[str, Loop]:
    """Every way of recording a span: a loop of so many, which returns ns."""
    recorder = Recorder(ProcessLog(LogPlace(folder, CAPACITY), MAIN))
    recorder.enter_batch(0)  # hooks record while a batch is at work
    return {
        EMPTY: _empty,
        "clock pair": _clock_pair,
        "record alone": _record(recorder),
        BARE: _calls(Op()),
        "hooked op": _calls(_hooked(recorder, count=1)),
        "hooked op, two instances": _calls(_hooked(recorder, count=2)),
        "record_function": _labels,
    }


def _hooked(recorder: Recorder, count: int) -> Any:
    """The last of so many objects of a class of their own, hooked as the probe hooks a list."""
    cls = type("Hooked", (Op,), {"__call__": Op.__call__})
    ops = [cls() for _ in range(count)]
    hooks = Ops(recorder, Patches())
    for op in ops:
        hooks._hook_op(op, Stage("Hooked", "transform"))
    return ops[-1]


def _empty(length: int) -> int:
    began = perf_counter_ns()
    for _ in range(length):
        pass
    return perf_counter_ns() - began


def _clock_pair(length: int) -> int:
    now = perf_counter_ns
    began = perf_counter_ns()
    for _ in range(length):
        now()
        now()
    return perf_counter_ns() - began


def _record(recorder: Recorder) -> Loop:
    def loop(length: int) -> int:
        here, now = recorder.log.here(), perf_counter_ns
        words, place = here.words, here.place
        key = recorder.key(Stage("alone", "transform"))
        began = perf_counter_ns()
        for _ in range(length):
            words[place()] = now() + key
            words[place()] = now()
        return perf_counter_ns() - began

    return loop


def _calls(op: Callable[[Any], Any]) -> Loop:
    def loop(length: int) -> int:
        began = perf_counter_ns()
        for _ in range(length):
            op(None)
        return perf_counter_ns() - began

    return loop


def _labels(length: int) -> int:
    began = perf_counter_ns()
    for _ in range(length):
        with record_function("op"):
            pass
    return perf_counter_ns() - began


def _span_turns(loops: dict[str, Loop], turns: int, length: int) -> dict[str, np.ndarray]:
    """Each loop's ns a round, one number a turn."""
    gc.collect()
    gc.disable()
    taken = in_turns({name: partial(_turn, loop, length) for name, loop in loops.items()}, turns)
    gc.enable()
    return {name: np.array(values) for name, values in taken.items()}


def _turn(loop: Loop, length: int) -> float:
    """The loop's ns a round, warmed up."""
    loop(length // 10)
    return loop(length) / length


def _span_report(turns: dict[str, np.ndarray]) -> str:
    """Each way minus what its loop costs without recording, turn by turn."""
    rows = []
    for name, values in turns.items():
        base = None if name in (EMPTY, BARE) else BARE if name.startswith("hooked") else EMPTY
        estimate = centre(values if base is None else values - turns[base])
        rows.append(
            (
                name,
                base or "",
                f"{estimate.centre:,.0f}",
                estimate.interval(",.0f"),
                _span_target(name, estimate),
            )
        )
    head = ("one round", "minus", "ns", "95% interval", "target, ns")
    return table(head, rows)


def _span_target(name: str, estimate: Estimate) -> str:
    target = next((ns for start, ns in TARGETS_NS.items() if name.startswith(start)), None)
    if target is None:
        return ""
    return f"{target} {met(estimate.high <= target)}"


if __name__ == "__main__":
    main()
