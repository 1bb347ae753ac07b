# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The pages: report.md, and index.html from it with its pictures inside."""

import base64
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jinja2
import pandas as pd
from markdown_it import MarkdownIt

from ledger import figures
from ledger.paper import CANNOT, NOT_REPRODUCED, NOT_RUN, PARTIAL, REPRODUCED, ROOT, STATES, Entry, Place
from ledger.results import one_line
from ledger.verdicts import Judged

HERE = Path(__file__).parent
NO_BREAK = "\u00a0"  # a space at which no line breaks
PM = f"{NO_BREAK}±{NO_BREAK}"
SYMBOLS = dict(zip(STATES, "✓✗●◐○–"))  # told apart without colour
VERDICTS = {REPRODUCED: "holds", NOT_REPRODUCED: "is not shown", PARTIAL: "is undecided"}  # of a claim
DOMAINS = {"llm": "LLM", "vision": "vision", "control": "control"}


def write(judged: Judged, out: Path) -> Path:
    """Write the report's pages and pictures, and return index.html."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for old in (out / "figures").glob("*.svg"):
        old.unlink()
    paper = judged.paper
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"plain": plain, "escaped": escaped}
    drawn = [(place, panel) for place in paper.places.values() for panel in figures.panels(judged, place)]

    def _share_begun(place: Place) -> float:
        entries = paper.at(place)
        return sum(entry.id in judged.begun for entry in entries) / len(entries)

    sections = {place: section(judged, place, drawn, out) for place in paper.places.values()}
    text = templates.get_template("report.md.j2").render(
        paper=paper,
        first=first_sentence(judged),
        tested_claims=markdown(tested_claims(judged))
        if any(compared for _, compared in judged.claims.values())
        else "",
        counts=markdown(counts(judged)),
        where_from=where_from(judged),
        begun=sorted(filter(_share_begun, sections), key=_share_begun, reverse=True),
        sections=sections,
        not_run=markdown(not_run(judged)),
        left_out=list(judged.left_out()),
        symbols=SYMBOLS,
        verdicts=VERDICTS,
        root=os.path.relpath(ROOT, out),
    )
    (out / "report.md").write_text(text, encoding="utf-8")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r'(?<=src=")figures/[\w-]+\.svg', lambda source: _inlined(out / source[0]), body)
    page = templates.get_template("page.html.j2").render(title=paper.title, body=body)
    (out / "index.html").write_text(page, encoding="utf-8")
    return out / "index.html"


def _inlined(file: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(file.read_bytes()).decode()


def plain(tex: str) -> str:
    """A quote of the paper without its TeX: "16.9$\\\\%$" is "16.9%"."""
    words = re.sub(r"\\(text\w+|emph)\b|(?<!\\)[${}]", "", tex)
    return words.replace("\\short", "ERA").replace("\\", "")


def escaped(text: object) -> str:
    """What a record says, as Markdown that shows it: no heading, picture, link or HTML, neither here nor where GitHub
    shows the page."""
    return re.sub(r"[^\w\s./,;=()'-]", r"\\\g<0>", one_line(text), flags=re.ASCII).replace("_", r"\_")


def markdown(table: pd.DataFrame) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *table.astype(str).to_numpy()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# ----------------------------------------------------------------------------------------------------- the first screen


def first_sentence(judged: Judged) -> str:
    """How many of the paper's claims, and of the rows of its tables, were tested, and what came out."""
    claims = Counter(state for state, _ in judged.claims.values())
    hold, fail, undecided = (claims[state] for state in (REPRODUCED, NOT_REPRODUCED, PARTIAL))
    said = f"Of {claims.total()} tests of what the paper says of its figures {hold + fail + undecided} were made"
    if hold + fail + undecided:
        said += f" (as a whole {hold} held, {fail} not shown, {undecided} undecided)"
    numbers = Counter(judged.states[id] for id, entry in judged.paper.entries.items() if entry.tolerance)
    good, bad = numbers[REPRODUCED], numbers[NOT_REPRODUCED]
    said += f". Of the {numbers.total()} rows of its tables {good + bad} were run"
    return f"{said}: {good} reproduced, {bad} not." if good + bad else f"{said}."


