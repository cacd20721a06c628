"""A loader's settings under sliders: what the loop would do, replayed while they move.

Behind the widgets stands an object that answers without them. Nothing is measured until the button
is pressed; what the step or a stage would be cannot be measured, a setting can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.bench.comparison import gain_text
from stallscope.charts.results import settings_figure
from stallscope.model.settings import Setting
from stallscope.model.simulator import predict, timeline
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.tune.result import sentence
from stallscope.units import count, rate, seconds, share, size, speedup
from stallscope.views.document import html, join
from stallscope.views.panels import WIDE, Panel, guarded, saying

if TYPE_CHECKING:
    from markupsafe import Markup

    from stallscope.model.simulator import LoaderCosts, LoopPrediction
    from stallscope.tune.result import Tuning


NO_BENCH: Final = (
    "Only figures are here, not the loader: call ss.tune in this notebook to try other settings"
)
_STEPS: Final = 12
"""That the timeline shows."""
_MEASURE_S: Final = 15.0
_MOST_WORKERS, _MOST_AHEAD, _MOST_TIMES = 16, 16, 8
_WIDTH, _LANE, _LEFT = 900.0, 15.0, 70.0
"""Of the timeline, pixels."""


class WhatIf:
    """What the loop would do with another setting, step or stage.

    Args:
        tuning: with its loader at hand.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._costs: LoaderCosts = tuning.bench.costs
        self.now = tuning.setting(0)
        self.step_s = float(self._costs.use_s.mean())
        self._own = predict(self._costs, self.now).samples_per_s.value
        self.measured: dict[Setting, str] = {}

    def setting(self, workers: int, ahead: int) -> Setting:
        """The setting of two sliders; all else as it is."""
        now = vars(self.now)
        told = {**now, "num_workers": workers, "prefetch_factor": ahead if workers else None}
        return Setting(**told).normal()

    def has(self, kind: str) -> bool:
        """Whether batches have a stage of a kind."""
        return any(kind == known for _, known in self._costs.stages)

    def costs(self, step_s: float, decode: float, reading: float) -> LoaderCosts:
        """What batches cost with another step, and with stages so many times as fast."""
        costs = self._costs
        if decode != 1:
            costs = costs.faster(decode, ["decode"])
        if reading != 1:
            costs = costs.faster(reading, ["fetch"])
        return costs if abs(step_s - self.step_s) < 1e-6 else costs.with_step(step_s)  # noqa: PLR2004 - a slider's own steps

    def answer(
        self, workers: int, ahead: int, step_s: float, decode: float, reading: float
    ) -> Markup:
        """The numbers and the timeline of these sliders."""
        setting, costs = self.setting(workers, ahead), self.costs(step_s, decode, reading)
        found = predict(costs, setting)
        measured = self.measured.get(setting, "") if costs is self._costs else ""
        return join([self._told(found, measured), _drawn(costs, setting)])

    def _told(self, found: LoopPrediction, measured: str) -> Markup:
        per_s, stalls = found.samples_per_s, found.stall_share
        gain = per_s.value / self._own
        parts = [
            f"first batch after {seconds(found.first_batch_s)}",
            *([f"memory about {size(found.memory_bytes)}"] if found.memory_bytes else []),
            *([f"outside of what was recorded: {found.outside}"] if found.outside else []),
            *([measured] if measured else []),
        ]
        return html(
            "<p style='font-size:120%;margin:.4em 0'><b>{} samples/s</b> ({} to {}), {} as now · "
            "stalls <b>{}</b> of the time</p><p style='margin:0;opacity:.75'>{}</p>",
            rate(per_s.value),
            rate(per_s.low),
            rate(per_s.high),
            speedup(gain),
            share(stalls.value),
            " · ".join(parts),
        )

    def measure(self, workers: int, ahead: int) -> str:
        """Measure a setting beside the loader as it is; what that says, in a sentence."""
        setting = self.setting(workers, ahead)
        if setting == self.now:
            return "this is the loader as it is: choose another number of workers, or prefetch"
        bench = self._tuning.bench
        told = {"num_workers": setting.num_workers}
        if setting.num_workers:
            told["prefetch_factor"] = setting.prefetch_factor or 2
        found = bench.measure(bench.trial(told), _MEASURE_S)
        row = next(one for one in found.settings().to_dicts() if one["trial"])
        if row["gain"] is None:
            said = f"not measured: {row['reason'] or 'the time was over'}"
        else:
            said = (
                f"measured {rate(row['measured_per_s'])} samples/s, "
                f"{gain_text(row['gain'], row['gain_low'], row['gain_high'], 'as now')}; predicted "
                f"{speedup(row['predicted_gain'])}"
            )
        self.measured[setting] = said
        return said


_RECT: Final = (
    "<rect x='{:.1f}' y='{:.0f}' width='{:.1f}' height='{:.0f}' fill='{}' stroke='#fff' "
    "stroke-width='.7'/>"
)
_NAME: Final = "<text x='0' y='{:.0f}' font-size='11' fill='currentColor'>{}</text>"
_REPLAY: Final = (
    "<svg class='stallscope-replay' width='{:.0f}' height='{:.0f}' role='img' aria-label='{}, {} "
    "of the time waiting' style='max-width:100%;margin:.6em 0'>{}</svg><p style='margin:0;"
    "opacity:.75'>{} of the replay: batches that workers make, steps of the loop, and in orange "
    "where it waits</p>"
)


