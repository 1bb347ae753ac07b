"""Where upstream comes from (git, a source package, a local path): each becomes a verified commit in the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

from engine.context import Context
from engine.errors import SOURCE, Stop, some
from engine.files import absolute, locked
from engine.git import Git, init_repository, take_commit
from engine.project import Upstream, Version
from engine.source import sdist
from engine.source.git import fetch_pin, pin_ref

LOCK_WAIT = 900.0  # seconds: another process may hold the cache's lock for a whole download


@dataclasses.dataclass
class Source:
    """A verified upstream tree: the commit `base` in the cache repository `git`."""

    kind: str  # "git" or "pypi"
    base: str
    git: Git
    lacks: tuple[str, ...]
    fresh: bool  # fetched by this run


@dataclasses.dataclass
class Cache:
    context: Context
    root: Path
    offline: bool

    def lock(self, name: str):
        return locked(self.context, self.root / "locks" / name, LOCK_WAIT, f"the cache of {name}")

    def repository(self, name: str) -> Git:
        """The bare repository of one upstream; the caller holds its lock. It gets its name only when it is complete."""
        path = self.root / "git" / f"{name}.git"
        if not (path / "HEAD").is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.context.scratch_folder("git") as folder:
                init_repository(self.context, folder / "new", bare=True)
                shutil.rmtree(path, ignore_errors=True)
                os.rename(folder / "new", path)
        for lock in [*path.glob("*.lock"), *(path / "refs").rglob("*.lock")]:  # a killed git's: we hold the lock
            lock.unlink(missing_ok=True)
        return Git(self.context, path)

    def repair(self, name: str) -> None:
        """Remove a damaged repository: everything in it can be fetched again."""
        with self.lock(name):
            git = self.repository(name)
            if git.run("fsck", "--no-dangling", "--no-progress", ok=tuple(range(256))).returncode:
                self.context.say(f"{name}: the cache {git.git_dir} is damaged and is thrown away")
                shutil.rmtree(git.git_dir)


def requested_path(request: str | None) -> Path | None:
    """The path that --source gives; None where it says git or pypi."""
    return None if request in (None, "git", "pypi") else absolute(request)


def requested_kind(request: str | None) -> str | None:
    path = requested_path(request)
    if path is None:
        return request
    return "git" if path.is_dir() else "pypi"


def find_source(
    cache: Cache, up: Upstream, version: Version, request: str | None, near: Git | None, recorded: str | None
) -> Source:
    """The verified source of a version: from the cache, from a checkout at hand (`near`), or from outside.

    `request` is what --source says, `recorded` the kind that an existing checkout was made from.
    """
    path = requested_path(request)
    if path:
        return local_source(cache, up, version, path)
    with cache.lock(up.name):
        git = cache.repository(up.name)
        kinds = [request] if request else [recorded] if recorded else ["git", "pypi"]
        if "pypi" in kinds and not version.sdist:
            if request == "pypi":
                problem = f"{up.name} {version.label} has no source package in upstreams.json"
                raise Stop(SOURCE, problem, "use --source git")
            kinds = ["git"]
        known = git.commit(pin_ref(version)) == version.commit
        if kinds[0] == "git" and not known and near and near.commit(version.commit):
            with contextlib.suppress(Stop):  # a partial or damaged clone lacks parts
                take_commit(git, near, version.commit)
                git("update-ref", pin_ref(version), version.commit)
        return cached_source(cache, git, version, kinds[0]) or fetch_source(cache, git, up, version, kinds)


def cached_source(cache: Cache, git: Git, version: Version, kind: str) -> Source | None:
    """A source that needs no fetching. The cache is not trusted: pins must be the pinned ids, archives match hashes."""
    if kind == "git":
        known = git.commit(pin_ref(version)) == version.commit
        return Source("git", version.commit, git, (), fresh=False) if known else None
    archive = sdist.in_cache(cache, version.sdist)
    return package_source(git, version, archive, fresh=False) if archive else None


def package_source(git: Git, version: Version, archive: Path, fresh: bool) -> Source:
    return Source("pypi", sdist.store(git, archive, version.sdist), git, version.sdist.lacks, fresh)


def fetch_source(cache: Cache, git: Git, up: Upstream, version: Version, kinds: list[str]) -> Source:
    """git first; the source package where the repository cannot be reached, after saying what it lacks."""
    title, say = f"{up.name} {version.label}", cache.context.say
    if "git" in kinds and not cache.offline:
        say(f"{title}: fetching {version.commit[:12]} from {up.url} ...")
        try:
            fetch_pin(git, up.url, version)
            return Source("git", version.commit, git, (), fresh=True)
        except Stop as stop:
            if stop.code != SOURCE or "pypi" not in kinds:
                stop.lines = (f"{title}: {stop.lines[0]}", *stop.lines[1:])
                raise
            say(f"{title}: {'; '.join(stop.lines)}")
    known = cached_source(cache, git, version, "pypi") if "pypi" in kinds else None
    if cache.offline and not known:
        problem = f"{title} is not in the cache {cache.root}, and --offline forbids fetching it"
        raise Stop(SOURCE, problem, "run once without --offline")
    if "git" in kinds and version.sdist.lacks:
        lacks = some(list(version.sdist.lacks), 4)
        say(f"{title}: taking the source package instead; it lacks {lacks} (upstreams.json lists all)")
    return known or package_source(git, version, sdist.download(cache, version.sdist), fresh=True)


def local_source(cache: Cache, up: Upstream, version: Version, path: Path) -> Source:
    """--source PATH: a git repository, or the source package as a file; verified like those from outside."""
    if not path.exists():
        problem = f"--source {path}: there is no such file or folder"
        raise Stop(SOURCE, problem, "expected git, pypi, a git repository or a .tar.gz")
    with cache.lock(up.name):
        git = cache.repository(up.name)
        if path.is_dir():
            fetch_pin(git, str(path), version)
            return Source("git", version.commit, git, (), fresh=True)
        if not version.sdist:
            problem = f"{up.name} {version.label} has no source package in upstreams.json"
            raise Stop(SOURCE, f"{problem}, so {path} cannot be verified")
        return package_source(git, version, sdist.keep(cache, version.sdist, path), fresh=True)
