"""Verbs without names: an upstream that cannot be had is left out, and one on request is, until it has a checkout."""

from __future__ import annotations

import shutil

import pytest
from kit import content
from test_sources import unreachable
from test_words import hinted


@pytest.fixture
def broken(project):
    """Beta, which has no source package, cannot be reached."""
    unreachable(project, "beta")
    return project


def restore(project) -> None:
    project.upstreams["beta"]["git"] = f"file://{project.up}/beta"
    project.save()


# --- left out, as its source cannot be had ---------------------------------------------------------------------------


def test_the_others_are_applied(broken):
    result = broken.run("apply", code=6)
    assert "applied 2 patches" in result.out and broken.state("alpha") == "applied"
    assert not broken.checkout("beta").exists()
    first, *_, left, again = result.err.splitlines()
    assert first.startswith("error: beta b1: the repository ") and first.endswith("cannot be reached")
    assert left.strip() == "it was left out, the others are ready: alpha"
    assert "nothing was changed" not in result.text and "error" not in result.out
    restore(broken)
    (words,) = hinted(again)
    assert words[:2] == ["apply", "beta"]
    broken.run(*words)
    assert broken.state("beta") == "applied"


def test_the_verb_may_be_left_out_too(broken):
    assert "left out" in broken.run(code=6).err and broken.state("alpha") == "applied"


def test_nobody_can_be_had(broken):
    unreachable(broken)
    (broken.index / "alpha-1.0.tar.gz").unlink()
    error = broken.run("apply", code=6).err
    assert (
        error.count("error: ") == 2
        and error.count("it was left out, nothing was changed") == 2
        and "ready" not in error
    )
    assert [words[:2] for words in hinted(error)] == [["apply", "alpha"], ["apply", "beta"]]


def test_the_others_are_all_or_nothing(broken):
    """Only a source that cannot be had is a reason to go on."""
    broken.upstreams["gamma"] = {**broken.upstreams["beta"], "git": f"file://{broken.up}/beta"}
    broken.save()
    overlay = broken.root / "overlays/gamma"
    overlay.mkdir()
    (overlay / "main.py").write_text("print(0)\n")
    error = broken.run("apply", code=3).err
    assert "overlays/gamma/main.py would overwrite main.py" in error and "left out" not in error
    assert not any(broken.checkout(name).exists() for name in broken.upstreams)
    (overlay / "main.py").unlink()
    assert "the others are ready: alpha, gamma" in broken.run("apply", code=6).err


def test_an_applied_checkout_stays_as_it_is(broken):
    restore(broken)
    broken.run("apply")
    unreachable(broken, "beta")
    shutil.rmtree(broken.cache)
    result = broken.run("apply")
    assert "beta b1: already applied" in result.out and result.err == ""
    # Where it has to change and cannot, the others do.
    before = content(broken.checkout("beta"))
    broken.upstreams["beta"]["versions"]["b1"]["commit"] = "1" * 40
    broken.save()
    (broken.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "beta b1" in broken.run("apply", code=6).err
    assert (broken.state("alpha"), broken.state("beta")) == ("applied", "stale")
    assert content(broken.checkout("beta")) == before


def test_dry_run(broken):
    result = broken.run("apply", "--dry-run", code=6)
    assert "alpha v1: would be applied" in result.out
    assert (
        "beta b1: " in result.err and "it was left out, nothing was changed" in result.err and "ready" not in result.err
    )
    assert not broken.checkouts.exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_json(broken, more):
    result = broken.run("apply", "--json", *more, code=6)
    assert result.json["alpha"]["action"] == "fresh" and "error" not in result.json["alpha"]
    beta = result.json["beta"]
    assert (beta["version"], beta["action"]) == ("b1", "none") and beta["error"].startswith("beta b1: the repository ")
    assert "error: beta b1: " in result.err


def test_fetch(broken):
    result = broken.run("fetch", "--json", code=6)
    assert result.json["alpha"]["fetched"] and not result.json["beta"]["fetched"]
    assert result.json["beta"]["error"].startswith("beta b1: the repository ")
    assert "it was left out, the others are ready: alpha" in result.err
    assert [words[:2] for words in hinted(result.err)] == [["fetch", "beta"]]
    error = broken.run("fetch", "alpha", "beta", code=6).err
    assert "left out" not in error and "nothing was changed" in error


def test_ctrl_c_after_the_switch(broken, monkeypatch):
    monkeypatch.setattr(broken.engine.apply, "report", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "the apply is complete, but beta could not be had" in broken.run("apply", code=6).err
    assert broken.state("alpha") == "applied"


# --- on request ------------------------------------------------------------------------------------------------------


@pytest.fixture
def requested(project):
    """Beta is made only when it is named."""
    project.upstreams["beta"]["on_request"] = True
    project.save()
    return project


def concerned(project, *args: str) -> set[str]:
    return set(project.run(*args, "--json").json)


def test_left_out_until_it_is_there(requested, tmp_path):
    every = [("fetch",), ("apply",), ("apply", "--dry-run"), ("status",), ("diff",), ("export", "--check"), ("revert",)]
    for verb in every:
        assert concerned(requested, *verb) == {"alpha"}, verb
    assert concerned(requested, "status", "beta") == {"beta"}
    requested.run("apply")
    requested.run("apply", "beta")
    for verb in every:
        assert concerned(requested, *verb) == {"alpha", "beta"}, verb
    assert requested.state("beta") == "clean"
    requested.run("apply")
    assert requested.state("beta") == "applied"
    # Its checkout is looked for where this run has its checkouts.
    assert concerned(requested, "status", "--checkouts", str(tmp_path / "other")) == {"alpha"}


def test_an_empty_folder_is_no_checkout(requested):
    requested.checkout("beta").mkdir(parents=True)
    assert concerned(requested, "apply") == {"alpha"}


def test_false_is_the_default(requested):
    requested.upstreams["beta"]["on_request"] = False
    requested.save()
    assert concerned(requested, "status") == {"alpha", "beta"}
