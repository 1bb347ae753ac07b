"""experiments.toml is consistent, docs/reproduce.md counts what it holds, and mistakes in an edited copy are named."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from ledger import verdicts
from ledger.errors import LedgerError
from ledger.ledger import DOMAINS, HERE, ROOT, load


def fits(value, kind) -> bool:
    """Whether a value is of a field's type. A whole number is a float too; NaN, infinity and true are not numbers."""
    inner = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(fits(value, one) for one in inner)
    if get_origin(kind) is tuple:
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if get_origin(kind) is Mapping:
        return isinstance(value, dict) and all(fits(one, inner[1]) for one in value.values())
    return type(value) in (int, float) and math.isfinite(value) if kind is float else type(value) is kind


def test_every_value_is_of_its_fields_type(ledger):
    for part in ("tolerances", "places", "runs", "experiments", "claims"):
        for name, item in getattr(ledger, part).items():
            kinds = get_type_hints(type(item))
            for field in fields(item):
                value = getattr(item, field.name)
                assert fits(value, kinds[field.name]), (part, name, field.name, value)
    assert all(fits(value, float) and value > 0 for value in ledger.scales.values())


def test_runs_are_of_the_pinned_upstreams(ledger):
    pinned = {name: entry["default"] for name, entry in json.loads((ROOT / "upstreams.json").read_text()).items()}
    pinned["sbx"] = re.search(r"^sbx-rl==(\S+)", (ROOT / "requirements/control-cpu.txt").read_text(), re.MULTILINE)[1]
    rivals = (ROOT / "requirements/rivals-vision.in").read_text()
    pinned["torch-uncertainty"] = re.search(r"^torch-uncertainty==(\S+)", rivals, re.MULTILINE)[1]
    for run in ledger.runs.values():
        name, _, version = run.upstream.partition(" ")
        assert pinned[name] == version, run.id
        assert not run.after or ledger.runs[run.after].steps, run.id
        assert bool(run.folder) == bool(run.steps), run.id


def test_every_experiment_can_be_run_compared_or_not_at_all(ledger):
    for experiment in ledger.experiments.values():
        name, is_run = experiment.id, bool(experiment.run or experiment.evaluation)
        assert re.fullmatch(r"[a-z0-9][a-z0-9_@-]*", name)
        assert [is_run, bool(experiment.gain), bool(experiment.cannot)].count(True) == 1, name
        assert not is_run or experiment.folder and (experiment.metric or experiment.paper), name
        assert len(experiment.over) <= 1 and () not in experiment.over.values(), name
        known = {f"{{{variable}}}" for variable in experiment.over}
        assert set(re.findall(r"{\w+}", " ".join((experiment.folder, *experiment.metric)))) <= known, name
        assert experiment.gain_in in ("percent", "points"), name
        assert bool(experiment.tolerance) == bool(experiment.paper and not experiment.gain), name
        if experiment.tolerance:
            tolerance = ledger.tolerances[experiment.tolerance]
            assert tolerance.judged and {*tolerance.judged, *tolerance.answers} <= set(experiment.paper), name
        for other in (ledger.experiments[other] for other in experiment.gain):
            assert not other.over and other.tolerance and set(experiment.paper) <= set(other.paper), name


def test_every_claim_is_tested_on_what_there_is(ledger):
    for claim in ledger.claims.values():
        assert (claim.test, claim.aggregate) in verdicts.TESTS and claim.place in ledger.places, claim.id
        assert bool(claim.than) == (claim.test in ("higher", "not_higher", "lower", "above", "overhead")), claim.id
        of, than = ledger.experiments[claim.of], ledger.experiments[claim.than or claim.of]
        assert not than.over or [entry.value for entry in of.entries] == [entry.value for entry in than.entries], (
            claim.id
        )
        assert not claim.aggregate or ledger.places[claim.place].draws == "aggregate", claim.id
        needed = {"at_least": ("value",), "within": ("low", "high"), "spread": ("value",)}.get(claim.test, ())
        assert all(getattr(claim, name) is not None for name in needed), claim.id


def test_every_place_has_experiments_or_says_why_not(ledger):
    for place in ledger.places.values():
        experiments = ledger.at(place.id)
        assert place.draws in ("table", "curves", "points", "bars", "aggregate"), place.id
        assert all(other in ledger.places for other in place.same_as), place.id
        if place.id != HERE:
            assert bool(experiments) != bool(place.same_as or place.no_result), place.id
            assert place.domain in DOMAINS or not place.domain and not experiments, place.id
        if place.draws == "aggregate":
            tasks = [entry.value for experiment in experiments if not experiment.cannot for entry in experiment.entries]
            assert set(tasks) <= set(ledger.scales), place.id


MISTAKES = {
    "not TOML": ("paper = ", "paper ", "Expected '='"),
    "an unknown field": ("[experiment.main-era]", "[experiment.main-era]\ncolour = 1", "experiment.main-era: .*colour"),
    "an unknown place": ('place = "table:moremodels"', 'place = "table:more"', "there is no place.table:more"),
    "an unknown group": ('demo = { group = "demo"', 'demo = { group = "x"', "run.demo: there is no group.x"),
    "an unknown run": ('run = "llm-gspo"', 'run = "llm-gsp"', "experiment.gspo: there is no run.llm-gsp"),
    "an unknown list": ('over = { TASKS = "gym" }', 'over = { TASKS = "gyms" }', "there is no list.gyms"),
    "an unknown text": ('cannot = "no-obac"', 'cannot = "no-obc"', "there is no text.no-obc"),
    "a missing field": ('row = "GRPO"\n', "", "experiment.[a-z0-9-]+: .*row"),
}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LedgerError, match="experiments.toml: .*No such file"):
        load(tmp_path / "experiments.toml")


@pytest.mark.parametrize(
    ("wrong", "similar"),
    [
        ("main-erq", "main-era"),
        ("MAIN-ERA", "main-era"),
        ("hb-fastsac-era/h1hand-wak-v0", "hb-fastsac-era/h1hand-walk-v0"),
        ("zzzz", "`reproduce.py list` names all"),
    ],
)
def test_similar_names_are_listed_once(ledger, wrong, similar):
    with pytest.raises(LedgerError, match="there is no experiment") as error:
        ledger.find(wrong)
    named = str(error.value).partition("Similar: ")[2].rstrip(".").split(", ")
    assert similar in str(error.value) and len(set(named)) == len(named)
