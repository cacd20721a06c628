"""The verdict on every loader of the support table, with one op that takes long.

The op that all samples of a loader go through (`support_table.LOADERS`,
`third_party_loaders.OPS`) computes for `--op` seconds a sample, which is far more than the step
takes. So the verdict should be `one-transform` with its name, or `__getitem__` where the op is not
seen in it; `transforms` where there are two of it; `main-process` where the loop makes the batches
itself; or `inconclusive` with a reason. Ops of other libraries are not slowed: of those loaders the
table shows what is said.

    python tests/benchmarks/verdict_loaders.py --budget 20
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

os.environ.setdefault("TQDM_DISABLE", "1")

from benchkit.command import Option, arguments, table
from tqdm import tqdm

if TYPE_CHECKING:
    from argparse import Namespace

HEAD = ("loader", "verdict", "what was found", "took", "as planted")
_NO_OP = "any other iterable of batches"
PLANTED = ("Jitter", "Speckle", "Shift", "_web_image", "prepare", "speckle_examples")


def main() -> None:
    """Diagnose each, and print the table."""
    given = arguments(
        __doc__,
        op=Option(0.01, 0.01, "seconds a sample"),
        step=Option(0.01, 0.01, "seconds"),
        budget=Option(20.0, 0.5, "of each, seconds"),
        only=Option("", "random_split", "loaders whose name holds this"),
    )
    # before the loaders are imported, here and in workers
    os.environ |= {"SLOW_OP_S": str(given.op), "LONGER": "10"}  # epochs longer than their start
    warnings.filterwarnings("ignore")
    from support.third_party_loaders import LIBRARIES, OPS
    from support_table import LOADERS

    loaders = {name: (make, "" if name == _NO_OP else "Jitter") for name, make in LOADERS.items()}
    loaders |= {name: (make, OPS[name]) for name, make in LIBRARIES.items()}
    wanted = {name: one for name, one in loaders.items() if given.only in name}
    rows = [_row(name, *one, given) for name, one in tqdm(wanted.items(), disable=False)]
    print(table(HEAD, rows))


def _row(name: str, make, op: str, given: Namespace) -> tuple[str, ...]:
    import stallscope as ss
    from stallscope.errors import StallscopeError

    try:
        # Where a batch is one sample, the step has to be shorter for the op to be too slow
        step_s = given.step / 8 if "batch_size=None" in name else given.step
        found = ss.diagnose(make(), ss.simulated_step(step_s), budget_s=given.budget)
    except ModuleNotFoundError as error:
        return (name, "left out", f"{error.name} is not installed", "-", "-")
    except StallscopeError as error:
        return (name, "refused", str(error)[:90], "-", "-")
    verdict = found.verdict
    is_planted = op.startswith(PLANTED)
    is_named = op in verdict.title or "__getitem__" in verdict.title
    right = (
        (verdict.code in ("one-transform", "transforms") and is_named)
        or verdict.code == "inconclusive"
        or (verdict.code == "main-process" and found.circumstances.num_workers == 0)
    )
    took = f"{found.circumstances.wall_s:.0f} s"
    told = "-" if not is_planted else "yes" if right else "NO"
    return (name, verdict.code, verdict.title[:90], took, told)


if __name__ == "__main__":
    main()
