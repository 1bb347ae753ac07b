"""tools/drift: what it says of a patched release that works, one that breaks, and what cannot be started."""

import re

import pytest
import torch

from era.verl.compatibility import TESTED
from tools.drift import __main__ as tool
from tools.drift import probes
from tools.drift.page import page

WORKS = """
import sys, torch
from torch import nn
layers = type(sys)("timm.layers")
class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 64 * 64, 10))
    def get_classifier(self):
        return self[1]
    def forward(self, x):
        return super().forward(x).clamp(-1, 1)
def create_model(name, num_classes, era_min_entropy):
    return Model()
"""
BREAKS = "def create_model(name, **kwargs):\n    return loss_fn\n"
LACKS = "import not_installed_anywhere.part\n"
FILES = ("0001-Create-classifiers-with-ERA.patch", "0002-Train-with-ERA.patch")
PATHS = {FILES[0]: {probes.FACTORY}, FILES[1]: {"train.py"}}


def release(label: str, *results: str) -> dict:
    rows = [{"patch": file, "result": result} for file, result in zip(FILES, results)]
    return {"release": label, "commit": "0" * 40, "date": "2026-01-01", "problem": None, "patches": rows}


@pytest.fixture
def started(tmp_path):
    """The outcomes of a timm whose __init__.py is this text, where patch 0002 conflicts."""

    def start(text: str, label: str = "v9.1") -> dict:
        package = tmp_path / label / "timm"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        row = release(label, "offset", "conflict")
        tree, folder = package.parent, tmp_path / "logs" / label
        return {**row, "started": tool.start_release("timm", row, PATHS, tree, folder)}

    return start


def outcome(row: dict) -> list[tuple]:
    return [(item["what"], item["outcome"], item["reason"]) for item in row["started"]]


def test_what_breaks_when_it_is_started_fails_with_the_last_line(started):
    train = ("train.py", "not tried", "0002 conflicts")
    error = "NameError: name 'loss_fn' is not defined"
    rows = [started(WORKS), started(BREAKS, "v9.2"), started(LACKS, "v9.3")]
    assert outcome(rows[0]) == [("create_model", "starts", ""), train]
    assert outcome(rows[1]) == [("create_model", "fails", error), train]
    assert outcome(rows[2])[0][1:] == ("not tried", "the environment has no not_installed_anywhere")

    version = {"patches": list(FILES), "problems": [], "releases": rows}
    plugins = {"v9.1": {"what": "era.timm", "outcome": "trains", "reason": ""}}
    plugins["v9.5"] = {"what": "era.timm", "outcome": "not tried", "reason": "no timm-9.5"}
    result = {"date": "2026-01-02", "environment": "Python 3", "upstreams": {}}
    result["upstreams"]["timm"] = {"versions": {"v9.0": version}, "plugins": plugins}
    text = page(result)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| v9")]
    assert cells == [
        ["v9.1", "2026-01-01", "offset", "conflict", "starts: create_model", "trains"],
        ["v9.2", "2026-01-01", "offset", "conflict", "fails: create_model", ""],
        ["v9.3", "2026-01-01", "offset", "conflict", "not tried", ""],
        ["v9.5", "", "", "", "", "not tried"],
    ]
    assert f"- v9.2: create_model fails: `{error}`" in text and "2026-01-02" in text
    assert "- v9.1, v9.2, v9.3: train.py was not tried: 0002 conflicts" in text
    assert "- v9.5: era.timm was not tried: no timm-9.5" in text


def test_the_probe_of_a_classifier_sees_that_it_has_no_floor():
    classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 10))
    classifier.get_classifier = lambda: classifier[1]
    with pytest.raises(AssertionError, match="expected at least 0.6"):
        probes.check_classifier(classifier)


def test_a_failure_of_what_is_claimed_is_told_by_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "PLUGINS", {})
    broken = {"what": "", "outcome": tool.FAILS, "reason": "RuntimeError: broken"}
    monkeypatch.setattr(tool, "start", lambda chosen, *arguments: dict.fromkeys(chosen, broken))
    for pinned, label in ((True, "v1.0.20"), (False, "v1.0.21")):
        row = release(label, "clean", "clean")
        version = {"commit": row["commit"] if pinned else "1" * 40, "patches": list(FILES), "releases": [row]}
        assert tool.start_all({"upstreams": {"timm": {"v1.0.20": version}}}, tmp_path, tmp_path) is not pinned


def test_the_releases_of_era_verl(tmp_path):
    plugin = tool.PLUGINS["verl"]
    assert (plugin.oldest, plugin.newest) == (TESTED[0], TESTED[-1])
    rows = [release(label) for label in ("v0.8.0", "v0.9.0", "v0.10.0")]
    found = tool.plugin_trees("verl", {"v0.4.1": {"releases": rows}}, tmp_path)
    assert list(found) == ["v0.9.0", "v0.9.1"]
    assert found["v0.9.0"] == tmp_path / "verl/v0.4.1/v0.9.0/upstream" and found["v0.9.1"].name == "verl-0.9.1"


def test_the_files_of_every_probe_are_patched(project_root):
    for name, chosen in tool.PROBES.items():
        patches = (project_root / "patches" / name).glob("*/*.patch")
        paths = {path for patch in patches for path in re.findall(r"^diff --git a/(\S+) b/", patch.read_text(), re.M)}
        for probe in chosen:
            assert paths.issuperset(probe.files), probe
