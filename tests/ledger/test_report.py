# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The pages: what they say first, and that they show all there is."""

import re
from html.parser import HTMLParser

import pytest
import synthetic
from judging import curves_of, judge, of_paper, with_numbers

import reproduce
from ledger import figures, report, results
from ledger.verdicts import Judged


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """written(judged): report.md, index.html, and the folder."""

    def write(judged):
        out = tmp_path_factory.mktemp("pages") / "results/report"
        page = report.write(judged, out)
        return (out / "report.md").read_text(), page.read_text(), out

    return write


def test_the_first_sentence_says_how_much_of_the_paper_was_tested(paper):
    nothing = "Of 38 tests of what the paper says of its figures 0 were made. Of the 32 rows of its tables "
    assert report.first_sentence(judge(paper, [])) == f"{nothing}0 were run."
    all_numbers = judge(paper, [item for entry in with_numbers(paper) for item in of_paper(entry)])
    assert "rows of its tables 32 were run: 32 reproduced, 0 not." in report.first_sentence(all_numbers)
    wrong = judge(paper, of_paper(with_numbers(paper)[0], 20.0))
    assert "tables 2 were run: 0 reproduced, 2 not." in report.first_sentence(wrong)  # it is in two tables
    rows = [curves_of(paper, row, "eval_avg_return", end, 5) for row, end in (("ppo", 100), ("ppo-era", 200))]
    holds = report.first_sentence(judge(paper, sum(rows, [])))
    assert "2 were made (as a whole 2 held, 0 not shown, 0 undecided)." in holds


def test_the_first_screen_names_the_claims_that_were_tested(paper, written):
    """With the parts that hold, and the runs, each once although they are in several figures."""
    low = curves_of(paper, "ppo", "eval_avg_return", 100, seeds=5)
    high = curves_of(paper, "ppo-era", "eval_avg_return", 200, seeds=5)
    for item in high:
        if not item.name.startswith("Ant"):
            item.curves["eval_avg_return"] -= 300
    text, _, _ = written(judge(paper, low + high))
    assert "2 were made (as a whole 0 held, 2 not shown, 0 undecided)." in text
    said = "consistently yields significant improvements in both sample efficiency and final performance"
    parts = "2 of 8 parts hold: Ant-v4, end; Ant-v4, whole training"
    first = f"| {said} (PPO and PPO-ERA on MuJoCo Gym) | ✗ is not shown | {parts} | 40 runs of 100 steps |"
    assert text.index(first) < text.index("| achieves superior asymptotic performance") < text.index("## What was run")
    assert "| ● run | 0 | 0 | 8 | 8 |" in text, "8 curves, although two figures have them"
    one_seed = judge(paper, [item for item in low + high if item.seed == 1])
    assert "2 were made (as a whole 0 held, 0 not shown, 2 undecided)." in report.first_sentence(one_seed)


def test_the_papers_numbers_stand_beside_ours(paper, written):
    text, _, _ = written(judge(paper, of_paper(paper.entries["cifar10-era"])))
    text = text.replace(report.NO_BREAK, " ")
    lines = text.splitlines()
    at = lines.index("| ERA | paper | 93.82 ± 0.08 | 99.82 ± 0.03 | 3 of 3 | ✓ reproduced |")
    assert lines[at + 1].startswith("|  | ours, ± over seeds | 93.82 ± 0.02 |")
    assert lines[at + 2].startswith("|  | difference | +0.00 (within ±0.08)")
    assert "| ERA | paper | 37.5 | 16.9 | 72.8 | 84.6 | 42.6 | 46.5 | 50.2 |" in text, "of a table that was not run"


