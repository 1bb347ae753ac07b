"""Where apply.py is put: git and Python versions, file systems, paths, kinds of given checkouts, circumstances.

ERA_PROOF_GITS and ERA_PROOF_PYTHONS name what to try beside what is on the PATH: folders with a `git` in it, and
interpreters, separated by colons.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest
from kit import FIRST, Project, Result, content, git, make_template, restore_ctrl_c

PART = "places"
LONG = os.environ.get("ERA_PROOF") == "long"
only_long = pytest.mark.skipif(not LONG, reason="in the long form only")
GITS = [Path(item) for item in os.environ.get("ERA_PROOF_GITS", "").split(":") if item]
PYTHONS = [item for item in os.environ.get("ERA_PROOF_PYTHONS", "").split(":") if item]

# What the made-up project must become, by git, Python and machine: the template's commits have a fixed date.
FROZEN = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
GOLDEN = {
    "alpha": "800b9a90d0942a5baf61c8da7e498d88917d365b",
    "beta": "8214b0488f8dbcffacdcc4f11f6079f65fea03fe",
    "exported": "cf09de090435742372766d96c0754b72fc9690db",
    "v2": "3e40f2d9702be53e35114eb9102d2a0b42cd2e09",
    "archive": "76f35410a0df91456e60b72d2c801b7f55f11e17",  # a tree: the commit names the sha256 of the archive
    "odd names": "0cf9285a01120ce6db2c5d94e379a50e2b7b342e",
    "diff": "4a3a032b1b10c762389bf27674e2edc69312b2eb4c34295e0fde403d368608e6",
    "local": "7f5cbc2982fe46f3b9214a0e82bce4e9c5e957fa964702a584722cc936853798",
    "patches": "f895ae07aebff828e0f600b10f8b874ea16ef7a0197f75ec392eac519868173a",
    "port": "0710f697b4d7bac3e6098a639502da5f5ab60674bd144304271fb19a6d11c9d7",
    "saved": "37459053c6c98914a520eef27c02a0fe796bf991729e84a389695074bb41bddc",
}
ROUND = {name: value for name, value in GOLDEN.items() if name != "odd names"}
CORE = FIRST["src/core.py"].replace("line 20 of", "line 20, hooked, of").replace("line 40 of", "line 40, hooked, of")
APPLIED = {
    **{path: text.encode() for path, text in FIRST.items()},
    "src/core.py": CORE.encode(),
    "src/util.py": FIRST["src/util.py"].replace("a + b", "b + a").encode(),
    "src/era.py": b"ERA = 1\n",
    "tools/go.sh": b"#!/bin/sh\n",
}
UPSTREAM = {path: text.encode() for path, text in FIRST.items()}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The made-up project of the other tests, with the same commit ids in every run."""
    folder = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        for key, value in FROZEN.items():
            patch.setenv(key, value)
        ids = make_template(folder)
    return folder, ids


def some_of(cases: list, short: list[str]) -> list:
    """All cases in the long form, those named in the short one."""
    found = [case for case in cases if LONG or case[0] in short]
    return [pytest.param(*case, id=case[0].replace(" ", "-")) for case in found]


@contextlib.contextmanager
def counted(tally, row: str, outcome: str = "completed"):
    try:
        yield
    except pytest.skip.Exception:
        raise
    except BaseException:
        tally.count(PART, row, "lost")
        raise
    tally.count(PART, row, outcome)


def bytes_of(folder: Path, *skip: str) -> dict[str, bytes]:
    return {path: data for path, (_, data) in content(folder, (".git", *skip)).items()}


def everything(folder: Path) -> dict[str, tuple]:
    """Every file and folder with its mode and content, .git and all."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        data = (
            os.readlink(path)
            if stat.S_ISLNK(info.st_mode)
            else path.read_bytes()
            if stat.S_ISREG(info.st_mode)
            else None
        )
        found[str(path)] = (info.st_mode, data)
    return found


def git_folders(folder: Path) -> tuple[Path, Path]:
    names = git(folder, "rev-parse", "--git-dir", "--git-common-dir").split("\n")
    return tuple((folder / name).resolve() for name in names)


def user_state(folder: Path) -> dict:
    """What is the user's in a repository, as plain git and the files in .git tell it."""
    own, common = git_folders(folder)
    index = (own / "index").read_bytes()
    kept = {}
    for path in sorted({*own.rglob("*"), *common.rglob("*")}):
        parts = path.relative_to(common if path.is_relative_to(common) else own).parts
        if (
            path.is_file()
            and parts[0] not in ("objects", "logs", "reftable", "era")
            and "index" not in path.name
            and "logs" not in parts
        ):
            kept[str(path)] = path.read_bytes()
    debug = git(folder, "ls-files", "--debug")
    return {
        "kept": kept,
        "refs": git(folder, "for-each-ref"),
        "head": git(folder, "symbolic-ref", "--quiet", "HEAD", check=False) or git(folder, "rev-parse", "HEAD"),
        "stash": git(folder, "stash", "list"),
        "entries": git(folder, "ls-files", "-v", "--stage"),
        "fsmonitor": git(folder, "ls-files", "-f"),
        # Those that are stored; a split index is not the user's wish but git's way to store it, which any git may join.
        "flags": [int(line.split("flags:")[1], 16) & 0x6000F000 for line in debug.split("\n") if "flags:" in line],
        "version of the index": index[4:8],
        "status": git(folder, "status", "--porcelain=v2", "--branch"),
        "own": (own / "era").exists(),
    }


def same_after_round(project: Project, folder: Path, env: dict[str, str] | None = None) -> None:
    """apply, status and revert of a given clone: the overlay is there, then nothing of it, and nothing else changed."""
    where = ("--checkout", str(folder))
    before, state = content(folder, (".git",)), user_state(folder)
    project.run("apply", "alpha", *where)
    assert bytes_of(folder) == {**{path: data for path, (_, data) in before.items()}, **APPLIED}
    assert project.run("status", "alpha", "--json", *where).json["alpha"]["state"] == "applied"
    assert "nothing to do" in project.run("apply", "alpha", *where).out
    project.run("revert", "alpha", *where)
    assert content(folder, (".git",)) == before
    after = user_state(folder)
    assert after == state, {key: (state[key], after[key]) for key in state if after[key] != state[key]}


def refused(project: Project, folder: Path, around: Path, code: int, words: str) -> None:
    """apply, revert and status of a given clone end in words, and not one byte there changes."""
    where = ("--checkout", str(folder))
    before = everything(around)
    result = project.run("apply", "alpha", *where, code=code)
    assert words in result.err and result.err.startswith("error: "), result.text
    assert everything(around) == before
    for verb in ("status", "revert", "export"):
        project.run(verb, "alpha", *where, code=None)
        assert everything(around) == before, verb


# One round of all verbs, in any place and by any git and Python.


