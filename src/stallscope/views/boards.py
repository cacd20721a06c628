"""Panels to try another order of the ops, or other settings of a loader.

Nothing is measured until a control asks for it. Only a setting can be measured, not another step or
stage.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.bench.comparison import OPEN, SAME, gain_text
from stallscope.charts import orders as charts
from stallscope.charts.results import settings_figure
from stallscope.errors import StallscopeError
from stallscope.model.simulator import predict, timeline
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, printable, rate, said_by, seconds, share, size, speedup
from stallscope.verbs.orders import text as orders_text
from stallscope.verbs.orders.result import op_names
from stallscope.verbs.orders.variant import IDENTICAL, NEAR, ROUNDING, TOLERANCES
from stallscope.verbs.tune.result import sentence as tuning_sentence
from stallscope.views.document import fill, html
from stallscope.views.panels import WIDE, Panel, image, saying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.charts.sheet import Sheet
    from stallscope.model.batch_times import LoaderCosts
    from stallscope.model.settings import Setting
    from stallscope.verbs.orders.result import Orders
    from stallscope.verbs.orders.variant import Variant
    from stallscope.verbs.tune.result import Tuning

    Positions = tuple[int, ...]


class _Board:
    """Widgets of a panel with a button that measures, and a message."""

    def __init__(self, button: str) -> None:
        self.run = ipywidgets.Button(
            description=button, icon="clock-o", layout={"width": "max-content"}
        )
        self.run.layout.width = "auto"
        self.message = ipywidgets.HTML()

    def say(self, message: str) -> None:
        """Show a message."""
        self.message.value = html("<p><b>{}</b></p>", message) if message else ""

    def on_value(self, control: Any, act: Callable[[Any], None]) -> None:
        """Call a function with each new value of a control."""
        control.observe(lambda change: self._guarded(act, change["new"]), names="value")

    def on_click(self, button: Any, act: Callable[..., None], *arguments: Any) -> None:
        """Call a function on each click."""
        button.on_click(lambda _: self._guarded(act, *arguments))

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Act, and show errors here: a notebook hides errors of callbacks."""
        try:
            act(*arguments)
        except StallscopeError as error:
            self.say(str(error))
        except Exception as error:  # noqa: BLE001 - the user's own, out of the dataset or an op
            what = f"{type(error).__name__}: {said_by(error)}"
            self.say(printable(f"That did not work. {what}", 600))

    @contextmanager
    def measuring(self, beside: str) -> Iterator[None]:
        """Disable the button while the block measures, and say what happens."""
        self.run.disabled = True
        self.say(f"measuring, in turn with {beside} as it is …")
        try:
            yield
        except BaseException:
            self.say("not measured: stopped")
            raise
        finally:
            self.run.disabled = False


# ---- orders of the ops ---------------------------------------------------------------------------

_MARKS: Final = {IDENTICAL: "✓", ROUNDING: "≈", NEAR: "≈"}
_LONG_S: Final = 8.0
"""Seconds for which `Measure longer` measures an order."""
AS_IT_IS: Final = "as it is"
NO_PIPELINE: Final = (
    "The pipeline is not in this session: call ss.orders in this notebook to try other orders"
)
HINT: Final = (
    "The slider shows the fastest order of each grade. Drag the ops into another order, or choose "
    "one and move it: the order is measured at once."
)


def orders_panel(orders: Orders) -> Panel:
    """Return the panel for trying orders by hand."""
    still = charts.figure(orders)
    if orders.bench is None:
        return saying(NO_PIPELINE, still)
    if len(op_names(orders)) < 2:  # noqa: PLR2004 - two to change places
        return saying(orders_text.sentence(orders), still)
    shown = OrderBoard(orders).panel
    shown.still = still
    return shown


