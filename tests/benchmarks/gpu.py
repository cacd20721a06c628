"""Compare stallscope's numbers of a GPU with independent ones. Needs CUDA, and says so.

Busy share: kernels of a known length, a pause of the host after each. Events: what two of them take
of the host in each step. Copies: its figures against copies between two events, of batches that lie
in no cache. Training: the same steps of a ResNet-18 with and without `ss.instrumented` and torch's
profiler, in turns. Verdicts: planted causes before training steps of a ResNet-50 and a ViT, each so
large that it takes as long as the loop was planted for.

    python tests/benchmarks/gpu.py
    python tests/benchmarks/gpu.py --only busy copies
"""

import os
import time
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from statistics import mean, median
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

from collections.abc import Callable

import numpy as np
import torch
from benchkit import peers
from benchkit.command import Option, arguments, met, table
from benchkit.pairing import in_turns, ratio
from planted import HEALTHY_CODE, PLANTED, plant
from support.device_loops import Naps
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks.device_time import Accelerator, Edge, EventClock
from stallscope.loops.devices import Gpu

NO_DEVICE = "no CUDA device: nothing measured"
WITHIN = 0.02
NEAR = 0.05
TARGET_US = 20
RIGHT = 10 / 12
CYCLES = 50_000_000
_UNTIMED = 60
"""Steps whose events are made anew."""
_SOURCES = 8
"""Batches that are copied in turn: more than the processor's caches hold."""
SHARES = (0.1, 0.25, 0.5, 0.75, 0.95)
PERIOD_S = 0.02


def main() -> None:
    options = arguments(
        __doc__,
        only=Option([*PARTS], ["busy", "events", "copies"], "these"),
        repeats=Option(200, 5, "steps or copies of each measurement"),
        budget=Option(30.0, 3.0, "of a verdict, seconds"),
        causes=Option(12, 1, "planted causes before real steps"),
        blocks=Option(15, 2, "of training under each condition"),
    )
    if not torch.cuda.is_available():
        print(NO_DEVICE)
        return
    torch.ones(1, device="cuda")
    print(torch.cuda.get_device_name(), torch.__version__)
    for name in options.only:
        print(f"\n{name}\n{PARTS[name](options)}", flush=True)


def cycles_per_s() -> float:
    """Return the cycles that `torch.cuda._sleep` counts in a second."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CYCLES // 10)
    begin.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    torch.cuda.synchronize()
    return CYCLES / (begin.elapsed_time(end) / 1e3)


def busy(options: Any) -> str:
    """Compare the profiler's share with kernels of a known length."""
    device, cycles = Gpu(torch.device("cuda", 0), moves=False), cycles_per_s()
    rows, off = [], []
    for share in SHARES:

        def use(length_s: float = share * PERIOD_S) -> None:
            for _ in range(options.repeats):
                torch.cuda._sleep(int(length_s * cycles))
                torch.cuda.synchronize()
                time.sleep(PERIOD_S - length_s)

        device.kernels(use)
        began_s = time.perf_counter()
        kernels = device.kernels(use)
        wall_s = time.perf_counter() - began_s
        truth = share * PERIOD_S * options.repeats / wall_s
        off.append(abs(kernels.busy_share - truth))
        rows.append((f"{share:.0%}", f"{truth:.2%}", f"{kernels.busy_share:.2%}", f"{off[-1]:.2%}"))
    text = table(("planted", "truth", "found", "off by"), rows)
    return f"{text}\nwithin {WITHIN:.0%} {met(max(off) <= WITHIN)}"


def events(options: Any) -> str:
    """Time two events on the host in a step."""
    clock = EventClock(Accelerator(torch.device("cuda", 0)), lambda *_: None)
    took_ns = []
    for _ in range(_UNTIMED + options.repeats):
        torch.cuda._sleep(100_000)
        begin_ns = time.thread_time_ns()
        clock.edge(Edge.STEP)
        clock.edge(Edge.NOTHING)
        took_ns.append(time.thread_time_ns() - begin_ns)
    clock.end()
    del took_ns[:_UNTIMED]
    mean_us, median_us = mean(took_ns) / 1e3, median(took_ns) / 1e3
    return f"CPU {mean_us:.1f} us a step, median {median_us:.1f} {met(mean_us <= TARGET_US)}"