def whole_round(project: Project, run, tmp: Path) -> dict[str, str]:
    """fetch, apply, status, edit, diff, export, apply, port, revert, another version, the archive, a given clone.

    Returns ids of what was made: they may not depend on git, Python or the place.
    """
    found = {}
    alpha = project.checkout()
    run("fetch")
    run("apply")
    assert bytes_of(alpha) == APPLIED
    found["alpha"], found["beta"] = git(alpha, "rev-parse", "era"), git(project.checkout("beta"), "rev-parse", "era")
    assert git(alpha, "fsck", "--strict", check=False) == ""
    assert "alpha v1: applied" in run("status").out
    assert run("export", "alpha", "--check").code == 0
    found["diff"] = hashlib.sha256(run("diff", "alpha").raw).hexdigest()

    (alpha / "README.md").write_bytes(b"# mine\n")
    (alpha / "notes.txt").write_bytes(b"mine\n")
    assert "alpha v1: modified" in run("status", "alpha", code=1).out
    local = run("diff", "alpha", "--local").raw
    assert b"+# mine" in local and b"notes.txt" in local
    found["local"] = hashlib.sha256(local).hexdigest()
    run("export", "alpha")
    patches = sorted((project.root / "patches/alpha/v1").glob("*.patch"))
    found["patches"] = hashlib.sha256(b"".join(path.read_bytes() for path in patches)).hexdigest()
    assert len(patches) == 3 and (project.root / "overlays/alpha/notes.txt").read_bytes() == b"mine\n"
    run("apply", "alpha")
    mine = {**APPLIED, "README.md": b"# mine\n", "notes.txt": b"mine\n"}
    assert bytes_of(alpha) == mine
    found["exported"] = git(alpha, "rev-parse", "era")

    rows = json.loads(run("port", "alpha", "--onto", "v2", "--json", code=4).out)["alpha"]["patches"]
    found["port"] = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()

    (alpha / "bare.txt").write_bytes(b"an edit")
    (alpha / "crlf.txt").unlink()
    run("revert", "alpha", code=5)
    saved = tmp / "saved.patch"
    run("revert", "alpha", "--keep-edits", str(saved))
    assert bytes_of(alpha) == UPSTREAM
    found["saved"] = hashlib.sha256(saved.read_bytes()).hexdigest()
    run("apply", "alpha")
    subprocess.run(["git", "apply", str(saved)], cwd=alpha, check=True)
    assert bytes_of(alpha) == {
        **{path: data for path, data in mine.items() if path != "crlf.txt"},
        "bare.txt": b"an edit",
    }
    git(alpha, "checkout", "-q", ".")
    run("apply", "alpha", "--version", "v2")
    found["v2"] = git(alpha, "rev-parse", "era")
    run("revert")
    assert git(alpha, "rev-parse", "HEAD") == project.ids["v2"]

    packed = tmp / "packed"
    run("apply", "alpha", "--checkouts", str(packed), "--source", str(project.index / "alpha-1.0.tar.gz"))
    found["archive"] = git(packed / "alpha", "rev-parse", "era^{tree}")

    clone = tmp / "given"
    git(tmp, "clone", "-q", str(project.up / "alpha"), str(clone))
    git(clone, "checkout", "-q", "-b", "mine", project.ids["v1"])
    before, state = content(clone), user_state(clone)
    run("apply", "alpha", "--checkout", str(clone))
    assert git(clone, "rev-parse", "era") == found["exported"] and bytes_of(clone) == mine
    run("status", "alpha", "--checkout", str(clone))
    run("revert", "alpha", "--checkout", str(clone))
    assert content(clone) == before and user_state(clone) == state
    return found


def git_version(folder: Path | None) -> str:
    program = str(folder / "git") if folder else "git"
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]


def is_new_enough(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2]) >= (2, 30)


@pytest.mark.parametrize("folder", [None, *GITS], ids=lambda folder: folder.name if folder else "PATH")
def test_git(project, tally, tmp_path, monkeypatch, folder):
    version = git_version(folder)
    new_enough = is_new_enough(version)
    with counted(tally, f"git {version}", "completed" if new_enough else "refused"):
        if new_enough:
            if folder:
                monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
            assert git(tmp_path, "--version").split()[2] == version
            (tmp_path / ".gitconfig").write_text("[diff]\n\tcontext = 0\n")  # in the home of the tests: not for us
            assert whole_round(project, project.run, tmp_path) == ROUND
            return
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
            for verb in ("fetch", "apply", "status"):
                error = project.run(verb, code=2).err
                assert "is too old" in error and "install git 2.30 or newer" in error and "nothing was changed" in error
        assert not project.checkouts.exists() and not project.cache.exists()


def by_python(project: Project, interpreter: str, **env: str):
    """Verbs as processes of an interpreter, as a user starts them."""

    def run(*args: str, code: int | None = 0):
        done = subprocess.run(
            [interpreter, str(project.root / "apply.py"), *project.with_cache(args)],
            capture_output=True,
            env={**os.environ, **project.env, **env},
            preexec_fn=restore_ctrl_c,
        )
        return project.judge(args, Result(done.returncode, done.stdout, done.stderr), code)

    return run


@only_long
@pytest.mark.parametrize("interpreter", [sys.executable, *PYTHONS])
def test_python(project, tally, tmp_path, interpreter):
    report = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    version = subprocess.run([interpreter, "-c", report], capture_output=True, text=True, check=True).stdout.strip()
    new_enough = tuple(int(part) for part in version.split(".")[:2]) >= (3, 10)
    run = by_python(project, interpreter)
    with counted(tally, f"Python {version}", "completed" if new_enough else "refused"):
        if new_enough:
            # Bytecode, warnings: whatever would be an error in strict hands, is one here.
            run = by_python(project, interpreter, PYTHONWARNINGS="error", PYTHONDEVMODE="1")
            assert whole_round(project, run, tmp_path) == ROUND
            return
        for verb in ("fetch", "apply", "status"):
            assert run(verb, code=2).err == f"error: apply.py needs Python 3.10 or newer, this is Python {version}\n"
        assert not project.checkouts.exists() and not project.cache.exists()


# Paths


def moved(project: Project, base: Path) -> Project:
    """The made-up project once more, with its cache beside it, at another place."""
    base.mkdir(parents=True, exist_ok=True)
    for part in ("patches", "overlays"):
        shutil.copytree(project.root / part, base / "project" / part)
    other = Project(base / "project", project.upstreams)
    other.ids, other.index, other.up, other.env = project.ids, project.index, project.up, project.env
    return other


