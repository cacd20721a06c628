"""Panels: controls, and a picture and a text that follow them; panels of a run and of code.

A panel is a thin skin over functions that work without widgets. It draws into an image of its own,
so nothing of it depends on the cell that shows it, and a cell that runs twice just makes a second,
equal panel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anywidget
import ipywidgets
import polars as pl
import traitlets

from stallscope.charts import flame as flame_chart
from stallscope.charts.loop import parts_of, stall_figure
from stallscope.charts.results import lines_figure
from stallscope.charts.timeline import picture as timeline_picture
from stallscope.columns import Column
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.stall_data import (
    MOST_STEPS,
    from_step,
    sentence,
    sentence_of_steps,
    timed_steps,
    timeline,
)
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import LONGEST_TITLE, count, printable, share
from stallscope.verbs.lines import result as lines_result
from stallscope.views import code
from stallscope.views.document import CellBar, Table, html, static

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from markupsafe import Markup

    from stallscope.charts.sheet import Sheet
    from stallscope.result import Result
    from stallscope.run.result import Run
    from stallscope.verbs.flame.result import Flame, FlameDifference
    from stallscope.verbs.lines.result import Lines


WIDE: Final = {"description_width": "initial"}


class Panel(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Widgets under each other, with a picture for places that show no widgets.

    nbconvert and GitHub show a saved notebook without widgets: they show the picture, which a page
    with the live widgets hides. The picture is a separate output, because from an output with a
    widget they take only the widget.
    """

    still: Sheet | None = None
    """First picture of the panel."""

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = dict(super()._repr_mimebundle_(**kwargs) or {})
        if self.still:
            bundle["image/png"] = self.still.png_text()
            bundle["text/plain"] = f"{self.still.title}\n(a notebook shows the panel's controls)"
        return bundle

    def _ipython_display_(self) -> None:
        from IPython.display import publish_display_data

        publish: Any = publish_display_data  # IPython has no types
        bundle, name = self._repr_mimebundle_(), f"stallscope-{self.model_id}"
        self.add_class(name)
        rule = f"<style>body:has(.{name}) .{name}-still{{display:none}}</style>"
        still = f"{rule}<div class='{name}-still'>{image(self.still)}</div>"
        publish({"text/html": still, "text/plain": bundle["text/plain"]})
        types = {"application/vnd.jupyter.widget-view+json", "text/plain"}
        publish({kind: data for kind, data in bundle.items() if kind in types})


def pick(draw: Callable[..., tuple[Sheet | None, str]], *controls: Any, still: Any = None) -> Panel:
    """Put controls over a picture and a text (HTML), which `draw` makes anew of their values.

    `still` is the picture for places that show no widgets, if it is not the first one.
    """
    image_view, below = ipywidgets.HTML(), ipywidgets.HTML()
    panel = Panel([ipywidgets.HBox(controls), image_view, below])

    def show(_: object = None) -> None:
        sheet, below.value = draw(*(control.value for control in controls))
        image_view.value = image(sheet)
        panel.still = panel.still or still or sheet

    show()
    for control in controls:
        control.observe(show, names="value")
    return panel


def pictures(result: Result, kinds: Mapping[str, str], first: str) -> Panel:
    """Offer a result's pictures in a list, `first` at the top; `kinds` says what each shows."""
    options = [(shows, name) for name, shows in kinds.items()]
    draw: Callable[[str], Any] = result.plot
    return pick(lambda kind: (draw(kind), ""), dropdown("Show", options, first))


def saying(sentence: str, still: Sheet | None = None) -> Panel:
    """Return a panel without controls that shows a sentence."""
    panel = Panel([ipywidgets.HTML(html("<p>{}</p>", printable(sentence, LONGEST_TITLE)))])
    panel.still = still
    return panel


def dropdown(label: str, options: Sequence[Any], value: Any) -> Any:
    """Return a list to choose from, which begins with `value`."""
    style = {"style": WIDE, "layout": {"max_width": "100%"}}
    return ipywidgets.Dropdown(options=options, value=value, description=label, **style)


def slider(label: str, value: int, low: int, high: int) -> Any:
    """Return a slider over whole numbers, which takes effect on release."""
    return ipywidgets.IntSlider(
        value, low, high, description=label, continuous_update=False, style=WIDE
    )


def image(sheet: Sheet | None) -> str:
    """Return the picture as HTML, with its answer for a screen reader."""
    if sheet is None:
        return ""
    return html(
        "<img alt='{}' src='data:image/png;base64,{}' style='width:{}px;max-width:100%'>",
        sheet.title,
        sheet.png_text(),
        int(sheet.get_figwidth() * 100),
    )


# ---- a run: its stalls, its timeline, a training that still runs ---------------------------------

