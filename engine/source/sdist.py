"""Source packages: fetched by pip, verified by sha256 before they are opened, and stored as a commit."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import zlib
from pathlib import Path

from engine.errors import SOURCE, WRONG_BASE, Stop, some
from engine.files import check_path, is_listed, sha256_file
from engine.git import MODES, Content, Git, store_files
from engine.project import Sdist
from engine.source.download import watched

SILENCE = 180.0  # seconds: pip is silent while it builds a package's metadata


def in_cache(cache, sdist: Sdist) -> Path | None:
    folder = cache.root / "archives" / sdist.sha256
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if sha256_file(path) == sdist.sha256:
            return path
        cache.context.say(f"{path} was altered or cut short and is thrown away")
        path.unlink()
    return None


def download(cache, sdist: Sdist) -> Path:
    """The source package, fetched by pip, which checks the hash before it runs anything of the package."""
    cache.context.say(f"fetching the source package {sdist.project} {sdist.version} with pip ...")
    with cache.context.scratch_folder("pip") as scratch:
        requirements = scratch / "requirements.txt"
        requirements.write_text(f"{sdist.project}=={sdist.version} --hash=sha256:{sdist.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
        command += ["--disable-pip-version-check", "--no-input", "--timeout", "15", "--retries", "2"]
        command += ["--dest", f"{scratch}/out", "-r", str(requirements)]
        env = {**os.environ, "PIP_NO_COLOR": "1", "TMPDIR": str(scratch)}
        status, text = watched(cache.context, command, env, SILENCE, scratch)
        if status:
            raise pip_failed(sdist, text)
        files = sorted(Path(scratch, "out").glob("*.tar.gz"))
        if len(files) != 1:
            raise Stop(SOURCE, f"pip did not download exactly one .tar.gz for {sdist.project} {sdist.version}")
        return keep(cache, sdist, files[0])


def pip_failed(sdist: Sdist, text: str) -> Stop:
    what = f"the source package {sdist.project} {sdist.version}"
    if "No module named pip" in text:
        advice = "run apply.py with a Python that has pip, or `python -m ensurepip`"
        return Stop(SOURCE, f"{what} cannot be fetched: {sys.executable} has no pip", advice)
    if "DO NOT MATCH THE HASHES" in text:
        problem = f"{what}: the index offers other bytes than the pinned sha256 {sdist.sha256}"
        return Stop(WRONG_BASE, problem, "none of them were used; nothing was changed")
    errors = [line for line in text.splitlines() if "ERROR" in line or "error:" in line] or text.splitlines()[-3:]
    return Stop(SOURCE, f"{what} cannot be fetched", *(f"pip said: {line.strip()}" for line in errors[-3:]))


def keep(cache, sdist: Sdist, path: Path) -> Path:
    """Copy a verified archive into the cache: each later use verifies it again."""
    found = sha256_file(path)
    if found != sdist.sha256:
        expected = f"expected {sdist.sha256}: the file is truncated, altered or another one. None of it was used"
        raise Stop(WRONG_BASE, f"{path}: the sha256 is {found}", expected)
    target = cache.root / "archives" / sdist.sha256 / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with cache.context.scratch_folder("copy") as folder:
        Path(shutil.copyfile(path, folder / path.name)).replace(target)
    return target


def unpack(path: Path) -> dict[str, Content]:
    """The files of a source package without its top folder; nothing is written to disk."""
    files: dict[str, Content] = {}
    tops = set()
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                check_path(member.name, str(path), WRONG_BASE)
                top, _, inner = member.name.partition("/")
                tops.add(top)
                if member.isdir():
                    continue
                if not member.isreg() or not inner:
                    problem = "is a link or another special file, or lies outside of the package's folder"
                    raise Stop(WRONG_BASE, f"{path}: the member {member.name!r} {problem}", "none of it was used")
                files[inner] = (MODES[bool(member.mode & 0o100)], archive.extractfile(member).read())
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        advice = "it is truncated or not a .tar.gz; none of it was used"
        raise Stop(WRONG_BASE, f"{path} cannot be unpacked: {error}", advice) from None
    if len(tops) != 1 or not files:
        raise Stop(WRONG_BASE, f"{path}: expected one folder with files in it, found {some(sorted(tops)) or 'nothing'}")
    return files


def store(git: Git, path: Path, sdist: Sdist) -> str:
    """Turn a verified source package into a commit; the same package gives the same id everywhere."""
    files = {name: item for name, item in unpack(path).items() if not is_listed(name, sdist.adds)}
    message = f"{sdist.project} {sdist.version}, source package\n\nsha256: {sdist.sha256}\n"
    commit = store_files(git, files, None, message)
    git("update-ref", f"refs/pins/sdist-{sdist.sha256}", commit)
    return commit
