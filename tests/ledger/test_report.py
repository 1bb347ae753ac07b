# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The pages: what they say first, that they show all there is, and that nothing hostile gets through."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import synthetic
from test_verdicts import curves_of, judge, of_paper, result, with_numbers

from ledger import figures, report, results
from ledger.verdicts import Judged
from ledger.words import escape, measured, number, plain

NASTY = "<b>&\"'µ</script>|`*_日本 [x](y)"


@pytest.fixture(scope="module")
def written(paper, tmp_path_factory):
    """write(judged): report.md, index.html, and the folder."""

    def write(judged):
        out = tmp_path_factory.mktemp("pages") / "results/report"
        page = report.write(judged, out)
        return (out / "report.md").read_text(), page.read_text(), out

    return write


def states_of(paper, numbers):
    return judge(paper, [item for entry in with_numbers(paper) for item in of_paper(entry)][:numbers])


def test_the_first_sentence_says_how_much_of_the_paper_was_run(paper):
    nothing = report.first_sentence(judge(paper, []))
    assert nothing == (
        "Of the paper's 324 entries, none could be judged yet; 0 have begun, 304 were not run, and 20 this "
        "project cannot run. Of its 36 claims, 0 hold, 0 do not, and 0 could be tested in part."
    )
    all_numbers = judge(paper, [item for entry in with_numbers(paper) for item in of_paper(entry)])
    said = report.first_sentence(all_numbers)
    assert "32 could be judged so far: 32 reproduced, 0 not reproduced" in said
    wrong = judge(paper, [item for entry in with_numbers(paper)[:1] for item in of_paper(entry, 20.0)])
    assert "2 could be judged so far: 0 reproduced, 2 not reproduced" in report.first_sentence(wrong)  # in two tables


def test_what_was_run_comes_before_what_was_not(paper, written):
    text, page, _ = written(judge(paper, curves_of(paper, "ppo", "eval_avg_return", 100, seeds=3)))
    places = [text.index(words) for words in ("**Of the paper's", "## What was run", "![", "## What was not run")]
    assert places == sorted(places) and page.index("What was run") < page.index("<img") < page.index("What was not run")
    assert "4 partial" in " ".join(text[: places[1]].replace("|", "").split()) or "| ◐ partial | 0 | 0 |" in text
    assert not re.search(r"\b[0-9a-f]{10,40}\b", text[: places[1]]), "no commit in the opening"


def test_the_papers_numbers_stand_beside_ours(paper, written):
    text, _, _ = written(judge(paper, of_paper(paper.entries["cifar10-era"])))
    (line,) = [line for line in text.splitlines() if line.startswith("| ERA | paper | 93.82")]
    after = text[text.index(line) :].splitlines()
    ours, difference = after[1], after[2]
    assert (
        line
        == "| ERA | paper | 93.82\u00a0±\u00a00.08 | 99.82\u00a0±\u00a00.03 | 3\u00a0of\u00a03 | ✓\u00a0reproduced |"
    )
    assert ours.startswith("|  | ours, ± over seeds | 93.82\u00a0±\u00a00.02 |")
    assert difference.startswith("|  | difference | 0.00 (within ±0.08)")


def test_numbers_of_tables_that_were_not_run_are_shown(paper, written):
    text, _, _ = written(judge(paper, []))
    assert "| ERA | 37.5 | 16.9 | 72.8 | 84.6 | 42.6 | 46.5 | 50.2 |" in text
    for place in paper.places.values():
        assert escape(place.id) in text, place.id


