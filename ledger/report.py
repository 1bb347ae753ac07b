# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The pages: report.md, and index.html from it with its pictures inside."""

import base64
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pandas as pd
from markdown_it import MarkdownIt

from ledger import figures
from ledger.paper import ROOT, Claim, Entry, Place
from ledger.verdicts import CANNOT, NAN, NOT_REPRODUCED, NOT_RUN, PARTIAL, REPRODUCED, STATES, Cell, Judged, Part
from ledger.words import days, escape, measured, metric, number, plain

HERE = Path(__file__).parent
DOMAINS = {"llm": "LLM", "vision": "vision", "control": "control"}
SYMBOLS = dict(zip(STATES, "✓✗◐●○–"))  # told apart without colour
NO_BREAK = "\u00a0"  # a space at which no line breaks
LINKS = {
    "docs/rivals/llm.md": "ERA beside entropy bonuses, KL and clipping in verl",
    "docs/rivals/vision.md": "ERA beside label smoothing and others on digits",
    "docs/control/ppo.md": "PPO with low noise and without ERA",
    "docs/control/sac.md": "SAC's learned temperature beside ERA",
    "docs/demos.md": "the demos on a CPU",
}


@dataclass(frozen=True)
class Section:
    """A table or figure of which something was run.

    pictures: file and words of each, with a caption for all. tables: by panel. claims: what was tested, in words, with
    state and parts; not_run: how many more there are."""

    place: Place
    pictures: list[tuple[str, str]]
    caption: str
    tables: list[tuple[str, str]]
    claims: list[tuple[Claim, str, str, list[Part]]]
    not_run: int


