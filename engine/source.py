# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Upstream sources. The cache keeps them: a bare repository per upstream, and source packages as files.

    refs/pins/COMMIT          the pinned commit, or the part of one that upstreams.json names
    refs/pins/sdist-SHA256    a source package as a commit
    refs/onto/NAME            a revision that `port --onto NAME` asked for, which nothing verifies

Nothing in the cache is taken on trust. A package is hashed and imported again at each use. A commit is copied from the
cache into a checkout (`bring`), where git computes the id of each object again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

from engine.git import AUTHOR, DATE, EMAIL, PLAIN_MODES, Git, GitFailed, refuse_foreign
from engine.part import fetch_files, serving_parts
from engine.project import Part, Sdist, Upstream, Version
from engine.session import SESSION, SOURCE, WRONG_BASE, Stop, hint, locked, say

REFUSES_IDS = re.compile(r"not our ref|unadvertised object|does not allow|couldn't find remote ref", re.I)
FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--depth=1")


@dataclasses.dataclass
class Source:
    """An upstream tree: the commit `base`, which `ref` holds in the cache."""

    kind: str  # "git" or "pypi"
    base: str
    ref: str


class Cache:
    """The sources that were fetched before. `held` keeps the cache's lock, which is taken at the first use."""

    def __init__(self, root: Path, offline: bool, held: contextlib.ExitStack):
        self.root, self.offline, self.held, self.open = root, offline, held, {}

    def repository(self, name: str) -> Git:
        if name in self.open:
            return self.open[name]
        if not self.open:
            self.held.enter_context(locked(self.root))
        path = self.root / "git" / f"{name}.git"
        refuse_foreign(self.root, f"git/{name}.git")
        git = (Git.at(path) if is_whole(path) else None) or make_anew(path)
        for lock in [*path.glob("*.lock"), *path.glob("refs/**/*.lock")]:  # left by a git that was killed
            lock.unlink()
        self.open[name] = git
        return git

    def repair(self, name: str) -> None:
        git = self.repository(name)
        refs_alone = 8  # for git 2.50, our links to them are an error; a pin is looked at by its commit
        if git.run("fsck", "--no-dangling", "--no-progress", ok=None).returncode & ~refs_alone:
            self.open[name] = make_anew(git.folder)

    def find(self, up: Upstream, version: Version, request: str | None, recorded: str = "") -> Source:
        """A pinned version, fetched if need be.

        `request` is the value of --source, `recorded` the kind of source that a checkout was made from. Without
        either, git is tried first, then the source package.
        """
        git, (kind, path), title = self.repository(up.name), requested(request), f"{up.name} {version.label}"
        if (kind or recorded) == "pypi":
            if not version.sdist:
                raise Stop(SOURCE, f"{title} has no source package in upstreams.json", "use --source git")
            return self.package(git, version.sdist, path)
        pinned = Source("git", version.commit, f"refs/pins/{version.commit}")
        if git.commit(pinned.ref) == version.commit:
            return pinned
        try:
            if self.offline and not path:
                raise Stop(SOURCE, f"{title} is not in the cache {self.root} (--offline)")
            wanted = version.part.of if version.part else version.commit
            say(f"{title}: fetching {wanted[:12]} from {path or up.git} ...")
            refused = fetch(git, str(path or up.git), wanted, pinned.ref, version.part)
            if not refused and git.commit(pinned.ref) != version.commit:
                refused = f"the files of its part are the commit {git.commit(pinned.ref)}, not {version.commit}"
                git("update-ref", "-d", pinned.ref)
            if refused:
                problem = f"{path or up.git} does not hold the pinned commit {wanted}"
                advice = "`git diff upstreams.json` shows whether it was edited; --source takes it from elsewhere"
                raise Stop(SOURCE, problem, f"git said: {refused}", advice)
            return pinned
        except Stop as stop:
            if stop.code != SOURCE or request or recorded or not version.sdist:
                raise
            say(f"{title}: {'; '.join(stop.lines)}")
            say(f"{title}: taking the source package instead")
            return self.package(git, version.sdist, None)

    def package(self, git: Git, sdist: Sdist, file: Path | None) -> Source:
        """A source package as a commit; `file` is the user's own copy of it."""
        folder, ref = self.root / "archives" / sdist.sha256, f"refs/pins/sdist-{sdist.sha256}"
        refuse_foreign(self.root, f"archives/{sdist.sha256}")
        kept = next((path for path in folder.glob("*.tar.gz") if sha256(path) == sdist.sha256), None)
        if file or not kept:
            with tempfile.TemporaryDirectory(prefix="era-") as scratch:
                archive = file or download(sdist, Path(scratch), self.offline)
                if sha256(archive) != sdist.sha256:
                    expected = f"expected {sdist.sha256}; none of it was used"
                    raise Stop(WRONG_BASE, f"{archive}: the sha256 is {sha256(archive)}", expected)
                folder.mkdir(parents=True, exist_ok=True)
                kept = folder / f"{sdist.project}-{sdist.version}.tar.gz"
                part = kept.with_suffix(".part")
                part.unlink(missing_ok=True)  # left by a killed run, or the hard link of another file
                shutil.copyfile(archive, part)
                part.replace(kept)
        git.run("fast-import", "--quiet", "--force", "--done", data=import_stream(kept, sdist, ref))
        return Source("pypi", git.commit(ref), ref)