class OrderBoard(_Board):
    """Ops in any order, and the orders that were tried.

    A slider moves along the best orders of each grade, and the ops can be dragged.
    """

    def __init__(self, orders: Orders) -> None:
        super().__init__("Measure longer")
        self._bench: Any = orders.bench
        self._names = {op: printable(name, 40) for op, name in op_names(orders).items()}
        self._original: Positions = tuple(self._names)
        works = [v for v in orders.variants if v.kind == "order" and v.grade.works]
        self._variants = {variant.positions: variant for variant in works}
        self._front = self._fastest(works)
        self._now = self._original
        labels = list(self._names.values())
        self.tags = ipywidgets.TagsInput(value=labels, allowed_tags=labels, allow_duplicates=False)
        self.tolerance = ipywidgets.SelectionSlider(
            options=list(self._front), description="Tolerance", continuous_update=False, style=WIDE
        )
        self.op = ipywidgets.Dropdown(options=labels, description="Op", style=WIDE)
        self.earlier = ipywidgets.Button(description="Earlier", icon="arrow-up")
        self.later = ipywidgets.Button(description="Later", icon="arrow-down")
        self.verdict, self.bars, self.pictures, self.code = (ipywidgets.HTML() for _ in range(4))
        self.on_value(self.tags, self._take)
        self.on_value(self.tolerance, lambda grade: self._begin(self._front[grade]))
        self.on_click(self.earlier, self._move, -1)
        self.on_click(self.later, self._move, 1)
        self.on_click(self.run, self._measure, _LONG_S)
        self._show()
        by_keyboard = [self.op, self.earlier, self.later]
        self.tolerance.layout.width, self.op.layout.width = "28em", "18em"  # else words are cut
        controls = ipywidgets.HBox(
            [self.tolerance, *by_keyboard, self.run], layout={"flex_flow": "row wrap"}
        )
        hint = ipywidgets.HTML(html("<p>{}</p>", HINT))
        shown = [self.verdict, self.bars, self.message, self.pictures, self.code]
        self.panel = Panel([hint, self.tags, controls, *shown])
        self.panel.add_class("stallscope-orders-panel")

    def _fastest(self, works: list[Variant]) -> dict[str, Positions]:
        """Return the original order, and for each grade the fastest order within it."""
        front = {AS_IT_IS: self._original}
        for grade in TOLERANCES:
            near = [row for row in works if row.grade.within(grade)]
            near.sort(key=lambda row: not row.is_original)
            fastest = max(near, key=lambda row: 1.0 if row.is_original else row.fast, default=None)
            front[grade] = fastest.positions if fastest else self._original
        return front

    def variant(self, positions: Positions) -> Variant:
        """Return an order with what is known of it: at least its predicted time."""
        if positions not in self._variants:
            predicted = self._bench.predict(positions)
            positions = predicted.positions  # ops of two chains never exchange places
            self._variants.setdefault(positions, predicted)
        return self._variants[positions]

    def picture(self, positions: Positions) -> Sheet:
        """Draw the predicted cost of the order and of the original, part by part."""
        rows = [self.variant(order) for order in dict.fromkeys((self._original, positions))]
        return charts.bars_figure(_answer(rows[-1]), [charts.KEY], rows, [rows[-1].trial])

    def _begin(self, positions: Positions) -> None:
        """Show an order, and measure it the first time."""
        if positions == self._now:
            self._show_tags()
            return
        self._now = positions
        self.say("")
        self.code.value = self.pictures.value = ""  # of the order before
        self._show()
        variant = self.variant(positions)
        if variant.predicted_s is not None and not variant.is_original:
            if not variant.pictures:
                self._variants[positions] = variant = self._bench.compare(variant)
            if variant.measured is None:
                self._measure()
        self._show()

    def _show_tags(self) -> None:
        self.tags.value = [self._names[op] for op in self._now]

    def _show(self) -> None:
        variant = self.variant(self._now)
        self._show_tags()
        self.bars.value = image(self.picture(self._now))
        mark = _MARKS.get(variant.grade.equivalence, "✗")
        grade = f"{mark} {printable(orders_text.verdict(variant.grade), 400)}"
        about = "the original" if variant.is_original else grade
        if variant.predicted_s is not None and not variant.grade.compared:
            about = "comparing its data with the original's …"
        self.verdict.value = html("<p><b>{}</b></p>", about)
        self.run.disabled = variant.predicted_s is None  # it fails
        pictures = charts.comparison_figure(variant) if variant.pictures else None
        self.pictures.value = image(pictures)
        self.code.value = html(
            "<details><summary>The code of this pipeline</summary>"
            "<pre style='overflow-x:auto'>{}</pre></details>",
            variant.code,
        )

    def _measure(self, *budget_s: float) -> None:
        """Measure the order that is shown, further each time."""
        variant = self.variant(self._now)
        if variant.predicted_s is None:
            return
        with self.measuring("the pipeline"):
            self._variants[self._now] = self._bench.measure(variant, *budget_s)
            self.say("")
            self._show()

    def _move(self, by: int) -> None:
        """Move the chosen op; at an end it stays."""
        labels = [self._names[op] for op in self._now]
        place = labels.index(self.op.value)
        labels.insert(max(place + by, 0), labels.pop(place))
        self._take(labels)

    def _take(self, labels: list[str]) -> None:
        """Show an order that the user made; undo it if an op is missing."""
        ops = {label: op for op, label in self._names.items()}
        if sorted(labels) == sorted(ops):
            self._begin(self.variant(tuple(ops[label] for label in labels)).positions)
        else:
            self._show_tags()
            self.say("An order needs every op once, so the change was undone")