def _drawn(costs: LoaderCosts, setting: Setting) -> Markup:
    """Draw a few steps of the replay: a lane for each worker, and one for the loop."""
    found = timeline(costs, setting, _STEPS)
    used, made = found["used"], found["made"]
    end_s = max([1e-6, *(end for _, end in used)])
    workers = [f"worker {number}" for number in range(setting.num_workers)] or ["making"]
    loop, row, scale = len(workers), _LANE + 3, (_WIDTH - _LEFT) / end_s
    bars = [(lane, begin, end, COLOURS["transform"]) for lane, begin, end in made]
    bars += [(loop, 0.0, end_s, STALL_COLOUR)]
    bars += [(loop, begin, end, COLOURS["step"]) for begin, end in used]
    drawn = [
        html(
            _RECT,
            _LEFT + max(begin, 0.0) * scale,
            lane * row,
            (min(end, end_s) - max(begin, 0.0)) * scale,
            _LANE,
            colour,
        )
        for lane, begin, end, colour in bars
        if begin < end_s and end > 0
    ]
    names = enumerate([*workers, "loop"])
    drawn += [html(_NAME, lane * row + _LANE - 3, name) for lane, name in names]
    waiting = share(1 - sum(end - begin for begin, end in used) / end_s)
    workers_text = count(setting.num_workers, "worker")
    height = (loop + 1) * row
    return html(_REPLAY, _WIDTH, height, workers_text, waiting, join(drawn), seconds(end_s))


def panel(tuning: Tuning) -> Panel:
    """Sliders over the replay, and a button that measures."""
    still = settings_figure(tuning)
    if tuning.bench is None:
        return saying(f"{sentence(tuning)}. {NO_BENCH}", still)
    return SettingBoard(WhatIf(tuning), still).panel


class SettingBoard:
    """The widgets of one panel.

    Args:
        what_if: what they ask.
        still: a picture for places that show no widgets.
    """

    def __init__(self, what_if: WhatIf, still: Any) -> None:
        self._what_if = what_if
        now, step_ms = what_if.now, 1e3 * what_if.step_s
        most = max(_MOST_WORKERS, now.num_workers)
        ahead = now.prefetch_factor or 2
        self.workers = _whole("Workers", now.num_workers, 0, most)
        self.ahead = _whole("Prefetch of each", ahead, 1, max(_MOST_AHEAD, ahead))
        self.step = _number("Step, ms", step_ms, 0.0, max(4 * step_ms, 10.0), step_ms / 40 or 0.25)
        self.decode = _number("Decode times as fast", 1.0, 1.0, _MOST_TIMES, 0.5)
        self.reading = _number("Reading times as fast", 1.0, 1.0, _MOST_TIMES, 0.5)
        for slider, kind in ((self.decode, "decode"), (self.reading, "fetch")):
            if not what_if.has(kind):
                slider.disabled = True
                slider.description = f"{slider.description.split()[0]}: none recorded"
        self.run = ipywidgets.Button(description="Measure this setting", icon="clock-o")
        self.run.layout.width = "auto"
        self.answer, self.said = ipywidgets.HTML(), ipywidgets.HTML()
        self.sliders = (self.workers, self.ahead, self.step, self.decode, self.reading)
        for slider in self.sliders:
            slider.observe(lambda _: guarded(self._say, self.show), names="value")
        self.run.on_click(lambda _: guarded(self._say, self.measure))
        self.show()
        left = ipywidgets.VBox([self.workers, self.ahead, self.step])
        right = ipywidgets.VBox([self.decode, self.reading, self.run])
        self.panel = Panel([ipywidgets.HBox([left, right]), self.answer, self.said])
        self.panel.still = still
        self.panel.add_class("stallscope-tuning-panel")

    def show(self) -> None:
        """Show what the sliders say."""
        workers, ahead, step_ms, decode, reading = (slider.value for slider in self.sliders)
        self.ahead.disabled = not workers
        self.answer.value = self._what_if.answer(workers, ahead, step_ms / 1e3, decode, reading)

    def measure(self) -> None:
        """Measure the setting of the sliders; step and stages stay as they are."""
        self.run.disabled = True
        self._say("measuring, in turn with the loader as it is …")
        try:
            self._say(self._what_if.measure(self.workers.value, self.ahead.value))
            self.show()
        except BaseException:
            self._say("not measured: it was stopped")
            raise
        finally:
            self.run.disabled = False

    def _say(self, told: str) -> None:
        self.said.value = html("<p><b>{}</b></p>", told)


def _whole(label: str, value: int, low: int, high: int) -> Any:
    return ipywidgets.IntSlider(value, low, high, description=label, style=WIDE)


def _number(label: str, value: float, low: float, high: float, by: float) -> Any:
    return ipywidgets.FloatSlider(
        value=value, min=low, max=high, step=by, description=label, style=WIDE
    )
