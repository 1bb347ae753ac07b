"""The ledger against the paper's own text: all of its tables and figures, and each number that is quoted from them."""

import os
import re
from decimal import Decimal
from pathlib import Path

import pytest

from ledger.paper import ROOT, Entry, Paper

PAPER = Path(os.environ.get("PAPER_TEX") or ROOT.parent / "shared/paper/era.tex")

pytestmark = pytest.mark.skipif(not PAPER.is_file(), reason="the paper's TeX source is not here; set PAPER_TEX to it")

FLOAT = re.compile(r"\\begin\{(figure|table|wrapfigure)(\*?)\}(.*?)\\end\{\1\2\}", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+\.\d+|[-+]?\d+")
ORDER = ["aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench", "average"]
LISTING = re.compile(r"\\begin\{lstlisting\}.*?\\end\{lstlisting\}", re.DOTALL)


@pytest.fixture(scope="module")
def tex() -> str:
    return PAPER.read_text()


def labels(text: str) -> list[str]:
    return re.findall(r"\\label\{([^}]*)\}", text)


def table(tex: str, label: str) -> list[list[str]]:
    """Cells of the rows of a table, without TeX."""
    (body,) = [match[3] for match in FLOAT.finditer(tex) if label in labels(match[3])]
    body = re.search(r"\\begin\{tabular\}(.*)\\end\{tabular\}", body, re.DOTALL)[1]
    body = re.sub(r"\\(toprule|midrule|bottomrule)|\\cmidrule\(lr\)\{[^}]*\}|\\rowcolor(\[[^]]*\])?\{[^}]*\}", "", body)
    return [[plain(cell) for cell in row.split("&")] for row in body.split(r"\\")]


def plain(cell: str) -> str:
    cell = re.sub(r"~?\\cite[pt]?\{[^}]*\}|\[RGB\]\{[\d,]*\}", "", cell)
    cell = cell.replace(r"\%", "%").replace(r"\short", "ERA")
    cell = re.sub(r"\\(multirow|multicolumn)\{\d\}\{[^}]*\}", "", cell)
    return re.sub(r"\\[a-zA-Z]+|[{}$]", " ", cell).strip()


def numbers(cells: list[str]) -> list[list[Decimal]]:
    return [[Decimal(number) for number in NUMBER.findall(cell)] for cell in cells]


def printed_numbers(entry: Entry) -> list[list[Decimal]]:
    return [[Decimal(repr(part)) for part in number if part == part] for number in entry.paper.values()]


def at(paper: Paper, label: str) -> list[Entry]:
    return [entry for entry in paper.entries.values() if entry.place.id == label]


def test_every_table_and_figure_is_a_place_of_the_ledger(tex, paper):
    floats = [match[3] for match in FLOAT.finditer(tex)]
    assert len(floats) > 30
    of_paper = {label for body in floats for label in labels(LISTING.sub("", body))}
    places = {place.id for place in paper.places.values() if not place.source}
    assert of_paper == places | set(paper.elsewhere)
    for body in floats:
        assert labels(LISTING.sub("", body)) or "lstlisting" in body, "a figure without a label, and no code"


@pytest.mark.parametrize("label", ["tab:main_results", "table:moremodels"])
def test_rows_of_the_llm_tables_are_those_of_the_paper(tex, paper, label):
    of_paper, block = {}, ""
    for cells in table(tex, label):
        if len(cells) == 1:
            block = cells[0] if "Qwen" in cells[0] else block
        elif len(cells) == 8 and NUMBER.search(cells[-1]):
            is_gain = "uparrow" in cells[0] or not re.search(r"[A-Za-z]", cells[0])
            of_paper[block, "gain" if is_gain else cells[0]] = numbers(cells[1:])
    found = {(entry.panel, "gain" if entry.gain else entry.label): printed_numbers(entry) for entry in at(paper, label)}
    assert found == of_paper
    assert all(list(entry.paper) == ORDER for entry in at(paper, label))


def test_rows_of_the_vision_table_are_those_of_the_paper(tex, paper):
    of_paper, dataset = {}, ""
    for cells in table(tex, "tab:main_results_vision"):
        if len(cells) != 10 or not re.search(r"\d\.\d", cells[2]):
            continue
        dataset = cells[0] or dataset
        for aug, (top1, gain1, top5, gain5) in zip(("without", "with"), (numbers(cells[2:6]), numbers(cells[6:10]))):
            block = f"{dataset}, {aug} augmentation"
            of_paper[block, cells[1]] = [top1, top5]
            if cells[1] == "ERA":
                of_paper[block, "gain"] = [gain1, gain5]
    assert len(of_paper) == 12
    entries = at(paper, "tab:main_results_vision")
    found = {(entry.panel, "gain" if entry.gain else entry.label): printed_numbers(entry) for entry in entries}
    assert found == of_paper


def test_the_papers_averages_and_gains_are_those_of_its_numbers(paper):
    """Within the rounding of what is printed; docs/deviations.md would name others."""
    for entry in paper.entries.values():
        numbers = {metric: value for metric, (value, _) in entry.paper.items()}
        if entry.gain:
            of, over = ({metric: x for metric, (x, _) in paper.entries[id].paper.items()} for id in entry.gain)
            for metric, gain in numbers.items():
                if entry.unit == "points":
                    assert gain == pytest.approx(of[metric] - over[metric], abs=0.0051)
                else:
                    half = 100 * 0.05 * (of[metric] + over[metric]) / over[metric] ** 2 + 0.05
                    assert gain == pytest.approx(100 * (of[metric] / over[metric] - 1), abs=half), entry.id
        elif "average" in numbers:
            mean = sum(numbers[name] for name in ORDER[:-1]) / 6
            assert numbers["average"] == pytest.approx(mean, abs=0.101), entry.id


def test_shares_that_are_none_of_the_answers_are_named(paper):
    """Rounded to one decimal or cut after it. docs/deviations.md says what follows."""
    answers = paper.tolerances["answers"]["answers"]
    odd = {}
    for entry in paper.entries.values():
        for name in answers if entry.tolerance == "answers" and not entry.gain else ():
            printed, n = Decimal(repr(entry.paper[name][0])), answers[name]
            near = (int(printed * n / 100) + more for more in (-1, 0, 1, 2))
            if not any(-Decimal("0.05") <= 100 * Decimal(right) / n - printed < Decimal("0.1") for right in near):
                odd[entry.label, name] = float(printed)
    base = {("Qwen2.5-Math", "aime24"): 8.6, ("CoT", "aime24"): 8.6}  # one row of two tables
    gspo = {("GSPO", "math500"): 85.1, ("GSPO + ERA", "math500"): 84.3}
    assert odd == {**base, ("OpenReasoner-Zero", "aime25"): 13.4, ("GRPO", "aime24"): 11.1, **gspo}
    text = (ROOT / "docs/deviations.md").read_text()
    assert all(re.search(rf"(?<![\d.]){number}(?!\d)", text) for number in odd.values())


def test_quotes_are_in_the_paper(tex, paper):
    text = " ".join(tex.split()).replace("’", "'")
    for claim in paper.claims.values():
        assert claim.quote and " ".join(claim.quote.split()) in text, claim.id


def test_numbers_of_claims_are_in_their_quotes(paper):
    """A number of a claim is the paper's, or the reason says that the paper prints none."""
    why = "prints no number|omega_low of stage [12]|up to one response of a hundred"
    for claim in paper.claims.values():
        number = claim.high if claim.test == "within" else claim.value
        if number and claim.test == "overhead":
            number *= 100
        if number and not re.search(rf"(?<![\d.]){number:g}(?![\d.]\d)", claim.quote):
            assert re.search(why, claim.reason), claim.id


def test_hardware_and_seeds_are_in_the_paper(tex, paper):
    text = " ".join(tex.split())
    assert "32 NVIDIA H20 GPUs" in text and paper.runs["llm-stage1"].hardware == "32 NVIDIA H20"
    assert "4 A100 GPUs" in text and paper.runs["vision-imagenet"].hardware == "4 NVIDIA A100"
    assert "3 machines, each with 4 A40 GPUs" in text and paper.runs["vision-cifar10"].hardware == "3 x 4 NVIDIA A40"
    assert "10 random seeds for SAC, OBAC, and FastSAC, 5 seeds for PPO, and 3 seeds for TD-MPC2" in text
    seeds = {"hb-fastsac-era": 10, "sac-humanoidbench": 10, "obac": 10, "ppo": 5, "tdmpc2": 3, "cifar10": 3}
    seeds |= {"truncated": 5, "tricks-clip-ppo": 10}
    assert {name: paper.row(name)[0].seeds for name in seeds} == seeds


def test_tasks_are_those_of_the_papers_list(tex, paper):
    rows = {
        cells[0].replace("\\_", "_").lower()
        for label in ("tab:continuous_envs1", "tab:continuous_envs2")
        for cells in table(tex, label)
        if len(cells) == 4
    }
    for entry in paper.entries.values():
        for task in [entry.variables["TASKS"]] if "TASKS" in entry.variables else ():
            in_text = task in ("Humanoid-v4", "Swimmer-v4")  # of fig. mujoco alone, in its text
            assert task.lower() in rows or in_text and task in tex, (entry.id, task)