def _answer(variant: Variant) -> str:
    took = variant.measured.value if variant.measured else variant.predicted_s
    if variant.is_original:
        return f"The pipeline as it is: {seconds(took)} per sample"
    if took is None:
        return f"This order fails: {variant.grade.why}"
    speed = f"{speedup(variant.fast)} the original's speed (predicted)"
    if variant.speedup is not None:
        settled = "; not settled: measure longer" if variant.says == OPEN else ", measured"
        interval = orders_text.interval_text(variant.speedup)
        speed = f"{variant.fast:.2f}× the original's speed{interval}{settled}"
        if variant.says == SAME:
            speed = f"{SAME}{interval}"
    return f"This order: {seconds(took)} per sample, {speed}"


# ---- settings of a loader ------------------------------------------------------------------------

NO_LOADER: Final = (
    "Only figures are here, not the loader: call ss.tune in this notebook to try other settings"
)
_STEPS: Final = 12
"""Steps that the timeline shows."""
_MEASURE_S: Final = 15.0
_MOST_WORKERS, _MOST_AHEAD, _MOST_TIMES = 16, 16, 8
_WIDTH, _LANE, _LEFT = 900, 15, 70
"""Sizes of the timeline, pixels."""
_SLIDER_STEP_S: Final = 1e-6
"""A step that is nearer to the recorded one is the same: a slider rounds."""


def _replayed(costs: LoaderCosts, setting: Setting) -> dict[str, Any]:
    """Return the drawing of a few steps of the replay: a lane for each worker, one for the loop."""
    replay = timeline(costs, setting, _STEPS)
    used, batches = replay["used"], replay["made"]
    end_s = max([1e-6, *(end for _, end in used)])
    workers = [f"worker {number}" for number in range(setting.num_workers)] or ["making"]
    loop, row, scale = len(workers), _LANE + 3, (_WIDTH - _LEFT) / end_s
    bars = [(lane, begin, end, COLOURS["transform"]) for lane, begin, end in batches]
    bars += [(loop, 0.0, end_s, STALL_COLOUR)]
    bars += [(loop, begin, end, COLOURS["step"]) for begin, end in used]
    cut = [(n, max(begin, 0.0), min(end, end_s), colour) for n, begin, end, colour in bars]
    return {
        "bars": [
            (_LEFT + begin * scale, lane * row, (end - begin) * scale, colour)
            for lane, begin, end, colour in cut
            if begin < end
        ],
        "names": [(n * row + _LANE - 3, name) for n, name in enumerate([*workers, "loop"])],
        "waiting": share(1 - sum(end - begin for begin, end in used) / end_s),
        "workers": count(setting.num_workers, "worker"),
        "height": (loop + 1) * row,
        "shown": seconds(end_s),
    }


def tuning_panel(tuning: Tuning) -> Panel:
    """Return sliders over the replay, and a button that measures."""
    still = settings_figure(tuning)
    if tuning.bench is None:
        return saying(f"{tuning_sentence(tuning)}. {NO_LOADER}", still)
    shown = SettingBoard(tuning).panel
    shown.still = still
    return shown


