"""The pages, from made-up results: what they say, and how they look in a browser."""

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

from ledger import report, results
from ledger.ledger import HERE
from ledger.report import figures, page, panels, text
from ledger.results import Curve
from tools.bench import synthetic

VOID = ("meta", "link", "img", "br")


class Reader(HTMLParser):
    """Elements with their attributes and text, and whether all that opens is closed."""

    def __init__(self, source: str):
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self.open: list[tuple[str, dict, list[str]]] = []
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, words in self.open:
            words.append(data)

    def all(self, *tags) -> list[tuple[str, dict, str]]:
        return [
            (tag, attributes, " ".join("".join(words).split()))
            for tag, attributes, words in self.elements
            if tag in tags
        ]

    def texts(self, tag: str, kind: str = "") -> list[str]:
        return [
            words for _, attributes, words in self.all(tag) if kind in attributes.get("class", "").split() or not kind
        ]


@pytest.fixture(scope="module")
def collected(ledger) -> dict[str, results.Collected]:
    return {"nothing": results.EMPTY, "demos": synthetic.demos(ledger), "mixed": synthetic.mixed(ledger)}


@pytest.fixture(scope="module")
def pages(ledger, collected, tmp_path_factory) -> dict[str, tuple[page.Page, Path]]:
    """With the files. What was collected goes through its own file, as it does in reproduce.py."""
    made = {}
    for name, found in collected.items():
        folder = tmp_path_factory.mktemp(name)
        results.write(folder / "collected.json", found)
        shown = page.make(ledger, results.read(folder / "collected.json"), folder / "report")
        made[name] = shown, report.write_page(shown, folder / "report")
    return made


@pytest.fixture(scope="module")
def written(pages) -> dict[str, Path]:
    return {name: file for name, (_, file) in pages.items()}


@pytest.fixture(scope="module")
def read(written) -> dict[str, Reader]:
    return {name: Reader(index.read_text()) for name, index in written.items()}


@pytest.fixture(scope="module")
def mixed(pages) -> page.Page:
    return pages["mixed"][0]


def page_of(ledger, found) -> page.Page:
    return page.make(ledger, found, Path("results/report"))


def drawn(ledger, collected) -> list:
    found = page.Findings(ledger, collected)
    for place in ledger.places.values():
        present = list(filter(found.has_results, found.entries(place.id)))
        if place.draws != "table" or place.id == HERE:
            made = panels.of_figure(ledger, collected, found.outcomes, place, present)
            yield from (panel for panel, _ in made)


def results_of(ledger, *starts, seeds=None):
    """Of the entries whose identifiers start so."""
    return synthetic.results(ledger, seeds, only=lambda entry: entry.id.startswith(starts))


# -------------------------------------------------------------------------------------------------- the page as a whole


def test_what_came_with_the_repository(ledger):
    """With its commit, days and hardware; it is not taken for what was run here."""
    came = {"from_repository": True, "commit": "c" * 40, "state": "unknown", "hardware": "2 cores of AMD EPYC"}
    items = [
        replace(item, **came, ended=f"2026-11-2{item.seed}T10:00:00+00:00")
        for item in results_of(ledger, "ppo/HalfCheetah", "ppo-era/HalfCheetah")
    ]
    shown = page_of(ledger, synthetic.judged(ledger, items[1:]))
    assert shown.summary[1] == (
        "9 results came with the repository, in records/ (commit cccccccccc, 2026-11-21 to 2026-11-25)."
        " Nothing was run here yet."
    )
    assert not shown.begun and "2 cores of AMD EPYC" in shown.summary[0]
    kinds = {(row.name, row.kind, row.seeds, row.states) for row in shown.results}
    kind, code = "training, with the repository", "of commit cccccccccc; 2026-11-2{} to 2026-11-25"
    assert kinds == {
        ("HalfCheetah-v4-ppo", kind, "2–5", "4 " + code.format(2)),
        ("HalfCheetah-v4-ppo_era", kind, "1–5", "5 " + code.format(1)),
    }
    (measured, _) = next(section for section in shown.figures if section.place.id == "fig:gym_ppo").measured
    assert "came with the repository: 4 of 4 runs" in measured.notes and measured.outcome.state == "partial"
    own = page_of(ledger, synthetic.judged(ledger, [replace(items[0], from_repository=False), *items[1:]]))
    assert own.begun and own.summary[1].endswith("2026-11-25).")


# -------------------------------------------------------------------------------------------------------------- numbers