def _each_s(call: Callable[[], object], repeats: int, *, untimed: int = 3) -> float:
    """Time calls one after the other, by two events around all of them."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(untimed):
        call()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def copies(options: Any) -> str:
    """Compare GB/s of a batch of 64 MB with those between two events."""
    loader = DataLoader(Naps(0.0, values=1 << 20), 16)
    result = ss.experiments(
        loader, lambda batch: batch.sum(), device="cuda", budget_s=options.budget
    )
    where = torch.device("cuda", 0)
    pageable = [torch.rand(16, 1 << 20) for _ in range(_SOURCES)]
    pinned = [batch.pin_memory() for batch in pageable]
    truths = {
        "from pageable memory": (pageable, False),
        "from pinned memory": (pinned, False),
        "pinned, non_blocking=True": (pinned, True),
    }
    rows, off = [], []
    for row in result.copies().iter_rows(named=True):
        if row["way"] in truths:
            sources, free = truths[row["way"]]
            truth_s = median(
                _each_s(
                    lambda source=source, free=free: source.to(where, non_blocking=free),
                    1,
                    untimed=0,
                )
                for source in islice(cycle(sources), options.repeats // 5)
            )
            off.append(abs(row["copy_s"] / truth_s - 1))
            speeds = (row["bytes"] / row["copy_s"] / 1e9, row["bytes"] / truth_s / 1e9)
            rows.append((row["way"], *(f"{speed:.2f}" for speed in speeds), f"{off[-1]:.1%}"))
    text = table(("way", "found GB/s", "truth GB/s", "off by"), rows)
    return f"{text}\nwithin 20% {met(max(off) <= 0.2)}"


def watched(options: Any) -> str:
    """Time a whole training with and without watching: an epoch's wall, to the device's end."""
    from torchvision.models import resnet18

    model = resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        images = batch.cuda(non_blocking=True).view(32, 3, 112, 112)
        model(images).square().mean().backward()
        optimizer.step()

    def epoch_s(watching: Callable[[Any], Any]) -> float:
        data = Naps(0.0, entries=32 * 60, values=3 * 112 * 112)
        batches = DataLoader(data, 32, num_workers=4, pin_memory=True)
        with watching(batches):
            begin_s = 0.0
            for number, batch in enumerate(batches):
                if number == 10:
                    torch.cuda.synchronize()
                    begin_s = time.perf_counter()
                step(batch)
            torch.cuda.synchronize()
            return time.perf_counter() - begin_s

    conditions = {
        "bare, again": nullcontext,
        "ss.instrumented": ss.instrumented,
        "torch.profiler": lambda _: peers.torch_profiler(),
        "bare": nullcontext,
    }
    epoch_s(nullcontext)
    times = in_turns(
        {name: partial(epoch_s, condition) for name, condition in conditions.items()},
        options.blocks,
    )
    bare = np.array(times.pop("bare"))
    rows = []
    for name, values in times.items():
        slowdown = ratio(np.array(values), bare)
        rows.append((name, f"{slowdown.centre:.3f}", slowdown.interval(".3f")))
    return table(("50 steps of a ResNet-18", "times the bare loop", "95% interval"), rows)


def verdicts(options: Any) -> str:
    """Diagnose planted causes before real steps."""
    from torchvision.models import resnet50, vit_b_16

    makers = cycle([resnet50, vit_b_16])
    rows, right = [], 0
    for number, code in enumerate([*PLANTED][: options.causes]):
        make = next(makers)
        planted = plant(code, 70_000 + number)
        step, step_s = training(make().cuda(), planted.recipe.step_s)
        diagnosis = ss.diagnose(planted.loader, step, budget_s=options.budget)
        right += planted.truth == diagnosis.verdict.code
        took = f"{step_s * 1e3:.0f} ms"
        rows.append((code, make.__name__, took, planted.truth, diagnosis.verdict.code))
        print(*rows[-1], flush=True)
        if planted.truth != diagnosis.verdict.code:
            print(diagnosis)
    text = table(("planted", "model", "step", "truth", "verdict"), rows)
    enough = right >= RIGHT * len(rows)
    return f"{text}\nright: {right} of {len(rows)} {met(enough)} (healthy is '{HEALTHY_CODE}')"


def training(model: Any, seconds: float) -> tuple[Callable[[Any], None], float]:
    """A step of about that length: on so many images of its own, whatever the batch holds."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def of(images: Any) -> None:
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

    size = 1
    while size < 512:
        images = torch.randn(size, 3, 224, 224, device="cuda")
        took_s = _each_s(lambda images=images: of(images), 5)
        if took_s >= seconds:
            break
        size *= 2
    return lambda _: of(images), took_s


PARTS = {
    "busy": busy,
    "events": events,
    "copies": copies,
    "training": watched,
    "verdicts": verdicts,
}

if __name__ == "__main__":
    main()