class SettingBoard(_Board):
    """Sliders, and predictions for the loop with another setting, step or stage."""

    def __init__(self, tuning: Tuning) -> None:
        super().__init__("Measure this setting")
        self._bench, self._now = tuning.bench, tuning.setting(0)
        self._costs: LoaderCosts = tuning.bench.costs
        self._step_s = float(self._costs.use_s.mean())
        self._own = predict(self._costs, self._now).samples_per_s.value
        self._measured: dict[Setting, str] = {}
        now, step_ms = self._now, 1e3 * self._step_s
        ahead, most = now.prefetch_factor or 2, max(_MOST_WORKERS, now.num_workers)
        whole, number = ipywidgets.IntSlider, ipywidgets.FloatSlider
        self.workers = whole(now.num_workers, 0, most, description="Workers")
        self.ahead = whole(ahead, 1, max(_MOST_AHEAD, ahead), description="Prefetch of each")
        by, longest = step_ms / 40 or 0.25, max(4 * step_ms, 10.0)
        self.step = number(value=step_ms, min=0.0, max=longest, step=by, description="Step, ms")
        kinds = {kind for _, kind in self._costs.stages}
        self.decode, self.reading = (
            number(1.0, min=1.0, max=_MOST_TIMES, step=0.5, disabled=kind not in kinds)
            for kind in ("decode", "fetch")
        )
        for slider, name in ((self.decode, "Decode"), (self.reading, "Reading")):
            says = ": none recorded" if slider.disabled else " × as fast"
            slider.description = f"{name}{says}"
        self.answer = ipywidgets.HTML()
        for slider in (self.workers, self.ahead, self.step, self.decode, self.reading):
            slider.style = WIDE
            self.on_value(slider, lambda _: self.show())
        self.on_click(self.run, self.measure)
        self.show()
        left = ipywidgets.VBox([self.workers, self.ahead, self.step])
        right = ipywidgets.VBox([self.decode, self.reading, self.run])
        self.panel = Panel([ipywidgets.HBox([left, right]), self.answer, self.message])
        self.panel.add_class("stallscope-tuning-panel")

    def _setting(self) -> Setting:
        """Return the setting of the sliders; all else as it is."""
        workers = self.workers.value
        ahead = self.ahead.value if workers else None
        return replace(self._now, num_workers=workers, prefetch_factor=ahead).normal()

    def show(self) -> None:
        """Show the numbers and the timeline of the sliders."""
        self.ahead.disabled = not self.workers.value
        setting, costs = self._setting(), self._costs
        for factor, kind in ((self.decode.value, "decode"), (self.reading.value, "fetch")):
            costs = costs if factor == 1 else costs.faster(factor, [kind])
        step_s = self.step.value / 1e3
        if abs(step_s - self._step_s) >= _SLIDER_STEP_S:
            costs = costs.with_step(step_s)
        prediction = predict(costs, setting)
        per_s = prediction.samples_per_s
        parts = [f"first batch after {seconds(prediction.first_batch_s)}"]
        if prediction.memory_bytes:
            parts.append(f"memory about {size(prediction.memory_bytes)}")
        if prediction.outside:
            parts.append(f"outside of what was recorded: {prediction.outside}")
        if costs is self._costs and setting in self._measured:
            parts.append(self._measured[setting])
        self.answer.value = fill(
            "replay.html",
            **_replayed(costs, setting),
            per_s=rate(per_s.value),
            low=rate(per_s.low),
            high=rate(per_s.high),
            gain=speedup(per_s.value / self._own),
            stalls=share(prediction.stall_share.value),
            about=" · ".join(parts),
            width=_WIDTH,
            lane=_LANE,
        )

    def measure(self) -> None:
        """Measure the setting of the sliders; step and stages stay as they are."""
        setting = self._setting()
        if setting == self._now:
            self.say("this is the current loader: choose another number of workers, or prefetch")
            return
        with self.measuring("the loader"):
            self._measured[setting] = self._gain(setting)
            self.say(self._measured[setting])
            self.show()

    def _gain(self, setting: Setting) -> str:
        """Measure a setting beside the current loader; return its speedup in a sentence."""
        asked = {"num_workers": setting.num_workers}
        if setting.num_workers:
            asked["prefetch_factor"] = setting.prefetch_factor or 2
        result = self._bench.measure(self._bench.trial(asked), _MEASURE_S)
        row = next(row for row in result.settings().to_dicts() if row["trial"])
        if row["gain"] is None:
            return f"not measured: {row['reason'] or 'the time ran out'}"
        return (
            f"measured {rate(row['measured_per_s'])} samples/s, "
            f"{gain_text(row['gain'], row['gain_low'], row['gain_high'], 'the current loader')}; "
            f"predicted {speedup(row['predicted_gain'])}"
        )