def tested_claims(judged: Judged) -> pd.DataFrame:
    """A line for each claim of which something was compared: what holds of it, and at what size."""
    lines = []
    for id, claim in judged.paper.claims.items():
        state, comparisons = judged.claims[id]
        if not comparisons:
            continue
        entries = [entry for row in claim.rows for entry in judged.paper.row(row)]
        runs = {result for entry in entries for result in judged.used[entry.id]}
        passed = [comparison for comparison in comparisons if comparison.passed]
        names = "; ".join(comparison.about for comparison in passed if comparison.about)
        holds = f"{len(passed)} of {len(comparisons)} parts hold" + (f": {names}" if names else "")
        holds = holds if len(comparisons) > 1 else comparisons[0].words
        panels = {entry.panel for entry in entries} - {""}
        said = f"{plain(claim.quote)} ({': '.join([claim.place.title, *sorted(panels)])})"
        steps = max(result.steps for result in runs)
        size = f"{len(runs)} runs" + (f" of {steps:,} steps" if steps else "")
        lines.append((len(comparisons), said, f"{SYMBOLS[state]} {VERDICTS[state]}", holds, size))
    lines.sort(key=lambda line: -line[0])  # those of most comparisons first
    columns = ["", "what the paper says", "tested here, it", "what was seen", "size"]
    return pd.DataFrame(lines, columns=columns).iloc[:, 1:]


def counts(judged: Judged) -> pd.DataFrame:
    """How many trainings and evaluations, by domain, are in each state. One that is in several tables and figures is
    counted once, in the first of its states."""
    by_run: dict[tuple, tuple[str, str]] = {}
    for id, entry in judged.paper.entries.items():
        key = (bool(entry.evaluation), entry.folder or id)
        state = judged.states[id]
        if key not in by_run or STATES.index(state) < STATES.index(by_run[key][1]):
            by_run[key] = DOMAINS[entry.place.domain], state
    domains, states = zip(*by_run.values())
    table = pd.crosstab(pd.Series(states), pd.Series(domains))
    table = table.reindex(index=STATES, columns=list(DOMAINS.values()), fill_value=0)
    table = table.assign(all=table.sum(axis=1))
    table.insert(0, "trainings and evaluations", [f"{SYMBOLS[state]} {state}" for state in table.index])
    return table[table["all"] > 0]


def where_from(judged: Judged) -> str:
    counted = judged.counted()
    came = sum(result.from_repository for result in counted)
    return f"{len(counted)} runs count, {came} of them from records/, which came with the repository."


# ------------------------------------------------------------------------------------------------- a table or a figure


def section(judged: Judged, place: Place, drawn: Sequence[tuple[Place, figures.Panel]], out: Path) -> dict:
    """What a template shows of a table or figure.

    pictures: file and title of each panel; repeated: by the place of a picture that has all their curves already, the
    panels that are not drawn again; tables: by panel, none where every panel is repeated; claims: those that have
    begun, with state and comparisons.

    Args:
        drawn: all panels of the report."""
    pictures, repeated = [], {}
    for count, panel in enumerate((panel for at, panel in drawn if at == place), 1):
        having = [pair for pair in drawn if panel.curves and panel.curves <= pair[1].curves] or [(place, panel)]
        at, largest = max(having, key=lambda pair: len(pair[1].curves))  # the first of several
        if largest is not panel:
            repeated.setdefault(at, []).append(f"{panel.title}, {panel.unit}")
            continue
        file = f"figures/{re.sub(r'[^a-z0-9]+', '-', place.id.lower())}-{count}.svg"
        (out / file).write_text(figures.svg(panel), encoding="utf-8")
        pictures.append((file, f"{panel.title}: {panel.unit} of {', '.join(filter(None, panel.lines))}"))
    panels: dict[str, list[Entry]] = {}
    for entry in judged.paper.at(place):
        if place.draws == "table" or entry.id in judged.begun:
            panels.setdefault(entry.panel, []).append(entry)
    claims = [(claim, *judged.claims[id]) for id, claim in judged.paper.claims.items() if claim.place == place]
    return {
        "pictures": pictures,
        "repeated": repeated,
        "tables": {
            panel: markdown(table(judged, entries)) for panel, entries in panels.items() if pictures or not repeated
        },
        "claims": [claim for claim in claims if claim[1] != NOT_RUN],
        "claims_not_run": sum(claim[1] == NOT_RUN for claim in claims),
    }


