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
import signal
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


def git(folder: Path, *args: str, data: str | None = None, check: bool = True) -> str:
    """Plain git as a user would call it, with a name to commit under."""
    identity = ["-c", "user.name=User", "-c", "user.email=user@example.org", "-c", "commit.gpgSign=false"]
    done = subprocess.run(["git", *identity, *args], cwd=folder, input=data, capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"git {args}: {done.stderr}")
    return done.stdout.strip()


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
        if path.endswith(".sh"):
            target.chmod(0o755)


def make_upstream(folder: Path, versions: list[tuple[str, dict[str, str]]]) -> dict[str, str]:
    """A repository with one tagged commit per version; returns the commits by tag."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "core.autocrlf", "false")
    write_tree(folder, {"history.txt": "a commit before the pinned one\n"})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "before")
    found = {}
    for tag, files in versions:
        for old in git(folder, "ls-files").splitlines():
            (folder / old).unlink()
        write_tree(folder, files)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", tag)
        git(folder, "tag", tag)
        found[tag] = git(folder, "rev-parse", "HEAD")
    return found


def make_archive(path: Path, files: dict[str, str], top: str) -> str:
    """A deterministic source package; returns its sha256."""
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
    """The patch for `edit(folder)` on a commit, and a commit that holds the result (to build on)."""
    work = upstream.parent / f"work-{hashlib.sha1(subject.encode()).hexdigest()[:8]}"
    git(upstream, "worktree", "add", "-q", "--detach", str(work), start)
    edit(work)
    git(work, "add", "-A")
    diff = subprocess.run(
        ["git", "diff", "--cached", "--full-index", "--no-renames"], cwd=work, capture_output=True
    ).stdout
    git(work, "commit", "-q", "-m", subject)
    after = git(work, "rev-parse", "HEAD")
    git(upstream, "worktree", "remove", "--force", str(work))
    return HEADER.format(subject=subject) + diff.decode(), after


def replace_in(path: str, old: str, new: str):
    def edit(folder: Path) -> None:
        target = folder / path
        content = target.read_bytes().decode()
        assert old in content
        target.write_bytes(content.replace(old, new).encode())

    return edit


def load_engine(folder: Path):
    """The package engine of a folder, apart from any loaded before; its project is that folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        importlib.import_module("engine.cli")  # it imports all others
    finally:
        sys.path.remove(str(folder))
    engine = sys.modules["engine"]
    assert Path(engine.__file__).parent == folder / "engine"
    return engine


