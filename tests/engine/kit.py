# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A small project with tiny upstreams, on which every verb can be tried without a network."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
APPLY = PROJECT / "apply.py"
ENGINE = PROJECT / "engine"

CORE = "".join(f"line {number} of the core\n" for number in range(1, 61))
FIRST = {
    "src/core.py": CORE,
    "src/util.py": "def add(a, b):\n    return a + b\n",
    "src/old.py": "gone = True\n",
    "README.md": "# alpha\n",
    "run.sh": "#!/bin/sh\necho run\n",
    "extra/recipe.py": "recipe = 1\n",
    "crlf.txt": "one\r\ntwo\r\n",
    "bare.txt": "no newline at the end",
}
# What the second version of alpha looks like: the core moved down, util was renamed.
SECOND = {
    **{path: text for path, text in FIRST.items() if path != "src/util.py"},
    "src/core.py": "# a new line above\n" * 5 + CORE,
    "src/helpers.py": FIRST["src/util.py"],
}
BACKEND = """
import os
def prepare_metadata_for_build_wheel(folder, settings=None):
    os.makedirs(os.path.join(folder, "alpha-1.0.dist-info"))
    with open(os.path.join(folder, "alpha-1.0.dist-info", "METADATA"), "w") as out:
        out.write("Metadata-Version: 2.1\\nName: alpha\\nVersion: 1.0\\n")
    return "alpha-1.0.dist-info"
def get_requires_for_build_wheel(settings=None):
    return []
"""
SDIST_ONLY = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
}


def git(folder: Path, *args: str, check: bool = True) -> str:
    """Plain git as a user would call it, with a name to commit under."""
    identity = ["-c", "user.name=User", "-c", "user.email=user@example.org"]
    done = subprocess.run(["git", *identity, *args], cwd=folder, capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"git {args}: {done.stderr}")
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    """All files as a commit; returns its id."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
        if path.endswith(".sh"):
            target.chmod(0o755)


def replace_in(path: str, old: str, new: str):
    def edit(folder: Path) -> None:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new))

    return edit


# --- upstreams and patches ---


def make_upstream(folder: Path, versions: dict[str, dict[str, str]]) -> dict[str, str]:
    """A repository with one tagged commit per version; returns the commits by tag."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    commits = {}
    for tag, files in {"before": {"history.txt": "a commit before the pinned one\n"}, **versions}.items():
        git(folder, "rm", "-r", "-q", "--ignore-unmatch", ".")
        write_tree(folder, files)
        commits[tag] = commit(folder, tag)
        git(folder, "tag", tag)
    return commits


def make_archive(path: Path, files: dict[str, str], top: str) -> str:
    """A source package; returns its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode = len(text.encode()), 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


HEADER = (
    "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
    "From: ERA overlays <era-overlays@users.noreply.github.com>\n"
    "Date: Thu, 1 Jan 2026 00:00:00 +0000\n"
    "Subject: [PATCH] {subject}\n\n"
    "What: a hook\nWhy: a test\nPaper: none\nUpstream-Status: none\nDrop-When: never\n\n"
)


def make_patch(upstream: Path, start: str, edit, subject: str) -> tuple[str, str]:
    """The patch for `edit(folder)` on a commit, and a commit with the result."""
    git(upstream, "checkout", "-q", "--detach", start)
    edit(upstream)
    after = commit(upstream, subject)
    git(upstream, "checkout", "-q", "main")
    diff = git(upstream, "diff", "--full-index", "--no-renames", start, after)
    return f"{HEADER.format(subject=subject)}{diff}\n", after


def make_template(folder: Path) -> dict[str, str]:
    """Upstreams, patches and overlays of the small project; made once, copied for each test."""
    alpha, beta = folder / "up/alpha", folder / "up/beta"
    ids = make_upstream(alpha, {"v1": FIRST, "v2": SECOND})
    ids["beta"] = make_upstream(beta, {"only": {"main.py": "print(1)\nprint(2)\nprint(3)\n"}})["only"]
    packed = {path: text for path, text in FIRST.items() if not path.startswith("extra/")}
    ids["sha256"] = make_archive(folder / "index/alpha-1.0.tar.gz", {**packed, **SDIST_ONLY}, "alpha-1.0")

    def second_edit(work: Path) -> None:
        replace_in("src/core.py", "line 40 of", "line 40, hooked, of")(work)
        replace_in("src/util.py", "return a + b", "return b + a")(work)

    hook_core = replace_in("src/core.py", "line 20 of", "line 20, hooked, of")
    first, after = make_patch(alpha, ids["v1"], hook_core, "Hook the core")
    second, _ = make_patch(alpha, after, second_edit, "Hook core and util")
    single, _ = make_patch(beta, ids["beta"], replace_in("main.py", "print(2)", "print(22)"), "Hook main")
    series = "0001-Hook-the-core.patch\n0002-Hook-core-and-util.patch\n"
    files = {
        "patches/alpha/v1/series": series,
        "patches/alpha/v1/0001-Hook-the-core.patch": first,
        "patches/alpha/v1/0002-Hook-core-and-util.patch": second,
        "patches/alpha/v2/series": "",
        "patches/beta/b1/series": "0001-Hook-main.patch\n",
        "patches/beta/b1/0001-Hook-main.patch": single,
        "overlays/alpha.list": "src/era.py\ntools/go.sh\n",
        "overlays/alpha/src/era.py": "ERA = 1\n",
        "overlays/alpha/tools/go.sh": "#!/bin/sh\n",
        "overlays/alpha/src/__pycache__/era.pyc": "junk",
        "overlays/beta.list": "",
    }
    write_tree(folder / "project", files)
    return ids


# --- the project ---


def load_engine(folder: Path):
    """The package engine of a folder, apart from any loaded before; its project is that folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    importlib.import_module("engine.cli")  # it imports all others
    sys.path.remove(str(folder))
    engine = sys.modules["engine"]
    assert Path(engine.__file__).parent == folder / "engine"
    return engine


