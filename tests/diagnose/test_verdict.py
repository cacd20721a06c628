"""Verdicts on numbers with a single cause, with several, or with none."""

import re
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import pytest
from support.build_facts import (
    CALM,
    CASES,
    CONVERTS,
    COPIES,
    EVEN,
    IDLE,
    LARGE,
    SCALED,
    SENDS,
    SPIKES,
    SPINNING,
    TINY,
    WAITS_IN_FETCH,
    known,
    parts_of,
    sent_for,
    taking,
)

from stallscope.loops.cached_values import BatchBytes
from stallscope.model import thresholds
from stallscope.model.attribution import KIND_OF, MAIN_GARBAGE
from stallscope.model.exposure import CROWDED, Exposure, StagePart, group_of, longest_first
from stallscope.model.loop_time import Starts
from stallscope.stages import GARBAGE
from stallscope.verbs.diagnose.causes import CAUSES, handbook
from stallscope.verbs.diagnose.facts import Gain, Spikes
from stallscope.verbs.diagnose.verdict import judge

HERE: Any = {"setup": {"num_workers": 0}}


@dataclass(frozen=True)
class Case:
    """Numbers of a loop and the expected verdict."""

    name: str
    code: str
    facts: Any
    title: str = ""
    """Expression that its title matches."""
    step: str = ""
    """Expression that its next step matches."""
    absent: str = r"(?!)"
    """Expression that matches neither."""


def case(
    name: str, code: str, *, title: str = "", step: str = "", absent: str = r"(?!)", **numbers
):
    """Return a case of `known` numbers; `free` is the stalls' share without waiting for cores."""
    free = numbers.pop("free", 1.0)
    facts = known(**numbers)
    facts = replace(facts, exposure=replace(facts.exposure, free=free))
    return Case(name, code, facts, title, step, absent)


BLUR = {("Blur", "transform"): 0.1}
MAIN = {("main process", "main"): 0.9, **BLUR}
UNPACKED = {
    ("main process", "main"): 0.3,
    (CROWDED, CROWDED): 0.3,
    ("unpickle", "sending"): 0.15,
    ("getitem", "getitem"): 0.15,
    ("collate", "collate"): 0.1,
}
PLACE = "Balanced.__iter__ (mine.py:7)"
LOOP = [
    case(
        "two parts that add up to enough are named by the longer one",
        "main-process",
        title="logging takes 15% of the loop's time",
        own_parts={"logging": 0.15, "garbage collection": 0.1, "step": 0.7},
        **CALM,
    ),
    case("a step without a model may be all model", "healthy", own_parts={"step": 0.9}, **CALM),
    case(
        "the rest of a step with a model is something else",
        "main-process",
        title="outside of the model",
        own_parts={"step": 0.5},
        model_share=0.4,
        **CALM,
    ),
    case("stalls in the loader's own work are the main process's", "main-process", work=MAIN),
    case(
        "a sampler of the user's is named with its place",
        "main-process",
        title=re.escape(PLACE),
        step="draw indices beforehand",
        work=MAIN,
        load=0.4,
        setup={"sampler": PLACE},
    ),
    case(
        "a process that computes more than its workers is the bottleneck",
        "main-process",
        stalled=0.74,
        work=UNPACKED,
        use={"worker_cpu": 0.25, "loop_cpu": 0.5},
    ),
    case("one that computes less is not", "cpu-saturated", stalled=0.74, work=UNPACKED),
    case(
        "without workers the loop's own work costs more than a little loading",
        "main-process",
        title="logging",
        stalled=0.15,
        own_parts={"logging": 0.6, "step": 0.3},
        model_share=0.05,
        **HERE,
    ),
    case(
        "logging that takes more than all stalls",
        "main-process",
        title="logging",
        stalled=0.1,
        load=0.5,
        own_parts={"logging": 0.4, "step": 0.5},
    ),
    case(
        "a step that computes for a half may be Python",
        "main-process",
        title=r"it computes for 50% of each step outside the model",
        step=r"ss\.stage",
        setup={"simulated": False},
        use={"loop_cpu": 0.5},
        own_parts={"step": 0.95},
        **CALM,
    ),
    case(
        "a step that never pauses may be a model on the CPU",
        "healthy",
        setup={"simulated": False},
        use={"loop_cpu": 0.95},
        own_parts={"step": 0.97},
        **CALM,
    ),
    case(
        "waiting for a core is no pause",
        "healthy",
        setup={"simulated": False},
        use={"loop_cpu": 0.75, "loop_queued_share": 0.2},
        own_parts={"step": 0.95},
        **CALM,
    ),
    case(
        "a GPU that is idle though batches are there",
        "main-process",
        title="the GPU is busy only 30%",
        setup={"on_gpu": True},
        use={"gpu_busy_share": 0.3},
        **CALM,
    ),
    case(
        "a simulated device is judged by its own time",
        "main-process",
        title="the device is busy only 30%",
        device_busy_share=0.3,
        **CALM,
    ),
    case(
        "events of a GPU beside a step on the host say nothing",
        "healthy",
        setup={"simulated": False},
        device_busy_share=0.3,
        **CALM,
    ),
    case("without a GPU nothing is said of one", "healthy", **CALM),
    *(
        case(
            f"workers for an epoch of {batches} batches",
            "main-process",
            step="persistent_workers=True, as an epoch takes" if batches == 10 else "num_workers",
            absent=r"(?!)" if batches == 10 else "persistent",
            setup={"num_workers": 0, "epoch_batches": batches},
        )
        for batches in (10, 100_000, None)
    ),
]
"""Work of the process that trains: its parts, its CPU time, its threads and its device."""


