"""Parts of panels: controls, and a picture and a text that follow them.

A panel is a thin skin over functions that work without widgets. It draws into an image of its own,
so nothing of it depends on the cell that shows it, and a cell that runs twice just makes a second,
equal panel.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.errors import StallscopeError
from stallscope.units import printable, said_by
from stallscope.views.document import html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stallscope.charts.sheet import Sheet
    from stallscope.result import Result


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
    panel = Panel([ipywidgets.HTML(html("<p>{}</p>", sentence))])
    panel.still = still
    return panel


def guarded(say: Callable[[str], None], act: Callable[..., None], *arguments: Any) -> None:
    """Act, and show errors here: a notebook hides errors of callbacks."""
    try:
        act(*arguments)
    except StallscopeError as error:
        say(str(error))
    except Exception as error:  # noqa: BLE001 - the user's own, out of the dataset or an op
        say(printable(f"That did not work. {type(error).__name__}: {said_by(error)}", 600))


@contextmanager
def measuring(say: Callable[[str], None], button: Any, beside: str) -> Iterator[None]:
    """Disable a button while the block measures, and say what happens."""
    button.disabled = True
    say(f"measuring, in turn with {beside} as it is …")
    try:
        yield
    except BaseException:
        say("not measured: it was stopped")
        raise
    finally:
        button.disabled = False


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
