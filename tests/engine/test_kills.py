# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""kill -9 at random moments of apply and revert, beside edits, untracked files and commits; then the same again.

Every edit holds a token of its own. It is lost if it is neither in a file of the checkout nor in a commit of a branch.
ERA_KILLS is the number of kills, ERA_KILLS_SEED another sequence of them.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import git, write_tree

KILLS, SEED = int(os.environ.get("ERA_KILLS", 60)), int(os.environ.get("ERA_KILLS_SEED", 1))
NAMES = ("alpha", "beta")
# What is killed: an apply of a newer overlay, of another version, on a clean and in an empty place; a revert, and one
# that has edits and commits to keep.
KINDS = ("newer", "newer", "version", "clean", "fresh", "revert", "keep", "keep")
CARRIED = {"alpha": "README.md", "beta": "notes.md"}  # changed by no version and no patch
PATCHED = {"alpha": "src/core.py", "beta": "main.py"}
OURS = "src/era.py"
LINES = 30_000  # of an overlay file, so that writing it takes some time


class Kills:
    """The checkouts of one project, and what was counted."""

    def __init__(self, project):
        self.project, self.chance, self.turn, self.kind = project, random.Random(SEED), 0, ""
        self.seen, self.lost, self.failed = collections.Counter(), [], []
        self.trees: dict = {}

    def exists(self, name: str) -> bool:
        return self.project.checkout(name).exists()

    def is_cut(self, name: str) -> bool:
        return (self.project.checkout(name) / ".git/refs/worktree/era-next").exists()

    def set_overlay(self, number: int) -> None:
        for name in NAMES:
            write_tree(self.project.root / "overlays" / name, {OURS: f"ERA = {number}\n" + "# a line\n" * LINES})

    def edit(self, name: str, path: str, what: str) -> tuple[str, str]:
        """Append a token to a file."""
        token = f"{what}-{self.turn}-{name}"
        target = self.project.checkout(name) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "a") as out:
            out.write(f"# {token}\n")
        return name, token

    def place(self, name: str, token: str) -> str:
        checkout = self.project.checkout(name)
        for folder, folders, files in os.walk(checkout):  # which skips what a git that goes on removes meanwhile
            folders[:] = [inner for inner in folders if inner != ".git"]
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    if token.encode() in Path(folder, file).read_bytes():
                        return "file"
        commits = git(checkout, "rev-list", "--branches").split()
        return "commit" if commits and git(checkout, "grep", "-lF", token, *commits, check=False) else "NOWHERE"

    def make_templates(self) -> None:
        """The checkouts with and without the overlay, which each turn starts from."""
        self.set_overlay(0)
        for verb in ("apply", "revert"):
            self.project.run(verb)
            shutil.copytree(self.project.checkouts, self.project.root / f"after-{verb}", symlinks=True)

    def prepare(self) -> tuple[list[str], list[tuple[str, str]]]:
        """A checkout of each upstream in the state that this kind is about. Returns the command, and the tokens."""
        shutil.rmtree(self.project.checkouts)
        start = self.project.root / ("after-revert" if self.kind == "clean" else "after-apply")
        shutil.copytree(start, self.project.checkouts, symlinks=True)
        self.set_overlay(0)
        if self.kind == "fresh":
            shutil.rmtree(self.project.checkout("beta"))
        tokens = self.make_edits()
        if self.kind in ("newer", "fresh"):
            self.set_overlay(1 + self.turn % 3)
        command = ["revert", *NAMES] if self.kind in ("revert", "keep") else ["apply", *NAMES]
        command = ["apply", "alpha", "--version", "v2"] if self.kind == "version" else command
        return [*command, *(["--keep-edits"] if self.kind == "keep" else [])], tokens

    def make_edits(self) -> list[tuple[str, str]]:
        tokens = []
        for name in filter(self.exists, NAMES):
            tokens.append(self.edit(name, f"runs/{self.turn}.txt", "untracked"))
            if self.kind in ("newer", "version"):
                tokens.append(self.edit(name, CARRIED[name], "carried"))
            if self.kind == "keep":
                tokens.append(self.edit(name, PATCHED[name], "committed"))
                git(self.project.checkout(name), "commit", "-qam", "Mine")
                tokens += [self.edit(name, path, f"in-{path}") for path in (PATCHED[name], OURS)]
        return tokens

    def kill(self, command: list[str]) -> list[str]:
        """Start the command and kill it. Returns the checkouts that are in the middle of a switch, if nothing runs."""
        process = subprocess.Popen(
            [sys.executable, str(self.project.root / "apply.py"), *command, "--cache", str(self.project.cache)],
            env={**os.environ, **self.project.env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self.chance.random() < 0.75:  # aim at a switch: wait for its mark
            while process.poll() is None and not any(map(self.is_cut, NAMES)):
                time.sleep(0.0005)
            time.sleep(self.chance.uniform(0, 0.12) * self.chance.random())
        else:
            time.sleep(self.chance.uniform(0, 1.5))
        whole_group = self.chance.random() < 0.7
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if whole_group else process.kill()
        process.wait()
        cut = [name for name in NAMES if self.is_cut(name)]
        self.seen["kills in a switch" if cut else "kills before or after a switch"] += 1
        self.seen["kills of all processes" if whole_group else "kills of apply.py alone"] += 1
        return cut if whole_group else []

    def check(self, tokens: list[tuple[str, str]], at_end: bool) -> None:
        for name, token in tokens:
            place = self.place(name, token)
            self.seen[f"edits in a {place}"] += at_end
            if place == "NOWHERE":
                self.lost.append((self.turn, self.kind, at_end, token))
            if at_end and token.startswith(("untracked", "carried")) and place != "file":
                self.failed.append((self.turn, self.kind, "not in its file", token))

    def one(self) -> None:
        self.kind = self.chance.choice(KINDS)
        command, tokens = self.prepare()
        cut = self.kill(command)
        self.check(tokens, at_end=False)
        if cut and self.chance.random() < 0.5:  # somebody goes on working before the second run
            name = self.chance.choice(cut)
            tokens.append(self.edit(name, self.chance.choice([PATCHED[name], OURS]), "late"))
            self.seen["edits before the second run"] += 1
        result = self.project.spawn(*command, code=None)
        if result.code:
            self.failed.append((self.turn, self.kind, result.code, result.text[-500:]))
        self.check(tokens, at_end=True)
        for name in NAMES:
            tree = git(self.project.checkout(name), "rev-parse", "HEAD^{tree}")
            overlay = (self.project.root / "overlays" / name / OURS).read_bytes()
            key = (name, "base") if command[0] == "revert" else (name, self.kind == "version", overlay)
            if self.trees.setdefault(key, tree) != tree:
                self.failed.append((self.turn, self.kind, "another tree", name))
        self.turn += 1


@pytest.mark.slow
def test_nothing_is_lost_and_the_same_command_completes(project):
    kills = Kills(project)
    kills.make_templates()
    for _ in range(KILLS):
        kills.one()
    print(KILLS, "kills:", dict(kills.seen))
    assert (kills.lost, kills.failed) == ([], [])