SMALL = Spikes(usual_s=2e-6)
AT_ONCE = r"__getitems__"
RESIZED = {("decode", "decode"): 0.35, ("Resize", "transform"): 0.35, ("Blur", "transform"): 0.3}
HALF = {("A", "transform"): 0.24, ("B", "transform"): 0.24, ("decode", "decode"): 0.32}
CACHED: Any = {"work": WAITS_IN_FETCH, "use": {"worker_cpu": 0.1}, "starts": Starts(again=True)}
OWN = {("getitem", "getitem"): (0.9, 0.95), **BLUR}
PARTS = {(name, "transform"): 0.25 for name in ("Tokenise", "Pad", "Mask", "Shift")}
WORK = [
    *(
        case(f"tiny samples are taken at once: {where}", code, step=AT_ONCE, spikes=SMALL, **facts)
        for where, code, facts in (
            ("collate", "collate", {"work": {("collate", "collate"): 1.0}}),
            ("getitem", "one-transform", {"work": {("getitem", "getitem"): 1.0}}),
            ("here", "main-process", {"work": {("collate", "collate"): 1.0}, **HERE}),
        )
    ),
    case(
        "other samples are not", "collate", absent=AT_ONCE, work={("collate", "collate"): 1.0}
    ),
    case(
        "decoding and resizing of large images is one cause",
        "decode",
        title="decoding takes 35% .* and Resize 35%",
        step="store the result",
        work=RESIZED,
        megapixels=12.0,
    ),
    case("images that are small are not stored too large", "transforms", work=RESIZED,
         megapixels=0.2),
    case("PIL's draft is for images that PIL opened", "decode", step="PIL", megapixels=0.3,
         work={("decode", "decode"): 1.0}),
    case("and for no video, sound or text", "decode", absent="PIL",
         work={("decode", "decode"): 1.0}),
    case(
        "what one sample does many times is asked about",
        "decode",
        step="decode runs 16 times for each sample",
        work={("decode", "decode"): 0.6, ("Blur", "transform"): 0.4},
        calls={"decode": 16.0},
    ),
    case(
        "twice is not many",
        "decode",
        absent="times",
        work={("decode", "decode"): 0.6, ("Blur", "transform"): 0.4},
        calls={"decode": 2.0},
    ),
    case(
        "a cache that ends with its workers",
        "storage-latency",
        step=r"^persistent_workers=True: what self\.kept",
        setup={"cache": "self.kept"},
        **CACHED,
    ),
    case(
        "a cache of workers that live on",
        "storage-latency",
        absent="persistent",
        setup={"cache": "self.kept", "persistent": True},
        **CACHED,
    ),
    case(
        "garbage that workers collect is work on samples",
        "one-transform",
        title="garbage collector",
        step=r"gc\.freeze\(\)",
        work={(GARBAGE.name, group_of(GARBAGE.name, GARBAGE.kind)): 0.8, ("decode", "decode"): 0.2},
    ),
    case("transforms of nearly half of the work lead", "transforms",
         work=HALF | {("collate", "collate"): 0.2}),
    case("of four equal sorts of work none leads", "cpu-saturated", work=EVEN),
    case("images are cropped first", "transforms", step="crop or resize first",
         work={(name, "transform"): 0.25 for name in ("Affine", "RGBShift", "Hue", "Flip")}),
    case("not where a crop is first already", "transforms", absent="crop or resize",
         first_transform="RandomCrop", megapixels=1.0, work=PARTS),
    case("text is not cropped, and stays what it is", "transforms", absent="crop|uint8",
         work=PARTS),
    case("one transform of text is not cropped either", "one-transform",
         title="Tokenise is the bottleneck: 80% of the stall time",
         step="apply Tokenise to less data, to fewer", absent="crop|uint8",
         work={("Tokenise", "transform"): 0.8, ("collate", "collate"): 0.2}),
    case("batches of text are no uint8 images", "sending", absent="uint8",
         work={("send", "sending"): 0.9, ("Tokenise", "transform"): 0.1}, load=0.4, use=IDLE),
    case(
        "floats that uint8 would hold are collated as uint8",
        "collate",
        title="96 MB a batch are floats that 24 MB of uint8 would hold",
        step="uint8.*on the device.*the same",
        work={("collate", "collate"): 0.7, ("Blur", "transform"): 0.3},
        batch=SCALED,
    ),
    case("and sent so", "sending", title="24 MB of uint8", step="uint8.*on the device.*the same",
         work=SENDS, load=0.4, batch=SCALED),
    case("transforms that convert can follow on the device", "one-transform",
         title="Converting to floats.*Normalize and ToTensor take 70%", step="on the device",
         work=CONVERTS, batch=SCALED),
    case("own code that computes is no reading", "one-transform",
         work={("getitem", "getitem"): 0.9, **BLUR}),
    case("own code that waits is only concluded to read", "storage-latency",
         title="^__getitem__ waits", step="4_worker_flamegraphs", work=OWN, use=IDLE),
    case("own code that waits for its own threads computes", "one-transform",
         title="threads of its own", work={("getitem", "getitem"): 0.9, **BLUR},
         threads_compute=True),
    case("what takes whole batches is told of a batch", "one-transform", title="per batch",
         work={("augment", "transform"): 1.0}, whole_batches={"augment"}),
    case("a lock of a file is seen while the loop runs", "lock", title="lock of a file 60%",
         work={("getitem", "getitem"): (0.9, 1.0), **BLUR},
         use={"worker_cpu": 0.1, "file_lock_share": 0.6}),
    case("waiting in a transform is no lock where one worker waits as long", "one-transform",
         work={("Lookup", "transform"): (0.9, 0.5), ("fetch", "fetch"): 0.1},
         use={"worker_cpu": 0.5}, alone_waiting_s=0.18),
    case("next to nothing but waiting is storage, whatever more workers would do",
         "storage-latency", work=WAITS_IN_FETCH, use=IDLE, enough_workers=3,
         setup={"num_workers": 1, "cores": 8.0}),
]  # fmt: skip
"""Work on samples and batches: computing, waiting, and the part that leads."""


