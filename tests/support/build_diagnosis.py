"""Diagnoses out of built findings, so that a test states only its own numbers."""

from typing import Any

import polars as pl

from stallscope.verbs.diagnose.result import SPENT, Diagnosis, DiagnosisConditions, Finding
from stallscope.verbs.ladder.result import AS_IT_IS, BATCHES, FETCHED, TRANSFORMED
from support.build_flame import a_flame
from support.build_ladder import a_ladder
from support.virtual_loop import a_loop

DECODE = Finding(
    "decode",
    "The loop waits for decoding: 46% of its time, in both workers",
    0.46,
    {"stall_share": 0.5, "decode_p50_s": 0.012, "read_bytes_per_s": 12e6, "cores": 1.9},
    0.84,
    "open 2_fetch_vs_transform.ipynb; decode smaller images (PIL's draft), train.py:31",
)
LOCK = Finding("lock", "The workers wait for each other: 9%", 0.09, {"lock_s": 0.002}, 0.41, "")
COPY = Finding("copy", "Copying batches to the device: 5%", 0.05, {"h2d_share": 0.05}, 0.3, "pin")
HEALTHY = Finding("healthy", "The loop hardly waits for data: 2%", 0.0, {"stall_share": 0.02}, 0.9)
UNKNOWN = Finding("inconclusive", "The cause is unclear: the loader ended", 0.3, {}, 0.2, "")
MACHINE = {"cores": 2, "system": "Linux x86_64", "python": "3.11.7", "torch": "2.15.0"}
PHASES = (
    ("loop", 14.0, "does the loop wait at all"),
    ("ladder", 12.5, "what would be gained"),
    ("stop", 0.0, "the answer is certain"),
)


def a_diagnosis(*findings: Finding, parts: bool = True, spent=PHASES, notes=(), **conditions: Any):
    """Make a diagnosis of these findings, the verdict first; `conditions`: of its run."""
    usual = {"name": "train:loader", "num_workers": 2, "machine": MACHINE, "wall_s": 27.2}
    measured = _parts() if parts else {}
    return Diagnosis(
        findings or (DECODE, LOCK, COPY),
        spent=pl.DataFrame(list(spent), SPENT, orient="row"),
        circumstances=DiagnosisConditions(**{**usual, **conditions}),
        notes=tuple(notes),
        **measured,
    )


def _parts():
    rungs = {AS_IT_IS: 0.4, FETCHED: 0.2, TRANSFORMED: 0.15, BATCHES: 0.1}
    return {
        "run": a_loop({"fetch": 4.0, "decode": 60.0, "Crop": 9.0, "collate": 3.0}, workers=2),
        "ladder": a_ladder(rungs, noise=0.1, simulated_step_s=0.02),
        "flame": a_flame(),
    }
