"""Results of trials with planted causes: tables, shares with their intervals, every miss."""

import statistics
from collections import Counter
from typing import Any

from planted import HEALTHY_CODE

from benchkit.command import table
from benchkit.pairing import NORMAL_95

Line = dict[str, Any]
"""Record of a trial."""

SINGLE, NEAR, PAIR, HEALTHY, AWAY = "single", "near", "pair", "healthy", "taken away"
"""Kinds of trials."""
SOUND = (HEALTHY, AWAY)
"""Kinds of healthy trials."""
FAILED = "no verdict"
"""Verdict of a diagnosis that failed or did not end."""
NO_ALARM = (HEALTHY_CODE, "inconclusive", FAILED)
OVER = 1.1
"""Multiple of the budget after which a verdict is late."""


def report(lines: list[Line], budget_s: float) -> str:
    """All tables, and every miss."""
    trials = [line for line in lines if "found" in line]
    others = [f"- {line['name']}: {line['not_planted']}" for line in lines if "found" not in line]
    parts = [
        confusion(trials),
        shares(trials),
        times(trials, budget_s),
        "\n".join(["misses:", *map(_miss, filter(_missed, trials))]),
        "\n".join(["not planted here:", *others]) if others else "",
    ]
    return "\n\n".join(part for part in parts if part)


def confusion(lines: list[Line]) -> str:
    """The table cause by verdict: numbers of trials; of a pair, by the cause that costs more."""
    counts = Counter((_truth(line), line["found"][0]) for line in lines)
    verdicts = sorted({verdict for _, verdict in counts})
    rows = [
        (truth, *(str(counts[truth, verdict] or "·") for verdict in verdicts))
        for truth in sorted({truth for truth, _ in counts})
    ]
    return table(("planted \\ said", *verdicts), rows) if rows else "no trial yet"


def shares(lines: list[Line]) -> str:
    """Return the shares of right verdicts, each with its interval."""
    rows = []
    for kind in (SINGLE, NEAR, PAIR):
        of_kind = [line for line in lines if line["kind"] == kind]
        rows.append((f"{kind}: right at first choice", *_share(_right, of_kind)))
        rows.append((f"{kind}: among the first two", *_share(_second, of_kind)))
    planted = [line for line in lines if line["kind"] not in SOUND]
    healthy = [line for line in lines if line["kind"] in SOUND]
    rows.append(("all planted: right at first choice", *_share(_right, planted)))
    rows.append(("all planted: among the first two", *_share(_second, planted)))
    rows.append(("pairs: both among the first two", *_share(_both, _pairs(lines))))
    rows.append(("healthy: said to be", *_share(_right, healthy)))
    rows.append(("healthy: false alarms", *_share(_alarm, healthy)))
    return table(("", "of", "share", "95% interval (Wilson)"), rows)


def times(lines: list[Line], budget_s: float) -> str:
    """Return the time to the verdict."""
    took = sorted(line["took_s"] for line in lines)
    if not took:
        return ""
    late = sum(seconds > OVER * budget_s for seconds in took)
    return (
        f"time to the verdict: median {statistics.median(took):.1f} s, 95% within "
        f"{took[int(0.95 * (len(took) - 1))]:.1f} s, longest {took[-1]:.1f} s; {late} of "
        f"{len(took)} over {OVER:g} × {budget_s:g} s"
    )


def wilson(hits: int, number: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share ("Probable Inference", JASA 22, 1927)."""
    if not number:
        return 0.0, 1.0
    share, square = hits / number, NORMAL_95**2
    middle = share + square / (2 * number)
    half = NORMAL_95 * (share * (1 - share) / number + square / (4 * number**2)) ** 0.5
    whole = 1 + square / number
    return max((middle - half) / whole, 0.0), min((middle + half) / whole, 1.0)


def _share(is_so: Any, lines: list[Line]) -> tuple[str, str, str]:
    hits, number = sum(map(is_so, lines)), len(lines)
    if not number:
        return "0", "", ""
    low, high = wilson(hits, number)
    return str(number), f"{hits / number:.1%}", f"[{low:.1%}, {high:.1%}]"


def _truth(line: Line) -> str:
    return HEALTHY_CODE if line["kind"] in SOUND else line["causes"][0]


def _right(line: Line) -> bool:
    return line["found"][0] == _truth(line)


def _second(line: Line) -> bool:
    return _truth(line) in line["found"][:2]


def _both(line: Line) -> bool:
    return {*line["causes"]} <= {*line["found"][:2]}


def _alarm(line: Line) -> bool:
    return line["found"][0] not in NO_ALARM


def _pairs(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == PAIR]


def _missed(line: Line) -> bool:
    return not _right(line)


def _miss(line: Line) -> str:
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in line["evidence"].items())
    return (
        f"- {line['name']} (load {line['load']:.1f}): said {', '.join(line['found'][:3])}; "
        f"{line['title']} [{numbers}; {line['took_s']:.0f} s: {' '.join(line['phases'])}]"
    )
