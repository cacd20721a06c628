"""The answer of TraceML (traceml-ai): its verdict, its reason and its advice.

    python ask_traceml.py module:function [seconds]

The loop runs under `traceml run` with `trace_step` around each step, as its quickstart says. An
input-bound verdict is accepted for any cause in the loader.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS, AT_MOST = 15.0, 300
INNER = "--inside"


def main() -> None:
    """Run this file under TraceML, and print the answer from its summary."""
    seconds = sys.argv[2] if len(sys.argv) > 2 else str(SECONDS)
    with tempfile.TemporaryDirectory() as logs:
        command = [
            *("traceml", "run", __file__, "--logs-dir", logs, "--run-name", "question"),
            *("--args", sys.argv[1], seconds, INNER),
        ]
        here = os.environ
        path = os.pathsep.join((str(Path(sys.executable).parent), here["PATH"]))
        modules = os.pathsep.join((str(Path.cwd()), here.get("PYTHONPATH", "")))
        subprocess.run(
            command,
            env={**here, "PATH": path, "PYTHONPATH": modules},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        summary = json.loads(next(Path(logs).rglob("final_summary.json")).read_text())
    print(json.dumps(answer_of(summary)))


def answer_of(summary: dict) -> dict[str, str]:
    """Return cause, title and next step of TraceML's primary diagnosis."""
    primary = summary["primary_diagnosis"]
    is_input = primary["kind"].startswith("INPUT")
    return {
        "code": "input-bound" if is_input else "healthy",
        "title": f"{primary['status']}: {primary['summary']}",
        "next_step": primary["action"],
    }


def loop() -> None:
    """Run the loop with TraceML's marks around each step."""
    import torch
    import traceml_ai as traceml
    from loops import batches, target

    loader, step = target(sys.argv[1])
    model = torch.nn.Linear(1, 1)
    traceml.init(mode="auto")
    for batch in batches(loader, float(sys.argv[2]), AT_MOST):
        with traceml.trace_step(model):
            step(batch)


if __name__ == "__main__":
    loop() if INNER in sys.argv else main()
