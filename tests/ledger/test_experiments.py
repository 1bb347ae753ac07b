# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""experiments.toml is consistent, and its runs, folders and steps are those of the Makefile and of the recipes."""

import json
import re

import pytest
from helpers import runs_of

from ledger.figures import LINES
from ledger.paper import ROOT
from ledger.verdicts import TESTS
from recipes.control import SCRIPTS
from recipes.vision.timm import Timm

NOT_THE_PAPERS = {  # runs of experiments that ask what the paper has no row for
    "control-distribution": 2 * 4 * 5,  # tasks, agents, seeds
    "control-batch": 2 * 3 * 5,
    "control-ppo": 4 * 5,  # the arms at ERA's entropy
    "control-eapo-3m": 4 * 3,
    "control-ppo-targets": 2 * 5,
    "control-alpha": 3 * 3,
    "control-obac": 5 * 3,
}


def without_seed(name):
    return re.sub(r"-seed\d+$", "", name)


@pytest.fixture(scope="session")
def recipes():
    """The runs of the recipes by experiment: (folder without seed, seed)."""
    found = {}
    scripts = {f"control-{name}": SCRIPTS[name](name) for name in SCRIPTS}
    scripts |= {f"vision-{name}": Timm(name) for name in Timm.experiments}
    for experiment, script in scripts.items():
        apart = "time/" if experiment in ("control-time", "vision-cifar10-time") else ""
        found[experiment] = {(apart + without_seed(run.name), run.seed) for run in script.runs}
    return found


def test_the_recipes_train_the_folders_and_seeds_of_the_papers_rows_and_no_others(paper, recipes):
    entries = [entry for entry in paper.entries.values() if entry.run and entry.place.domain != "llm"]
    listed = {run: set() for run in recipes}
    for entry in entries:
        seeds = paper.runs[entry.run].seeds
        assert len(seeds) == entry.seeds, entry.id
        listed[entry.run] |= {(entry.folder, seed) for seed in seeds}
    others = {run: len(trained - listed[run]) for run, trained in recipes.items() if trained - listed[run]}
    assert others == NOT_THE_PAPERS and not any(listed[run] - trained for run, trained in recipes.items())


def test_llm_folders_and_steps_are_those_of_the_scripts(paper):
    trainings = [run for run in paper.runs.values() if run.steps]
    assert len(trainings) == 13
    for run in trainings:
        script = (ROOT / f"overlays/verl/recipe/era/run_{run.folder}.sh").read_text()
        assert int(re.search(r"TOTAL_STEPS=\$\{TOTAL_STEPS:-(\d+)\}", script)[1]) == run.steps
        stage1 = re.search(r"stage1=ckpts/ERA/(\S+)\n.*/global_step_(\d+)\"", script)
        earlier = paper.runs.get(run.after)
        assert (stage1 and stage1.groups()) == (earlier and (earlier.folder, str(earlier.steps)))


def test_every_run_is_one_that_make_knows(paper):
    known = {"llm-eval", *runs_of("llm"), *runs_of("vision"), *runs_of("control")}
    assert {run.target or run.id for run in paper.runs.values()} <= known


def test_runs_are_of_the_pinned_upstreams(paper):
    pinned = {name: entry["default"] for name, entry in json.loads((ROOT / "upstreams.json").read_text()).items()}
    pinned["sbx"] = re.search(r"^sbx-rl==([\d.]+)", (ROOT / "requirements/control-cpu.txt").read_text(), re.M)[1]
    for run in paper.runs.values():
        name, _, version = run.upstream.partition(" ")
        assert pinned[name] == version, run.id


def test_every_entry_is_run_compared_or_not_at_all(paper):
    assert len(paper.entries) == 325
    for entry in paper.entries.values():
        assert [bool(entry.folder), bool(entry.gain), bool(entry.cannot)].count(True) == 1, entry.id
        assert not entry.run or entry.run in paper.runs and bool(entry.metrics), entry.id
        assert not entry.folder or not entry.evaluation or entry.evaluation in paper.runs, entry.id
        assert "{" not in entry.folder + "".join(entry.metrics) + "".join(entry.variables.values()), entry.id
        assert set(entry.paper) <= set(entry.metrics) and entry.unit in ("percent", "points"), entry.id
        assert not entry.place.source or entry.place.source in paper.sources and not entry.tolerance, entry.id
        if entry.paper and not entry.place.source:
            tolerance = paper.tolerances[entry.tolerance]
            assert {*tolerance["judged"], *tolerance.get("answers", ())} <= set(entry.paper), entry.id
        for other in entry.gain:
            assert set(entry.paper) <= set(paper.entries[other].paper), entry.id


def test_every_claim_is_tested_on_what_there_is(paper):
    for claim in paper.claims.values():
        assert claim.test in TESTS and claim.test in paper.tests and all(map(paper.row, claim.rows)), claim.id
        assert bool(claim.baseline) == (claim.test not in ("at_least", "within", "spread")), claim.id
        assert (claim.test == "higher_aggregate") == (claim.place.draws == "aggregate"), claim.id
        assert all(entry.place == claim.place for row in claim.rows for entry in paper.row(row)), claim.id


def test_every_place_has_entries_and_every_text_is_markdown(paper):
    """Unescaped, and with no bar, which would end a cell of a table."""
    for place in paper.places.values():
        assert paper.at(place) and place.draws in ("table", *LINES), place.id
        texts = [place.title, place.note, *(entry.name for entry in paper.at(place))]
        texts += [f"{paper.tested(claim)} {claim.reason}" for claim in paper.claims.values() if claim.place == place]
        assert not any(set("|*`[") & set(text) for text in texts), place.id
    for why in paper.elsewhere.values():
        known = paper.places.keys() | paper.elsewhere.keys()
        assert {label for label in re.findall(r"\b\w+:\w+", why)} <= known, why
    aggregated = [entry for entry in paper.entries.values() if entry.place.draws == "aggregate"]
    assert {entry.values["TASKS"] for entry in aggregated} <= set(paper.scales)
    assert set(paper.metrics) <= {metric for entry in paper.entries.values() for metric in entry.metrics} | {
        "era/response_entropy"
    }