def write(judged: Judged, out: Path) -> Path:
    """Returns index.html."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for old in (out / "figures").glob("*.svg"):
        old.unlink()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["md"] = escape
    text = environment.get_template("report.md.j2").render(
        title=judged.paper.title,
        first=first_sentence(judged),
        counts=markdown(counts(judged)),
        came=where_from(judged),
        sections=[section(judged, place, out) for place in judged.paper.places.values() if begun(judged, place)],
        not_run=markdown(not_run(judged)),
        numbers=[
            (place, tables(judged, place)) for place in judged.paper.places.values() if is_table_not_run(judged, place)
        ],
        elsewhere=[place for place in judged.paper.places.values() if place.same_as or place.no_result],
        left_out=judged.left_out(),
        symbols=SYMBOLS,
        plain=plain,
        tolerances=judged.paper.tolerances,
        links=[(os.path.relpath(ROOT / name, out), what) for name, what in LINKS.items() if (ROOT / name).exists()],
        root=os.path.relpath(ROOT, out),
    )
    (out / "report.md").write_text(text, encoding="utf-8", errors="backslashreplace")
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = re.sub(r'src="(figures/[\w-]+\.svg)"', lambda found: f'src="{_data_uri(out / found[1])}"', body)
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    page = environment.get_template("page.html.j2").render(title=judged.paper.title, body=body)
    (out / "index.html").write_text(page, encoding="utf-8", errors="backslashreplace")
    return out / "index.html"


def _data_uri(file: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(file.read_bytes()).decode()


def markdown(table: pd.DataFrame) -> str:
    """Columns of numbers, which the table names in attrs, to the right."""
    rules = ["---:" if column in table.attrs.get("right", ()) else "---" for column in table.columns]
    rows = [table.columns, rules, *table.astype(str).to_numpy()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# ----------------------------------------------------------------------------------------------------- the first screen


def first_sentence(judged: Judged) -> str:
    """How much of the paper was run."""
    states = Counter(verdict.state for verdict in judged.verdicts.values())
    good, bad = states[REPRODUCED], states[NOT_REPRODUCED]
    if good + bad:
        verdicts = f"{good + bad} could be judged so far: {good} reproduced, {bad} not reproduced"
    else:
        verdicts = "none could be judged yet"
    others = sum(states.values()) - good - bad - states[NOT_RUN] - states[CANNOT]
    more = " more" if good + bad else ""
    claims = Counter(state for state, _ in judged.claims.values())
    held, failed = claims[REPRODUCED], claims[NOT_REPRODUCED]
    return (
        f"Of the paper's {sum(states.values())} entries, {verdicts}; {others}{more} have begun{_trainings(judged)}, "
        f"{states[NOT_RUN]} were not run, and {states[CANNOT]} this project cannot run. Of its {sum(claims.values())} "
        f"claims, {held} hold, {failed} do not, and {claims[PARTIAL]} could be tested in part."
    )


def _trainings(judged: Judged) -> str:
    """What stands behind the entries that have begun: one training may be in several figures."""
    begun = [entry for entry in judged.paper.entries.values() if judged.has_begun(entry)]
    names, places = sorted({entry.folder for entry in begun}), {entry.place.id for entry in begun}
    if not names:
        return ""
    shown = ", ".join(names) if len(names) <= 3 else f"{len(names)} trainings or evaluations"
    return f" ({shown}, in {len(places)} {'table or figure' if len(places) == 1 else 'tables and figures'})"


def counts(judged: Judged) -> pd.DataFrame:
    """How many are in each state, by domain."""
    states = [(judged.verdicts[id].state, DOMAINS[entry.place.domain]) for id, entry in judged.paper.entries.items()]
    frame = pd.DataFrame(states, columns=["state", "domain"])
    table = pd.crosstab(frame.state, frame.domain)
    table = table.reindex(index=STATES, columns=list(DOMAINS.values()), fill_value=0)
    claims = Counter(state for state, _ in judged.claims.values())
    table = table.assign(all=table.sum(axis=1), claims=[claims[state] for state in table.index])
    table = table[table.sum(axis=1) > 0]
    table.insert(0, "entries", [f"{SYMBOLS[state]} {state}" for state in table.index])
    table.attrs["right"] = list(table.columns[1:])
    return table


def where_from(judged: Judged) -> str:
    left_out = {result for result, _ in judged.left_out()}
    used = [result for result in judged.results if result not in left_out]
    if not used:
        return "No results were found."
    came = [result for result in used if result.from_repository]
    hardware = {_hardware(result.info) for result in used if result.info.get("hardware")}
    words = f"{len(used)} runs count"
    if came:
        all_of = "all of them" if len(came) == len(used) else f"{len(came)} of them"
        words += f", {all_of} from records/, which came with the repository"
    ended = days([str(result.info.get("ended") or "") for result in used])
    return f"{words}{f' ({ended})' if ended else ''}. Hardware: {'; '.join(sorted(hardware)) or 'not recorded'}."


def _hardware(info: dict) -> str:
    known = info["hardware"]
    gpus = ", ".join(f"{count} {name}" for name, count in Counter(known.get("gpus") or []).items())
    return gpus or f"{known.get('cores')} cores of {known.get('cpu')}"


# ------------------------------------------------------------------------------------------------------ what was run


def entries_at(judged: Judged, place: Place) -> list[Entry]:
    return [entry for entry in judged.paper.entries.values() if entry.place == place]


def begun(judged: Judged, place: Place) -> bool:
    return any(judged.verdicts[entry.id].state not in (NOT_RUN, CANNOT) for entry in entries_at(judged, place))


def is_table_not_run(judged: Judged, place: Place) -> bool:
    return place.draws == "table" and bool(entries_at(judged, place)) and not begun(judged, place)


def section(judged: Judged, place: Place, out: Path) -> Section:
    panels = figures.of_place(judged, place) if place.draws != "table" else []
    pictures = []
    for count, panel in enumerate(panels, 1):
        file = f"figures/{re.sub(r'[^a-z0-9]+', '-', place.id.lower())}-{count}.svg"
        (out / file).write_text(figures.svg(panel), encoding="utf-8")
        pictures.append((file, panel.words))
    claims = [claim for claim in judged.paper.claims.values() if claim.place == place]
    begun = [claim for claim in claims if judged.claims[claim.id][0] != NOT_RUN]
    shown = [(claim, tested(judged, claim), *judged.claims[claim.id]) for claim in begun]
    caption = figures.caption(panels) if panels else ""
    if place.draws in ("curves", "aggregate"):
        caption += " Numbers are means over the last tenth of the steps."
    return Section(place, pictures, caption, tables(judged, place), shown, len(claims) - len(begun))


def tested(judged: Judged, claim: Claim) -> str:
    """The claim's test in words."""
    subject, baseline = (
        ", ".join(judged.paper.row(row)[0].label for row in rows) for rows in (claim.subject, claim.baseline)
    )
    subject, baseline = (f"each of {names}" if ", " in names else names for names in (subject, baseline))
    what = metric(claim.metric or judged.paper.row(claim.subject[0])[0].metrics[0])
    if claim.test == "spread":
        return f"{subject}: largest minus smallest of each metric is at most {claim.value:g}"
    if claim.test == "overhead":
        most = 100 * ((claim.value or 0) + claim.tolerance)
        return f"{subject} takes at most {most:.3g} % longer than {baseline}"
    if claim.test == "at_least":
        return f"{subject}: {what} does not fall below {claim.value:g} - {claim.tolerance:g}"
    if claim.test == "within":
        return f"{subject}: {what} lies between {claim.low:g} and {claim.high:g}"
    if claim.value is not None:
        return f"{subject} is better than {baseline} by {claim.value:g} %, less {claim.tolerance:g} % of tolerance"
    relations = {"higher": "ends above", "not_higher": "does not end above", "above": "is nowhere below"}
    return f"{subject} {relations[claim.test]} {baseline} in {what}"