def bodies(found: Reader) -> dict[str, list[list[str]]]:
    """The table rows by the name that they stand under."""
    groups: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for tag, attributes, words in found.all("tr", "td", "th"):
        if tag == "tr":
            if attributes.get("class") == "name":
                rows = groups.setdefault(words, [])
            elif attributes.get("class") not in ("paper", "ours", "difference"):
                rows = []
            rows.append([])
        elif rows:
            rows[-1].append(words)
    return groups


def row_of(ledger, found, place, id):
    (section,) = [section for section in page_of(ledger, found).tables if section.place.id == place]
    (row,) = [row for block in section.blocks for row in block.rows if row.outcome.id == id]
    return section.blocks[0].columns, row


def test_a_row_of_a_table_has_the_papers_numbers_and_ours(ledger):
    """One seed's error is of its problems; the allowed difference by the tolerance's own formula."""
    (made,) = results_of(ledger, "main-grpo")
    columns, row = row_of(ledger, synthetic.judged(ledger, [made]), "tab:main_results", "main-grpo")
    assert row.lines["paper"] == ["34.4", "12.3", "69.5", "80.6", "36.8", "40.6", "45.7"] and columns[0] == "aime24"
    assert row.lines["ours"] == [f"{made.values[name]:.1f} ± 0.4" for name in columns] and row.over == "problems"
    share, answers = 0.344, 480
    allowed = 196 * math.sqrt(2 * share * (1 - share) / answers)
    difference = text.number(made.values["aime24"] - 34.4, 1, sign=True)
    assert row.lines["difference"][0] == f"{difference} (within ±{allowed:.1f})"


def test_several_seeds_have_their_mean_and_its_interval(ledger):
    items = synthetic.results(ledger, only=lambda entry: entry.id == "cifar10-aug")
    tops = [93.1, 93.9, 93.35]
    items = [replace(item, values={"top1": top, "top5": 99.8}) for item, top in zip(items, tops, strict=True)]
    _, row = row_of(ledger, synthetic.judged(ledger, items), "tab:main_results_vision", "cifar10-aug")
    half = stats.t.ppf(0.975, 2) * np.std(tops, ddof=1) / math.sqrt(3)
    assert row.lines["ours"] == [f"{np.mean(tops):.2f} ± {half:.2f}", "99.80 ± 0.00"]
    assert row.lines["difference"][0] == f"−0.08 (within ±{math.hypot(half, 0.03):.2f})" and row.over == "seeds"
    assert (row.outcome.seeds, row.outcome.wanted) == (3, 3)


@pytest.mark.parametrize(
    "value, decimals, sign, shown",
    [
        (93.456, 2, False, "93.46"), (-0.04, 1, True, "0.0"), (0.04, 1, True, "0.0"), (-3.2, 1, True, "−3.2"),
        (12345.6, None, False, "12346"), (0.0314159, None, False, "0.03142"), (0.0, None, False, "0"),
        (1e-9, None, False, "0.000000"), (-812.34, None, False, "−812.3"), (None, 2, False, "–"),
        (math.nan, 2, False, "–"), (math.inf, None, False, "–"),
    ],
)  # fmt: skip
def test_numbers(value, decimals, sign, shown):
    assert text.number(value, decimals, sign) == shown


def test_quotes_lose_their_tex(ledger):
    assert text.plain("ERA outperforms GRPO by 16.9$\\%$ on average") == "ERA outperforms GRPO by 16.9% on average"
    assert text.plain("``a~b'' \\textbf{bold} $\\{x_1\\}$ 3\\% & \\$5") == "“a b” bold {x_1} 3% & $5"
    assert not [claim.id for claim in ledger.claims.values() if re.search(r"[\\${}]", text.plain(claim.quote))]


def test_seeds_in_ranges():
    assert text.ranges([3, 1, 2, 7, 42, 43]) == "1–3, 7, 42–43"


# -------------------------------------------------------------------------------------------------------------- figures


def series_of(ledger, collected, place: str, title: str) -> dict[str, figures.Series]:
    found = page.Findings(ledger, collected)
    made = panels.of_figure(ledger, collected, found.outcomes, ledger.places[place], found.entries(place))
    return {series.label: series for panel, _ in made if panel.title == title for series in panel.series}


def test_a_curve_is_the_mean_of_its_seeds_with_its_band(ledger):
    items = results_of(ledger, "hb-fasttd3/h1hand-walk")
    found = synthetic.judged(ledger, items)
    series = series_of(ledger, found, "fig:hb_fastsac", "h1hand-walk-v0")["FastTD3 (10 seeds)"]
    rows = np.array([item.curves["eval_avg_return"].y for item in items]).reshape(10, 100, 4).mean(2)
    half = stats.t.ppf(0.975, 9) * rows.std(0, ddof=1) / math.sqrt(10)
    np.testing.assert_allclose(series.y, rows.mean(0))
    np.testing.assert_allclose(np.subtract(series.high, series.y), half)
    np.testing.assert_allclose(np.subtract(series.y, series.low), half)
    assert series.x[-1] == 100_000