def small_round(project: Project, clone: Path) -> None:
    """Everything that writes somewhere, with the bytes of each result."""
    alpha, where = project.checkout(), ("--checkouts", str(project.checkouts))
    project.run("apply", "alpha", *where)
    assert bytes_of(alpha) == APPLIED and git(alpha, "rev-parse", "era") == GOLDEN["alpha"]
    assert project.state("alpha", *where) == "applied"
    (alpha / "README.md").write_bytes(b"# mine\n")
    (alpha / "notes.txt").write_bytes(b"mine\n")
    assert b"+# mine" in project.run("diff", "alpha", "--local", *where).raw
    project.run("export", "alpha", *where)
    project.run("apply", "alpha", *where)
    assert git(alpha, "rev-parse", "era") == GOLDEN["exported"]
    (alpha / "bare.txt").write_bytes(b"an edit")
    saved = project.root / "saved.patch"
    hint = project.run("revert", "alpha", "--keep-edits", str(saved), *where).out
    assert b"+an edit" in saved.read_bytes() and "brings them back" in hint
    assert bytes_of(alpha) == UPSTREAM
    same_after_given_round(project, clone)


def same_after_given_round(project: Project, clone: Path) -> None:
    before, state = content(clone), user_state(clone)
    project.run("apply", "alpha", "--checkout", str(clone))
    assert git(clone, "rev-parse", "era") == GOLDEN["exported"]
    assert project.run("status", "alpha", "--json", "--checkout", str(clone)).json["alpha"]["state"] == "applied"
    project.run("revert", "alpha", "--checkout", str(clone))
    assert content(clone) == before and user_state(clone) == state


PATHS = [
    ("spaces", " two  words "),
    ("quotes", 'it\'s "quoted" `so`'),
    ("composed letters", unicodedata.normalize("NFC", "\u00fcber-\u00e9t\u00e9")),
    ("decomposed letters", unicodedata.normalize("NFD", "\u00fcber-\u00e9t\u00e9")),
    ("emoji", "\U0001f600-\U0001f468\u200d\U0001f469"),
    ("right to left", "\u05e9\u05dc\u05d5\u05dd\u202e"),
    ("newline", "two\nlines"),
    ("newline at the end", "a line\n"),
    ("tab and escape", "a\tb\x1b[31mc\x07"),
    ("leading dash", "-rf"),
    ("option", "--git-dir=x"),
    ("200 characters", "n" * 200),
    ("255 characters", "n" * 255),
    ("percent", "%s%(x)s%20%n"),
    ("variable", "$HOME-${PATH}-$(touch ran)"),
    ("backslash", "back\\slash\\"),
    ("colons", "a:b:c"),
    ("colon and not UTF-8", os.fsdecode(b"a:b-\xe9\xff")),
    ("semicolon", "a;b&c|d<e>f"),
    ("glob", "*?[a]{b,c}"),
    ("tilde", "~"),
    ("hash", "#a=b,c@d!"),
    ("braces of a format", "{name}{0}"),
    ("trailing dot", "dot. "),
    ("hidden", ".hidden.git"),
]


@pytest.mark.parametrize("kind, name", some_of(PATHS, ["colon and not UTF-8"]))
def test_path(project, clone, tally, tmp_path, kind, name):
    with counted(tally, f"path with {kind}"):
        base = tmp_path / "odd" / name
        other = moved(project, base)
        small_round(other, Path(shutil.copytree(clone, base / "clone", symlinks=True)))


def links(project, clone, base):
    real = base / "real"
    other = moved(project, real)
    (base / "link").symlink_to(real)
    other.cache = base / "link/cache"
    shutil.copytree(clone, real / "clone")
    return other, ["--checkouts", str(base / "link/project/checkouts")], str(base / "link/clone")


def relative(project, clone, base):
    other = moved(project, base)
    shutil.copytree(clone, base / "clone")
    os.chdir(base)
    other.cache = Path("cache")
    return other, ["--checkouts", "project/checkouts"], "./clone"


def slashes(project, clone, base):
    other = moved(project, base)
    shutil.copytree(clone, base / "clone")
    other.cache = f"{base}//cache/./"
    return other, ["--checkouts", f"{base}/project/../project//checkouts//"], f"{base}/clone///"


def home(project, clone, base):
    other = moved(project, base)
    shutil.copytree(clone, base / "clone")
    other.env = {**other.env, "HOME": str(base)}
    other.cache = "~/cache"
    return other, ["--checkouts", "~/project/checkouts"], "~/clone"


def dashes(project, clone, base):
    other = moved(project, base)
    shutil.copytree(clone, base / "-clone")
    os.chdir(base)
    other.cache = Path("cache")
    return other, ["--checkouts=--checkouts"], "-clone"


WAYS = [
    ("links in the path", links),
    ("relative", relative),
    ("trailing and double slashes", slashes),
    ("tilde expanded", home),
    ("relative with leading dash", dashes),
]


@only_long
@pytest.mark.parametrize("kind, way", WAYS)
def test_way_of_naming(project, clone, tally, tmp_path, monkeypatch, kind, way):
    monkeypatch.chdir(tmp_path)
    with counted(tally, f"path {kind}"):
        base = tmp_path / "other"
        base.mkdir()
        other, where, given = way(project, clone, base)
        other.run("apply", "alpha", *where)
        (found,) = [path for path in base.rglob("*/alpha") if (path / ".git").is_dir()]
        assert bytes_of(found) == APPLIED and git(found, "rev-parse", "era") == GOLDEN["alpha"]
        other.run("status", "alpha", *where)
        other.run("revert", "alpha", *where)
        assert bytes_of(found) == UPSTREAM
        other.run("apply", "alpha", f"--checkout={given}")
        assert other.run("status", "alpha", "--json", f"--checkout={given}").json["alpha"]["state"] == "applied"
        other.run("revert", "alpha", f"--checkout={given}")
        assert other.run("status", "alpha", "--json", f"--checkout={given}").json["alpha"]["state"] == "clean"


@pytest.mark.parametrize(
    "length", [3000, 3700, 3900, 3990, 4020, 4040, 4050, 4060, 4070, 4080, 4090] if LONG else [4040]
)
def test_path_near_the_limit(project, tally, tmp_path, length):
    """Where a path does not fit, apply refuses and leaves nothing behind."""
    folder, base = tmp_path / "deep", tmp_path
    while len(str(base)) + 202 < length:
        base = base / ("d" * 200)
        base.mkdir()
    rest = length - len(str(base)) - 1
    if rest > 0:
        base = base / ("e" * rest)
        base.mkdir()
    assert len(str(base)) in (length, length - 1) and not folder.exists()
    result = project.run("apply", "alpha", "--checkouts", str(base), code=None)
    with counted(tally, "path near PATH_MAX", "refused" if result.code else "completed"):
        left = [name for name in os.listdir(base) if name != ".alpha.lock"]
        if result.code == 0:
            assert left == ["alpha"] and bytes_of(base / "alpha") == APPLIED
            project.run("status", "alpha", "--checkouts", str(base))
        else:
            assert left == [] and result.err.startswith("error: ") and "nothing was changed" in result.err, (
                left,
                result.text,
            )