def tables(judged: Judged, place: Place) -> list[tuple[str, str]]:
    """One for each panel. Of figures, which have no numbers of the paper's, the rows that were begun."""
    panels: dict[str, list[Entry]] = {}
    for entry in entries_at(judged, place):
        if place.draws == "table" or judged.has_begun(entry):
            panels.setdefault(entry.panel, []).append(entry)
    return [(panel, markdown(_table(judged, entries))) for panel, entries in panels.items()]


def _table(judged: Judged, entries: Sequence[Entry]) -> pd.DataFrame:
    """A line for what is ours; where the paper has numbers, one above it for them and one below for the difference."""
    metrics = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    rows, has_begun = [], any(map(judged.has_begun, entries))
    for entry in entries:
        verdict = judged.verdicts[entry.id]
        seeds = min([cell.seeds for cell in verdict.cells.values() if cell.seeds], default=0)
        start = {"row": escape(entry.name)}
        end = {
            "seeds": f"{seeds} of {max(verdict.seeds, entry.seeds)}",
            "state": f"{SYMBOLS[verdict.state]} {verdict.state}",
        }
        end = {key: text.replace(" ", NO_BREAK) for key, text in end.items()}
        for kind, cells in _lines(verdict.cells, metrics):
            rows.append({**start, "": kind, **dict(zip(map(metric, metrics), cells)), **(end if has_begun else {})})
            start, end = {"row": ""}, {}
    table = pd.DataFrame(rows).fillna("")
    if not (table[""] == "paper").any() or not has_begun:
        table = table.drop(columns="")
    table.attrs["right"] = list(map(metric, metrics))
    return table


def _lines(cells: Mapping[str, Cell], metrics: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """paper, ours and difference, as far as there are such numbers, with as many decimals as the paper has."""
    found = [(cells.get(name) or Cell(NAN, NAN)) for name in metrics]
    has_paper, has_ours = any(cell.has_paper for cell in found), any(cell.seeds for cell in found)
    decimals = [max(1, len(repr(cell.paper).partition(".")[2])) if cell.has_paper else None for cell in found]
    if has_paper:
        yield "paper", [measured(cell.paper, cell.error, places) for cell, places in zip(found, decimals)]
    if has_ours or not has_paper:
        over = ", ".join(dict.fromkeys(cell.over for cell in found if cell.over))
        ours = [measured(cell.ours, cell.half, places) for cell, places in zip(found, decimals)]
        yield f"ours, ± over {over}" if over else "ours", ours
    if has_ours and has_paper:
        yield "difference", [_difference(cell, places) for cell, places in zip(found, decimals)]


def _difference(cell: Cell, decimals: int | None) -> str:
    shown = number(cell.difference, decimals, sign=True)
    if cell.within is None:
        return shown
    return f"{shown} ({'within' if cell.within else 'outside'} ±{number(cell.allowed, decimals)})"


def not_run(judged: Judged) -> pd.DataFrame:
    """By table or figure, how many of its rows."""
    rows = []
    for place in judged.paper.places.values():
        entries = entries_at(judged, place)
        states = Counter(judged.verdicts[entry.id].state for entry in entries)
        if not states[NOT_RUN] + states[CANNOT]:
            continue
        kinds = [f"{states[state]} {state}" for state in (NOT_RUN, CANNOT) if states[state]]
        first = next((entry for entry in entries if judged.verdicts[entry.id].state == NOT_RUN), None)
        how = f"`python3 reproduce.py run {first.row}`" if first else escape(entries[0].cannot)
        rows.append((escape(place.title), escape(place.id), f"{', '.join(kinds)} of {len(entries)}", how))
    return pd.DataFrame(rows, columns=["table or figure", "label", "entries", "the first of them, or why not"])
