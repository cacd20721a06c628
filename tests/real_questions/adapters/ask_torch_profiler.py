"""The answer of torch.profiler: the row of its table with the most CPU time of its own.

    python ask_torch_profiler.py module:function [seconds]

Its table sorted by self CPU time is what its tutorial tells users to read; the title lists the
first three rows. A row of the loader's own, `enumerate(DataLoader)#...`, says that the loop waits
for data: any cause in the loader is then accepted. It gives no advice.
"""

import json
import sys

from loops import batches, target
from torch.profiler import ProfilerActivity, profile

WARM_UP, SECONDS, AT_MOST = 4, 15.0, 200


def main() -> None:
    """Profile the loop and print the answer."""
    loader, step = target(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    for batch in batches(loader, seconds, WARM_UP):
        step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for batch in batches(loader, seconds, AT_MOST):
            step(batch)
    rows = sorted(profiled.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)[
        :3
    ]
    waits = bool(rows) and rows[0].key.startswith("enumerate(DataLoader)")
    answer = {
        "code": "input-bound" if waits else "healthy",
        "title": ", ".join(row.key for row in rows),
        "next_step": "",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