@only_long
@pytest.mark.parametrize("length", [200, 246, 247, 255])
def test_long_file_name_in_the_overlay(project, clone, tally, length):
    """The names that apply.py puts beside a file while it switches must not be what does not fit."""
    name = "n" * (length - 3) + ".py"
    with counted(tally, "file name of up to 255 characters in an overlay"):
        (project.root / "overlays/alpha" / name).write_bytes(b"long = 1\n")
        project.run("apply", "alpha")
        assert bytes_of(project.checkout()) == {**APPLIED, name: b"long = 1\n"}
        project.run("revert", "alpha")
        assert bytes_of(project.checkout()) == UPSTREAM
        project.run("apply", "alpha")
        assert bytes_of(project.checkout()) == {**APPLIED, name: b"long = 1\n"}
        where = ("--checkout", str(clone))
        before, state = content(clone), user_state(clone)
        project.run("apply", "alpha", *where)
        assert (clone / name).read_bytes() == b"long = 1\n"
        project.run("revert", "alpha", *where)
        assert content(clone) == before and user_state(clone) == state


@pytest.mark.parametrize("room", [0, 5, 9, 12] if LONG else [5])
def test_deepest_file_at_the_limit(project, tally, tmp_path, room):
    """A given clone in which the overlay's longest path just fits, but not what stands beside it during a switch."""
    longest = "overlay/" + "p" * 100 + "/" + "q" * 60 + ".py"
    target = project.root / "overlays/alpha" / longest
    target.parent.mkdir(parents=True)
    target.write_bytes(b"deep = 1\n")
    base = tmp_path
    while (left := 4095 - room - len(longest) - len(str(base)) - 1) > 205:
        base = base / ("d" * 200)
    base = base / ("e" * (left - 1))
    base.parent.mkdir(parents=True, exist_ok=True)
    git(tmp_path, "clone", "-q", str(project.up / "alpha"), str(tmp_path / "near"))
    git(tmp_path / "near", "checkout", "-q", "-b", "mine", project.ids["v1"])
    (tmp_path / "near").rename(base)
    assert len(str(base / longest)) == 4095 - room
    where = ("--checkout", str(base))
    before = content(base)
    result = project.run("apply", "alpha", *where, code=None)
    with counted(tally, "path near PATH_MAX", "refused" if result.code else "completed"):
        if result.code == 0:
            assert (base / longest).read_bytes() == b"deep = 1\n"
            project.run("revert", "alpha", *where)
        assert content(base) == before and not (base / ".git/era/journal.json").exists(), result.text
        assert json.loads(project.run("status", "alpha", "--json", *where).out)["alpha"]["state"] == "clean"


# Kinds of given checkouts. Each makes one in an empty folder and returns it; git of today and yesterday may not know it.


RAN = 'test -n "$ERA_PROOF_RUN"'  # a program of the checkout that finds itself started by apply.py, not by the test's own git


def plain(project: Project, place: Path, *options: str) -> Path:
    git(place, "clone", "-q", *options, f"file://{project.up}/alpha", str(place / "clone"))
    git(place / "clone", "checkout", "-q", "-b", "mine", project.ids["v1"])
    return place / "clone"


def needs(minimum: str) -> None:
    found = git_version(None)
    if [int(part) for part in found.split(".")[:2]] < [int(part) for part in minimum.split(".")]:
        pytest.skip(f"git {found} does not know it; {minimum} does")


def rich(project, place):
    """Stash, configuration, other branches, tags, an edit of the index flags, untracked and ignored files."""
    folder = plain(project, place)
    (folder / "README.md").write_text("stashed\n")
    git(folder, "stash")
    git(folder, "branch", "other", "HEAD~1")
    git(folder, "tag", "-a", "-m", "mine", "mine-1")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "notes", "add", "-m", "a note")
    git(folder, "update-ref", "refs/custom/thing", "HEAD")
    (folder / ".git/info/exclude").write_text("*.log\n")
    (folder / "run.log").write_text("ignored\n")
    (folder / "untracked.txt").write_text("untracked\n")
    (folder / "empty").mkdir()
    return folder


def worktree(project, place):
    folder = plain(project, place)
    git(folder, "worktree", "add", "-q", "-b", "second", str(place / "tree"), project.ids["v1"])
    return place / "tree"


def main_tree_of_worktree(project, place):
    worktree(project, place)
    return place / "clone"


def worktree_of_bare(project, place):
    git(place, "clone", "-q", "--bare", str(project.up / "alpha"), str(place / "bare.git"))
    git(place / "bare.git", "worktree", "add", "-q", "-b", "second", str(place / "tree"), project.ids["v1"])
    return place / "tree"


def worktree_config(project, place):
    folder = worktree(project, place)
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "core.abbrev", "12")
    return folder


def relative_worktree(project, place):
    needs("2.48")
    folder = plain(project, place)
    git(folder, "worktree", "add", "-q", "--relative-paths", "-b", "second", "../tree", project.ids["v1"])
    return place / "tree"


def submodule(project, place):
    outer = place / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(project.up / "alpha"), "sub")
    git(outer / "sub", "checkout", "-q", "v1")
    git(outer, "add", "-A")
    git(outer, "commit", "-q", "-m", "with a submodule")
    return outer / "sub"


def shallow(project, place):
    git(place, "clone", "-q", "--depth", "1", "--branch", "v1", f"file://{project.up}/alpha", str(place / "clone"))
    return place / "clone"


def partial(filters: str):
    def make(project, place):
        git(project.up / "alpha", "config", "uploadpack.allowFilter", "true")
        git(project.up / "alpha", "config", "uploadpack.allowAnySHA1InWant", "true")
        folder = plain(project, place, f"--filter={filters}", "--no-checkout")
        project.run("fetch", "alpha")
        project.up.rename(project.up.with_name("gone"))  # from here on nothing can be fetched
        return folder

    return make


def sparse(*options: str):
    def make(project, place):
        folder = plain(project, place)
        git(folder, "sparse-checkout", "init", *options)
        git(folder, "sparse-checkout", "set", "src")
        return folder

    return make


def sparse_index(project, place):
    needs("2.32")
    return sparse("--cone", "--sparse-index")(project, place)


def sparse_but_whole(project, place):
    folder = plain(project, place)
    git(folder, "config", "core.sparseCheckout", "true")
    git(folder, "config", "core.sparseCheckoutCone", "false")
    (folder / ".git/info/sparse-checkout").write_text("/*\n")
    git(folder, "read-tree", "-mu", "HEAD")
    return folder


def sparse_off(project, place):
    folder = sparse("--cone")(project, place)
    git(folder, "sparse-checkout", "disable")
    return folder


def alternates(option: str):
    def make(project, place):
        wanted = [option, str(project.up / "alpha")] if option == "--reference" else [option]
        git(place, "clone", "-q", *wanted, str(project.up / "alpha"), str(place / "clone"))
        git(place / "clone", "checkout", "-q", "-b", "mine", project.ids["v1"])
        assert (place / "clone/.git/objects/info/alternates").is_file()
        return place / "clone"

    return make


def after(*commands: str):
    """A plain clone after some git commands."""

    def make(project, place):
        folder = plain(project, place)
        for line in commands:
            git(folder, *line.format(**project.ids).split())
        return folder

    return make