def is_whole(path: Path) -> bool:
    return (path / "info/exclude").exists()  # the last thing that init writes


def make_anew(path: Path) -> Git:
    if is_whole(path):
        say(f"{path.stem}: the cache {path} is damaged and is thrown away")
    if path.exists():
        shutil.rmtree(path)
    return Git.init(path, bare=True)


def requested(request: str | None) -> tuple[str, Path | None]:
    """The kind of source that --source asks for, if any, and its path, if it has one."""
    if request in (None, "git", "pypi"):
        return request or "", None
    path = Path(request).expanduser().resolve()
    if not path.exists():
        raise Stop(SOURCE, f"--source {path}: there is no such file or folder")
    return "git" if path.is_dir() else "pypi", path


def bring(git: Git, cache: Git, source: Source) -> None:
    """Copy a commit without its history from the cache into a checkout, unless it is there."""
    if git.has(source.base):
        return
    said = [f"git said: the objects are not those of {source.base}"]
    try:
        copy(cache, git, source.base)
    except GitFailed as failed:
        said = failed.lines[1:]
    if not git.has(source.base):
        problem = f"{git.folder}: {source.base[:12]} cannot be copied from the cache {cache.folder}"
        repair = f"if the cache is damaged, {hint('fetch', cache.folder.stem)} repairs it"
        raise Stop(WRONG_BASE, problem, *said, repair)


def copy(source: Git, target: Git, commit: str) -> None:
    """Copy a commit without its history from one repository to another, where git computes each id again.

    No transport is involved, so no configuration can lead git elsewhere.
    """
    listed = source.run("rev-list", "--objects", "--no-walk", commit).stdout
    pack = source.run("pack-objects", "--stdout", "--quiet", data=listed).stdout
    if b"\nparent " in source.run("cat-file", "commit", commit).stdout.partition(b"\n\n")[0]:
        place = Path(target.env["GIT_DIR"], "shallow")  # not our link to it, over which `rename` would go
        known = place.read_text().splitlines() if place.exists() else []
        with open(place.with_name("shallow.lock"), "x") as lock:  # as git does it
            lock.write("".join(f"{each}\n" for each in sorted({*known, commit})))
        os.rename(lock.name, place)
    target.run("index-pack", "--stdin", "--strict", data=pack)


# --- repositories ---


