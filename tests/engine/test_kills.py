# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""kill -9 at random moments of apply and revert, beside edits, untracked files and commits; then the same again.

Every edit holds a token of its own. It is lost if that token is in no file of the checkout and no commit of a branch.
The default is one kill for each kind of command in each part of its run. ERA_KILLS is another number of kills,
ERA_KILLS_SEED another sequence of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from kit import commit, git, write_tree

# An apply of a newer overlay, of another version, onto a clean checkout, and where there is no checkout; a revert, and
# a revert with edits and commits to keep.
COMMANDS = {
    "newer": ["apply", "alpha", "beta"],
    "version": ["apply", "alpha", "--version", "v2"],
    "clean": ["apply", "alpha", "beta"],
    "fresh": ["apply", "alpha", "beta"],
    "revert": ["revert", "alpha", "beta"],
    "keep": ["revert", "alpha", "beta", "--keep-edits"],
}
# Seconds from a start to a kill: after the process began, or after a switch did.
MOMENTS = {"start": (0, 1.5), "mark": (0, 0), "soon after": (0, 0.02), "later": (0.02, 0.1)}
NAMES = ("alpha", "beta")
CARRIED = {"alpha": "README.md", "beta": "notes.md"}  # changed by no version and no patch
PATCHED = {"alpha": "src/core.py", "beta": "main.py"}
OURS = "src/era.py"
OVERLAY = "ERA = {}\n" + "# a line\n" * 30_000  # so that writing it takes some time
KILLS, SEED = int(os.environ.get("ERA_KILLS", 24)), int(os.environ.get("ERA_KILLS_SEED", 1))


def set_overlay(project, number: int) -> None:
    for name in NAMES:
        write_tree(project.root / "overlays" / name, {OURS: OVERLAY.format(number)})


def is_cut(project, name: str) -> bool:
    return (project.checkout(name) / ".git/refs/worktree/era-next").exists()


def edit(project, name: str, path: str, what: str) -> tuple[str, str]:
    """Append a token to a file."""
    token, target = f"{what} of {path} in {name}", project.checkout(name) / path
    target.parent.mkdir(exist_ok=True)
    with open(target, "a") as out:
        out.write(f"# {token}\n")
    return name, token


def prepare(project, kind: str) -> list[tuple[str, str]]:
    """The checkouts in the state that this kind is about. Returns the tokens of the edits."""
    shutil.rmtree(project.checkouts)
    shutil.copytree(project.root / ("reverted" if kind == "clean" else "applied"), project.checkouts, symlinks=True)
    if kind == "fresh":
        shutil.rmtree(project.checkout("beta"))
    tokens = []
    for name in (name for name in NAMES if project.checkout(name).exists()):
        if kind == "keep":
            tokens.append(edit(project, name, PATCHED[name], "a commit"))
            commit(project.checkout(name), "Mine")
            tokens += [edit(project, name, path, "an edit") for path in (PATCHED[name], OURS)]
        if kind in ("newer", "version"):
            tokens.append(edit(project, name, CARRIED[name], "carried"))
        tokens.append(edit(project, name, "runs/log.txt", "untracked"))
    set_overlay(project, 2 if kind in ("newer", "fresh") else 1)
    return tokens


def kill(project, chance: random.Random, kind: str, moment: str) -> tuple[list[str], bool]:
    """Start the command and kill it. Returns the checkouts in the middle of a switch, and whether a git may go on."""
    process = project.start(*COMMANDS[kind], start_new_session=True)
    while moment != "start" and process.poll() is None and not any(is_cut(project, name) for name in NAMES):
        time.sleep(0.0005)
    time.sleep(chance.uniform(*MOMENTS[moment]))
    alone = chance.random() < 0.3
    with contextlib.suppress(ProcessLookupError):
        process.kill() if alone else os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return [name for name in NAMES if is_cut(project, name)], alone


def place(project, name: str, token: str) -> str:
    checkout = project.checkout(name)
    for folder, folders, files in os.walk(checkout):  # os.walk skips what a git that was not killed removes meanwhile
        folders[:] = [inner for inner in folders if inner != ".git"]
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                if token.encode() in Path(folder, file).read_bytes():
                    return "file"
    commits = git(checkout, "rev-list", "--branches").split()
    return "commit" if commits and git(checkout, "grep", "-lF", token, *commits, check=False) else "NOWHERE"


@pytest.mark.slow
def test_nothing_is_lost_and_the_same_command_completes(project):
    chance = random.Random(SEED)
    project.add({f"overlays/beta/{OURS}": ""})
    set_overlay(project, 1)
    for verb, folder in {"apply": "applied", "revert": "reverted"}.items():
        project.run(verb)
        shutil.copytree(project.checkouts, project.root / folder, symlinks=True)
    pairs = itertools.cycle(itertools.product(COMMANDS, MOMENTS))
    for kind, moment in itertools.islice(pairs, KILLS):
        tokens = prepare(project, kind)
        cut, alone = kill(project, chance, kind, moment)
        lost = [token for name, token in tokens if place(project, name, token) == "NOWHERE"]
        if cut and not alone and chance.random() < 0.5:  # somebody goes on working before the second run
            name = chance.choice(cut)
            tokens.append(edit(project, name, chance.choice([PATCHED[name], OURS]), "late"))
        project.run(*COMMANDS[kind])
        for name, token in tokens:
            found = place(project, name, token)
            if found == "NOWHERE" or (token.startswith(("untracked", "carried")) and found != "file"):
                lost.append(token)
        assert not lost, (kind, moment, alone)
        for name in set(COMMANDS[kind]) & {*NAMES}:
            assert project.state(name) in ("applied", "clean", "modified"), (kind, moment, alone, name)
            reverted = git(project.checkout(name), "rev-parse", "HEAD") == project.ids[{"alpha": "v1"}.get(name, name)]
            assert reverted == (COMMANDS[kind][0] == "revert"), (kind, moment, alone, name)
            records = git(project.checkout(name), "for-each-ref", "refs/worktree").splitlines()
            era = git(project.checkout(name), "for-each-ref", "refs/heads/era")
            assert (len(records), bool(era)) == (1, not reverted), (kind, moment, alone, name)