def test_a_short_curve_stays_as_it_is():
    short = Curve([1, 2, 4], [1.0, 0.5, 0.25], [1.0, 0.5, 0.25], [1.0, 0.5, 0.25], 3)
    assert panels.coarser(short) is short
    odd = panels.coarser(Curve(list(range(250)), [float(x) for x in range(250)], [], [], 250))
    assert len(odd.x) == 84 and odd.x[-1] == 249 and odd.y[0] == 1.0 and odd.y[-1] == 249.0


def test_one_seed_has_no_band_and_says_so(ledger):
    found = synthetic.judged(ledger, results_of(ledger, "hb-", "preview-", "entropy", seeds=1))
    task = series_of(ledger, found, "fig:hb_fastsac", "h1hand-run-v0")
    assert list(task) == ["FastTD3 (1 seed)", "FastSAC-ERA (1 seed)"]
    assert list(series_of(ledger, found, "fig:llm_entropy", "entropy")) == ["GRPO (1 run)", "ERA, stage 1 (1 run)"]
    aggregate = series_of(ledger, found, "fig:preview_results", "HumanoidBench, FastSAC")
    assert list(aggregate) == ["FastTD3 (8 of 8 tasks, 8 runs)", "FastSAC-ERA (8 of 8 tasks, 8 runs)"]
    assert all(series.low is None for series in (*task.values(), *aggregate.values()))


def test_times_are_ratios_to_the_baseline(ledger):
    times = {"walk-v0-fasttd3": 0.02, "walk-v0-fastsac_era": 0.022, "run-v0-fasttd3": 0.05, "run-v0-fastsac_era": 0.055}
    items = [
        replace(item, values={"seconds of a step": times.get(item.name.removeprefix("time/h1hand-"), 0.03)})
        for item in results_of(ledger, "time-f", "time-no-delay/h1hand-run")
    ]
    made = drawn(ledger, synthetic.judged(ledger, items))
    (panel,) = [panel for panel in made if isinstance(panel, figures.Dots)]
    ratios = {series.label: dict(zip([panel.names[x] for x in series.x], series.y)) for series in panel.series}
    assert set(ratios) == {"FastSAC-ERA", "FastTD3 without delay (not in the paper)"}
    era = ratios["FastSAC-ERA"]
    assert era["h1hand-walk-v0"] == pytest.approx(1.1) and era["h1hand-pole-v0"] == 1.0
    assert ratios["FastTD3 without delay (not in the paper)"] == {"h1hand-run-v0": pytest.approx(0.6)}
    assert [bound for bounds in panel.bounds.values() for bound in bounds] == [1.0, 1.06]


def test_a_row_without_a_target_is_a_level_among_the_points(ledger):
    found = synthetic.judged(ledger, results_of(ledger, "targets-", seeds=2))
    made = [panel for panel in drawn(ledger, found) if panel.title == "dog-run"]
    (panel,) = [panel for panel in made if panel.x == "TARGET"]
    assert [series.x for series in panel.series] == [[-1.0, -0.75, -0.5, -0.25]] * 2
    assert list(panel.bounds) == ["SAC without entropy term"]


def test_old_figures_go(ledger, tmp_path):
    (tmp_path / "figures").mkdir()
    for name in ("fig-hb-fastsac-1.svg", "notes.txt"):
        (tmp_path / "figures" / name).touch()
    report.write(ledger, results.EMPTY, tmp_path)
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["notes.txt"]


LONG = "FastTD3 without delay (not in the paper), and with <&> a name that goes on for longer than any page is wide"
WAVE = [-12345.678 + 1e4 * math.sin(x / 9) for x in range(100)]
STEPS = list(range(0, 1_500_000, 15_000))
POWERS = [2**k for k in range(11)]
NAMES = [LONG, "short", *(f"h1hand-balance_simple-v{number}" for number in range(9))]
HARD = [
    figures.Lines(
        LONG,
        "step",
        LONG,
        [figures.Series(f"{LONG} {place}", STEPS, [y + place for y in WAVE], style=place) for place in range(9)],
    ),
    figures.Lines("small", "epoch", "y", [figures.Series("one point (1 seed)", [7], [-1e-7])], {LONG: [0.0, -1e-7]}),
    figures.Lines(
        "k", "k", "pass@k (%)", [figures.Series("pass", POWERS, [99.0 + k / 1e10 for k in POWERS])], log=True
    ),
    figures.Dots(
        LONG,
        LONG,
        NAMES,
        [figures.Series(f"{place} {LONG}", [0, 1, 10], [0.99, 1.0, 1.07], style=place) for place in range(4)],
        {LONG: [1]},
    ),
    figures.Lines(
        "constant", "epoch", "y", [figures.Series("all equal (3 seeds)", [1, 2, 3], [5.0] * 3, [5.0] * 3, [5.0] * 3)]
    ),
]


