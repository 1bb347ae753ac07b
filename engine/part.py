# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A part of a commit of a large repository: its trees, and of its files those below some paths."""

from __future__ import annotations

import os
from collections.abc import Iterable

from engine.git import AUTHOR, DATE, EMAIL, PLAIN_MODES, Git
from engine.project import Part
from engine.session import WRONG_BASE, Stop


def serving_parts(git: Git, place: str) -> tuple[str, ...]:
    """What lets a folder on this machine serve a part of a commit, as the servers of GitHub and GitLab do."""
    resolved = (
        os.fsdecode(git.run("ls-remote", "--get-url", place, network=True).stdout).strip().removeprefix("file://")
    )
    allowed = "-c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true"
    return (f"--upload-pack=git {allowed} upload-pack",) if os.path.isdir(resolved) else ()


def fetch_files(trees: Git, commit: str, part: Part, place: str, into: str, new: Git):
    """Fetch the files of a part by their ids into `new`, where they become the commit `into`.

    git cannot ask for a folder. `trees` has the commit without its files, and says which they are. They are fetched
    into another repository, because a server leaves out what belongs to a commit that the asking one has.
    """
    rows = (row.partition("\t") for row in trees("ls-tree", "-r", "-z", "--full-tree", commit).split("\0")[:-1])
    files = {path: info.split(" ") for info, _, path in rows if within(path, part.paths)}
    lacking = [path for path in part.paths if not any(within(file, [path]) for file in files)]
    odd = [path for path, (mode, *_) in files.items() if mode not in PLAIN_MODES]
    if lacking or odd:
        problem = f"{commit} has no plain {', '.join([*lacking, *odd])}"
        raise Stop(WRONG_BASE, problem, "`git diff upstreams.json` shows whether it was edited")
    ids = "".join(f"{oid}\n" for oid in sorted({oid for _, _, oid in files.values()})).encode()
    ask = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--stdin", *serving_parts(new, place), "--", place)
    done = new.run(*ask, data=ids, ok=None, network=True)
    if not done.returncode:
        message = f"A part of the commit {part.of}\n".encode()
        who = f"{AUTHOR} <{EMAIL}> {DATE}"
        head = f"commit {into}\nauthor {who}\ncommitter {who}\ndata {len(message)}\n".encode() + message
        lines = [f"M {mode} {oid} {path}".encode() for path, (mode, _, oid) in files.items()]
        new.run("fast-import", "--quiet", "--done", data=b"\n".join([head, *lines, b"done\n"]))
    return new, done


def within(path: str, paths: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in paths)
