# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Nothing that a checkout or the cache says runs a program, leads git elsewhere or changes bytes."""

from __future__ import annotations

import subprocess

import pytest
from kit import SECOND, content, git, hinted, write_tree

ELSEWHERE = '[protocol]\n allow = always\n[url "{to}"]\n insteadOf = /\n insteadOf = file://\n'
PARTIAL = """
[core]
 repositoryFormatVersion = 1
[extensions]
 partialClone = evil
[remote "evil"]
 url = {up}
 promisor = true
 uploadpack = {run}
"""
# Whatever else runs a program, and what changes bytes. Hooks in a configuration came with git 2.54.
PROGRAMS = """
[core]
 fsmonitor = {run}
 pager = {run}
 editor = {run}
 askPass = {run}
 hooksPath = {own}/hooks
 worktree = {own}/elsewhere
 autocrlf = true
[credential]
 helper = !{run}
[hook "evil"]
 command = {run}
 event = reference-transaction
 event = post-index-change
 event = post-checkout
[filter "evil"]
 clean = {run}
 smudge = {run}
 process = {run}
[diff]
 external = {run}
 noprefix = true
 context = 0
[diff "evil"]
 command = {run}
 textconv = {run}
[merge "evil"]
 driver = {run}
[gpg]
 program = {run}
[commit]
 gpgSign = true
[sequence]
 editor = {run}
[uploadpack]
 packObjectsHook = {run}
[fetch]
 bundleURI = ext::{run}
[maintenance]
 auto = true
[gc]
 auto = 1
"""
EVIL = "* filter=evil diff=evil merge=evil text eol=crlf\n"
ATTRIBUTES = {"info/attributes": EVIL, "../.gitattributes": EVIL}
HOSTILE = {  # what is written into the folder .git; `config` is added to
    "ssh": {"config": ELSEWHERE.format(to="ssh://host/") + "[core]\n sshCommand = {run}\n"},
    "git through a proxy": {"config": ELSEWHERE.format(to="git://host/") + "[core]\n gitProxy = {run}\n"},
    "a remote helper": {"config": ELSEWHERE.format(to="ext::{run} ")},
    "a program at the other end": {"config": '[remote "file://{up}"]\n url = {up}\n uploadpack = {run}\n'},
    "programs": {"config": PROGRAMS, **ATTRIBUTES},
    "programs in another file": {"config": "[include]\n path = more\n", "more": PROGRAMS, **ATTRIBUTES},
    "hooks": {f"hooks/{name}": "#!/bin/sh\n{run}\n" for name in ("reference-transaction", "post-index-change")},
}


@pytest.fixture
def infect(project, tmp_path):
    """Write files into the repository of the checkout or of the cache. None of them may run the program."""
    write_tree(tmp_path, {"program.sh": f"#!/bin/sh\ntouch '{tmp_path}/ran'\nexit 1\n"})

    def write(where: str, files: dict[str, str]):
        values = {"run": tmp_path / "program.sh", "own": repository(project, where), "up": project.up / "alpha"}
        for path, text in files.items():
            for key, value in values.items():
                text = text.replace(f"{{{key}}}", str(value))
            target = values["own"] / path
            write_tree(values["own"], {path: (target.read_text() if path == "config" else "") + text})
            target.chmod(0o755)

    yield write
    assert not (tmp_path / "ran").exists()


def repository(project, where: str):
    return project.checkout() / ".git" if where == "checkout" else project.cache / "git/alpha.git"


@pytest.mark.parametrize("where", ["checkout", "cache"])
@pytest.mark.parametrize("name", HOSTILE)
def test_every_verb_works_and_runs_no_program(project, infect, name, where):
    """A switch copies a commit from the cache. Where the cache is hostile, it has to fetch that commit first."""
    project.run("apply", "alpha")
    if where == "checkout":
        project.run("fetch", "alpha", "--version", "v2")
    infect(where, HOSTILE[name])
    write_tree(project.checkout(), {"README.md": "mine\n"})
    assert "\n--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n" in project.run("diff", "alpha", "--local").out
    project.run("apply", "alpha", "--version", "v2")
    found = content(project.checkout())
    assert {path: found[path][1].decode() for path in SECOND} == {**SECOND, "README.md": "mine\n"}
    assert "back on upstream" in project.run("revert", "alpha", "--keep-edits").out
    project.run("fetch", "alpha")


@pytest.mark.parametrize("where", ["checkout", "cache"])
def test_partial_clone_is_completed_from_nowhere(project, infect, where):
    """A run that needs it ends with the reason."""
    project.run("apply", "alpha")
    project.run("fetch", "alpha", "--version", "v2")
    own = repository(project, where)
    blob = git(own, "rev-parse", f"{project.ids['v1' if where == 'checkout' else 'v2']}:src/core.py")
    for pack in own.glob("objects/pack/*.pack"):
        pack.rename(own / pack.name)
        with open(own / pack.name) as data:
            subprocess.run(["git", "--git-dir", own, "unpack-objects", "-q"], stdin=data, check=True)
    (own / "objects" / blob[:2] / blob[2:]).unlink()
    infect(where, {"config": PARTIAL})
    if where == "checkout":
        assert f"missing blob object '{blob}'" in project.run("revert", "alpha", code=5).err
    else:
        error = project.run("apply", "alpha", "--version", "v2", code=3).err
        assert f"missing blob object '{blob}'" in error
        project.run(*hinted(error)[0])  # which repairs the cache
        project.run("apply", "alpha", "--version", "v2")
