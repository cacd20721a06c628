"""Time on an axis: round ticks with their unit on each, in a scale that fits the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
DECADE: Final = 10.0
FEW_DECADES: Final = 100.0
"""An axis that spans less gets labels at 2 and 5, too."""


def time_label(value: float, _: object = None) -> str:
    """A tick's label: `time_label(0.002)` is '2 ms'."""
    if value == 0:
        return "0"
    for step, unit in _UNITS:
        if abs(value) >= step * 0.9995:
            return f"{value / step:.4g} {unit}"
    return f"{value * 1e9:.2g} ns"


def linear_time(ax: Axes, high: float, low: float = 0.0) -> None:
    """A linear horizontal axis of seconds.

    Args:
        ax: the chart.
        high: its right end, seconds.
        low: its left end, seconds.
    """
    ax.set_xlim(low, high if high > low else low + 1e-3)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(time_label))


def log_time(ax: Axes, low: float, high: float, *, vertical: bool = False) -> None:
    """A logarithmic axis of seconds that holds both ends, with at least two labels."""
    low, high = low / 1.25, high * 1.25
    (ax.set_yscale if vertical else ax.set_xscale)("log")
    (ax.set_ylim if vertical else ax.set_xlim)(low, high)
    axis = ax.yaxis if vertical else ax.xaxis
    steps = (1.0,) if high / low > FEW_DECADES else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(FuncFormatter(time_label))
    axis.set_minor_formatter(NullFormatter())


def spans_decades(low: float, high: float) -> bool:
    """Whether values between two ends need a logarithmic axis."""
    return low > 0 and high / low > DECADE


def time_axis(ax: Axes, low: float, high: float) -> bool:
    """An axis for values between two times: logarithmic where they span more than a decade.

    Returns:
        Whether it is logarithmic.
    """
    log = spans_decades(low, high)
    if log:
        log_time(ax, low, high)
    else:
        linear_time(ax, high * 1.05)
    return log
