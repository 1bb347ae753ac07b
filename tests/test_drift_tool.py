# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""tools/drift: which releases there are, what becomes of one, and what the page says of those that work or break."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from helpers import FASTTD3, TIMM
from packaging.version import Version

from recipes import pages
from tools.drift import __main__ as drift
from tools.drift import examples, probes
from tools.hosts import HOSTS, Host

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
FILES = ("0001-Create-classifiers-with-ERA.patch", "0002-Train-with-ERA.patch")


def test_releases_from_a_pinned_version_to_the_next():
    tags = ["v1.10", "v1.9.1", "v1.9", "v1.9.post1", "v1.9rc1", "v0.9", "nightly", "v2.0", "v2.1", "1.0-tv", "v1.9+cpu"]
    pinned = {"v1.9": {"tag": "v1.9"}, "v2.0": {"tag": "v2.0"}}
    assert drift.releases(pinned, "v1.9", tags) == ["v1.9", "v1.9.post1", "v1.9.1", "v1.10"]
    assert drift.releases(pinned, "v2.0", tags) == ["v2.0", "v2.1"]
    assert drift.releases({"a1": {}, "b2": {}}, "b2", tags) == ["b2", "main"]


def test_the_pages_name_the_newest_release_that_the_tests_ran_with(project_root):
    docs, readme = project_root / "docs", (project_root / "README.md").read_text()
    rows = []
    for host, (page, *_) in HOSTS.items():
        at = str(drift.tested(host))
        named = re.search(rf"(?<![\d.]){re.escape(at)}(?!\.?\d)", (docs / page).read_text())
        assert named, f"{page} does not name {host} {at}"
        if row := re.search(rf"^\| \[{host} (?:[\d.]+ to )?([\d.]+)\]", readme, re.MULTILINE | re.IGNORECASE):
            rows.append(host)
            assert at.startswith(row[1]), row[0]
    assert rows == [host for host in HOSTS if HOSTS[host].page.startswith("llm/")]


def test_a_release_for_another_python_makes_drift_fail(tmp_path, monkeypatch, capsys):
    for host, newer in {"timm": "9.0rc1", "axolotl": "9.0"}.items():  # a candidate is no release
        files = {newer: "<3.8", str(drift.tested(host)): ">=3.8"}
        links = (
            f'<a href="{host}-{of}-py3-none-any.whl" data-requires-python="{python}"></a>'
            for of, python in files.items()
        )
        (tmp_path / host).mkdir()
        (tmp_path / host / "index.html").write_text(f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(drift, "HOSTS", {host: HOSTS[host] for host in ("timm", "axolotl")})
    monkeypatch.setattr(drift, "WORK", tmp_path / "work")
    monkeypatch.setattr(sys, "argv", ["drift", "hosts"])
    assert drift.main() == 1
    (said,) = re.findall("^fails: .*", capsys.readouterr().out, re.MULTILINE)
    assert said == f"fails: axolotl 9.0 is newer than {drift.tested('axolotl')}, which docs/llm/axolotl.md names"


def test_releases_without_a_package_are_the_repositorys_tags(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    for tag in ("v0.3.1", "v0.10.0", "v0.11.0rc1", "nightly"):
        git("tag", tag)
    monkeypatch.setattr(drift, "HOSTS", {"host": Host("page.md", git=str(tmp_path))})
    assert drift.newest("host") == Version("0.10.0")


def test_a_release_has_the_patches_and_our_new_files(tmp_path):
    """Our file is left out where the release has a submodule or a link in place of its folder."""

    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "core.py").write_text("one\n")
    git("init", "-q", "-b", "era")
    git("add", ".")
    git("commit", "-qm", "upstream")
    git("tag", "upstream/v1")
    (tmp_path / "recipe").mkdir()
    for name in ("recipe/run.sh", "era.py"):
        (tmp_path / name).touch()
    git("add", ".")
    git("commit", "-qm", "new files")
    (tmp_path / "core.py").write_text("one\npatched\n")
    git("commit", "-qam", "patch")
    git("format-patch", "-q", "-1", "-o", tmp_path / ".git")
    git("checkout", "-q", "upstream/v1")
    (tmp_path / "core.py").write_text("moved\none\n")
    (tmp_path / "recipe").symlink_to("elsewhere")
    git("add", ".")
    git("commit", "-qm", "release")
    (tmp_path / "left over").touch()
    drift.merged(tmp_path, "v1", "v2", git("rev-parse", "HEAD"), list((tmp_path / ".git").glob("*.patch")))
    assert (tmp_path / "core.py").read_text() == "moved\none\npatched\n" and (tmp_path / "recipe").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {".git", "core.py", "recipe", "era.py"}


def test_what_breaks_when_it_is_started_and_the_page(tmp_path):
    rows, results = [], dict(zip(FILES, ("offset", "conflict")))
    for label, text in {"v9.1": WORKS, "v9.2": BREAKS}.items():
        files = {"timm/__init__.py": text, probes.FACTORY: "attach_era(model)", "train.py": "general = 'operate'"}
        for name, content in files.items():
            (tmp_path / label / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / label / name).write_text(content)
        chosen = [probe for probe in probes.PROBES if probe.what in ("create_model", "train.py") and probe[0] == "timm"]
        started = drift.start(chosen, tmp_path / label, tmp_path / "logs" / label)
        rows.append({"release": label, "date": "2026-01-01", "results": results, "started": started})
    rows.append({**rows[-1], "release": "v9.3", "date": "2026-02-02"})
    unread = [{"what": drift.UNREAD, "outcome": "not tried", "reason": "gone"}]
    rows.append({"release": "v9.4", "date": "?", "results": {}, "started": unread})
    text = drift.part("timm", "v1.0.28", rows)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| v9")]
    assert cells == [
        ["v9.1", "2026-01-01", "offset", "conflict", "", "", "starts: create_model"],
        ["v9.2 to v9.3", "2026-01-01 to 2026-02-02", "offset", "conflict", "", "", "fails: create_model"],
        ["v9.4", "?", "", "", "", "", "not tried"],
    ]
    assert "- v9.2, v9.3: create_model fails: `NameError(\"name 'loss_fn' is not defined\")`" in text
    assert (
        "- v9.1, v9.2, v9.3: train.py was not tried: train.py has no ERA" in text
        and "- v9.4: the release was not tried: gone" in text
    )


def test_the_probe_of_a_classifier_sees_that_it_has_no_floor():
    classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 10))
    classifier.get_classifier = lambda: classifier[1]
    with pytest.raises(AssertionError, match="expected at least 0.6"):
        probes.check_classifier(classifier)


