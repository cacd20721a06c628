"""A loader's settings under sliders: what the loop would do, replayed while they move.

Nothing is measured until the button is pressed. Only a setting can be measured, not another step or
stage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.bench.comparison import gain_text
from stallscope.charts.results import settings_figure
from stallscope.model.simulator import predict, timeline
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, rate, seconds, share, size, speedup
from stallscope.verbs.tune.result import sentence
from stallscope.views.document import fill, html
from stallscope.views.panels import WIDE, Panel, guarded, measuring, saying

if TYPE_CHECKING:
    from stallscope.model.settings import Setting
    from stallscope.model.simulator import LoaderCosts
    from stallscope.verbs.tune.result import Tuning


NO_BENCH: Final = (
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


def panel(tuning: Tuning) -> Panel:
    """Return sliders over the replay, and a button that measures."""
    still = settings_figure(tuning)
    if tuning.bench is None:
        return saying(f"{sentence(tuning)}. {NO_BENCH}", still)
    shown = SettingBoard(tuning).panel
    shown.still = still
    return shown


class SettingBoard:
    """The widgets of one panel: predictions for the loop with another setting, step or stage."""

    def __init__(self, tuning: Tuning) -> None:
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
            says = ": none recorded" if slider.disabled else " times as fast"
            slider.description = f"{name}{says}"
        self.run = ipywidgets.Button(description="Measure this setting", icon="clock-o")
        self.run.layout.width = "auto"
        self.answer, self.said = ipywidgets.HTML(), ipywidgets.HTML()
        for slider in (self.workers, self.ahead, self.step, self.decode, self.reading):
            slider.style = WIDE
            slider.observe(lambda _: guarded(self._say, self.show), names="value")
        self.run.on_click(lambda _: guarded(self._say, self.measure))
        self.show()
        left = ipywidgets.VBox([self.workers, self.ahead, self.step])
        right = ipywidgets.VBox([self.decode, self.reading, self.run])
        self.panel = Panel([ipywidgets.HBox([left, right]), self.answer, self.said])
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
            self._say("this is the loader as it is: choose another number of workers, or prefetch")
            return
        with measuring(self._say, self.run, "the loader"):
            self._measured[setting] = self._gain(setting)
            self._say(self._measured[setting])
            self.show()

    def _gain(self, setting: Setting) -> str:
        """Measure a setting beside the loader as it is; return its speedup in a sentence."""
        asked = {"num_workers": setting.num_workers}
        if setting.num_workers:
            asked["prefetch_factor"] = setting.prefetch_factor or 2
        result = self._bench.measure(self._bench.trial(asked), _MEASURE_S)
        row = next(row for row in result.settings().to_dicts() if row["trial"])
        if row["gain"] is None:
            return f"not measured: {row['reason'] or 'the time was over'}"
        return (
            f"measured {rate(row['measured_per_s'])} samples/s, "
            f"{gain_text(row['gain'], row['gain_low'], row['gain_high'], 'as now')}; predicted "
            f"{speedup(row['predicted_gain'])}"
        )

    def _say(self, message: str) -> None:
        self.said.value = html("<p><b>{}</b></p>", message)
