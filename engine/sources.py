"""Where upstream comes from: its git repository, its source package or a local path.

Each ends as a verified commit in the cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import zlib
from pathlib import Path

from engine.common import (
    SOURCE,
    WRONG_BASE,
    Stop,
    absolute,
    inherited,
    interrupts_held,
    locked,
    say,
    scratch_folder,
    screen,
    some,
)
from engine.git import (
    MODES,
    NETWORK_CONFIG,
    Content,
    Git,
    add_shallow,
    environment,
    init_repository,
    settings,
    store_files,
)
from engine.patches import check_path, meet, under
from engine.project import Sdist, Upstream, Version

STALL = 60.0  # seconds without any sign of life after which a download is given up
PIP_STALL = 180.0  # pip is silent while it builds a package's metadata
MAX_UNPACKED = 2 << 30  # bytes: an archive that unpacks to more is not a source package
MAX_DOWNLOAD = 4 << 30  # bytes on disk: a server that sends more is not sending a source tree
MAX_LOG = 1 << 20  # bytes: the end of what a downloader said
MAX_MOVES = 3  # redirects within one host that are followed
MAX_MEMBERS = 100_000
PIECE = 1 << 16  # bytes read at once: no name or other header of a member is longer
# All that reading a spoilt archive raises; tarfile lets through what its own reading of numbers and texts raises.
UNREADABLE = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, ArithmeticError, LookupError, RecursionError)


@dataclasses.dataclass
class Source:
    """A verified upstream tree: the commit `base` in the cache repository `git`."""

    kind: str  # "git" or "pypi"
    base: str
    git: Git
    lacks: tuple[str, ...]
    fresh: bool  # brought in by this run


@dataclasses.dataclass
class Cache:
    root: Path
    offline: bool

    def lock(self, name: str):
        # Another process may hold it for a whole download.
        return locked(self.root / "locks" / name, 900, f"the cache of {name}")

    def repository(self, name: str) -> Git:
        """The bare repository of one upstream, for who holds its lock; it appears under its name only when it is whole."""
        path = self.root / "git" / f"{name}.git"
        if not (path / "HEAD").is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder("git") as folder:
                init_repository(folder / "new", bare=True)
                shutil.rmtree(path, ignore_errors=True)
                os.rename(folder / "new", path)
        for left in [
            *path.glob("*.lock"),
            *(path / "refs").rglob("*.lock"),
        ]:  # by a git that was killed: we hold the lock
            left.unlink(missing_ok=True)
        return Git(path)


def pin_ref(version: Version, kind: str) -> str:
    """The name under which the cache holds a source; it is written only after the source was verified."""
    return f"refs/pins/{version.commit}" if kind == "git" else f"refs/pins/sdist-{version.sdist.sha256}"


def size_of(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # temporary files come and go
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def watched(command: list[str], env: dict[str, str], silence: float, folder: Path) -> tuple[int, str]:
    """Run a downloader that writes to `folder`; end it when it is silent for `silence` seconds, or writes without end."""
    screen.trace(command)
    with tempfile.TemporaryFile() as log:
        process = None
        try:
            with interrupts_held():  # else Ctrl-C could leave a downloader that nobody watches
                # Of our locks it gets that of its scratch folder only: it may leave a daemon behind (git's credential-cache).
                more = {"start_new_session": True, "pass_fds": inherited[-1:]}
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, **more)
            size, heard = 0, time.monotonic()
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                    break
                grown = os.fstat(log.fileno()).st_size + size_of(folder)
                if grown > MAX_DOWNLOAD:
                    raise Stop(
                        SOURCE, f"the download was ended: more than {MAX_DOWNLOAD} bytes came, which is no source tree"
                    )
                if grown != size:
                    size, heard = grown, time.monotonic()
                elif time.monotonic() - heard > silence:
                    raise Stop(SOURCE, f"the download stalled: nothing came for {silence:.0f} s")
        finally:
            if process and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its helpers too: git-remote-https, index-pack
                process.wait()
        log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_LOG))
        text = log.read().decode("utf-8", "replace")
        text = "".join(
            char if char.isprintable() or char in "\r\n\t" else "?" for char in text
        )  # a server's words, for a terminal
    if screen.verbose:
        print(text.rstrip(), file=sys.stderr)
    return process.returncode, text


REFUSES_IDS = re.compile(r"not our ref|unadvertised object|does not allow request|couldn't find remote ref", re.I)
MOVED = re.compile(r"The requested URL returned error: 30[12378]\b")
SERVICE = "/info/refs?service=git-upload-pack"


def fetch_ref(git: Git, url: str, wanted: str, into: str, depth: bool = True, moves: int = MAX_MOVES) -> str | None:
    """Fetch one revision. None when done, else what git said; an unreachable server is a Stop."""
    command = [
        "git",
        *settings(NETWORK_CONFIG),
        f"--git-dir={git.git_dir}",
        "fetch",
        "--progress",
        "--no-tags",
        "--force",
    ]
    command += ["--no-write-fetch-head", *(["--depth=1"] if depth else []), "--", url, f"{wanted}:{into}"]
    status, text = watched(command, environment(network=True), STALL, git.git_dir)
    if status == 0:
        return None
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.startswith(("fatal:", "error:", "ssh:"))]
    said = "; ".join(lines[:3]) or text.strip()[-200:]
    if REFUSES_IDS.search(text):
        return said
    if MOVED.search(said):
        moved = new_place(git, url)
        if moved and moves:
            say(f"{url}: the server says that it has moved within this host, to {urllib.parse.urlsplit(moved).path}")
            return fetch_ref(git, moved, wanted, into, depth, moves - 1)
    raise Stop(SOURCE, f"the repository {url} cannot be reached", f"git said: {said}")


def new_place(git: Git, url: str) -> str | None:
    """Where a server says that a repository has moved to, as forges do after a renaming. Another host is a Stop.

    git's own following (http.followRedirects) would ask the other host first, whichever that is.
    """
    base = ["git", *settings(NETWORK_CONFIG), f"--git-dir={git.git_dir}", "ls-remote"]
    _, text = watched([*base, "--get-url", url], environment(network=True), STALL, git.git_dir)
    asked = text.strip().splitlines()[-1]  # after the user's url.insteadOf
    trace = {"GIT_TRACE_CURL": "1", "GIT_TRACE_CURL_NO_DATA": "1"}
    _, text = watched([*base, "--", url, "HEAD"], {**environment(network=True), **trace}, STALL, git.git_dir)
    headers = re.findall(r"<= Recv header: location: *(\S+)", text, re.I)
    if not headers:
        return None
    old = urllib.parse.urlsplit(asked)
    try:
        new = urllib.parse.urlsplit(urllib.parse.urljoin(asked + SERVICE, headers[-1]))
    except ValueError:  # no URL
        return None
    here, there = f"{old.scheme}://{old.netloc.rpartition('@')[2]}", f"{new.scheme}://{new.netloc}"
    if here != there:
        raise Stop(
            SOURCE,
            f"{url}: {here} sends on to {there}",
            "another host or protocol is not followed, and nothing was asked there. If the project did move, look at who is there, then",
            "write the new URL into upstreams.json, or give git a rule: `git config --global url.NEW.insteadOf OLD`",
        )
    place = f"{new.path}?{new.query}"
    return f"{old.scheme}://{old.netloc}{place.removesuffix(SERVICE)}" if place.endswith(SERVICE) else None


@contextlib.contextmanager
def quarantine():
    """A repository of its own for what a server sends: its refs, shallow marks and other objects go no further."""
    with scratch_folder("fetch") as folder:
        init_repository(folder / "new", bare=True)
        yield Git(folder / "new")


def fetch_pin(git: Git, url: str, version: Version) -> None:
    """Bring the pinned commit into the cache: by its id, or by its tag where a server refuses ids."""
    with quarantine() as outside:
        said = refused = fetch_ref(outside, url, version.commit, "refs/pin")
        if refused and version.tag:
            said = fetch_ref(outside, url, f"refs/tags/{version.tag}", "refs/pin")
        elif refused:  # neither ids nor a tag: all branches, which must hold the commit
            said = fetch_ref(outside, url, "refs/heads/*", "refs/incoming/*", depth=False)
            if not said and outside.commit(version.commit) == version.commit:
                outside("update-ref", "refs/pin", version.commit)
        found = outside.commit("refs/pin")
        if said or not found or (found != version.commit and not refused):
            detail = (
                f"git said: {said}"
                if said
                else "what it has under that id is no commit"
                if not refused
                else "no branch leads to it"
            )
            raise Stop(SOURCE, f"{url} does not hold the pinned commit {version.commit}", detail)
        if found != version.commit:
            raise Stop(
                WRONG_BASE,
                f"{url}: the tag {version.tag} is the commit {found}",
                f"expected the pinned commit {version.commit}: either the tag was moved there, or upstreams.json was edited here.",
                "`git diff upstreams.json` tells; bring the pinned commit back, or pin the new one after a look at what changed",
                "nothing was changed",
            )
        take_commit(git, outside, version.commit)
    git("update-ref", pin_ref(version, "git"), version.commit)


def take_commit(git: Git, owner: Git, commit: str) -> None:
    """Take a commit with its files, and nothing else, from a checkout that has it or from what a server sent."""
    git.import_objects(owner, owner("rev-list", "--objects", "--no-walk", commit))
    add_shallow(git, commit)


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as data:
        for chunk in iter(lambda: data.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def archive_in_cache(cache: Cache, sdist: Sdist) -> Path | None:
    folder = cache.root / "archives" / sdist.sha256
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if sha256_file(path) == sdist.sha256:
            return path
        say(f"{path} was altered or cut short: it is thrown away")
        path.unlink()
    return None


def download_sdist(cache: Cache, sdist: Sdist) -> Path:
    """The source package, fetched by pip, which checks the hash before it runs anything of the package."""
    say(f"fetching the source package {sdist.project} {sdist.version} with pip ...")
    with scratch_folder("pip") as scratch:
        wish = scratch / "wish.txt"
        wish.write_text(f"{sdist.project}=={sdist.version} --hash=sha256:{sdist.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
        command += ["--disable-pip-version-check", "--no-input", "--timeout", "15", "--retries", "2"]
        command += ["--dest", f"{scratch}/out", "-r", str(wish)]
        status, text = watched(command, {**os.environ, "PIP_NO_COLOR": "1", "TMPDIR": str(scratch)}, PIP_STALL, scratch)
        if status:
            raise pip_failed(sdist, text)
        return keep_archive(cache, sdist, sorted(Path(scratch, "out").glob("*.tar.gz")))


def pip_failed(sdist: Sdist, text: str) -> Stop:
    what = f"the source package {sdist.project} {sdist.version}"
    if "No module named pip" in text:
        return Stop(
            SOURCE,
            f"{what} cannot be fetched: {sys.executable} has no pip",
            "run apply.py with a Python that has pip, or `python -m ensurepip`",
        )
    if "DO NOT MATCH THE HASHES" in text:
        return Stop(
            WRONG_BASE,
            f"{what}: the index offers other bytes than the pinned sha256 {sdist.sha256}",
            "nothing of them was used; nothing was changed",
        )
    errors = [line for line in text.splitlines() if "ERROR" in line or "error:" in line] or text.splitlines()[-3:]
    return Stop(SOURCE, f"{what} cannot be fetched", *(f"pip said: {line.strip()}" for line in errors[-3:]))


def keep_archive(cache: Cache, sdist: Sdist, files: list[Path]) -> Path:
    if len(files) != 1:
        raise Stop(SOURCE, f"pip did not bring one .tar.gz for {sdist.project} {sdist.version}")
    check_archive(files[0], sdist)
    target = cache.root / "archives" / sdist.sha256 / files[0].name
    target.parent.mkdir(parents=True, exist_ok=True)
    files[0].replace(target)
    return target


def check_archive(path: Path, sdist: Sdist) -> None:
    found = sha256_file(path)
    if found != sdist.sha256:
        raise Stop(
            WRONG_BASE,
            f"{path}: the sha256 is {found}",
            f"expected {sdist.sha256}: the file is truncated, altered or another one. Nothing of it was used",
        )


class Unzipped:
    """The bytes inside a .gz, for tarfile, which believes every header: bounded as a whole, and in each piece."""

    def __init__(self, stream: gzip.GzipFile):
        self.stream, self.tell = stream, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= PIECE:
            raise tarfile.ReadError(f"a header says that it has {size} bytes")
        self.check(self.tell() + size)
        block = self.stream.read(size)
        if size == 512 and block[257:265] == b"ustar  \0" and block[345:500].strip(b"\0"):
            raise tarfile.ReadError("a header of GNU's form has a prefix, which tar does not read and Python does")
        return block

    def seek(self, place: int) -> int:
        self.check(place)
        return self.stream.seek(place)

    def check(self, place: int) -> None:
        if not 0 <= place <= MAX_UNPACKED:
            raise tarfile.ReadError(f"its unpacked size is over {MAX_UNPACKED} bytes")

    def content(self, member: tarfile.TarInfo) -> bytes:
        self.check(member.size)
        self.seek(member.offset_data)
        return b"".join(self.stream.read(min(PIECE, member.size - done)) for done in range(0, member.size, PIECE))

    def rest(self):
        while piece := self.read(PIECE):
            yield piece


def unpack(path: Path) -> dict[str, Content]:
    """The files of a source package without its top folder, read member by member; nothing is written to disk."""
    files: dict[str, Content] = {}
    seen: dict[str, tuple[str, bool]] = {}
    tops: set[str] = set()

    def refuse(member: str, problem: str) -> Stop:
        return Stop(
            WRONG_BASE,
            f"{path}: the member {member!r} {problem}",
            "a source package has plain files and folders only; nothing of it was used",
        )

    try:
        with (
            gzip.open(path) as stream,
            tarfile.open(fileobj=(plain := Unzipped(stream)), mode="r:", encoding="utf-8") as archive,
        ):
            for number, member in enumerate(iter(archive.next, None)):
                archive.members.clear()  # it would keep them all
                name = member.name.rstrip("/")
                top, _, inner = name.partition("/")
                check_path(name, str(path), WRONG_BASE)
                tops.add(top)
                if number >= MAX_MEMBERS:
                    raise refuse(name, f"is one of more than {MAX_MEMBERS}")
                special = member.issparse() or any(key.startswith("GNU.sparse") for key in member.pax_headers)
                if special or not (member.isdir() or member.isreg()):
                    raise refuse(name, "is a link, a device or another special file")
                if not inner and not member.isdir():
                    raise refuse(name, "lies outside of the package's folder")
                if member.isreg() and member.name.endswith("/"):
                    raise refuse(name, "is a file with the name of a folder")
                other = meet(seen, inner, member.isreg()) if inner else None
                if other:
                    raise refuse(name, f"stands there twice, or differs only by case or accents from {other!r}")
                if member.isdir():
                    continue
                content = plain.content(member)
                if len(content) != member.size:
                    raise refuse(name, "is cut short")
                files[inner] = (MODES[bool(member.mode & 0o100)], content)
            plain.seek(archive.offset)  # tarfile takes anything that is no header for the end
            if plain.read(512) != bytes(512) or any(piece.strip(b"\0") for piece in plain.rest()):
                raise tarfile.ReadError(f"the end is missing, or something follows it, at byte {archive.offset}")
    except UNREADABLE as error:
        raise Stop(
            WRONG_BASE, f"{path} cannot be unpacked: {error}", "it is truncated or no .tar.gz; nothing of it was used"
        ) from None
    if len(tops) != 1 or not files:
        raise Stop(WRONG_BASE, f"{path}: expected one folder with files in it, found {some(sorted(tops)) or 'nothing'}")
    return files


def store_sdist(git: Git, path: Path, version: Version) -> str:
    """Turn a verified source package into a commit; the same package gives the same id everywhere."""
    sdist = version.sdist
    files = {name: item for name, item in unpack(path).items() if not under(name, sdist.adds)}
    message = f"{sdist.project} {sdist.version}, source package\n\nsha256: {sdist.sha256}\n"
    commit = store_files(git, files, None, message)
    git("update-ref", pin_ref(version, "pypi"), commit)
    return commit


def wished_path(wish: str | None) -> Path | None:
    """What --source says, where it is a path and not git or pypi."""
    return None if wish in (None, "git", "pypi") else absolute(wish)


def wished_kind(wish: str | None) -> str | None:
    path = wished_path(wish)
    if path is None:
        return wish
    return "git" if path.is_dir() else "pypi"


def find_source(
    cache: Cache, up: Upstream, version: Version, wish: str | None, near: Git | None, recorded: str | None
) -> Source:
    """The verified source of a version: from the cache, from a checkout at hand (`near`), or from outside."""
    path = wished_path(wish)
    if path:
        return local_source(cache, up, version, path)
    with cache.lock(up.name):
        git = cache.repository(up.name)
        kinds = [wish] if wish else [recorded] if recorded else ["git", "pypi"]
        if "pypi" in kinds and not version.sdist:
            if wish == "pypi":
                raise Stop(
                    SOURCE, f"{up.name} {version.label} has no source package in upstreams.json", "use --source git"
                )
            kinds = ["git"]
        if (
            kinds[0] == "git"
            and git.commit(pin_ref(version, "git")) != version.commit
            and near
            and near.commit(version.commit)
        ):
            with contextlib.suppress(Stop):  # a partial or damaged clone lacks parts
                take_commit(git, near, version.commit)
                git("update-ref", pin_ref(version, "git"), version.commit)
        return cached_source(cache, git, version, kinds[0]) or fetch_source(cache, git, up, version, kinds)


def cached_source(cache: Cache, git: Git, version: Version, kind: str) -> Source | None:
    """What needs no fetching. The cache's word is not enough: a pin must be the pinned id, or what the archive unpacks to."""
    if kind == "git":
        known = git.commit(pin_ref(version, "git")) == version.commit
        return make_source(git, version, "git", version.commit, fresh=False) if known else None
    archive = archive_in_cache(cache, version.sdist)
    return make_source(git, version, "pypi", store_sdist(git, archive, version), fresh=False) if archive else None