def test_numbers_of_another_version_are_shown_and_judge_nothing(paper, written):
    """Neither hit nor missed by far; the paper's own row stands beside them as it was."""
    (entry,) = [entry for entry in paper.entries.values() if entry.place.source]
    for shift in (0.0, -20.0):
        judged = judge(paper, of_paper(entry, shift))
        assert judged.states[entry.id] == "run" and report.first_sentence(judged).endswith(" 0 were run.")
        lines = written(judged)[0].replace(report.NO_BREAK, " ").splitlines()
        at = lines.index(
            "| ERA, likely with scaled advantages | ICLR 2026, from a summary "
            "| 36.0 | 21.0 | 76.6 | 85.4 | 40.1 | 46.8 | 51.0 | 1 of 1 | ● run |"
        )
        assert lines[at + 2] == "|  | difference |" + f" {shift:+.2f} |" * 7 + "  |  |"
        assert "| ERA | paper | 37.5 | 16.9 | 72.8 | 84.6 | 42.6 | 46.5 | 50.2 |" in lines
        assert any(line.startswith("*Nothing is judged by these numbers. The text of this version") for line in lines)


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.links, self.sources, self.headings = [], [], [], 0

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name == "href"]
        self.sources += [value for name, value in attributes if name == "src" and not value.startswith("data:")]
        self.headings += tag in ("h1", "h2", "h3")
        if tag not in ("img", "meta", "br", "hr"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert tag == "img" or self.stack.pop() == tag


def test_everything_that_was_run_is_on_the_page_once_and_its_links_lead_somewhere(paper, written, tmp_path):
    """With something of each kind run."""
    some = ("main-era", "imagenet", "sweep-cifar10", "hb-fastsac-era", "ood-era", "targets-sac-era", "time-fasttd3")
    for entry in (entry for row in some for entry in paper.row(row)):
        synthetic.make(paper, entry, tmp_path, 1)
        synthetic.make(paper, entry, tmp_path, 2)
    judged = Judged(paper, results.collect(paper, [tmp_path]))
    text, page, out = written(judged)
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)) >= 8
    files = sorted(path.name for path in (out / "figures").iterdir())
    assert sorted(re.findall(r"\]\(figures/([\w-]+\.svg)\)", text)) == files and len(files) > 20
    assert page.count("data:image/svg+xml") == len(files) and "figures/" not in page
    for id, claim in paper.claims.items():
        assert (report.plain(claim.quote) in text) or judged.claims[id][0] == "not run", id
    assert all(place.id in text for place in paper.places.values())
    order = [text.index(words) for words in ("**Of 38 tests", "## What was run", "![", "## What was not run")]
    assert order == sorted(order)
    reader = Reader()
    reader.feed(page)
    assert reader.stack == [] and len(reader.links) >= 8
    for link in reader.links:
        assert not link.startswith(("http", "/")) and (out / link).resolve().exists(), link


HOSTILE = (
    *("![x](http://a.example/x.png)", "<img src=http://a.example/x.png>", "[x](javascript:alert)", "http://a.example"),
    *("\n# heading", "a\n\n<script>", "\x1b[2J\x1b]0;title\x07", "| a | b |", "`code` *all* $x$", "\u202edesrever"),
    *("\udcff\ud800", "&lt;b&gt;", "x" * 100_000),
)


@pytest.mark.parametrize("place", ["record", "folder"])
def test_what_a_record_says_is_shown_and_not_obeyed(paper, places, tmp_path, capsys, place):
    """On the terminal, in Markdown and in HTML."""
    for number, text in enumerate(HOSTILE):
        folder = places / f"results/control/{number}/HalfCheetah-v4-ppo_era-seed{number}"
        if place == "folder":
            folder = folder.parent / re.sub("[/\ud800]", "", text)[:200] / folder.name
        synthetic.control_run(folder, as_paper=False, added=[text if place == "record" else "--lr"])
    assert reproduce.main(["report"]) == 0
    page = (places / "results/report/index.html").read_text()
    text = (places / "results/report/report.md").read_text().replace(report.NO_BREAK, " ")
    errors = capsys.readouterr().err
    for shown in (text, errors):
        assert all(c.isprintable() or c == "\n" for c in shown) and max(map(len, shown.splitlines())) < 4000
    assert len(errors.splitlines()) == text.count("was not trained as the recipe says") == len(HOSTILE)
    reader = Reader()
    reader.feed(page)
    assert reader.stack == [] and not reader.sources and not [link for link in reader.links if "a.example" in link]
    assert reader.headings == len(re.findall("^#+ ", text, re.MULTILINE)) and "desrever" in page