class Result:
    def __init__(self, code: int, out: bytes, err: bytes):
        self.code, self.raw = code, out
        self.out, self.err = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        self.text = self.out + self.err

    @property
    def json(self) -> dict:
        return json.loads(self.out)


class Project:
    """A copy of apply.py and engine/ with an upstreams.json, patches/ and overlays/ of its own, as a git repository."""

    def __init__(self, place: Path, template: Path, ids: dict[str, str]):
        self.root, self.up, self.index, self.cache = (place / name for name in ("project", "up", "index", "cache"))
        self.checkouts, self.ids = self.root / "checkouts", ids
        for part in ("project", "up", "index"):
            shutil.copytree(template / part, place / part)
        shutil.copy(APPLY, self.root)
        shutil.copytree(ENGINE, self.root / "engine", ignore=shutil.ignore_patterns("__pycache__"))
        sdist = {"project": "alpha", "version": "1.0", "sha256": ids["sha256"], "adds": [*SDIST_ONLY]}
        first = {"tag": "v1", "commit": ids["v1"], "sdist": {**sdist, "lacks": "extra/: there is no recipe"}}
        versions = {"v1": first, "v2": {"tag": "v2", "commit": ids["v2"]}}
        url = f"file://{self.up}"
        self.upstreams = {
            "alpha": {"git": f"{url}/alpha", "license": "Apache-2.0", "default": "v1", "versions": versions},
            "beta": {
                "git": f"{url}/beta",
                "license": "MIT",
                "default": "b1",
                "versions": {"b1": {"commit": ids["beta"]}},
            },
        }
        self.save()
        write_tree(self.root, {".gitignore": "/apply.py\n/engine/\n/checkouts/\n__pycache__/\n"})
        git(self.root, "init", "-q")
        commit(self.root, "The project as it is")
        self.engine = load_engine(self.root)

    def save(self) -> None:
        (self.root / "upstreams.json").write_text(json.dumps(self.upstreams, indent=2))

    def source(self, name: str, folder: str) -> None:
        """Where upstreams.json says that an upstream is: `nowhere` cannot be reached."""
        self.upstreams[name]["git"] = f"file://{self.up}/{folder}"
        self.save()

    def add(self, files: dict[str, str]) -> None:
        """New overlay files and patches, each with its line in the list or series."""
        write_tree(self.root, files)
        for file in files:
            kind, name, inner = file.split("/", 2)
            place = f"overlays/{name}.list" if kind == "overlays" else f"{Path(file).parent}/series"
            with open(self.root / place, "a") as out:
                out.write(f"{inner if kind == 'overlays' else Path(file).name}\n")

    def set_era(self, text: str) -> None:
        """Change the overlay, so that an applied checkout of alpha is stale."""
        write_tree(self.root, {"overlays/alpha/src/era.py": text})

    def checkout(self, name: str = "alpha") -> Path:
        return self.checkouts / name

    def run(self, *args: str, code: int | None = 0) -> Result:
        """Call main() in this process; `code` is the exit code expected, None for any."""
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in ("out", "err")]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                status = self.engine.cli.main(["--cache", str(self.cache), *args])
            except SystemExit as stop:
                status = stop.code
        for stream in streams:
            stream.flush()
        result = Result(status, *(stream.buffer.getvalue() for stream in streams))
        assert code in (None, status), f"{args} ended with {status}, expected {code}:\n{result.text}"
        return result

    def start(self, *args: str, **options) -> subprocess.Popen:
        """The same in a process of its own."""
        command = [sys.executable, str(self.root / "apply.py"), "--cache", str(self.cache), *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def state(self, name: str = "alpha", *args: str) -> str:
        return self.run("status", name, "--json", *args, code=None).json[name]["state"]

    def patch(self, number: int, name: str = "alpha", label: str = "v1") -> Path:
        return next((self.root / "patches" / name / label).glob(f"{number:04d}-*.patch"))


# --- what several test files share ---


def branch(project: Project, name: str, edit) -> None:
    """A branch of alpha's repository with one commit, `edit(folder)`, on v1."""
    _, after = make_patch(project.up / "alpha", "v1", edit, name)
    git(project.up / "alpha", "branch", name, after)


def hinted(text: str) -> list[list[str]]:
    """The apply.py commands that a message tells the user to run, as words."""
    return [shlex.split(command) for command in re.findall(r"python3 apply\.py ([^`\n]*)", text)]


def follow(text: str) -> None:
    """Run the git commands of a message as they are printed, pipes too."""
    for command in re.findall(r"`?(git -C [^`\n]+)", text):
        subprocess.run(command, shell=True, check=True, capture_output=True)


def content(folder: Path) -> dict[str, tuple[bool, bytes]]:
    """Every file of a work tree with its exec bit and bytes, .git left out."""
    files = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if relative.parts[0] != ".git" and (path.is_symlink() or not path.is_dir()):
            data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            files[relative.as_posix()] = (bool(path.lstat().st_mode & 0o100), data)
    return files


@contextlib.contextmanager
def unchanged(folder: Path):
    """Nothing of the user's changes: files, HEAD, refs, configuration, stash, index with its flags."""
    questions = ("for-each-ref", "rev-parse HEAD", "symbolic-ref -q HEAD", "config --local --list", "stash list")
    questions += ("ls-files -v --stage", "status --porcelain")

    def state() -> list:
        answers = [git(folder, *words.split(), check=False) for words in questions] if folder.is_dir() else []
        return [os.path.lexists(folder), content(folder), *answers]

    before = state()
    yield
    assert state() == before
