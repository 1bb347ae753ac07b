"""An upstream without patches and overlay files, which is only pinned: each verb knows what to do with it."""

from __future__ import annotations

import json
import shutil

import pytest
from kit import content, git, git_state, replace_in


@pytest.fixture
def bare(project):
    """Beta has no patch any more, and upstreams.json says so."""
    shutil.rmtree(project.root / "patches/beta")
    return project


def test_every_verb(bare):
    assert bare.state("beta") == "absent"
    would = bare.run("apply", "beta", "--dry-run").out
    assert "would be applied: no overlay (upstream as it is); nothing was changed" in would
    out = bare.run("apply", "beta").out
    assert "applied no overlay (upstream as it is); verified 1 file in" in out
    checkout = bare.checkout("beta")
    assert content(checkout) == {"main.py": (False, b"print(1)\nprint(2)\nprint(3)\n")}
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "era", "upstream/b1").split() == [bare.ids["beta"]] * 2
    assert git(checkout, "fsck", "--strict", check=False) == ""
    assert bare.state("beta") == "applied"
    assert "already applied" in bare.run("apply", "beta").out
    for more in ([], ["--stat"]):
        found = bare.run("diff", "beta", *more)
        assert (found.out, "this upstream has no overlay" in found.err) == ("", True)
    for more in (["--check"], []):
        assert "equal the checkout" in bare.run("export", "beta", *more).out
    assert "no patches" in bare.run("port", "beta", "--onto", "main").out
    assert "back on upstream" in bare.run("revert", "beta").out
    assert bare.state("beta") == "clean"
    assert "nothing to revert" in bare.run("revert", "beta").out
    bare.run("apply", "beta", "--offline")
    assert bare.state("beta") == "applied"
    assert not (bare.root / "patches/beta").exists() and not (bare.root / "overlays/beta").exists()


def test_edits(bare, tmp_path):
    bare.run("apply", "beta")
    checkout, saved = bare.checkout("beta"), tmp_path / "mine.patch"
    replace_in("main.py", "print(2)", "print(22)")(checkout)
    assert bare.state("beta") == "modified"
    assert "+print(22)" in bare.run("diff", "beta", "--local").out
    assert "main.py" in bare.run("revert", "beta", code=5).err
    assert (
        "differs: patches/beta/b1/0001-describe-this-change.patch" in bare.run("export", "beta", "--check", code=1).out
    )
    bare.run("revert", "beta", "--keep-edits", str(saved))
    assert bare.state("beta") == "clean"
    bare.run("apply", "beta")
    git(checkout, "apply", str(saved))
    # The first patch and the first new file of an upstream that had none.
    (checkout / "new.py").write_text("NEW = 1\n")
    bare.pinning = False
    bare.run("export", "beta")
    numbers = json.loads((bare.root / "upstreams.json").read_text())["beta"]
    assert (numbers["overlay_files"], numbers["versions"]["b1"]["patches"]) == (1, 1)
    assert bare.state("beta") == "stale"
    bare.run("apply", "beta")
    assert bare.state("beta") == "applied" and "print(22)" in bare.run("diff", "beta").out


def test_an_overlay_that_comes_and_goes(bare):
    bare.run("apply", "beta")
    upstream = content(bare.checkout("beta"))
    (bare.root / "overlays/beta").mkdir()
    (bare.root / "overlays/beta/new.py").write_text("NEW = 1\n")
    assert bare.state("beta") == "stale"
    assert "0 patches (0 lines), 1 new file" in bare.run("apply", "beta").out
    assert bare.state("beta") == "applied" and (bare.checkout("beta") / "new.py").exists()
    shutil.rmtree(bare.root / "overlays/beta")
    assert bare.state("beta") == "stale"
    bare.run("apply", "beta")
    assert bare.state("beta") == "applied" and content(bare.checkout("beta")) == upstream


def test_own_clone(bare, tmp_path):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(bare.up / "beta"), str(clone))
    git(clone, "checkout", "-q", "-b", "mine", bare.ids["beta"])
    before, files = git_state(clone), content(clone)
    place = ["beta", "--checkout", str(clone)]
    bare.run("apply", *place)
    assert bare.state(*place) == "applied" and git(clone, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert content(clone) == files
    bare.run("revert", *place)
    assert git_state(clone) == before and content(clone) == files


def test_a_switch_cut_short_is_completed(bare, monkeypatch):
    bare.run("apply", "beta")
    bare.run("revert", "beta")
    switch = bare.engine.switch
    real = switch.move_refs
    monkeypatch.setattr(switch, "move_refs", lambda *args: (_ for _ in ()).throw(OSError(5, "broken")))
    bare.run("apply", "beta", code=7)
    assert bare.state("beta") == "interrupted"
    monkeypatch.setattr(switch, "move_refs", real)
    assert "completed the apply that was cut short" in bare.run("apply", "beta").out
    assert bare.state("beta") == "applied"