def fetch(cache: Git, url: str, wanted: str, into: str, part: Part | None = None) -> str:
    """Fetch one revision, or a part of it. Returns an empty string, or what git said if the repository lacks it.

    How, the user's own configuration says: mirrors, proxies, certificates. The cache's has no part in it, as git
    fetches into a new repository, from which the revision is copied. Nor has the configuration of a folder on this
    machine: git is shown a folder of ours in its place (`Git.at`).
    """
    local = Git.at(Path(url)) if os.path.isdir(url) else None
    place = local.env["GIT_COMMON_DIR"] if local else url
    with tempfile.TemporaryDirectory(dir=SESSION.scratch) as folder:
        new = Git.init(Path(folder, "new"), bare=True)
        few = ("--filter=blob:none", *serving_parts(new, place)) if part else ()
        done = new.run(*FETCH, *few, "--", place, f"{wanted}:{into}", ok=None, network=True)
        commit = new.commit(into)
        if commit and part:
            new, done = fetch_files(new, commit, part, place, into, Git.init(Path(folder, "part"), bare=True))
            commit = new.commit(into)
        if commit:
            copy(new, cache, commit)
            cache("update-ref", into, commit)
            return ""
        if not done.returncode:
            return f"{wanted} is not a commit"
    said = "".join(char if char.isprintable() else " " for char in os.fsdecode(done.stderr).strip())[-300:]
    if not REFUSES_IDS.search(said):
        raise Stop(SOURCE, f"the repository {url} cannot be reached", f"git said: {said}")
    return said


# --- source packages ---


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def download(sdist: Sdist, folder: Path, offline: bool) -> Path:
    """The package, fetched by pip, which checks the hash before it runs any of the package's code."""
    what, wanted = f"the source package {sdist.project} {sdist.version}", folder / "requirements.txt"
    if offline:
        raise Stop(SOURCE, f"{what} is not in the cache (--offline)")
    say(f"fetching {what} with pip ...")
    wanted.write_text(f"{sdist.project}=={sdist.version} --hash=sha256:{sdist.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-input"]
    command += ["--require-hashes", "--disable-pip-version-check", "-d", f"{folder}/out", "-r", str(wanted)]
    if SESSION.verbose:
        print("+", *command, file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise Stop(WRONG_BASE, f"{what}: the index offers other bytes than the pinned sha256 {sdist.sha256}")
    files = list(folder.glob("out/*.tar.gz"))
    if done.returncode or len(files) != 1:
        raise Stop(SOURCE, f"{what} cannot be fetched", f"pip said: {done.stderr.strip()[-300:]}")
    return files[0]


def import_stream(path: Path, sdist: Sdist, ref: str) -> bytes:
    """A verified package, without its top folder, as a commit for `git fast-import`; the same id for everyone."""
    message = f"{sdist.project} {sdist.version}, source package\n\nsha256: {sdist.sha256}\n".encode()
    who = f"{AUTHOR} <{EMAIL}> {DATE}"
    parts = [f"commit {ref}\nauthor {who}\ncommitter {who}\ndata {len(message)}\n".encode() + message]
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                inner = inner_path(path, member)
                added = any(inner == add or (add.endswith("/") and inner.startswith(add)) for add in sdist.adds)
                if member.isdir() or added:
                    continue
                content, mode = archive.extractfile(member).read(), PLAIN_MODES[bool(member.mode & 0o100)]
                parts.append(f"M {mode} inline {inner}\ndata {len(content)}\n".encode() + content)
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        raise Stop(WRONG_BASE, f"{path} cannot be unpacked: {error}") from None
    return b"\n".join([*parts, b"done\n"])


def inner_path(path: Path, member: tarfile.TarInfo) -> str:
    """The path of an archive's member inside its top folder. fast-import itself would take names that lead out."""
    _, _, inner = member.name.partition("/")
    bad = any(part in ("", ".", "..") or part.lower() == ".git" for part in member.name.split("/"))
    if bad or not inner.isprintable() or '"' in inner or not (member.isdir() or (member.isreg() and inner)):
        problem = f"{path}: {member.name!r} is not a plain file inside of the package's folder"
        raise Stop(WRONG_BASE, problem, "none of it was used")
    return inner
