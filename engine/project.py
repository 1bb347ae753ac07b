# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What this project holds: upstreams.json, patches with their series, overlay files with their lists."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from engine.session import USAGE, Stop

ROOT = Path(__file__).resolve().parent.parent  # the folder of apply.py
# Caches, build products, editors' files: never part of an overlay, never reported as edits.
JUNK = re.compile(r"(^|/)(__pycache__|[^/]*\.egg-info|\.DS_Store)(/|$)|\.py[cod]$|~$|(^|/)\.[^/]*\.sw.$")
LABEL = re.compile(r"(?![0-9a-f]{40}$)(?!.*(\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
DIFF_LINE = re.compile(r"diff --git a/(?P<path>.+) b/(?P=path)")
MODES_AND_IDS = re.compile(r"^(?:old mode|new mode|deleted file mode|new file mode|index) .*", re.M)


@dataclasses.dataclass(frozen=True)
class Sdist:
    project: str
    version: str
    sha256: str
    lacks: str  # for people, after "lacks": which files of the commit are missing, and what does not work then
    adds: tuple[str, ...] = ()  # files and folders (ending in /) that packaging put in; they are left out


@dataclasses.dataclass(frozen=True)
class Part:
    of: str  # the upstream's commit
    paths: tuple[str, ...]  # files, and folders with all that is in them


@dataclasses.dataclass(frozen=True)
class Version:
    label: str
    commit: str  # with a part: the one that apply.py makes of it, which has the same id everywhere
    tag: str | None = None
    sdist: Sdist | None = None
    part: Part | None = None


@dataclasses.dataclass(frozen=True)
class Upstream:
    name: str
    git: str
    license: str
    default: str
    versions: dict[str, Version]
    on_request: bool = False  # a verb without names leaves it out while it has no checkout
    plugin: str = ""  # a sentence for people: which other versions need no patches

    def version(self, label: str) -> Version:
        """The version of this label; `1.0.28` is as good as `v1.0.28`."""
        version = self.versions.get(label) or self.versions.get(f"v{label}")
        if not version:
            more = [self.plugin] if self.plugin else []
            raise Stop(USAGE, f"{self.name} has no version {label!r}", f"known: {', '.join(self.versions)}", *more)
        return version


def read_upstreams() -> dict[str, Upstream]:
    upstreams, where = {}, ""
    try:
        for name, fields in json.loads((ROOT / "upstreams.json").read_text(encoding="utf-8")).items():
            versions, where = {}, f"{name}: "
            for label, values in fields["versions"].items():
                where = f"{name} {label}: "
                sdist = Sdist(**values["sdist"]) if "sdist" in values else None
                part = Part(**values["part"]) if "part" in values else None
                versions[label] = Version(label, **{**values, "sdist": sdist, "part": part})
                if not LABEL.fullmatch(label) or not re.fullmatch("[0-9a-f]{40}", versions[label].commit):
                    raise ValueError("expected a plain label and a commit of 40 hex digits")
            upstreams[name] = Upstream(name, **{**fields, "versions": versions})
            if upstreams[name].default not in versions:
                raise ValueError(f"the default {upstreams[name].default!r} is not among the versions")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        undo = "`git diff upstreams.json` shows what was edited, `git checkout -- upstreams.json` undoes it"
        raise Stop(USAGE, f"upstreams.json: {where}{error}", undo) from None
    return upstreams


# --- patches ---


@dataclasses.dataclass(frozen=True)
class Patch:
    file: str
    raw: bytes
    message: str  # of its commit
    files: dict[str, list[str]]  # as in `read_diff`

    @property
    def subject(self) -> str:
        return self.message.split("\n")[0]


def read_patch(file: str, raw: bytes) -> Patch:
    """A patch in mail format, as `git format-patch --full-index` writes it.

    When the patch is applied, what git makes of it is compared with its `index` lines: `apply_patch` in overlay.py.
    """
    head, _, diffs = raw.decode("utf-8", "surrogateescape").partition("\ndiff --git ")
    headers, _, body = head.partition("\n\n")
    subject = re.search(r"^Subject: (?:\[PATCH[^]]*\] *)?(.+)$", re.sub(r"\n[ \t]+", " ", headers), re.M)
    if "\r\n" in head or "\0" in head or not head.startswith("From ") or not subject or not diffs:
        problem = f"{file} is not in mail format: `From <id> <date>`, Subject:, then `diff --git`, with LF, without NUL"
        raise Stop(USAGE, problem, "`git checkout -- patches` restores it (set core.autocrlf to false)")
    files = read_diff("diff --git " + diffs)
    for path, lines in files.items():
        if path.startswith("diff --git") or re.search(r"^new file| (?!100644|100755)[0-7]{6}$", "\n".join(lines), re.M):
            problem = f"expected changes or deletions of plain files, found {path}: {', '.join(lines)}"
            raise Stop(USAGE, f"{file}: {problem}", "new files belong in overlays/")
    message = f"{subject[1].strip()}\n\n" + body.split("\n---\n")[0].strip("\n")
    return Patch(file, raw, message.rstrip("\n") + "\n", files)


def read_diff(diff: str) -> dict[str, list[str]]:
    """Map each path to the lines that give its modes and the ids of its content, before and after."""
    files = {}
    for block in re.split(r"^(?=diff --git )", diff, flags=re.M)[1:]:
        top = block.partition("\n@@ ")[0]
        line = top.split("\n")[0]
        path = DIFF_LINE.fullmatch(line)
        files[path["path"] if path else line] = MODES_AND_IDS.findall(top)
    return files


# --- lists ---


def read_list(file: str) -> dict[str, str]:
    """A series or an overlay list: path to source, which is empty except in `path <- source`; # starts a comment."""
    try:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise Stop(USAGE, f"cannot read {file}: {error}", f"`git checkout -- {file}` brings it back") from None
    sources: dict[str, str] = {}
    for line in lines:
        path, _, source = (part.strip() for part in line.split("#")[0].partition("<-"))
        if path in sources:
            raise Stop(USAGE, f"{file}: {path} is listed twice", f"`git checkout -- {file}` undoes an edit")
        if path:
            sources[path] = source
    return sources


def read_series(name: str, label: str) -> list[Patch]:
    folder = f"patches/{name}/{label}"
    return [read_patch(file, (ROOT / folder / file).read_bytes()) for file in read_list(f"{folder}/series")]


def read_files(name: str) -> dict[str, str]:
    """The overlay files: path in the checkout to path in this project, in the order of the list."""
    listed = read_list(f"overlays/{name}.list")
    return {path: source or f"overlays/{name}/{path}" for path, source in listed.items()}


def present(pattern: str) -> set[str]:
    """The files of this project that match, by their paths in it."""
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.is_symlink() or not path.is_dir()}
    return {path for path in files if not JUNK.search(path)}


def read_overlay(name: str, label: str) -> tuple[list[Patch], dict[str, str]]:
    """The patches, and the overlay files as in `read_files`.

    A file that is listed but missing, or there but not listed, must not silently lead to another overlay.
    """
    folder, files = f"patches/{name}/{label}", read_files(name)
    listed = [*(f"{folder}/{file}" for file in read_list(f"{folder}/series")), *files.values()]
    for path in listed:
        if not (ROOT / path).is_file() or (ROOT / path).is_symlink():
            undo = f"`git checkout -- {path}` brings a file back; otherwise take its line out"
            raise Stop(USAGE, f"{path} is listed, but missing or not a plain file (for {name} {label})", undo)
    extra = (present(f"{folder}/*.patch") | present(f"overlays/{name}/**/*")) - {*listed}
    if extra:
        problem = f"{min(extra)} is in neither {folder}/series nor overlays/{name}.list"
        raise Stop(USAGE, problem, "add a line for it, or move it away")
    return read_series(name, label), files