def test_curves_that_another_picture_has_are_not_drawn_again(paper, written):
    """PPO's are in two figures, and twice in one of them, until other rows of these were run."""
    judged = judge(paper, curves_of(paper, "ppo", "eval_avg_return", 100, seeds=2))
    text, _, _ = written(judged)
    places = {place.id: list(figures.panels(judged, place)) for place in paper.places.values()}
    assert [len(places[id]) for id in ("fig:ablation_llm_tricks", "fig:gym_ppo")] == [2, 4]
    assert len(re.findall(r"^!\[.*HalfCheetah-v4: return of PPO ", text, re.MULTILINE)) == 0
    assert len(re.findall(r"^!\[[^\n]*return of PPO \(2 of 10 seeds\)\]", text, re.MULTILINE)) == 1
    assert "Drawn in *LLM techniques in PPO* (fig:ablation_llm_tricks) already: HalfCheetah-v4, return." in text
    both = judge(paper, [item for row in ("ppo", "ppo-era") for item in curves_of(paper, row, "eval_avg_return", 9, 2)])
    text, _, _ = written(both)
    assert (
        len(re.findall(r"^!\[[^\n]*HalfCheetah-v4: return of PPO \(2 of 5 seeds\), PPO-ERA", text, re.MULTILINE)) == 1
    )
    drawn = "Drawn in *PPO and PPO-ERA on MuJoCo Gym* (fig:gym_ppo) already: "
    assert f"{drawn}selective high-entropy training, return; clip-higher, return." in text
    assert f"{drawn}HalfCheetah-v4, return; Ant-v4, return; Hopper-v4, return; Walker2d-v4, return." in text
    two_seeds = "| PPO, Hopper-v4 | 10.50 (10.00, 11.00) | 2 of 5 |"
    assert two_seeds in text.replace(report.NO_BREAK, " ")
    of_eapo = re.search(r"^### PPO-ERA and EAPO.*?(?=^##)", text, re.MULTILINE | re.DOTALL)[0]
    assert "| PPO-ERA" not in of_eapo, "its numbers stand where its curves do"
    places = re.findall(r"^### .*\((.*)\)$", text.split("## How much was run")[0], re.MULTILINE)
    assert places[0] == "fig:gym_ppo", "the figure of which the largest share was run comes first"


def test_a_row_whose_runs_all_lack_the_metric_is_in_the_table(paper, written):
    text, _, _ = written(judge(paper, curves_of(paper, "obac", "other", 1.0, seeds=1)))
    assert "| OBAC, h1-walk-v0 | – | 0 of 10 |" in text.replace(report.NO_BREAK, " ")


def test_a_figure_says_how_many_seeds_and_its_bands_are_students(paper):
    judged = judge(paper, curves_of(paper, "ppo", "eval_avg_return", 100, seeds=3))
    panel = next(figures.panels(judged, paper.row("ppo")[0].place))
    ((label, table),) = panel.lines.items()
    assert label == "PPO (3 of 5 seeds)" and panel.title == "HalfCheetah-v4" and panel.unit == "return"
    assert table["mean"].iloc[-1] == 102 and table.high.iloc[-1] == pytest.approx(102 + 4.302653 / 3**0.5)


def test_points_are_drawn_over_the_last_variable_of_the_sweep(paper):
    rows = [curves_of(paper, row, "eval_avg_return", 9, 2) for row in ("targets-sac-era", "targets-no-entropy")]
    panels = list(figures.panels(judge(paper, sum(rows, [])), paper.row("targets-sac")[0].place))
    assert [panel.title for panel in panels] == ["dog-run", "dog-trot", "humanoid-run", "humanoid-walk"]
    assert list(panels[0].lines["SAC-ERA"].index) == ["-1.0", "-0.75", "-0.5", "-0.25"]
    assert list(panels[0].lines["SAC without entropy term"].index) == ["SAC without entropy term"]


def test_words():
    assert report.plain("16.9$\\%$ of {\\textbf{ERA}} and \\short") == "16.9% of ERA and ERA"
    nan = float("nan")
    shown = [
        report.with_interval(*pair) for pair in ((-0.02234, 1.60989), (1234.5678, nan), (0.0123456, nan), (nan, nan))
    ]
    assert [text.replace(report.NO_BREAK, " ") for text in shown] == ["-0.022 ± 1.610", "1235", "0.01235", "–"]
