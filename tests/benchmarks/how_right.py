"""Write docs/how_right.md from the saved results of the benchmarks: no figure is typed by hand.

And the README's three figures: how often it is right, how soon, and what recording costs.

    python tests/benchmarks/questions.py --save quiet
    python tests/benchmarks/how_right.py

Of each benchmark the page has the newest result, and a line for each older one.
"""

import json
import os
from pathlib import Path
from typing import Any

from benchkit.command import RESULTS, Option, arguments
from real_questions import judge

PAGE = RESULTS.parent / "how_right.md"
README = RESULTS.parents[1] / "README.md"
BEGIN, END = "<!-- figures: python tests/benchmarks/how_right.py -->", "<!-- /figures -->"
RECORDER = "stallscope's recorder"
"""Its row in the table of overhead.py."""
TOOLS = RESULTS / "tools"
INTRODUCTION = """\
# How right, how fast, how cheap

Made by `python tests/benchmarks/how_right.py` from the files in `docs/results`. A benchmark without
a saved result is not on this page."""
OF_TOOLS = """\
## The same questions, other tools

Each tool watched the same loops, whose step is a plain timer on the host. A tool that only tells
the loader from the step gets the cause counted for every fault of the loader. "And place" and "and
remedy" also ask for the function, line or setting, and for what helped
([how answers are judged](../tests/real_questions/README.md))."""
SECTIONS = {
    "questions": """\
## Right on real questions

Questions that PyTorch users asked in public, whose cause a maintainer named or a change confirmed,
rebuilt as small loaders. An answer is right if its cause, the place that it names and its next step
are the author's ([how answers are judged](../tests/real_questions/README.md)).

Rules were corrected after wrong answers, and the questions stayed in this list. So expect fewer
right answers on new questions: add yours, and see.""",
    "verdicts": """\
## Planted causes and healthy loops

Loops whose numbers are drawn from seeds that no rule was tuned on: a single cause, one near the
threshold, two causes, and loops in which nothing is wrong.""",
    "power": """\
## Seconds to a settled answer

Each question is asked again and again. The truth is the mean of all quiet answers.""",
    "published_orders": """\
## Transform orders of published pipelines

Gains are ratios of CPU time of a sample by a plain stopwatch; "in the loader" is the kit's own
figure, measured in the workers. Work that moves to the collate function leaves the stopwatch's
sample: there only the loader's figure counts.

A *different* order of an expert is no loss: the crop before the flip takes the mirrored place, and
brightness that is clipped before a resize is not what is clipped after it.""",
    "order_truth": """\
## The grade of an order

Random pipelines with two ops exchanged. The truth is measured without the kit; a row is a truth, a
column what the kit says.""",
    "third_party_scripts": """\
## Training scripts of other projects

Unmodified scripts from their packages, under `stallscope run` and without it. What they leave is
compared bit by bit.""",
    "overhead": """\
## The cost of recording

CPU time of batches without a tool over that with it, taking turns: 1.000 is free.""",
    "prediction": """\
## Predicted throughput

Rates that `ss.tune` predicts for a setting, beside the rate measured with it.""",
    "planted_shares": """\
## Planted shares

Stages, functions and lines with a planted share of a sample's time.""",
    "gpu": "## On a GPU\n\nBusy share, events and copies on a CUDA machine.",
}


def main() -> None:
    options = arguments(__doc__, page=Option(str(PAGE), os.devnull, "file to write"))
    parts = [INTRODUCTION]
    for name, about in SECTIONS.items():
        if results := _results(name):
            parts.append(_section(about, results))
        if name == "questions" and TOOLS.exists():
            parts.append(_tools())
    page = "\n\n".join(parts)
    Path(options.page).write_text(page + "\n")
    if options.page == str(PAGE):
        before, _, rest = README.read_text().partition(BEGIN)
        README.write_text(f"{before}{BEGIN}\n{_figures()}\n{END}{rest.partition(END)[2]}")
    print(page)


def _figures() -> str:
    """Return the README's sentences; of the newest result of each benchmark."""
    lines = []
    if latest := _results("questions")[-1:]:
        *_, all_kinds = latest[0]["tables"][0]["rows"]
        _, _, _, right, of, interval = all_kinds
        median_s = latest[0]["tables"][-1]["rows"][0][2]
        lines.append(
            f"- The verdict names the right cause, place and remedy for {right} of {of} questions "
            f"of PyTorch users (95% interval {interval}), in {median_s} s (median). Some of its "
            "rules were corrected on these questions, so expect less on yours."
        )
    if latest := _results("overhead")[-1:]:
        rows = latest[0]["tables"][0]["rows"]
        [(_, _, ends, cost, _)] = [row for row in rows if row[0] == RECORDER]
        # The table has the ratio of the time without over the time with it
        low, high = sorted(1 / float(end) - 1 for end in ends.strip("[]").split(", "))
        lines.append(
            f"- Recording every sample of a JPEG pipeline costs {cost} of its CPU time (95% "
            f"interval {low:+.1%} to {high:+.1%})."
        )
    return "\n".join(
        [*lines, "- [How this was measured](docs/how_right.md), and what it gets wrong."]
    )


def _results(name: str) -> list[dict[str, Any]]:
    """Return what was saved of a benchmark, the newest last."""
    return [
        {**json.loads(path.read_text()), "file": path}
        for path in sorted((RESULTS / name).glob("*"))
    ]


def _section(about: str, results: list[dict[str, Any]]) -> str:
    *older, newest = results
    lines = [about, *map(_table, newest["tables"]), _origin(newest)]
    if older:
        lines.append("Before:\n\n" + "\n".join(map(_earlier, older)))
    return "\n\n".join(line for line in lines if line)


def _tools() -> str:
    saved = {path.stem: json.loads(path.read_text()) for path in sorted(TOOLS.glob("*.json"))}
    rows = [
        (tool, *judge.rows([judge.Answer(**answer) for answer in result["answers"]])[-1][1:])
        for tool, result in saved.items()
    ]
    commands = [
        f"- {tool}, {result['date']} {result.get('note', '')}: `{result['command']}`"
        for tool, result in saved.items()
    ]
    head = ("tool", *judge.HEAD[1:])
    return "\n\n".join([OF_TOOLS, _table({"head": head, "rows": rows}), "\n".join(commands)])


def _table(table: dict[str, Any]) -> str:
    if not table["rows"]:
        return ""
    rule = ["---", *["---:"] * (len(table["head"]) - 1)]
    rows = [table["head"], rule, *table["rows"]]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows
    )


def _origin(result: dict[str, Any]) -> str:
    about = ("date", "machine", "note")
    settings = "; ".join(str(result[part]) for part in about)
    return f"`{result['command']}` at {result['commit']} (version {result['version']}): {settings}."


def _earlier(result: dict[str, Any]) -> str:
    """Return date, commit and a link to the tables of an older result, and its sum, if any."""
    file = Path(result["file"]).relative_to(PAGE.parent).as_posix()
    line = f"- {result['date']}, {result['commit']}, {result['note']}: [all tables]({file})"
    *_, last = result["tables"][0]["rows"]
    if result["benchmark"] != "questions":
        return line
    _, _, _, right, of, interval = last
    return f"{line}, {right} of {of} right, {interval}"


if __name__ == "__main__":
    main()
