"""Plots as static SVG: bars by name, and columns along an axis. Colours and fonts are those of templates/page.css."""

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pygal
from markupsafe import Markup
from pygal.etree import etree
from pygal.style import Style

# Where lxml is installed, pygal would use it, and lxml refuses control characters.
etree.to_etree()

#: Font sizes of the page, by which pygal places text.
_STYLE = Style(label_font_size=11, major_label_font_size=11, value_font_size=11, title_font_size=11)
#: Letters of a name that fit beside its bar; the bar's title has the whole name.
_LETTERS = 42
#: Decimals of a drawn value: pygal divides by zero where the largest is near the least float.
_DIGITS = 9
_SVG = Markup('<svg viewBox="{}" role="img" aria-label="{}"><title>{}</title><desc>{}</desc>{}</svg>')


def bars(title: str, rows: Sequence[tuple[Any, ...]], form: str, before: str = "the day before") -> Markup:
    """Horizontal bars, the first row on top. A row: its name and one value, or two, this day's and that of `before`.
    `form`: of a value, for str.format()."""
    chart = _chart(
        pygal.HorizontalBar,
        height=20 + 10 * len(rows) * len(rows[0]),
        margin_right=60,
        formatter=form.format,
        print_values=True,
        print_values_position="top",
        show_x_labels=False,
        x_labels=[name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…" for name, *_ in rows[::-1]],
    )
    texts: list[str] = []
    for column, day in zip(range(1, len(rows[0])), ("", f", {before}"), strict=False):
        named = [f"{row[0]}{day}: {form.format(row[column])}" for row in rows]
        chart.add("", _values([round(row[column], _DIGITS) for row in rows], named)[::-1])
        texts += named
    return _svg(chart, title, texts)


def columns(title: str, values: Sequence[float], step: float, unit: str, counted: str) -> Markup:
    """Vertical bars: value `i` is of the range from `i * step` to the next. `counted`: the unit of the values."""
    chart = _chart(pygal.Histogram, height=300, x_title=unit, y_title=counted)
    ranges = [(round(value, _DIGITS), i * step, (i + 1) * step) for i, value in enumerate(values)]
    texts = [f"{start:,.4g} to {end:,.4g} {unit}: {value:,.4g} {counted}" for value, start, end in ranges]
    chart.add("", _values(ranges, texts))
    return _svg(chart, title, texts)


def _chart(kind: Any, **options: Any) -> Any:
    figure = "{:,.6g}".format
    options |= {"value_formatter": figure, "x_value_formatter": figure, "max_scale": 10}
    return kind(style=_STYLE, width=720, margin=6, show_legend=False, js=(), **options)


def _values(values: Sequence[Any], texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"value": value, "tooltip": text} for value, text in zip(values, texts, strict=True)]


def _svg(chart: Any, title: str, texts: Sequence[str]) -> Markup:
    """The drawing alone, without the scripts and styles of pygal and what only they use; `texts` describe it."""
    root = chart.render_tree()
    drawn = root.find("g")
    for parent in list(drawn.iter()):
        for part in list(parent):
            unused = part.tag == "desc" or (part.tag, parent.get("class")) == ("title", "guides")
            if unused or "tooltip-overlay" in part.get("class", ""):
                parent.remove(part)
    svg = Markup(ElementTree.tostring(drawn, encoding="unicode"))  # noqa: S704 (ElementTree has escaped it)
    return _SVG.format(root.get("viewBox"), title, title, "; ".join(texts), svg)
