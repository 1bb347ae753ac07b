# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""run.json: what a start records, what stays when a run goes on, and the state of the code."""

import os
import subprocess

import pytest

from recipes import run_json


@pytest.fixture
def git(tmp_path):
    """git(words...) in a repository that has one commit of apply.py's on the branch era."""

    def run(*words):
        person = {"NAME": "ERA overlays", "EMAIL": "era-overlays@users.noreply.github.com"}
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in person.items()}
        subprocess.run(["git", "-C", tmp_path, *words], env={**who, **os.environ}, check=True, capture_output=True)

    run("init", "-b", "era")
    (tmp_path / "train.py").write_text("steps = 1\n")
    run("add", "train.py")
    run("commit", "-m", "overlay")
    return run


def test_a_run_from_its_start_to_its_end(tmp_path, monkeypatch):
    about = run_json.for_script(agent="ppo_era", added=["--lr", "1"], as_paper=False, commit="0123", modified=False)
    monkeypatch.setenv(*about.popitem())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    record = run_json.begin("ppo", "Ant-v4", 7, 300, ("torch", "no-such-package"), agent="by the script", setting="x")
    run_json.start(tmp_path, record)
    assert run_json.read(tmp_path) == record and record["finished"] is False and record["ended"] is None
    expected = {"host": "ppo", "task": "Ant-v4", "seed": 7, "total_steps": 300, "agent": "ppo_era", "setting": "x"}
    expected |= {"added": ["--lr", "1"], "as_paper": False, "commit": "0123", "modified": False}
    assert expected.items() <= record.items() and record["threads"]["OMP_NUM_THREADS"] == "3"
    assert record["versions"].keys() == {"python", "torch"}
    assert record["hardware"]["capability"] and record["hardware"]["cores"] >= 1 and record["hardware"]["cpu"]
    run_json.finish(tmp_path, record, 12.34)
    done = run_json.read(tmp_path)
    assert done["finished"] is True and done["ended"] >= done["started"] and done["cpu_seconds"] == 12.3


def test_what_a_run_once_was_stays(tmp_path):
    """A clean start that goes on from what a modified one has made does not make it clean."""
    first = run_json.begin("ppo", "Ant-v4", 7, 300, (), modified=True, as_paper=False, started="2026-01-01")
    run_json.start(tmp_path, first)
    again = run_json.begin("ppo", "Ant-v4", 7, 300, (), modified=False, as_paper=True)
    run_json.start(tmp_path, again)
    assert run_json.read(tmp_path) == again
    assert (again["started"], again["modified"], again["as_paper"]) == ("2026-01-01", True, False)
    run_json.finish(tmp_path, again)
    fresh = run_json.begin("ppo", "Ant-v4", 7, 300, (), modified=False, as_paper=True)
    run_json.start(tmp_path, fresh)
    assert fresh["modified"] is False and fresh["as_paper"] is True and fresh["started"] > "2026-01-01"


def test_a_record_that_cannot_be_read(tmp_path):
    for text in ('{"finished": tr', "[1]", ""):
        (tmp_path / "run.json").write_text(text)
        assert run_json.read(tmp_path) == {}
    assert run_json.read(tmp_path / "none") == {}


def test_words_that_change_what_is_trained():
    harmless = ("--workers", "-j", "trainer.save_freq")
    for added in ("", "-j 4", "--workers=4", "trainer.save_freq=5 +trainer.save_freq=5", "-j 4 -j=1"):
        assert run_json.is_as_paper(added.split(), harmless), added
    for added in ("--lr 1", "-j 4 --lr=1", "4", "data.seed=1", "-j --lr 1"):
        assert not run_json.is_as_paper(added.split(), harmless), added


def test_the_code_of_a_checkout(git, tmp_path):
    clean = run_json.code(tmp_path)
    assert len(clean["commit"]) == 40 and clean["modified"] is False
    (tmp_path / "output").mkdir()
    assert run_json.code(tmp_path) == clean and run_json.code(tmp_path, tmp_path / "none") == clean
    (tmp_path / "train.py").write_text("steps = 2\n")
    assert run_json.code(tmp_path) == {**clean, "modified": True}
    git("-c", "user.email=a@b.c", "commit", "-am", "on top", "--author", "A <a@b.c>")
    assert run_json.code(tmp_path)["modified"] is True  # committed, but not by apply.py
    assert run_json.code(tmp_path / "output") == {"commit": None, "modified": None}  # inside another repository


def test_a_checkout_of_apply_py_is_clean(patched_timm):
    assert run_json.code(patched_timm)["modified"] is False