SLOW_START = Starts(1.0, 2.0, 3, again=True)
ONCE = Starts(extra_s=0.3, epoch_s=0.05, epochs=30, batches=1, again=True)
STARTING: Any = {
    "stalled": 0.97,
    "work": {("start workers", "start"): 0.6, ("Blur", "transform"): 0.4},
}
LEAK = replace(COPIES, copied_share=0.0, end_bytes=None, left_s=4 * 3600.0, limit="container")
WORKER = [
    case("batches that are made in less than they are sent need no workers", "sending",
         step=r"num_workers=0", **TINY),
    case("many objects are sent for longer than they are made", "sending",
         step="num_workers=0.*objects", work=SENDS, load=0.1, making=sent_for(0.1)),
    case("a batch that takes as long here needs its workers", "healthy", **TINY | {"load": 0.15}),
    case("what is gained has to matter", "healthy", **TINY | {"making": sent_for(0.015)}),
    case("a few batches that take long need workers", "healthy",
         **TINY | {"load": 0.15, "making": sent_for(0.03, made_s=0.001)}),
    case("a ladder that gains nothing decides", "healthy", gain=Gain(1.0, 0.98, 1.02), **TINY),
    case("a ladder on a busy machine casts doubt only", "sending", step="num_workers=0",
         gain=Gain(1.5, 0.9, 2.4), **TINY),
    case("without workers none are started", "sending", starts=SLOW_START, **TINY),
    case("their start is a cause of its own where it is most of an epoch", "start-up",
         starts=replace(SLOW_START, extra_s=9.0), **TINY),
    case("logging is not mended with them", "main-process", own_parts={"logging": 0.5}, **TINY),
    case("without workers a call for each sample is left", "sending", step="one index",
         spikes=Spikes(usual_s=1e-5), **TINY),
    case("letting go of large batches is sending", "sending",
         title=r"shared memory of one \(100 MB\)", step="uint8",
         batch=SCALED._replace(release_s=0.5 / 9), **LARGE),
    case("letting go of small ones is the loop's", "main-process",
         batch=BatchBytes(1_000_000, 0, 0, release_s=1e-4), **LARGE),
    case("one worker on eight cores is too few", "too-few-workers",
         work={("decode", "decode"): 0.9, ("A", "transform"): 0.1},
         setup={"num_workers": 1, "cores": 8.0}, enough_workers=3),
    case("one worker whose other cores are taken is not too few", "decode", others_share=0.45,
         work={("decode", "decode"): 0.9, ("A", "transform"): 0.1},
         setup={"num_workers": 1}, enough_workers=2),
    case("more workers do not help batches that take all cores for longer than a step", "decode",
         work={("decode", "decode"): 0.9, ("A", "transform"): 0.1},
         setup={"num_workers": 1}, enough_workers=3, load=2.7, stalled=0.63),
    case("work that no number of cores can do is named itself", "decode", load=9.0, stalled=0.9,
         setup={"num_workers": 1}, work={("decode", "decode"): 1.0}),
    case("workers that keep up and wait for storage make too little ahead", "too-little-prefetch",
         title=r"keep up on average \(58% load\), but a slow batch empties the queue of 4",
         work=WAITS_IN_FETCH, use=IDLE, load=0.6),
    case("iterators of one batch", "start-up", title=r"Batches\.__iter__", step=r"iter\(loader\)",
         setup={"sampler": "Batches.__iter__ (mine.py:7)"}, starts=ONCE, **STARTING),
    case("iterators of many", "start-up", step="persistent", starts=replace(ONCE, batches=50),
         **STARTING),
    case("a loader of two batches that ends begins an epoch", "start-up", step="^persistent",
         stalled=0.05, starts=Starts(1.0, 2.0, 3, batches=2, ended=True, again=True)),
    *(
        case(f"a slow begin is told by most of it: {slow}, stream {streams}", "start-up",
             step=helps, stalled=0.05, setup={"streams": streams},
             starts=Starts(1.0, 2.0, 3, again=True, **{slow: 0.9}))
        for streams, slow, helps in (
            (True, "filled_s", "buffer"), (True, "drawn_s", "buffer"),
            (False, "filled_s", "^persistent"), (False, "drawn_s", "^draw"),
        )
    ),
    case("a stream fills a buffer only if it has one", "start-up", step="if there is one",
         stalled=0.05, setup={"streams": True},
         starts=Starts(1.0, 2.0, 3, again=True, filled_s=0.9)),
    case("a stream whose workers live on", "start-up", step="buffer", absent="persistent_workers",
         stalled=0.05, setup={"streams": True, "persistent": True},
         starts=Starts(1.0, 2.0, 3, again=True, drawn_s=0.9)),
    *(
        case(f"starts in epochs of {epoch_s} s", code, stalled=0.9,
             work={("start workers", "start"): 0.3, ("decode", "decode"): 0.7},
             starts=Starts(2.0, epoch_s=epoch_s, epochs=3, batches=1, ended=True, again=True))
        for epoch_s, code in ((1.0, "start-up"), (9.0, "decode"))
    ),
    case("a copy to pinned memory", "copy", step="^pin_memory=True", stalled=0.5,
         work={("pin", "pin"): 1.0}),
    case("is not told to pin where it does", "copy", step=r"^\.to", stalled=0.5,
         setup={"pinned": True}, work={("pin", "pin"): 1.0}),
    case("slow samples in any order", "slow-samples", absent="in_order", load=1.2,
         setup={"in_order": False}, patterns={"slow_samples": 0.9}, spikes=SPIKES),
    case("workers that copy what they share", "memory-growth",
         title="2.4 GB a minute in 2 workers, ends at 9.0 GB at most$",
         step="reference count", memory_growth=COPIES, **CALM),
    case("new memory is a leak with a time left", "memory-growth",
         title="the memory of the container is full in 4.0 hours$", step="cache without a limit",
         setup={"persistent": True}, memory_growth=replace(LEAK, grown_bytes=5e9), **CALM),
    case("memory that may stop growing within the epoch is no verdict", "healthy",
         setup={"persistent": True}, memory_growth=LEAK, **CALM),
    case("workers that end before it is full give it back", "healthy",
         memory_growth=replace(LEAK, grown_bytes=5e9), **CALM),
    case("a cache that fills is no leak", "healthy",
         memory_growth=replace(COPIES, grown_bytes=40e6), **CALM),
    case("nor is what grows by little", "healthy",
         memory_growth=replace(COPIES, share_per_min=0.01), **CALM),
    case("threads that slow the step", "oversubscription", gain=Gain(1.2, 1.15, 1.25), **SPINNING),
    case("threads that slow nothing", "healthy", gain=Gain(1.01, 0.98, 1.04), **SPINNING),
]  # fmt: skip
"""Workers, their start, their memory and how batches come from them."""