def reftable(project, place):
    needs("2.45")
    return plain(project, place, "--ref-format=reftable")


def sha256_repository(project, place):
    folder = place / "clone"
    git(place, "init", "-q", "--object-format=sha256", str(folder))
    (folder / "README.md").write_text("# alpha\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def fsmonitor_hook(project, place):
    folder = plain(project, place)
    hook = place / "hook"
    hook.write_text(f"#!/bin/sh\n{RAN} && touch {place}/ran\nprintf 'token\\0/\\0'\n")
    hook.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(hook))
    git(folder, "update-index", "--fsmonitor")
    git(folder, "status")
    return folder


def work_tree_elsewhere(project, place):
    folder = plain(project, place)
    (place / "elsewhere").mkdir()
    for path in list(folder.iterdir()):
        if path.name != ".git":
            path.rename(place / "elsewhere" / path.name)
    git(folder, "config", "core.worktree", str(place / "elsewhere"))
    return folder


def the_elsewhere(project, place):
    work_tree_elsewhere(project, place)
    return place / "elsewhere"


def work_tree_named_twice(project, place):
    folder = plain(project, place)
    git(folder, "config", "core.worktree", str(folder))
    return folder


def bare(project, place):
    git(place, "clone", "-q", "--bare", str(project.up / "alpha"), str(place / "alpha.git"))
    return place / "alpha.git"


def unborn(project, place):
    git(place, "init", "-q", str(place / "clone"))
    (place / "clone/README.md").write_text("# alpha\n")
    return place / "clone"


def orphan(project, place):
    folder = plain(project, place)
    git(folder, "checkout", "-q", "--orphan", "fresh")
    return folder