def restore_ctrl_c() -> None:
    """A test run in the background of a shell ignores Ctrl-C, and what it starts inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Result:
    def __init__(self, code: int, out: bytes, err: bytes):
        self.code, self.raw = code, out
        self.out, self.err = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        self.text = self.out + self.err

    @property
    def json(self) -> dict:
        return json.loads(self.out)


LEAVINGS = re.compile(r"(^|/)__pycache__/|\.pyc$")


def is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def write_list(path: Path, names: set[str]) -> None:
    """A series or an overlay list of these files; lines that name a source elsewhere (`path <- source`) stay."""
    lines = path.read_text().splitlines() if path.is_file() else None
    shared = [line for line in lines or [] if " <- " in line]
    if lines is None or {line for line in lines if line not in shared} != names:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in [*sorted(names), *shared]))


class Project:
    """A copy of apply.py and engine/ with an upstreams.json, patches/ and overlays/ of its own."""

    def __init__(self, root: Path, upstreams: dict):
        self.root = root
        self.upstreams = upstreams
        self.cache = root.parent / "cache"
        self.checkouts = root / "checkouts"
        self.env: dict[str, str] = {}
        root.mkdir(parents=True, exist_ok=True)
        shutil.copy(APPLY, root / "apply.py")
        shutil.copytree(ENGINE, root / "engine", ignore=shutil.ignore_patterns("__pycache__"))
        self.pinning = True  # a test of the series and lists themselves turns it off
        self.save()
        self.write_lists()
        self.engine = load_engine(root)

    def save(self) -> None:
        (self.root / "upstreams.json").write_text(json.dumps(self.upstreams, indent=2))

    def write_lists(self) -> None:
        """Every patch in its series and every overlay file in its list; most tests add and remove some by hand."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            for name, up in json.loads((self.root / "upstreams.json").read_text()).items():
                for label in up["versions"]:
                    folder = self.root / "patches" / name / label
                    write_list(folder / "series", {path.name for path in folder.glob("[!.]*.patch")})
                top = self.root / "overlays" / name
                files = {path.relative_to(top).as_posix() for path in top.rglob("*") if not is_folder(path)}
                write_list(top.with_name(f"{name}.list"), {path for path in files if not LEAVINGS.search(path)})

    def commit(self) -> None:
        """The project as a git repository in which everything is committed, which export asks for."""
        if not (self.root / ".git").exists():
            git(self.root, "init", "-q")
        git(self.root, "add", "-A", "upstreams.json", "patches", "overlays")
        git(self.root, "commit", "-q", "--allow-empty", "-m", "The project as it is")

    def checkout(self, name: str = "alpha") -> Path:
        return self.checkouts / name

    def run(self, *args: str, code: int | None = 0) -> Result:
        """Call main() in this process; `code` is the exit code expected, None for any."""
        out, err = io.BytesIO(), io.BytesIO()
        streams = io.TextIOWrapper(out, encoding="utf-8"), io.TextIOWrapper(err, encoding="utf-8")
        saved = dict(os.environ)
        os.environ.update(self.env)
        try:
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                try:
                    status = self.engine.cli.main(self.with_cache(args))
                except SystemExit as stop:
                    status = stop.code
            for stream in streams:
                stream.flush()
        finally:
            os.environ.clear()
            os.environ.update(saved)
        return self.judge(args, Result(status, out.getvalue(), err.getvalue()), code)

    def spawn(
        self, *args: str, code: int | None = 0, env: dict[str, str] | None = None, timeout: float = 900
    ) -> Result:
        """The same in a process of its own."""
        done = subprocess.run(
            [sys.executable, str(self.root / "apply.py"), *self.with_cache(args)],
            capture_output=True,
            env={**os.environ, **self.env, **(env or {})},
            timeout=timeout,
            preexec_fn=restore_ctrl_c,
        )
        return self.judge(args, Result(done.returncode, done.stdout, done.stderr), code)

    def start(self, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen:
        """In the background."""
        return subprocess.Popen(
            [sys.executable, str(self.root / "apply.py"), *self.with_cache(args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.env, **(env or {})},
            preexec_fn=restore_ctrl_c,
        )

    def with_cache(self, args: tuple[str, ...]) -> list[str]:
        if self.pinning:
            self.write_lists()
            if "export" in args:
                self.commit()
        return ["--cache", str(self.cache), *args]

    def judge(self, args: tuple[str, ...], result: Result, code: int | None) -> Result:
        assert "Traceback" not in result.text, result.text
        if code is not None:
            assert result.code == code, f"{args} ended with {result.code}, expected {code}:\n{result.text}"
        return result

    def state(self, name: str = "alpha", *args: str) -> str:
        return self.run("status", name, "--json", *args, code=None).json[name]["state"]

    def patch(self, number: int, name: str = "alpha", label: str = "v1") -> Path:
        return next((self.root / "patches" / name / label).glob(f"{number:04d}-*.patch"))


# --- what several test files share ---


def unreachable(project: Project, name: str = "alpha") -> None:
    project.upstreams[name]["git"] = f"file://{project.up}/nowhere"
    project.save()


def branch(project: Project, name: str, edit) -> None:
    """A branch of alpha's repository with one commit, `edit(folder)`, on v1."""
    up = project.up / "alpha"
    git(up, "checkout", "-q", "-b", name, "v1")
    edit(up)
    git(up, "add", "-A")
    git(up, "commit", "-q", "-m", name)
    git(up, "checkout", "-q", "main")


def hinted(text: str) -> list[list[str]]:
    """The apply.py commands that a message tells the user to run, as words."""
    return [shlex.split(found) for found in re.findall(r"python3 apply\.py ([^`\n]*)", text)]


def follow(text: str) -> None:
    """Run the git commands of a message as they are printed, pipes too."""
    for command in re.findall(r"`?(git -C [^`\n]+)", text):
        subprocess.run(command, shell=True, check=True, capture_output=True)


def before_git(patch, word: str, act) -> None:
    """While `patch` lasts, `act()` is called before every git of apply.py with that word in its command."""
    real = subprocess.Popen.__init__

    def start(self, args, *more, **options):
        if word in args:
            act()
        real(self, args, *more, **options)

    patch.setattr(subprocess.Popen, "__init__", start)


def interrupt(project: Project, monkeypatch, *args: str) -> None:
    """A run that fails in the middle of its switch: the files are changed, HEAD is not."""
    with monkeypatch.context() as patch:
        real = project.engine.switch.change_files

        def change_and_fail(git, switch, *more) -> None:
            real(git, switch, *more)
            if more:  # the dry run
                return
            raise OSError(28, "No space left on device")

        patch.setattr(project.engine.switch, "change_files", change_and_fail)
        assert "completes it" in project.run(*args, code=7).err


def content(folder: Path, skip: tuple[str, ...] = ()) -> dict[str, tuple[bool, bytes]]:
    """Every file of a work tree with its exec bit and bytes, .git left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if relative.split("/")[0] == ".git" or relative in skip or (path.is_dir() and not path.is_symlink()):
            continue
        data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        found[relative] = (bool(path.lstat().st_mode & 0o100), data)
    return found


def git_state(folder: Path) -> dict[str, str]:
    """What is the user's in a repository: refs, HEAD, configuration, stash, index with its flags."""
    head = (folder / ".git" / "HEAD").read_text() if (folder / ".git").is_dir() else git(folder, "rev-parse", "HEAD")
    return {
        "refs": git(folder, "for-each-ref"),
        "head": head,
        "config": git(folder, "config", "--local", "--list"),
        "stash": git(folder, "stash", "list"),
        "index": git(folder, "ls-files", "-v", "--stage"),
        "status": git(folder, "status", "--porcelain"),
    }


def make_template(folder: Path) -> dict:
    """Upstreams, patches and overlays of the small project; made once, copied for each test."""
    alpha, beta = folder / "up" / "alpha", folder / "up" / "beta"
    commits = make_upstream(alpha, [("v1", FIRST), ("v2", SECOND)])
    plain = make_upstream(beta, [("only", {"main.py": "print(1)\nprint(2)\nprint(3)\n"})])
    packed = {path: text for path, text in FIRST.items() if not path.startswith("extra/")}
    sha256 = make_archive(folder / "index" / "alpha-1.0.tar.gz", {**packed, **SDIST_ONLY}, "alpha-1.0")
    first, after = make_patch(
        alpha, commits["v1"], replace_in("src/core.py", "line 20 of", "line 20, hooked, of"), "Hook the core"
    )

    def second_edit(work: Path) -> None:
        replace_in("src/core.py", "line 40 of", "line 40, hooked, of")(work)
        replace_in("src/util.py", "return a + b", "return b + a")(work)

    second, _ = make_patch(alpha, after, second_edit, "Hook core and util")
    single, _ = make_patch(beta, plain["only"], replace_in("main.py", "print(2)", "print(22)"), "Hook main")
    write_tree(
        folder / "project",
        {
            "patches/alpha/v1/0001-Hook-the-core.patch": first,
            "patches/alpha/v1/0002-Hook-core-and-util.patch": second,
            "patches/beta/b1/0001-Hook-main.patch": single,
            "overlays/alpha/src/era.py": "ERA = 1\n",
            "overlays/alpha/tools/go.sh": "#!/bin/sh\n",
            "overlays/alpha/src/__pycache__/era.pyc": "junk",
        },
    )
    return {"v1": commits["v1"], "v2": commits["v2"], "beta": plain["only"], "sha256": sha256}


def make_project(tmp_path: Path, template: tuple[Path, dict]) -> Project:
    """A project and its upstreams in a folder, copied from the template."""
    folder, ids = template
    shutil.copytree(folder / "project", tmp_path / "project")
    for part in ("up", "index"):
        shutil.copytree(folder / part, tmp_path / part)
    sdist = {
        "project": "alpha",
        "version": "1.0",
        "sha256": ids["sha256"],
        "lacks": "extra/: there is no recipe",
        "adds": list(SDIST_ONLY),
    }
    made = Project(
        tmp_path / "project",
        {
            "alpha": {
                "git": f"file://{tmp_path}/up/alpha",
                "license": "Apache-2.0",
                "default": "v1",
                "versions": {
                    "v1": {"tag": "v1", "commit": ids["v1"], "sdist": sdist},
                    "v2": {"tag": "v2", "commit": ids["v2"]},
                },
            },
            "beta": {
                "git": f"file://{tmp_path}/up/beta",
                "license": "MIT",
                "default": "b1",
                "versions": {"b1": {"commit": ids["beta"]}},
            },
        },
    )
    made.ids = ids
    made.index = tmp_path / "index"
    made.up = tmp_path / "up"
    # pip looks into a folder instead of an index, and builds without fetching anything.
    made.env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(made.index), "PIP_CONFIG_FILE": os.devnull}
    return made
