"""The training loop's slices as a table: each step, in it the wait and what was done then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.trace.flows import KEY, of_batches
from stallscope.analyze.trace.phases import LOOP, STALL, WAIT
from stallscope.analyze.trace.tracks import MAIN, PINNING, SENDING
from stallscope.stages import PIN, SEND, STEP
from stallscope.units import seconds

if TYPE_CHECKING:
    from stallscope.run import Run

_STEP: Final = ("rank", "step")
_SIDE: Final = (PIN.kind, SEND.kind)
_KNOWN: Final = (
    *("thread", "rank", "worker", "pid", "epoch", "batch"),
    *("step", "steady", "arrows", "consists_of"),
)
_MOST_PARTS: Final = 4
"""Of what a stall consists, so many are named, the longest first."""


def slices(run: Run, flows: pl.DataFrame, thread: str = MAIN) -> pl.DataFrame:
    """Everything that the loop's process and the workers' sending threads did beside loading.

    Args:
        run: what was measured.
        flows: what `flows.flows` gives of it; an arrow ends in the first use of its batch.
        thread: of the loop.

    Returns:
        `thread, name, cat, start_ns, end_ns, depth, rank, worker, pid, epoch, batch, step, steady,
        arrows, consists_of`; `depth` orders those that are alike in time, null is what does not
        apply.
    """
    steps = _steps(run)
    uses, steps = _with_arrows(_uses(run, steps), steps, flows)
    ends = uses.group_by(_STEP).agg(last_ns=pl.col("end_ns").max())
    whole = steps.join(ends, on=_STEP, how="left").with_columns(
        end_ns=pl.max_horizontal("used_ns", "last_ns")
    )
    named = pl.format("step {}", "step")
    of_loop = [
        _slices(whole.with_columns(start_ns="begin_ns").drop("arrows"), named, LOOP, 0),
        _slices(_stalls(run), pl.lit("stall"), STALL, 1),
        _slices(
            steps.drop("arrows")
            .filter(pl.col("begin_ns") < pl.col("start_ns"))
            .with_columns(start_ns="begin_ns", end_ns="start_ns"),
            pl.lit("iter(loader)"),
            WAIT,
            2,
        ),
        *_waits(run, steps),
        _slices(uses, _stage(run), pl.col("kind"), 4),
    ]
    here = pl.concat(of_loop, how="diagonal_relaxed").with_columns(thread=pl.lit(thread))
    return pl.concat([here, _beside(run, flows)], how="diagonal_relaxed")


def _slices(rows: pl.DataFrame, name: pl.Expr, cat: str | pl.Expr, depth: int) -> pl.DataFrame:
    return rows.select(
        name.alias("name"),
        (pl.lit(cat) if isinstance(cat, str) else cat.cast(pl.String)).alias("cat"),
        "start_ns",
        "end_ns",
        pl.lit(depth).alias("depth"),
        *(column for column in _KNOWN if column in rows.columns),
    )


def _steps(run: Run) -> pl.DataFrame:
    """The steps with their `begin_ns`, that of `iter(loader)` before it, and their `used_ns`."""
    restart_ns = (pl.col("restart_s").fill_null(0.0) * 1e9).round().cast(pl.Int64)
    used_ns = (pl.sum_horizontal("h2d_s", "step_s", "other_s") * 1e9).round().cast(pl.Int64)
    known = run.all_steps.drop_nulls(["start_ns", "end_ns"]).drop("worker")
    return known.with_columns(
        begin_ns=pl.col("start_ns") - restart_ns, used_ns=pl.col("end_ns") + used_ns
    ).sort("rank", "end_ns")


def _stalls(run: Run) -> pl.DataFrame:
    """The waits that matter, each with its longest parts in words."""
    parts = run.parts().sort("exposed_s", descending=True, maintain_order=True)
    words = pl.format("{} {}", "part", pl.col("exposed_s").map_elements(seconds, pl.String))
    told = parts.group_by(_STEP, maintain_order=True).agg(
        consists_of=words.head(_MOST_PARTS).str.join(", ")
    )
    return run.stalls().drop("worker").join(told, on=_STEP, how="left")


def _waits(run: Run, steps: pl.DataFrame) -> list[pl.DataFrame]:
    """The steps' waits, and in each the loader's own, where it is not the same."""
    exactly = (*_STEP, "start_ns", "end_ns")
    own = run.waits.join(steps, on=exactly, how="anti")
    return [
        _slices(steps, pl.lit("wait"), WAIT, 2),
        _slices(own, pl.lit("next(loader)"), WAIT, 3),
    ]


def _uses(run: Run, steps: pl.DataFrame) -> pl.DataFrame:
    """What the loop did, with the number of the step in which it did so."""
    of_loop = pl.col("worker").is_null() & ~pl.col("kind").is_in(_SIDE)
    spans = run.side_spans.filter(of_loop).sort("rank", "start_ns")
    begun = steps.select(
        "rank", "step", "steady", *(pl.col(n).alias(f"its_{n}") for n in KEY[1:]), start_ns="end_ns"
    )
    found = spans.join_asof(
        begun, on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    its = pl.all_horizontal((pl.col(name) == pl.col(f"its_{name}")) for name in KEY[1:])
    return found.with_columns(pl.when(its).then(name).alias(name) for name in ("step", "steady"))


def _with_arrows(
    uses: pl.DataFrame, steps: pl.DataFrame, flows: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Arrows end in the first use in their step; only where none was seen, in its wait.

    Perfetto lets an arrow lead from the slice that starts earlier, and a wait starts early.
    """
    ending = flows.group_by(_STEP).agg(arrows="flow")
    first = pl.struct(_STEP).is_first_distinct() & pl.col("step").is_not_null()
    used = uses.join(ending, on=_STEP, how="left", maintain_order="left").with_columns(
        arrows=pl.when(first).then("arrows")
    )
    unused = ending.join(uses, on=_STEP, how="anti")
    return used, steps.join(unused, on=_STEP, how="left")


def _beside(run: Run, flows: pl.DataFrame) -> pl.DataFrame:
    """Pinning, and sending from the workers, through which the arrows lead."""
    spans = run.side_spans.filter(pl.col("kind").is_in(_SIDE)).join(
        of_batches(flows), on=KEY, how="left"
    )
    pins = pl.col("kind") == PIN.kind
    thread = pl.when(pins).then(pl.lit(PINNING)).otherwise(pl.lit(SENDING))
    told = spans.with_columns(thread=thread, arrows=pl.when(~pins).then("arrows"))
    return _slices(told, pl.col("stage").cast(pl.String), pl.col("kind"), 0)


def _stage(run: Run) -> pl.Expr:
    """The name of what the loop did; a step that only a timer made is called so."""
    name = pl.col("stage").cast(pl.String)
    if run.settings.simulated_step_s is None:
        return name
    simulated = pl.format("{} (simulated)", name)
    return pl.when(pl.col("kind") == STEP.kind).then(simulated).otherwise(name)