@pytest.mark.grid
@pytest.mark.parametrize("name, version", [("verl", "v0.4.1"), ("timm", TIMM), ("fasttd3", FASTTD3)])
def test_every_probe_succeeds_on_a_pinned_version(name, version, trees_of, tmp_path):
    started = drift.start(drift.probes_of(name, plugin=False), trees_of(name, version)[0], tmp_path / "logs")
    assert {item["outcome"] for item in started} <= {"trains", "starts"}, started


def test_the_page_has_a_place_for_every_pinned_version(project_root):
    upstreams = json.loads((project_root / "upstreams.json").read_text())
    tables = {f"{name} {label}": "" for name in drift.NAMES[1:] for label in upstreams[name]["versions"]}
    pages.filled(drift.PAGE.read_text(), {"run": "", "hosts": "", "verl examples": "", **tables})


def test_the_arguments_of_an_example_without_starting_it(tmp_path):
    left = tmp_path / "left"
    (tmp_path / "run.sh").write_text(f"""set -euo pipefail
ulimit -n 999999999; source /no/such/set_env.sh
touch {left}; ray start --head
ACTOR=(actor_rollout_ref.actor.use_kl_loss=True "data.train_files=['$HOME/a b']")
LAUNCH=(uv run python3); [ "${{DEVICE:-gpu}}" = gpu ] || exit 1
"${{LAUNCH[@]}}" -m verl.trainer.main_ppo "${{ACTOR[@]}}" trainer.nnodes=${{NNODES:-1}} "$@"
""")
    words = examples.started(tmp_path / "run.sh")
    assert words[:2] == ["verl.trainer.main_ppo", "actor_rollout_ref.actor.use_kl_loss=True"]
    assert words[2].endswith("/a b']") and words[3:] == ["trainer.nnodes=1"] and not left.exists()
    (tmp_path / "run.sh").write_text("exit 1; python3 -m verl.trainer.main_ppo a=1")
    assert examples.started(tmp_path / "run.sh") == []
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo_sync a=1")
    assert "it starts verl.trainer.main_ppo_sync, in place of" in examples.refusals(tmp_path / "run.sh", tmp_path)
    page = examples.page({"a.sh": examples.ACCEPTED, "b.sh": "megatron: top_k", "c.sh": "megatron: top_k"})
    assert "1 of 3 are accepted" in page and page.endswith("\n| megatron: top_k | `b.sh`, `c.sh` |")