def make_source(git: Git, version: Version, kind: str, commit: str, fresh: bool) -> Source:
    return Source(kind, commit, git, version.sdist.lacks if kind == "pypi" else (), fresh)


def fetch_source(cache: Cache, git: Git, up: Upstream, version: Version, kinds: list[str]) -> Source:
    """git first; the source package where the repository cannot be reached, after saying what it lacks."""
    title = f"{up.name} {version.label}"
    if "git" in kinds and not cache.offline:
        say(f"{title}: fetching {version.commit[:12]} from {up.url} ...")
        try:
            fetch_pin(git, up.url, version)
            return make_source(git, version, "git", version.commit, fresh=True)
        except Stop as stop:
            if stop.code != SOURCE or "pypi" not in kinds:
                stop.lines = (f"{title}: {stop.lines[0]}", *stop.lines[1:])
                raise
            say(f"{title}: {'; '.join(stop.lines)}")
    known = cached_source(cache, git, version, "pypi") if "pypi" in kinds else None
    if cache.offline and not known:
        raise Stop(
            SOURCE,
            f"{title} is not in the cache {cache.root}, and --offline forbids to fetch it",
            "run once without --offline",
        )
    if "git" in kinds and version.sdist.lacks:
        say(
            f"{title}: taking the source package instead; it lacks {some(list(version.sdist.lacks), 4)} (upstreams.json lists all)"
        )
    return known or make_source(
        git, version, "pypi", store_sdist(git, download_sdist(cache, version.sdist), version), fresh=True
    )


