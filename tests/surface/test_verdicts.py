"""Findings of loops with one planted cause, with severity; no clock is read."""

from dataclasses import replace
from functools import cache

from support.build_facts import CASES
from support.build_flame import a_flame
from support.build_ladder import RUNGS, a_ladder
from support.build_run import a_run, resources_of, steps_of
from support.judgements import judged
from support.virtual_loop import a_loop
from surface.built import LOOP, SAVED_RUNS, saved_run

import stallscope as ss

EVEN = {"fetch": 20.0, "decode": 20.0, "Blur": 20.0, "collate": 20.0}
FAST = {"decode": 9.0}


def with_use(run: ss.Run, worker: float, queued: float, core: float = 0.5) -> ss.Run:
    """Return the run with these CPU shares of workers, queueing shares and busy shares of cores."""
    pids = run.batches["pid"].unique().sort().to_list()
    use = {
        **{("worker_cpu_share", str(pid)): worker for pid in pids},
        **{("queued_for_core_share", str(pid)): queued for pid in pids},
        **{("core_busy_share", str(number)): core for number in range(2)},
        ("loop_cpu_share", "1"): 0.1,
    }
    seconds = int(run.all_steps["end_ns"].max() / 1e9) + 1
    return replace(run, all_resources=resources_of(use, seconds))


def varying(step: int, worker: int) -> dict[str, float]:
    """Return stages that take twenty times as long in every tenth batch."""
    return {"fetch": 1.0, "Blur": 400.0 if step % 10 == 9 else 20.0}


def one_is_slow(step: int, worker: int) -> dict[str, float]:
    """Return stages that take six times as long in worker 1."""
    return {"fetch": 1.0, "Blur": 120.0 if worker == 1 else 20.0}


LOOPS = {
    "one transform": lambda: judged(a_loop(LOOP, workers=2)),
    "one transform, computing": lambda: judged(with_use(a_loop(LOOP, workers=2), 0.98, 0.02, 0.97)),
    "one transform, with stacks": lambda: judged(
        a_loop({**LOOP, "RandomMask": 90.0}, workers=2), flame=a_flame()
    ),
    "decoding": lambda: judged(a_loop({"fetch": 2.0, "decode": 90.0, "Crop": 4.0}, workers=2)),
    "reading": lambda: judged(a_loop({"fetch": 90.0, "decode": 4.0}, workers=2)),
    "reading, waiting": lambda: judged(
        with_use(a_loop({"fetch": 90.0, "decode": 4.0}, workers=2), 0.05, 0.01, 0.1)
    ),
    "many transforms": lambda: judged(a_loop(dict.fromkeys("ABCDE", 18.0), workers=2)),
    "even work on full cores": lambda: judged(
        with_use(a_loop(EVEN, workers=2), 0.98, 0.02, core=0.98)
    ),
    "one worker of eight cores": lambda: judged(a_loop(EVEN, workers=1), cores=8.0),
    "collate": lambda: judged(a_loop({"decode": 5.0, "collate": 90.0}, workers=2)),
    "sending": lambda: judged(a_loop({"decode": 5.0}, workers=2, send=60.0)),
    "no workers": lambda: judged(a_loop(EVEN, workers=0), cores=4.0),
    "own work of the loop": lambda: judged(
        a_loop(FAST, using={"forward": 10.0, "logging": 60.0}), simulated=False
    ),
    "copies": lambda: judged(a_loop(FAST, h2d=60.0, using={"forward": 20.0})),
    "slow batches": lambda: judged(a_loop(varying, workers=2, batches=120)),
    "slow worker": lambda: judged(a_loop(one_is_slow, workers=3, batches=120)),
    "little prefetch": lambda: judged(
        a_loop(varying, workers=2, prefetch=1, batches=120, using={"forward": 40.0}),
        prefetch_factor=1,
    ),
    "starting anew": lambda: judged(
        a_loop(FAST, epochs=4, batches=12, restart=2000.0), epoch_batches=12
    ),
    "healthy": lambda: judged(a_loop(FAST, using={"forward": 40.0})),
    "healthy, by the ladder": lambda: judged(
        a_loop(FAST, using={"forward": 40.0}),
        ladder=a_ladder(dict.fromkeys(RUNGS[:5], 0.1), noise=0.05),
    ),
    "no step": lambda: judged(a_loop(FAST, using={"forward": 40.0}), has_step=False),
    "too short": lambda: judged(a_loop(LOOP, batches=6, workers=2)),
    "nothing": lambda: judged(a_run([])),
    "waits alone": lambda: judged(
        a_run([{"fetch": 1.0}] * 160, steps=steps_of([0.2] * 40)), simulated=True
    ),
}


@cache
def of_loops() -> dict[str, tuple]:
    return {name: judge() for name, judge in LOOPS.items()}


@cache
def of_facts() -> dict[str, tuple]:
    return {code: judged(facts) for code, facts in CASES.items()}


def scores(findings_by_name) -> dict[str, list[list[object]]]:
    """Return code, severity and confidence of each finding, the verdict first."""
    return {
        name: [
            [finding.code, round(finding.severity, 9), round(finding.confidence, 9)]
            for finding in findings
        ]
        for name, findings in findings_by_name.items()
    }


def test_of_loops(golden):
    golden.json("verdicts/loops.json", scores(of_loops()), rel_tol=1e-6)


def test_of_facts(golden):
    golden.json("verdicts/facts.json", scores(of_facts()), rel_tol=1e-6)


def test_of_saved_runs(golden):
    names = [name for name in SAVED_RUNS if not name.endswith("ranks")]
    findings_by_name = {name: judged(saved_run(name)) for name in names}

    golden.json("verdicts/saved.json", scores(findings_by_name), rel_tol=1e-6)


def test_words_of_findings(golden):
    """The first finding of each code has the same title, next step and evidence names."""
    seen = {}
    for findings in (*of_loops().values(), *of_facts().values()):
        for finding in findings:
            seen.setdefault(finding.code, finding)
    words = {
        code: [finding.title, finding.next_step, finding.tested, sorted(finding.evidence)]
        for code, finding in sorted(seen.items())
    }

    assert set(CASES) == set(words)
    golden.json("verdicts/words.json", words)