CROWD: Any = {"use": {"worker_cpu": 0.3, "queued_share": 0.6}, "others_share": 0.7}
LENGTHENED = {"worker_cpu": 0.4, "queued_share": 0.5}
BUSY: Any = {
    "stalled": 0.9,
    "work": {("Blur", "transform"): 1.0},
    "load": 40.0,
    "use": {"worker_cpu": 0.1, "queued_share": 0.85},
    "others_share": 0.7,
}
NEAR: Any = {"stalled": 0.14, "work": {("decode", "decode"): 0.3, ("rest", "crowded"): 0.7}}
DOUBT = [
    case("workers that would keep up with a core each", "inconclusive", title="^Other processes",
         load=1.2, **CROWD),
    case("memory grows whoever has the cores", "memory-growth", load=1.2, memory_growth=COPIES,
         **CROWD),
    case("a step that waits for a core, too, excuses no worker: without", "inconclusive", load=1.6,
         use=LENGTHENED, others_share=0.6, work={("decode", "decode"): 1.0}),
    case("a step that waits for a core, too, excuses no worker: with", "decode", load=1.6,
         use={**LENGTHENED, "loop_queued_share": 0.4}, others_share=0.6,
         work={("decode", "decode"): 1.0}),
    case("work that is too much for its own cores", "one-transform", stalled=0.9, load=10.0,
         free=0.1, work={("Blur", "transform"): 1.0}, others_share=0.6,
         use={"worker_cpu": 0.3, "queued_share": 0.6, "loop_queued_share": 0.5}),
    case("a sampler that computes, whatever others do", "main-process", stalled=0.85, load=0.4,
         free=0.1, work={("main process", "main"): 0.4, (CROWDED, CROWDED): 0.6}, use=IDLE,
         others_share=0.6),
    case("next to no core and no CPU time that is too much", "inconclusive", **BUSY),
    case("CPU time is no longer for the neighbours", "one-transform", computed_s=0.6, **BUSY),
    case("without a step nothing is healthy", "inconclusive", stalled=0.0,
         setup={"has_step": False}),
    case("stalls near the limit, and a ladder that gains nothing", "healthy", stalled=0.12,
         stall_low=0.08, load=0.5, gain=Gain(1.01, 0.98, 1.04)),
    case("a fifth of the time is not hardly", "healthy", title="waits little", stalled=0.19,
         stall_low=0.08, load=0.5, gain=Gain(1.01, 0.98, 1.04)),
    case("stalls near the limit, and a ladder that gains", "too-little-prefetch", stalled=0.12,
         stall_low=0.08, load=0.5, use=IDLE, gain=Gain(1.2, 1.1, 1.3)),
    case("a stage that holds little of few stalls", "healthy", **NEAR),
    case("and may gain much", "decode", gain=Gain(1.2, 0.8, 1.8), stalled=0.18, load=1.1,
         stall_low=0.15, use=IDLE, work={("decode", "decode"): 0.9, **BLUR}),
    case("and may gain little", "healthy", gain=Gain(1.15, 1.07, 1.2), **NEAR),
    case("and gains for sure", "decode", gain=Gain(1.15, 1.13, 1.17), **NEAR),
    case("what sending always takes is no cause", "healthy", stalled=0.13, load=0.3, use=IDLE,
         work={("send", "sending"): 0.34, ("main", "main"): 0.33, ("rest", "crowded"): 0.33}),
    case("stalls in sending", "sending", stalled=0.1, work={("send", "sending"): 1.0}, load=0.4,
         use=IDLE, others_share=0.6),
    case("stalls that are nothing but waiting for cores", "inconclusive", stalled=0.1, free=0.3,
         work={("send", "sending"): 1.0}, load=0.4, use=IDLE, others_share=0.6),
    case("batches that compute vary with the cores of others", "inconclusive", load=0.6, use=IDLE,
         others_share=0.5),
    case("batches that wait do not", "too-little-prefetch", work=WAITS_IN_FETCH, load=0.6,
         use=IDLE, others_share=0.5),
    case("a loop that loads little itself is disturbed, too", "inconclusive", stalled=0.1,
         load=0.11, setup={"num_workers": 0}, use={"worker_cpu": None, "queued_share": 0.08},
         others_share=0.9),
]  # fmt: skip
"""Other processes that have the cores, and stalls near the limit."""