def local_source(cache: Cache, up: Upstream, version: Version, path: Path) -> Source:
    """--source PATH: a git repository, or the source package as a file; verified like the ones from outside."""
    if not path.exists():
        raise Stop(
            SOURCE,
            f"--source {path}: there is no such file or folder",
            "expected git, pypi, a git repository or a .tar.gz",
        )
    with cache.lock(up.name):
        git = cache.repository(up.name)
        if path.is_dir():
            fetch_pin(git, str(path), version)
            return make_source(git, version, "git", version.commit, fresh=True)
        if not version.sdist:
            raise Stop(
                SOURCE,
                f"{up.name} {version.label} has no source package in upstreams.json, so {path} cannot be verified",
            )
        check_archive(path, version.sdist)
        with scratch_folder("copy") as folder:  # kept, as the next run proves its pin by it
            archive = keep_archive(cache, version.sdist, [Path(shutil.copyfile(path, folder / path.name))])
        return make_source(git, version, "pypi", store_sdist(git, archive, version), fresh=True)


def repair_cache(cache: Cache, up: Upstream) -> None:
    """Throw a damaged cache repository away: it holds nothing that cannot be fetched again."""
    with cache.lock(up.name):
        git = cache.repository(up.name)
        if git.run("fsck", "--no-dangling", "--no-progress", ok=tuple(range(256))).returncode:
            say(f"{up.name}: the cache {git.git_dir} is damaged: it is thrown away")
            shutil.rmtree(git.git_dir)
