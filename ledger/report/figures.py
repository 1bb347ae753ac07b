"""The panels of the figures, as SVG: the same data give the same bytes."""

import io
import textwrap
from dataclasses import dataclass, field

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

WIDTH = 3.7  # inches: drawn at this size in a page and on a phone, so that its words are as large as they should be
HEIGHT = 2.2  # of the plot itself
WRAP = 42  # letters of a legend
# Dark to light, so that they differ in grey too; dashes and markers tell them apart without colour.
STYLES = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#0072b2", "linestyle": (0, (5, 2)), "marker": "s"},
    {"color": "#d55e00", "linestyle": (0, (1, 1.2)), "marker": "^"},
    {"color": "#009e73", "linestyle": (0, (6, 2, 1, 2)), "marker": "D"},
    {"color": "#b0508f", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#7a7a7a", "linestyle": (0, (9, 3)), "marker": "X"},
    {"color": "#8c6d00", "linestyle": (0, (2, 3)), "marker": "P"},
)
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ledger",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # laid out in the widest of them
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Series:
    """A curve, or points: y with the ends of its 95 % interval, if any. style: its place in STYLES."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    style: int = 0


@dataclass(frozen=True)
class Lines:
    """bounds: what a claim names, by its words, as dotted lines."""

    title: str
    x: str
    y: str
    series: list[Series]
    bounds: dict[str, list[float]] = field(default_factory=dict)
    joined: bool = True
    log: bool = False


@dataclass(frozen=True)
class Dots:
    """A line for each name, a dot for each series that has it: Series.x are the names' places."""

    title: str
    y: str
    names: list[str]
    series: list[Series]
    bounds: dict[str, list[float]] = field(default_factory=dict)


def svg(panel: Lines | Dots) -> str:
    with matplotlib.rc_context(SETTINGS):
        figure = draw(panel)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]  # without the declaration, so that it also stands in a page


def draw(panel: Lines | Dots) -> Figure:
    return _lines(panel) if isinstance(panel, Lines) else _dots(panel)


def _wrapped(words: str) -> str:
    return textwrap.fill(words, WRAP)


def _dots_of(style: dict) -> dict:
    return {"fmt": style["marker"], "color": style["color"], "markersize": 5, "capsize": 3}


def _lines(panel: Lines) -> Figure:
    figure, axis = _figure(panel, HEIGHT)
    for series in panel.series:
        style = STYLES[series.style % len(STYLES)]
        marks = {"markersize": 4, "markevery": max(1, len(series.x) // 6)}
        label = _wrapped(series.label)
        if panel.joined:
            axis.plot(series.x, series.y, label=label, linewidth=1.4, **style, **marks)
            if series.low is not None:
                axis.fill_between(series.x, series.low, series.high, color=style["color"], alpha=0.18, linewidth=0)
        else:
            axis.errorbar(series.x, series.y, yerr=_errors(series), label=label, **_dots_of(style))
    for place, (words, values) in enumerate(panel.bounds.items()):
        for value in values:
            line = axis.axhline(value, color="#555555", linestyle=":", linewidth=1.1 + 0.7 * place)
        line.set_label(_wrapped(words))
    axis.set_xlabel(panel.x)
    axis.set_ylabel("\n".join(textwrap.wrap(panel.y, 34)))
    axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.yaxis.set_major_formatter(FuncFormatter(_tick))
    if panel.log:
        ticks = sorted({x for series in panel.series for x in series.x})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks[:: max(1, -(-len(ticks) // 10))])
        axis.minorticks_off()
    elif panel.joined:
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=max(max(series.x) for series in panel.series) > 1))
    else:
        axis.set_xticks(sorted({x for series in panel.series for x in series.x}))
        axis.margins(x=0.1)
    axis.xaxis.set_major_formatter(FuncFormatter(_tick))
    _legend(figure, axis, panel.bounds)
    return figure


def _dots(panel: Dots) -> Figure:
    names = [textwrap.fill(name, 26) for name in panel.names]
    figure, axis = _figure(panel, 0.6 + sum(0.13 + 0.15 * (1 + name.count("\n")) for name in names))
    apart = 0.5 / max(1, len(panel.series))
    for place, series in enumerate(panel.series):
        style = STYLES[series.style % len(STYLES)]
        y = [x + (place - (len(panel.series) - 1) / 2) * apart for x in series.x]
        axis.errorbar(series.y, y, xerr=_errors(series), label=_wrapped(series.label), **_dots_of(style))
    for place, (words, values) in enumerate(panel.bounds.items()):
        for value in values:
            line = axis.axvline(value, color="#555555", linestyle=":" if place % 2 == 0 else (0, (4, 3)), linewidth=1.2)
        line.set_label(_wrapped(words))
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_xlabel(textwrap.fill(panel.y, 34))
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(FuncFormatter(_tick))
    axis.margins(x=0.12)
    if len(panel.series) > 1 or panel.bounds:
        _legend(figure, axis, panel.bounds)
    return figure


def _figure(panel: Lines | Dots, height: float) -> tuple:
    """Figure and axes with `height` inches for the plot, and what the legend and the title take besides."""
    labels = [_wrapped(label) for label in (*(series.label for series in panel.series), *panel.bounds)]
    title = _wrapped(panel.title)
    figure = Figure(
        figsize=(WIDTH, height + 0.2 + 0.15 * sum(1 + text.count("\n") for text in (*labels, title))),
        layout="constrained",
    )
    figure.suptitle(title, fontsize=9)
    return figure, figure.subplots()


def _legend(figure: Figure, axis, bounds: dict[str, list[float]]) -> None:
    """Below the plot, one under the other, so that it hides no curve. What a claim names comes last."""
    last = set(map(_wrapped, bounds))
    entries = sorted(zip(*axis.get_legend_handles_labels()), key=lambda entry: entry[1] in last)
    figure.legend(
        *zip(*entries), loc="outside lower center", frameon=False, fontsize=7.5, handlelength=4, labelspacing=0.25
    )


def _errors(series: Series) -> list[list[float]] | None:
    if series.low is None:
        return None
    return [[y - low for y, low in zip(series.y, series.low)], [high - y for y, high in zip(series.y, series.high)]]


def _tick(value: float, _position: int) -> str:
    """Large numbers shortened: 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}".replace("-", "−")
    return f"{value:.6g}".replace("-", "−")