def table(judged: Judged, entries: Sequence[Entry]) -> pd.DataFrame:
    """Per entry, a line of our numbers; if the paper has numbers, a line of these above it and of differences below."""
    names, lines = judged.paper.metrics, []
    for entry in entries:
        numbers = judged.numbers.loc[entry.id]
        begin = {"row": entry.name}
        state = judged.states[entry.id]
        seeds = "" if entry.gain else f"{numbers.seeds.min()} of {max(numbers.seeds.min(), entry.seeds)}"
        end = {"seeds": seeds, "state": f"{SYMBOLS[state]} {state}"} if state != NOT_RUN else {}
        end = {name: text.replace(" ", NO_BREAK) for name, text in end.items()}
        pairs = {metric: judged.values(entry, metric) for metric in numbers.index if numbers.seeds[metric] == 2}
        for kind, cells in _cells(numbers, judged.paper.whose(entry.place), pairs) or [("ours", ["–"] * len(numbers))]:
            metrics = {names.get(metric, metric): cell for metric, cell in zip(numbers.index, cells)}
            lines.append({**begin, "": kind, **metrics, **end})
            begin, end = {"row": ""}, {}
    table = pd.DataFrame(lines).fillna("")
    return table if any(entry.paper for entry in entries) else table.drop(columns="")


def _cells(numbers: pd.DataFrame, whose: str, pairs: dict[str, list[float]]) -> list[tuple[str, list[str]]]:
    """The paper's numbers as it prints them, ours, and the difference, as far as there are any.

    Args:
        whose: `paper`, or what else the former are of.
        pairs: by metric, the numbers of two seeds, which stand in the place of an interval.
    """
    lines, over = list(numbers.itertuples()), ", ".join(filter(None, numbers.over.unique()))
    cells = []
    if numbers.paper.notna().any():
        papers = [f"{line.paper}" + ("" if math.isnan(line.error) else f"{PM}{line.error}") for line in lines]
        cells.append((whose, papers))
    if numbers.ours.notna().any():
        both = {metric: [with_interval(value, math.nan) for value in pair] for metric, pair in pairs.items()}
        seeds = {metric: f" ({one}, {other})" for metric, (one, other) in both.items()}
        ours = [with_interval(line.ours, line.half) + seeds.get(line.Index, "") for line in lines]
        cells.append((f"ours, ± over {over}" if over else "ours", ours))
    if numbers.difference.notna().any():
        cells.append(("difference", [_difference(line) for line in lines]))
    return cells


def _difference(line) -> str:
    if math.isnan(line.difference):
        return "–"
    judged = "" if math.isnan(line.allowed) else f" ({'within' if line.within else 'outside'} ±{line.allowed:.2f})"
    return f"{line.difference:+.2f}{judged}"


def with_interval(value: float, half: float) -> str:
    """A value and its interval, with four significant digits of the larger one; a dash if the value is not known."""
    if math.isnan(value):
        return "–"
    size = max(abs(value), 0 if math.isnan(half) else half)
    decimals = min(max(0, 3 - math.floor(math.log10(size))), 12) if size else 0
    return f"{value:.{decimals}f}" + ("" if math.isnan(half) else f"{PM}{half:.{decimals}f}")


def not_run(judged: Judged) -> pd.DataFrame:
    """For each table or figure, how many entries were not run, and how to run the first of them."""
    rows = []
    for place in judged.paper.places.values():
        entries = judged.paper.at(place)
        left = [entry for entry in entries if judged.states[entry.id] in (NOT_RUN, CANNOT)]
        first = next((f"`python3 reproduce.py run {entry.row}`" for entry in left if not entry.cannot), "")
        if left:
            rows.append((place.title, place.id, f"{len(left)} of {len(entries)}", first or left[0].cannot))
    return pd.DataFrame(rows, columns=["table or figure", "label", "entries", "the first of them, or why not"])