def merge(*options: str):
    def make(project, place):
        folder = plain(project, place)
        git(folder, "checkout", "-q", "-b", "side", "HEAD~1")
        (folder / "README.md").write_text("# another\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "side")
        git(folder, "checkout", "-q", "mine")
        git(folder, "merge", "--no-commit", "--no-ff", *options, "side", check=False)
        assert (folder / ".git/MERGE_HEAD").exists()
        return folder

    return make


def rebase(project, place):
    """Stopped on the pinned commit with nothing to commit."""
    folder = plain(project, place)
    git(folder, "commit", "-q", "--allow-empty", "-m", "on top")
    done = subprocess.run(
        ["git", "-c", "user.name=U", "-c", "user.email=u@example.org", "rebase", "-q", "-i", "--keep-empty", "--exec", "false", "HEAD~2"],
        cwd=folder, env={**os.environ, "GIT_SEQUENCE_EDITOR": "true"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode and git(folder, "rev-parse", "HEAD") == project.ids["v1"], done.stderr
    return folder


def cherry_pick(project, place):
    folder = plain(project, place)
    git(folder, "commit", "-q", "--allow-empty", "-m", "empty")
    empty = git(folder, "rev-parse", "HEAD")
    git(folder, "reset", "-q", "--hard", project.ids["v1"])
    git(folder, "cherry-pick", empty, check=False)
    assert (folder / ".git/CHERRY_PICK_HEAD").exists()
    return folder


def revert_of_something(project, place):
    folder = plain(project, place)
    for text in ("one\n", "two\n"):
        (folder / "README.md").write_text(text)
        git(folder, "commit", "-q", "-a", "-m", text)
    edit = git(folder, "rev-parse", "HEAD")
    git(folder, "reset", "-q", "--hard", project.ids["v1"])
    git(folder, "revert", "--no-edit", edit, check=False)
    git(folder, "checkout", "HEAD", "--", "README.md")  # resolved, and nothing left of it but the state
    assert (folder / ".git/REVERT_HEAD").exists()
    return folder


def mail(project, place):
    folder = plain(project, place)
    bad = (project.root / "patches/alpha/v1/0001-hook-the-core.patch").read_text().replace("line 20", "line 2000")
    (place / "bad.patch").write_text(bad)
    git(folder, "am", "-q", str(place / "bad.patch"), check=False)
    assert (folder / ".git/rebase-apply").is_dir()
    return folder


def bisect(project, place):
    folder = plain(project, place)
    git(folder, "bisect", "start", project.ids["v2"], f"{project.ids['v1']}~1")
    assert git(folder, "rev-parse", "HEAD") == project.ids["v1"]
    return folder


def intent_to_add(project, place):
    folder = plain(project, place)
    (folder / "new.txt").write_text("new\n")
    git(folder, "add", "-N", "new.txt")
    return folder


def index_lock(project, place):
    folder = plain(project, place)
    (folder / ".git/index.lock").write_bytes(b"")
    return folder


def linked_git(project, place):
    folder = plain(project, place)
    (folder / ".git").rename(place / "the-git")
    (folder / ".git").symlink_to(place / "the-git")
    return folder


def separate_git_dir(project, place):
    return plain(project, place, "--separate-git-dir", str(place / "the-git"))


def grafted(project, place):
    folder = plain(project, place)
    git(folder, "replace", project.ids["v1"], project.ids["v2"])
    return folder


def attributes(project, place):
    """Filters, line ends and encodings that plain git would apply; nothing of it may run or change bytes."""
    folder = plain(project, place)
    git(folder, "config", "filter.shout.clean", f"{RAN} && touch {place}/ran; cat")
    git(folder, "config", "filter.shout.smudge", f"{RAN} && touch {place}/ran; cat")
    git(folder, "config", "filter.shout.required", "true")
    (folder / ".git/info/attributes").write_text("*.sh filter=shout\n")
    return folder


def hooks(project, place):
    folder = plain(project, place)
    for name in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction", "post-merge", "update"):
        hook = folder / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{RAN} && touch {place}/ran\nexit 0\n")
        hook.chmod(0o755)
    return folder


def another_owner(project, place):
    if os.geteuid():
        pytest.skip("only root can make files of another user")
    folder = plain(project, place)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 12345, 12345)
    project.env["GIT_CONFIG_GLOBAL"] = str(place / "theirs")  # for the test's own git: apply.py reads no such file
    os.environ["GIT_CONFIG_GLOBAL"] = str(place / "theirs")
    (place / "theirs").write_text("[safe]\n\tdirectory = *\n")
    return folder


KINDS = [
    ("plain clone", plain, None),
    ("clone with stash tags notes and ignored files", rich, None),
    ("linked worktree", worktree, None),
    ("main tree of a clone with a worktree", main_tree_of_worktree, None),
    ("worktree of a bare clone", worktree_of_bare, None),
    ("worktree with a configuration of its own", worktree_config, None),
    ("worktree with relative paths", relative_worktree, None),
    ("submodule", submodule, None),
    ("shallow clone", shallow, None),
    ("partial clone without blobs offline", partial("blob:none"), None),
    ("partial clone without trees offline", partial("tree:0"), None),
    ("sparse checkout by folders", sparse("--cone"), (3, "sparse checkout")),
    ("sparse checkout by patterns", sparse("--no-cone"), (3, "sparse checkout")),
    ("sparse index", sparse_index, (3, "sparse checkout")),
    ("sparse checkout that leaves nothing out", sparse_but_whole, None),
    ("sparse checkout switched off again", sparse_off, None),
    ("clone --shared", alternates("--shared"), None),
    ("clone --reference", alternates("--reference"), None),
    ("packed refs and objects", after("gc -q", "pack-refs --all"), None),
    ("reftable", reftable, None),
    ("sha256 repository", sha256_repository, (3, "expected")),
    ("split index", after("config core.splitIndex true", "update-index --split-index"), None),
    ("untracked cache", after("update-index --force-untracked-cache", "status"), None),
    ("index version 4", after("update-index --index-version 4"), None),
    ("index without a checksum", after("config index.skipHash true", "read-tree --reset -u HEAD"), None),
    (
        "many files settings",
        after("config feature.manyFiles true", "config feature.experimental true", "read-tree HEAD", "status"),
        None,
    ),
    (
        "commit graph and multi-pack index",
        after("commit-graph write --reachable", "repack -q -d", "multi-pack-index write"),
        None,
    ),
    ("fsmonitor hook", fsmonitor_hook, None),
    ("core.worktree elsewhere", work_tree_elsewhere, (5, "local edits")),
    ("work tree of a core.worktree", the_elsewhere, (3, "not a git tree")),
    ("core.worktree on itself", work_tree_named_twice, None),
    ("bare repository", bare, (3, "not a git tree")),
    ("detached HEAD", after("checkout -q --detach"), None),
    ("unborn branch", unborn, (3, "it has no commit")),
    ("orphan branch", orphan, (3, "it has no commit")),
    ("another commit", after("checkout -q {v1}~1"), (3, "expected")),
    ("in the middle of a merge with a conflict", merge(), (5, "")),
    ("in the middle of a merge without changes", merge("-s", "ours"), (5, "merge")),
    ("in the middle of a rebase", rebase, (5, "rebase")),
    ("in the middle of a cherry-pick", cherry_pick, (5, "cherry-pick")),
    ("in the middle of a revert", revert_of_something, (5, "revert")),
    ("in the middle of git am", mail, (5, "rebase")),
    ("in the middle of a bisect", bisect, (5, "bisect")),
    ("intent to add", intent_to_add, (5, "new.txt")),
    ("assume-unchanged elsewhere", after("update-index --assume-unchanged README.md"), None),
    ("assume-unchanged on patched files", after("update-index --assume-unchanged src/core.py src/util.py"), None),
    ("skip-worktree elsewhere", after("update-index --skip-worktree README.md run.sh"), None),
    ("skip-worktree on patched files", after("update-index --skip-worktree src/core.py"), None),
    ("index.lock present", index_lock, (5, "index.lock")),
    (".git as a link", linked_git, None),
    (".git elsewhere", separate_git_dir, None),
    ("replaced objects", grafted, None),
    ("filters and attributes", attributes, None),
    ("hooks", hooks, None),
    ("owned by another user", another_owner, None),
    ("rerere and logs of all refs", after("config rerere.enabled true", "config core.logAllRefUpdates always"), None),
    (
        "strange abbreviations and colours",
        after("config core.abbrev 4", "config color.ui always", "config core.quotePath false"),
        None,
    ),
    (
        "diff settings",
        after("config diff.noprefix true", "config diff.algorithm histogram", "config diff.external false"),
        None,
    ),
    ("protected file names off", after("config core.protectNTFS false", "config core.ignoreCase true"), None),
    ("branch named like ours", after("branch upstream/v1", "tag era"), None),
]


@pytest.mark.parametrize("kind, make, refusal", some_of(KINDS, ["linked worktree"]))
def test_given_checkout(project, tally, tmp_path, monkeypatch, kind, make, refusal):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # so that what a kind puts there is undone
    place = tmp_path / "place"
    place.mkdir()
    with counted(tally, kind, "refused" if refusal else "completed"):
        folder = make(project, place)
        project.env["ERA_PROOF_RUN"] = "1"
        if refusal:
            refused(project, folder, place, *refusal)
        else:
            same_after_round(project, folder)
        assert not (place / "ran").exists()


# File systems. Each is really mounted, which needs root and the tools; where it cannot be, the test says why and is skipped.


def tool(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"{command[0]} is not installed: {error.strerror}")
    if done.returncode:
        pytest.skip(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-200:]}")


def image(tmp: Path, megabytes: int, *maker: str) -> str:
    path = tmp / "image"
    with open(path, "wb") as out:
        out.truncate(megabytes << 20)
    tool(*maker, str(path))
    return str(path)


def mount_tmpfs(tmp, at):
    tool("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(at))


def mount_noexec(tmp, at):
    tool("mount", "-t", "tmpfs", "-o", "noexec,nosuid,nodev", "none", str(at))


def mount_overlay(tmp, at):
    layers = [tmp / name for name in ("lower", "upper", "work")]
    for layer in layers:
        layer.mkdir()
    options = "lowerdir={},upperdir={},workdir={}".format(*layers)
    tool("mount", "-t", "overlay", "-o", options, "none", str(at))


def mount_ext4(tmp, at):
    tool("mount", "-o", "loop", image(tmp, 64, "mkfs.ext4", "-q"), str(at))


def mount_casefold(tmp, at):
    tool("mount", "-o", "loop", image(tmp, 64, "mkfs.ext4", "-q", "-O", "casefold"), str(at))
    tool("chattr", "+F", str(at))


def mount_xfs(tmp, at):
    tool("mount", "-o", "loop", image(tmp, 400, "mkfs.xfs", "-q"), str(at))


def mount_btrfs(tmp, at):
    tool("mount", "-o", "loop", image(tmp, 128, "mkfs.btrfs", "-q"), str(at))


def mount_vfat(tmp, at):
    tool("mount", "-t", "vfat", "-o", "loop", image(tmp, 64, "mkfs.vfat"), str(at))


def mount_exfat(tmp, at):
    device = image(tmp, 64, "mkfs.exfat")
    done = subprocess.run(["losetup", "--find", "--show", device], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"losetup: {done.stderr.strip()}")
    loop = done.stdout.strip()
    try:
        tool("mount.exfat-fuse", loop, str(at))
    finally:
        subprocess.run(["losetup", "--detach", loop])  # now, or as soon as it is unmounted


def ntfs(*options: str):
    def mount(tmp, at):
        tool("lowntfs-3g", *options, image(tmp, 64, "mkntfs", "-F", "-Q", "-q"), str(at))

    return mount


SYSTEMS = [
    ("tmpfs", mount_tmpfs),
    ("tmpfs noexec", mount_noexec),
    ("overlayfs", mount_overlay),
    ("ext4 on a loop device", mount_ext4),
    ("ext4 casefold", mount_casefold),
    ("xfs", mount_xfs),
    ("btrfs", mount_btrfs),
    ("vfat", mount_vfat),
    ("exfat (no links, all files executable, any case)", mount_exfat),
    ("ntfs (all files executable)", ntfs()),
    ("ntfs (no file executable)", ntfs("-o", "fmask=0133,dmask=0022")),
    ("ntfs with modes", ntfs("-o", "permissions")),
]


@pytest.fixture
def mounted(tmp_path):
    """mounted(mount): a folder under which the file system stands until the test ends."""
    places = []

    def make(mount) -> Path:
        tmp, at = tmp_path / "device", tmp_path / "mounted"
        tmp.mkdir()
        at.mkdir()
        if os.geteuid():
            pytest.skip("only root can mount file systems")
        mount(tmp, at)
        places.append(at)
        assert os.stat(at).st_dev != os.stat(tmp_path).st_dev
        return at

    yield make
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("part", ["project", "cache", "checkouts", "clone", "everything"] if LONG else ["everything"])
@pytest.mark.parametrize("kind, mount", some_of(SYSTEMS, ["tmpfs"]))
def test_file_system(project, tally, tmp_path, mounted, kind, mount, part):
    with counted(tally, f"{part} on {kind}"):
        at = mounted(mount)
        parts = ("project", "cache", "checkouts", "clone")
        base = {name: at / "here" if part in (name, "everything") else tmp_path / "there" for name in parts}
        other = moved(project, base["project"])
        other.cache, other.checkouts = base["cache"] / "cache", base["checkouts"] / "checkouts"
        base["clone"].mkdir(exist_ok=True)
        small_round(other, plain(project, base["clone"]))
        assert not list(other.checkouts.glob(".*.new-*")) and not list((other.cache / "tmp").iterdir())


@pytest.mark.parametrize(
    "part", ["project", "cache", "checkouts", "clone", "temporary folder"] if LONG else ["checkouts"]
)
def test_read_only(project, clone, tally, tmp_path, mounted, part):
    """What must write is refused in words and leaves all as it was; what only reads, works."""
    if os.geteuid():
        pytest.skip("only root can mount file systems")
    project.run("apply", "alpha")
    where, sealed = {
        "project": (("--checkouts", str(tmp_path / "elsewhere")), project.root),
        "cache": (("--checkouts", str(tmp_path / "elsewhere")), project.cache),
        "checkouts": ((), project.checkouts),
        "clone": (("--checkout", str(clone)), clone),
        "temporary folder": ((), tmp_path / "temporary"),
    }[part]
    sealed.mkdir(exist_ok=True)
    project.env["TMPDIR"] = str(tmp_path / "temporary")
    (tmp_path / "temporary").mkdir(exist_ok=True)
    tool("mount", "--bind", str(sealed), str(sealed))
    try:
        tool("mount", "-o", "remount,ro,bind", str(sealed))
        before = everything(sealed)
        for verb in ("status", "diff", "fetch", "apply", "export", "revert"):
            if verb == "export" and part == "project":
                (tmp_path / "elsewhere/alpha/README.md").write_bytes(b"# mine\n")
            takes = where if verb != "fetch" else ()
            result = project.spawn(verb, "alpha", *takes, code=None)
            expected = {
                "project": {"diff": 3, "export": 5, "revert": 5},  # diff: no checkout yet; revert: an edit
                "cache": {"diff": 3, "fetch": 5, "apply": 5, "export": 3},
                "checkouts": {"apply": 5, "export": 5, "revert": 5},
                "clone": {"apply": 5, "export": 3},
                "temporary folder": {},
            }[part].get(verb, 0)
            with counted(tally, f"{part} read-only", "refused" if expected else "completed"):
                assert result.code == expected, (verb, result.text)
                assert not expected or result.err.startswith("error: ")
                assert everything(sealed) == before
    finally:
        subprocess.run(["umount", "-l", str(sealed)], check=True)


# Circumstances: what a shell, a container or a cluster may have set. Each round is one of processes.


@dataclasses.dataclass
class Circumstance:
    env: dict = dataclasses.field(default_factory=dict)
    unset: tuple = ()
    flags: tuple = ()  # of the interpreter
    umask: int | None = None
    prepare: object = None  # called with the folder of the test


def no_such_folder(tmp: Path) -> dict:
    return {"TMPDIR": str(tmp / "nowhere")}


def file_as_tmpdir(tmp: Path) -> dict:
    (tmp / "file").write_bytes(b"")
    return {"TMPDIR": str(tmp / "file")}


def hostile_git_environment(tmp: Path) -> dict:
    """What git itself would obey: another repository, another index, other objects, other settings."""
    other = tmp / "hostile"
    git(tmp, "init", "-q", str(other))
    settings = {"core.worktree": str(other), "core.bare": "true", "diff.context": "0", "core.abbrev": "4"}
    named = {}
    for number, (key, value) in enumerate(settings.items()):
        named.update({f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value})
    return {
        "GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other), "GIT_INDEX_FILE": str(other / "index"), "GIT_NAMESPACE": "x",
        "GIT_OBJECT_DIRECTORY": str(other / "objects"), "GIT_COMMON_DIR": str(other / ".git"), "GIT_PREFIX": "x/",
        "GIT_AUTHOR_DATE": "1 +0000", "GIT_COMMITTER_NAME": "", "GIT_EXTERNAL_DIFF": "false", "GIT_DIFF_OPTS": "-u0",
        "GIT_PAGER": "false", "GIT_EDITOR": "false", "GIT_TRACE": "1", "GIT_FLUSH": "1", "GIT_DEFAULT_HASH": "sha256",
        "GIT_CEILING_DIRECTORIES": "/", "GIT_TEST_SPLIT_INDEX": "1", "GIT_INDEX_VERSION": "4", "GIT_ATTR_SOURCE": "HEAD~1",
        "GIT_ICASE_PATHSPECS": "1", "GIT_QUARANTINE_PATH": "x", "GIT_SHALLOW_FILE": "x", "GIT_GRAFT_FILE": "x",
        "GIT_DEFAULT_REF_FORMAT": "files", "GIT_CONFIG_COUNT": str(len(settings)), **named,
    }  # fmt: skip


def hostile_home(tmp: Path) -> dict:
    (tmp / "home").mkdir()
    (tmp / "home/.gitconfig").write_text(
        "[core]\n\tautocrlf = true\n\tabbrev = 4\n[diff]\n\tcontext = 0\n\tnoprefix = true\n[init]\n\tdefaultObjectFormat = sha256\n"
        "[i18n]\n\tcommitEncoding = latin1\n[commit]\n\tgpgSign = true\n[user]\n\tname =\n[extensions]\n\tworktreeConfig = true\n"
    )
    return {"HOME": str(tmp / "home")}


CIRCUMSTANCES = [
    ("as it is", Circumstance()),
    ("locale C", Circumstance({"LC_ALL": "C", "LANG": "C"})),
    ("locale de_DE.UTF-8", Circumstance({"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"})),
    ("locale tr_TR.UTF-8", Circumstance({"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"})),
    ("locale de_DE.ISO-8859-1", Circumstance({"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0"})),
    ("locale that does not exist", Circumstance({"LC_ALL": "xx_YY.nonsense", "LANG": "x", "LANGUAGE": "y"})),
    ("ASCII only (PYTHONUTF8=0)", Circumstance({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})),
    ("PYTHONUTF8=1", Circumstance({"PYTHONUTF8": "1", "LC_ALL": "C"})),
    ("PYTHONIOENCODING=ascii", Circumstance({"PYTHONIOENCODING": "ascii"})),
    ("time zone", Circumstance({"TZ": "Asia/Kathmandu"})),
    ("umask 077", Circumstance(umask=0o077)),
    ("umask 000", Circumstance(umask=0o000)),
    ("HOME unset", Circumstance(unset=("HOME",))),
    ("HOME empty", Circumstance({"HOME": ""})),
    ("HOME relative", Circumstance({"HOME": "nowhere"})),
    ("HOME with a hostile git configuration", Circumstance(prepare=hostile_home)),
    ("hostile GIT_ variables", Circumstance(prepare=hostile_git_environment)),
    ("TMPDIR that does not exist", Circumstance(prepare=no_such_folder)),
    ("TMPDIR that is a file", Circumstance(prepare=file_as_tmpdir)),
    ("TMPDIR relative", Circumstance({"TMPDIR": "."})),
    ("PYTHONOPTIMIZE=2", Circumstance({"PYTHONOPTIMIZE": "2"})),
    ("PYTHONWARNINGS=error and -bb", Circumstance({"PYTHONWARNINGS": "error"}, flags=("-bb", "-X", "dev"))),
    ("isolated (-I -S)", Circumstance(flags=("-I", "-S"))),
    ("safe path (-P)", Circumstance({"PYTHONSAFEPATH": "1", "PYTHONPATH": "/nowhere"})),
    ("PYTHONHASHSEED", Circumstance({"PYTHONHASHSEED": "1"})),
    ("PYTHONDONTWRITEBYTECODE", Circumstance({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNODEBUGRANGES": "1"})),
    ("terminal settings", Circumstance({"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "1", "PAGER": "false"})),
    ("POSIXLY_CORRECT and CDPATH", Circumstance({"POSIXLY_CORRECT": "1", "CDPATH": "/"})),
]


@pytest.mark.parametrize("kind, given", some_of(CIRCUMSTANCES, ["ASCII only (PYTHONUTF8=0)"]))
def test_circumstance(project, clone, tally, tmp_path, kind, given):
    """The commits do not depend on it, and who comes after in plain circumstances finds all as it should be."""
    odd = {"\u00fcber.py": b"u = 1\n", "\u65e5\u672c/a b.txt": b"text\n"}
    for path, text in odd.items():
        target = project.root / "overlays/alpha" / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(text)
    env = {key: value for key, value in os.environ.items() if key not in given.unset}
    extra = {**given.env, **(given.prepare(tmp_path) if given.prepare else {})}

    def ready() -> None:
        restore_ctrl_c()
        if given.umask is not None:
            os.umask(given.umask)

    def run(*args: str, code: int | None = 0) -> Result:
        done = subprocess.run(
            [sys.executable, *given.flags, str(project.root / "apply.py"), *project.with_cache(args)],
            capture_output=True,
            env={**env, **project.env, **extra},
            preexec_fn=ready,
            cwd=tmp_path,
        )
        return project.judge(args, Result(done.returncode, done.stdout, done.stderr), code)

    alpha = project.checkout()
    with counted(tally, kind):
        run("apply", "alpha")
        assert bytes_of(alpha) == {**APPLIED, **odd}
        assert git(alpha, "rev-parse", "era") == GOLDEN["odd names"]
        assert project.state() == "applied"
        (alpha / "README.md").write_bytes(b"# mine\n")
        (alpha / "\u00e9dit.py").write_bytes(b"e = 1\n")
        assert json.loads(run("status", "alpha", "--json", code=1).out)["alpha"]["untracked"] == ["\u00e9dit.py"]
        assert "\u00fcber" not in project.run("diff", "alpha", "--local").out
        assert run("diff", "alpha", "--local").raw == project.run("diff", "alpha", "--local").raw
        run("export", "alpha")
        assert project.run("export", "alpha", "--check").code == 0
        project.run("apply", "alpha")
        run("revert", "alpha")
        assert bytes_of(alpha) == UPSTREAM
        before, state = content(clone), user_state(clone)
        project.run("apply", "alpha", "--checkout", str(clone))
        assert run("status", "alpha", "--checkout", str(clone)).out.startswith("alpha v1: applied")
        run("revert", "alpha", "--checkout", str(clone))
        assert content(clone) == before and user_state(clone) == state


def stranger() -> dict:
    """How to start a process of a user id that no file knows."""
    return {"user": 54321, "group": 54321, "extra_groups": []}


def python_for_strangers() -> str:
    """One outside of the home of root."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        with contextlib.suppress(OSError):
            report = "import sys; print(sys.version_info >= (3, 10))"
            done = subprocess.run([path, "-c", report], capture_output=True, cwd="/", **stranger())
            if done.stdout.strip() == b"True":
                return path
    pytest.skip("no Python here that other users may run")


HOMES = [
    ("HOME unset", {"HOME": None}),
    ("HOME empty", {"HOME": ""}),
    ("HOME relative", {"HOME": "somewhere"}),
    ("XDG_CACHE_HOME relative", {"XDG_CACHE_HOME": "somewhere"}),
]


@pytest.mark.parametrize("kind, settings", some_of(HOMES, ["HOME relative"]))
def test_cache_of_a_user_without_a_name(project, tally, kind, settings):
    """In a container: a user id that no file knows. It works where a cache can be, else it is said what is missing."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    interpreter = python_for_strangers()
    outcome = "completed" if "relative" in kind else "refused"
    with counted(tally, f"user without a name, {kind}", outcome), tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        other = moved(project, place / "base")
        shutil.copytree(project.up, place / "up")
        for up in other.upstreams.values():
            up["git"] = up["git"].replace(str(project.up), str(place / "up"))
        other.save()
        other.pin_numbers()
        for path in [place, *place.rglob("*")]:
            os.chown(path, 54321, 54321)
        env = {**os.environ, "XDG_CACHE_HOME": None, **settings}
        done = subprocess.run(
            [interpreter, str(other.root / "apply.py"), "apply", "alpha"],
            capture_output=True,
            env={key: value for key, value in env.items() if value is not None},
            cwd=place,
            **stranger(),
        )
        result = other.judge((kind,), Result(done.returncode, done.stdout, done.stderr), None)
        if "relative" in kind:
            assert result.code == 0 and bytes_of(other.checkout()) == APPLIED, result.text
        else:
            assert result.code in (2, 5) and result.err.startswith("error: ") and not other.checkout().exists(), (
                result.text
            )
