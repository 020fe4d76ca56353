"""Plots as SVG, drawn directly: bars, bars in pairs, and a rate over time. Colours are the page's (CSS classes)."""

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from batch_job.reporting.markup import tag

_WIDTH, _HEIGHT = 900, 220
#: Room for the names of horizontal bars, and for the figures behind them.
_NAMES, _FIGURES = 270, 110
_LEFT, _BOTTOM, _TOP = 60, 34, 12
_ROW, _BAR = 18, 12
#: Letters of a name that fit its room.
_LETTERS = 42
#: What is less is drawn as nothing: powers of ten are rounded to 0 there, and quotients to infinity.
_LEAST = 1e-300
#: Parts that an axis is cut into at most.
_ACROSS, _UP = 8, 4
#: Seconds beyond which an axis counts minutes.
_MINUTES = 300


def columns(title: str, values: Sequence[float], step: float, unit: str, counted: str) -> Element:
    """Vertical bars: value `i` is of the range from `i * step` to the next. `counted`: the unit of the values."""
    top, width = nice(max(values, default=0)), (_WIDTH - _LEFT) / max(len(values), 1)
    bars = [
        tag(
            "rect",
            tag("title", f"{i * step:,.4g} to {(i + 1) * step:,.4g} {unit}: {value:,.4g}"),
            class_="now",
            x=_number(_LEFT + i * width),
            y=_number(_y(value, top)),
            width=_number(max(width - 1, 0.5)),
            height=_number(_y(0, top) - _y(value, top)),
        )
        for i, value in enumerate(values)
    ]
    return _plot(title, [*_axes(top, len(values) * step, unit, counted), *bars])


def over_time(title: str, rates: Sequence[float], seconds: float) -> Element:
    """A rate that holds for `seconds` each, as steps."""
    top, width = nice(max(rates, default=0)), (_WIDTH - _LEFT) / max(len(rates), 1)
    corners = [(_LEFT + (i + side) * width, _y(rate, top)) for i, rate in enumerate(rates) for side in (0, 1)]
    floor = [(_WIDTH, _y(0, top)), (_LEFT, _y(0, top))]
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in [*corners, *floor])
    span = len(rates) * seconds
    end, unit = (span / 60, "min") if span > _MINUTES else (span, "s")
    return _plot(title, [*_axes(top, end, unit, "rows/s"), tag("polygon", class_="area", points=points)])


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Element:
    """Horizontal bars: name, value, and what to write behind it."""
    return _rows(title, [(name, [("now", value)], text) for name, value, text in rows])


def pairs(title: str, rows: Sequence[tuple[str, float, float, str]]) -> Element:
    """Horizontal bars in pairs: name, value now, value before, and what to write behind them."""
    return _rows(title, [(name, [("now", now), ("before", before)], text) for name, now, before, text in rows])


def nice(value: float) -> float:
    """The end of an axis: the least tick that is not below `value`."""
    if not _LEAST < value < math.inf:
        return 1.0
    step = _step(value, _UP)
    return math.ceil(value / step * (1 - 1e-9)) * step


def ticks(end: float, most: int) -> list[float]:
    """From 0 to `end`, every 1, 2 or 5 times a power of ten: at most `most` steps."""
    if not _LEAST < end < math.inf:
        return [0.0]
    step = _step(end, most)
    return [number * step for number in range(int(end / step * (1 + 1e-9)) + 1)]


def _step(end: float, most: int) -> float:
    least = end / most
    power = 10.0 ** math.floor(math.log10(least))
    return next((power * it for it in (1, 2, 5) if power * it >= least * (1 - 1e-9)), power * 10)


def _rows(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]], str]]) -> Element:
    top = max((value for _, series, _ in rows for _, value in series), default=0)
    scale = (_WIDTH - _NAMES - _FIGURES) / top if top > _LEAST else 0.0
    drawn: list[Element] = []
    for number, (name, series, text) in enumerate(rows):
        y, thick = _TOP + number * _ROW, _BAR / len(series)
        shown = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
        drawn.append(tag("text", tag("title", name), shown, x=_NAMES - 8, y=y + 10, text_anchor="end"))
        drawn += [
            tag("rect", class_=kind, x=_NAMES, y=_number(y + i * thick), width=_number(value * scale), height=thick)
            for i, (kind, value) in enumerate(series)
        ]
        end = max(value for _, value in series) * scale
        drawn.append(tag("text", text, x=_number(_NAMES + end + 6), y=y + 10))
    return _plot(title, drawn, _TOP * 2 + len(rows) * _ROW)


def _axes(top: float, end: float, unit: str, counted: str) -> list[Element]:
    """Lines to read heights by, and round numbers along the horizontal axis."""
    lines = [
        part
        for value in ticks(top, _UP)
        for part in (
            tag("line", class_="grid", x1=_LEFT, x2=_WIDTH, y1=_number(_y(value, top)), y2=_number(_y(value, top))),
            tag("text", f"{value:,.6g}", x=_LEFT - 6, y=_number(_y(value, top) + 4), text_anchor="end"),
        )
    ]
    below = _HEIGHT - _BOTTOM + 18
    marks = [
        tag("text", f"{at:,.6g}", x=_number(_LEFT + at / end * (_WIDTH - _LEFT)), y=below, text_anchor=_anchor(at, end))
        for at in ticks(end, _ACROSS)
        if end > 0
    ]
    units = [
        tag("text", counted, x=_LEFT + 4, y=_TOP + 10),
        tag("text", unit, x=_WIDTH, y=below + 12, text_anchor="end"),
    ]
    return [*lines, *marks, *units]


def _anchor(at: float, end: float) -> str:
    """Numbers at the ends of the axis stay within the plot."""
    return "start" if at <= 0 else "end" if at > 0.98 * end else "middle"


def _plot(title: str, drawn: Sequence[Element], height: float = _HEIGHT) -> Element:
    box = f"0 0 {_WIDTH} {_number(height)}"
    return tag("svg", tag("title", title), *drawn, viewBox=box, role="img", aria_label=title)


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _BOTTOM - _TOP) * (1 - value / top)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