@pytest.mark.parametrize("case", [*LOOP, *WORK, *WORKER, *DOUBT], ids=lambda case: case.name)
def test_the_verdict_is_that_of_the_numbers(case):
    """The advice is new to the loader, and the numbers support every claim."""
    verdict = judge(case.facts)[0]

    assert case.code == verdict.code
    assert re.search(case.title, verdict.title)
    assert re.search(case.step, verdict.next_step)
    assert not re.search(case.absent, f"{verdict.title} {verdict.next_step}")


WORKERS_KEPT: Any = {"stalled_by_worker": {0: 0.9, 1: 0.1}}
NOT_NAMED = [
    (
        "an epoch that is asked for at once",
        "too-little-prefetch",
        {"load": 0.6, "use": IDLE, "setup": {"epoch_batches": 4}},
    ),
    (
        "slow samples among others that are too slow",
        "slow-samples",
        {"load": 4.0, "patterns": {"slow_samples": 0.9}, "spikes": SPIKES},
    ),
    (
        "samples that waited for a core",
        "slow-samples",
        {
            "load": 1.2,
            "patterns": {"slow_samples": 0.9},
            "spikes": SPIKES,
            "use": {"worker_cpu": 0.4, "queued_share": 0.6},
            "others_share": 0.6,
        },
    ),
    (
        "samples that stand out beside stalls in sending",
        "slow-samples",
        {
            "work": {("send", "sending"): 0.45, ("A", "transform"): 0.1, ("main", "main"): 0.45},
            "load": 0.4,
            "use": IDLE,
            "spikes": SPIKES,
        },
    ),
    (
        "a worker that is slower and quick enough",
        "slow-worker",
        {
            "stalled": 0.1,
            "load": 0.6,
            "making": {"by_worker": {0: taking(0.15), 1: taking(0.09)}},
            **WORKERS_KEPT,
        },
    ),
    (
        "a worker whose batches differ as much as workers do",
        "slow-worker",
        {
            "making": {"by_worker": {0: taking(0.45, spread=0.5), 1: taking(0.3, spread=0.2)}},
            **WORKERS_KEPT,
        },
    ),
    (
        "a worker that shares its core",
        "slow-worker",
        {
            "making": {"by_worker": {0: taking(0.4), 1: taking(0.2)}},
            "others_share": 0.5,
            **WORKERS_KEPT,
        },
    ),
    (
        "threads that every worker has",
        "oversubscription",
        {"setup": {"num_workers": 3}, "use": {"threads": 3}, "extra_threads_share": 0.5},
    ),
    (
        "cores that others have",
        "cpu-saturated",
        {"work": WAITS_IN_FETCH, "use": IDLE, "others_share": 0.85},
    ),
    (
        "cores that are free",
        "cpu-saturated",
        {"work": WAITS_IN_FETCH, "making": {"period_s": 0.5}, "use": {"worker_cpu": 0.5}},
    ),
    ("full cores beside the stage that fills them", "cpu-saturated", {
        "work": {("decode", "decode"): 0.7, ("Blur", "transform"): 0.3}}),
    (
        "what passing batches on costs",
        "sending",
        {
            "stalled": 0.12,
            "work": {("send", "sending"): 0.5, ("rest", "crowded"): 0.5},
            "load": 0.95,
            "gain": Gain(1.13, 1.11, 1.15),
        },
    ),
    (
        "own code that waits longer beside others, as full storage",
        "storage-bandwidth",
        {
            "work": {("getitem", "getitem"): (0.9, 0.6), **BLUR},
            "use": {"worker_cpu": 0.5},
            "alone_waiting_s": 0.05,
            "lock_frames": 0.0,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "numbers"), [row[1:] for row in NOT_NAMED], ids=[row[0] for row in NOT_NAMED]
)
def test_is_not_named(code, numbers):
    """The cause is not among the other findings either."""
    assert code not in [finding.code for finding in judge(known(**numbers))]


BESIDE = [
    ("the lesser of two stages", ["collate", "storage-latency"], {
        "work": {("collate", "collate"): 0.6, ("fetch", "fetch"): (0.4, 0.9)},
        "alone_waiting_s": 0.14}),
    ("a healthy loop alone", ["healthy"], {"stalled": 0.01, "load": 0.5}),
    ("a slow start after many stalls", ["decode", "one-transform", "start-up"], {
        "starts": Starts(1.0, 8.0, 3, again=True)}),
    ("memory that grows beside what costs time now", ["decode", "memory-growth"], {
        "work": {("decode", "decode"): 1.0}, "memory_growth": COPIES}),
    ("what waits unseen is no transform", ["storage-latency", "one-transform"], {
        "work": {("getitem", "getitem"): (0.7, 0.95), ("Blur", "transform"): 0.3}, "use": IDLE}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "numbers"), [row[1:] for row in BESIDE], ids=[row[0] for row in BESIDE]
)
def test_all_findings_in_their_order(codes, numbers):
    assert codes == [finding.code for finding in judge(known(**numbers))]


def test_only_the_verdict_is_called_the_bottleneck():
    """A loop has a single bottleneck; other findings state their share alone."""
    numbers = {
        "work": {("decode", "decode"): 0.5, ("Crop", "transform"): 0.2, ("B", "transform"): 0.3}
    }
    titles = [finding.title for finding in judge(known(**numbers))]

    assert len(titles) > 1
    assert ["bottleneck" in title for title in titles] == [True] + [False] * (len(titles) - 1)


@pytest.mark.parametrize("code", CASES)
class TestEveryCause:
    def test_is_named_from_its_own_numbers(self, code):
        assert code == judge(CASES[code])[0].code

    def test_a_finding_is_whole(self, code):
        """A finding has a title without open places, numbers, a next step, and shares up to 1."""
        findings = judge(CASES[code])

        assert len(findings) == len({finding.code for finding in findings})
        for finding in findings:
            assert not re.search(r"[{}]|\bNone\b|not measured", finding.title + finding.next_step)
            assert finding.evidence
            assert finding.next_step
            assert 0 <= finding.severity <= 1
            assert 0 <= finding.confidence <= 1


def test_every_cause_has_numbers_and_a_row_of_the_handbook():
    """Every cause is tested here and has a row in the handbook."""
    head, rule, *rows = handbook().splitlines()

    assert set(CAUSES) == set(CASES)
    assert list(CAUSES) == [row.split("`")[1] for row in rows]
    assert {5} == {line.count("|") for line in (head, rule, *rows)}
    assert all(cause.shows and cause.helped for cause in CAUSES.values())


EQUAL = [("fetch", "fetch"), ("decode", "decode"), ("Blur", "transform"), ("collate", "collate")]


@pytest.mark.parametrize("order", [*permutations(range(4))], ids=str)
def test_equal_stages_keep_the_order_of_a_sample(order):
    """Stages whose times are equal up to rounding have a fixed order."""
    pairs = enumerate(order)
    parts = [StagePart(*EQUAL[place], 0.25 + number * 1e-16, 0.0) for number, place in pairs]
    findings = judge(known(exposure=Exposure(longest_first(parts)), waiting_s=0.0))

    assert EQUAL == [(part.stage, part.group) for part in longest_first(parts)]
    assert ["cpu-saturated", "decode", "one-transform", "collate"] == [
        finding.code for finding in findings
    ]


class TestConfidence:
    DECODE = known(work={("decode", "decode"): 0.7, ("Blur", "transform"): 0.3})

    def test_a_rule_that_is_just_met_is_less_sure(self):
        """At its limit a rule is half as sure as far beyond it."""
        parts = parts_of({("decode", "decode"): thresholds.MOSTLY, ("A", "transform"): 0.25})
        just = replace(self.DECODE, exposure=Exposure(parts))

        assert judge(just)[0].confidence < judge(self.DECODE)[0].confidence

    def test_other_processes_lower_it(self):
        """The same numbers on a busy machine are less sure."""
        busy = replace(self.DECODE, others_share=0.7)

        assert judge(busy)[0].confidence < judge(self.DECODE)[0].confidence

    def test_a_ladder_on_a_busy_machine_lowers_it(self):
        unsure = judge(known(**TINY, gain=Gain(1.5, 0.9, 2.4)))[0]

        assert unsure.confidence < judge(known(**TINY))[0].confidence

    def test_what_is_only_concluded_is_less_sure(self):
        """Own code that waits may wait for a lock as well."""
        (finding,) = judge(known(work=OWN, use=IDLE))

        assert finding.confidence <= thresholds.UNSEEN

    def test_too_few_steps_say_how_many_more(self):
        """A run of four steps says how many batches it lacks."""
        facts = known()
        (finding,) = judge(replace(facts, time=replace(facts.time, steps=4)))

        assert "inconclusive" == finding.code
        assert finding.title.endswith("4 steps after the warm-up, and 12 are needed")

    def test_few_steps_are_enough_for_a_loop_that_always_waits(self):
        """The verdict is that of many steps, and less sure."""
        long = known(stall_low=0.9)
        short = judge(replace(long, time=replace(long.time, steps=8)))[0]

        assert judge(long)[0].code == short.code
        assert judge(long)[0].confidence > short.confidence


def test_garbage_collection_of_the_main_process_belongs_to_the_loop():
    """Garbage collection in workers counts as work on samples."""
    assert "main" == group_of(MAIN_GARBAGE, KIND_OF[MAIN_GARBAGE])