def test_every_place_is_on_the_page_once(paper, written, tmp_path):
    """With something of each kind run."""
    some = ("main-era", "imagenet", "sweep-cifar10", "hb-fastsac-era", "ood-era", "targets-sac-era", "time-fasttd3")
    for row in some:
        for entry in paper.row(row):
            for seed in (1, 2):
                synthetic.make(paper, entry, tmp_path, seed)
    judged = Judged(paper, results.collect(paper, [tmp_path]))
    text, page, out = written(judged)
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)) >= 8
    files = sorted(path.name for path in (out / "figures").iterdir())
    assert sorted(re.findall(r"\]\(figures/([\w-]+\.svg)\)", text)) == files and len(files) > 20
    assert page.count("data:image/svg+xml") == len(files) and "figures/" not in page
    for claim in paper.claims.values():
        begun = judged.claims[claim.id][0] != "not run"
        assert (escape(plain(claim.quote)) in text) or not begun, claim.id


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.stack, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name == "href"]
        if tag not in ("img", "meta", "br", "hr"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert tag == "img" or self.stack.pop() == tag


def test_the_page_is_well_formed_and_its_links_lead_somewhere(paper, written):
    _, page, out = written(judge(paper, curves_of(paper, "ppo", "eval_avg_return", 100, seeds=3)))
    reader = Reader()
    reader.feed(page)
    assert reader.stack == [] and not {"script", "b", "iframe"} & set(reader.tags) and len(reader.links) >= 5
    for link in reader.links:
        assert not link.startswith(("http", "/")), link
        assert (out / link).resolve().exists(), link
    assert sum(link.endswith(("llm.md", "vision.md", "ppo.md", "sac.md")) for link in reader.links) == 4


def test_hostile_names_are_shown_as_they_are(paper, written):
    bad = result(paper.entries["cifar10"], 42, {"top1": 93.0}, why=f"is {NASTY}", info={"hardware": {"cpu": NASTY}})
    bad.folder = Path("results") / NASTY.replace("/", "") / ("long-" * 40)
    good = result(paper.entries["cifar10"], 43, {"top1": 93.0}, info={"hardware": {"cpu": "EPYC", "cores": 2}})
    text, page, _ = written(judge(paper, [bad, good]))
    assert "<b>" not in page.replace("<body>", "") and "</script>" not in page and "&lt;b&gt;" in page
    assert "Hardware: 2 cores of EPYC." in text and "日本" in page


@pytest.mark.parametrize("draws, row", [("curves", "ppo"), ("points", "sweep-cifar10"), ("bars", "time-resnet")])
def test_a_figure_names_what_is_missing_and_what_its_bands_are(paper, draws, row):
    entry = paper.row(row)[0]
    values = {metric: 90.0 for metric in entry.metrics}
    curves = {"eval_avg_return": np.cumsum(synthetic.np.ones(5))}
    made = [
        result(entry, seed, values, {name: results.pd.Series(curve) + seed for name, curve in curves.items()})
        for seed in (1, 2)
    ]
    place = entry.place
    panels = figures.of_place(judge(paper, made), place)
    assert panels and place.draws == draws and all(panel.words for panel in panels)
    caption = figures.caption(panels)
    assert "95 % interval" in caption
    if row == "ppo":
        assert "Not run yet: PPO-ERA" in caption and "2 of 5 seeds" in panels[0].words


def test_bands_end_at_possible_values(paper):
    """A share of responses is between 0 and 1, whatever its seeds spread."""
    entry = paper.entries["low-responses"]
    made = [
        result(entry, seed, curves={"era/low_fraction": results.pd.Series([value, value])})
        for seed, value in ((1, 0.01), (2, 0.9))
    ]
    (panel,) = figures.of_place(judge(paper, made), entry.place)
    (table,) = panel.lines.values()
    assert table.low.min() == 0 and table.high.max() == 1
    assert panel.bounds["claimed for H_resp < omega_low: at most 0.06"] == 0.06


def test_curves_that_overlap_can_be_told_apart(paper):
    """By colour, dashes, markers, and the places of the markers."""
    made = [item for row in ("ppo", "ppo-era") for item in curves_of(paper, row, "eval_avg_return", 100, seeds=3)]
    panel = figures.of_place(judge(paper, made), paper.row("ppo")[0].place)[0]
    lines = figures.draw(panel).axes[0].lines
    assert len(lines) == 2
    for look in ("get_color", "get_linestyle", "get_marker", "get_markevery"):
        assert len({str(getattr(line, look)()) for line in lines}) == 2, look
    passes = results.pd.Series([10.0, 20.0, 30.0], index=[1, 2, 4])
    rows = ("pass-grpo/aime24", "pass-era/aime24")
    made = [result(paper.entries[row], None, curves={"pass@k/aime24": passes}) for row in rows]
    panel = figures.of_place(judge(paper, made), paper.entries[rows[0]].place)[0]
    first, second = (line.get_markevery() for line in figures.draw(panel).axes[0].lines)
    assert (first, second) == ((0, 2), (1, 2)), "markers at other points, however few there are"


def test_the_same_results_give_the_same_bytes(paper, written):
    judged = judge(paper, curves_of(paper, "ppo", "eval_avg_return", 100, seeds=3))
    assert written(judged)[:2] == written(judged)[:2]


def test_an_older_report_leaves_no_figures(paper, tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/old-1.svg").write_text("<svg/>")
    report.write(judge(paper, []), tmp_path)
    assert list((tmp_path / "figures").iterdir()) == []


def test_words():
    assert plain("16.9$\\%$ of {\\textbf{ERA}} and \\short") == "16.9% of ERA and ERA"
    assert number(float("nan")) == "–" and number(-0.0004, 2) == "0.00" and number(-1.5, 1, sign=True) == "−1.5"
    assert number(1234.5678) == "1235" and number(0.0123456) == "0.01235"
    assert measured(-0.02234, 1.60989) == "−0.022\u00a0±\u00a01.610" and measured(3.0, float("nan"), 1) == "3.0"
    assert escape("a|b*c\nd") == "a\\|b\\*c d"