NO_FOLDER: Final = "This run has no folder: follow a run that `ss.load` opened"
NOW: Final = "<p>The training runs: this is its recording so far.</p>"
ENDED: Final = "<p>The training has ended.</p>"
_MOST_PARTS: Final = 8
_LENGTHS: Final = (3, 6, 12, 24, MOST_STEPS)
"""Numbers of steps to choose from: a few to look at each, or enough to see a rhythm."""
_PARTS: Final = (
    Column("part", pl.String, head="part of the wait", form=printable),
    Column("share", pl.Float64, head="share", form=share),
    Column("exposed_s", pl.Float64, head="time"),
)


def stall_panel(run: Run) -> Panel:
    """Return a slider over the stalls, the longest first, each with its timeline and its parts."""
    stalls = run.stalls().sort("stall_s", descending=True, maintain_order=True)
    if stalls.is_empty():
        return saying(sentence(run))

    def draw(number: int) -> tuple[Sheet, Markup]:
        stall = stalls.row(number - 1, named=True)
        return stall_figure(run, stall), stall_table(run, stall)

    return pick(draw, slider("Stall, the longest first", 1, 1, stalls.height))


def stall_table(run: Run, stall: dict[str, Any]) -> Markup:
    """Return the parts of a stall, as HTML."""
    parts = parts_of(run, stall)
    shown = parts.head(_MOST_PARTS).to_dicts()
    bars = [CellBar(part["share"], COLOURS.get(part["kind"], STALL_COLOUR)) for part in shown]
    hidden = parts.height - len(shown)
    rest = f"and {count(hidden, 'more part')}" if hidden else ""
    return Table.of(_PARTS, shown, bars=bars, key=rest).__html__()


def timeline_panel(run: Run) -> Panel:
    """Return sliders over the steady state of a rank, with the timeline of workers and loop."""
    excerpt = timeline(run)
    if excerpt is None:
        return saying(NO_LOOP)
    usual = excerpt.steps
    rank = usual["rank"][0]
    steps = timed_steps(run, rank)["step"]
    lengths = sorted({usual.height, *(length for length in _LENGTHS if length < steps.len())})

    def draw(length: int, step: int) -> tuple[Sheet, str]:
        first = min(step, steps[max(steps.len() - length, 0)])
        shown = from_step(run, rank, first, length)
        return timeline_picture(run, shown, sentence_of_steps(run, rank, shown.steps)), ""

    choices = slider("From step", usual["step"][0], steps[0], steps[-1])
    return pick(draw, dropdown("Steps", lengths, usual.height), choices)


def live_panel(run: Run) -> Panel:
    """Follow a running training until it ends or the panel is closed.

    A separate process reads the run: neither the training nor this notebook computes for it.
    """
    if run._folder is None:  # noqa: SLF001 - see `ss.load`
        return saying(NO_FOLDER)
    message, view, below = ipywidgets.HTML(NOW), ipywidgets.HTML(), ipywidgets.HTML()
    panel = Panel([message, view, below])
    panel.still = run.plot("exposed")  # type: ignore[assignment]
    view.value, below.value = json.loads(page_of(run))
    command = [sys.executable, "-m", "stallscope", "show", "--follow", "--pages", "--"]
    folder = str(run._folder)  # noqa: SLF001

    def refresh() -> None:
        with subprocess.Popen(  # noqa: S603 - ourselves
            [*command, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # interrupting a cell does not end it
        ) as reader:
            for line in reader.stdout or ():
                if panel.comm is None:  # closed
                    reader.terminate()
                    break
                view.value, below.value = json.loads(line)
        message.value = ENDED

    Thread(target=refresh, daemon=True).start()
    return panel


def page_of(run: Run) -> str:
    """Return a run as a line that `live_panel` reads."""
    picture: Any = run.plot("exposed")
    return json.dumps([image(picture), run._repr_mimebundle_()["text/html"]])


# ---- code: a flamegraph, timed lines -------------------------------------------------------------


class FlameViewer(anywidget.AnyWidget):  # type: ignore[misc]  # its base, ipywidgets, has no types
    """Zoom, search, details, and switches for workers and stages."""

    _esm: ClassVar[str] = f"{code.viewer_script()}\n{static('widget.js')}"
    _css: ClassVar[str] = static("viewer.css")
    data = traitlets.Dict().tag(sync=True)
    """Graph, from `views.code.viewer_data`."""


def flame_panel(flame: Flame | FlameDifference) -> Panel:
    """Return the viewer of a flamegraph, or of two recordings in one."""
    panel = Panel([FlameViewer(data=code.viewer_data(flame))])
    panel.still = flame_chart.figure(flame)
    return panel


def lines_panel(lines: Lines) -> Panel:
    """Return widgets to choose a function; the one with the hottest lines is the first."""
    functions = lines_result.in_order(lines)
    if not functions:
        return saying(lines_result.sentence(lines))
    options = [
        (f"{printable(row['function'], 60)} ({share(row['own_share'] or 0.0)})", place)
        for place, row in enumerate(functions)
    ]
    return pick(
        lambda place: (None, html("{}", code.Listings(lines, [functions[place]]))),
        dropdown("Function", options, 0),
        still=lines_figure(lines),
    )