def test_no_labels_of_a_figure_overlap():
    check_labels(HARD)


@pytest.mark.slow
def test_no_labels_of_the_papers_figures_overlap(ledger):
    made = list(drawn(ledger, synthetic.judged(ledger, synthetic.results(ledger))))
    kinds = {(len(panel.series), len(panel.bounds), panel.y, type(panel)): panel for panel in made}
    assert len(made) > 40 and all(map(is_finite, made))
    check_labels(kinds.values())


def check_labels(made):
    """As matplotlib lays them out, in the widest of the fonts."""
    with matplotlib.rc_context(figures.SETTINGS):
        for panel in made:
            figure = figures.draw(panel)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            renderer = canvas.get_renderer()
            (axes,) = figure.axes
            ticks = {*axes.get_xticklabels(), *axes.get_yticklabels()}
            texts = [item for item in figure.findobj(matplotlib.text.Text) if item.get_visible()]
            texts = [
                item for item in texts if item.get_text().strip() and (item not in ticks or _is_in_view(axes, item))
            ]
            boxes = {item: item.get_window_extent(renderer) for item in texts}
            width, height = figure.bbox.size
            for box in boxes.values():
                assert min(box.x0, box.y0) > -1 and box.x1 < width + 1 and box.y1 < height + 1, panel.title
            for one, other in combinations(boxes, 2):
                assert not boxes[one].overlaps(boxes[other]), (panel.title, one.get_text(), other.get_text())
            least = 0.45 * figures.HEIGHT if isinstance(panel, figures.Lines) else 0.2
            assert axes.get_window_extent().height > least * figure.dpi


def is_finite(panel) -> bool:
    parts = [part or [] for series in panel.series for part in (series.x, series.y, series.low, series.high)]
    return all(math.isfinite(value) for part in parts for value in part)


def _is_in_view(axes, label) -> bool:
    """matplotlib keeps labels beyond the ends of an axis, and does not draw them."""
    x, y = label.get_position()
    (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    return left <= x <= right if label in axes.get_xticklabels() else low <= y <= high


# --------------------------------------------------------------------------------------------------------- in a browser

WIDTHS = (360, 768, 1280)
AROUND = """<!doctype html><pre id="found"></pre><script>
const found = [];
addEventListener("message", (event) => {{
  found.push(event.data);
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>{frames}"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "/usr/bin/chromium"))
    return next(filter(None, found), None) or pytest.skip("no Chromium here: apt-get install chromium brings Debian's")


@pytest.mark.slow
def test_it_fits_and_can_be_read_at_each_width(written, chromium, tmp_path):
    """On a phone, a tablet and a desk nothing is printed over anything, and no words are too pale."""
    script = (Path(__file__).parent / "measure_page.js").read_text()
    frames = []
    for name in ("nothing", "mixed"):
        # the widest that the first screen's counts can be: three digits in each column
        source = re.sub(r'(<td class="number[^"]*">)\d+(?=</td>)', r"\g<1>282", written[name].read_text())
        source = source.replace("<details>", "<details open>").replace("</body>", f"<script>{script}</script></body>")
        (tmp_path / f"{name}.html").write_text(source)
        for width in WIDTHS:
            style = f"width: {width}px; height: 800px; border: 0"
            frames.append(f'<iframe name="{name}" src="{name}.html" style="{style}"></iframe>')
    (tmp_path / "around.html").write_text(AROUND.format(frames="".join(frames)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
    command = [chromium, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, (tmp_path / "around.html").as_uri()], capture_output=True, text=True, timeout=900)
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    assert len(found) == 2 * len(WIDTHS)
    assert {(one["name"], one["width"]) for one in found} == {
        (name, w) for name in ("nothing", "mixed") for w in WIDTHS
    }
    for one in found:
        assert one["texts"] > 500 and (one["pictures"] > 20) == (one["name"] == "mixed")
        faults = {key: one[key] for key in ("outside", "pale", "overlapping") if one[key]}
        measured = (one["scroll"], one["broken"], one["clipped"], faults)
        assert measured == (one["client"], 0, 0, {}), (one["name"], one["width"])


# ---------------------------------------------------------------------------------------------------- problems and runs
