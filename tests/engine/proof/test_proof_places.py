"""Where apply.py runs: gits, Pythons, paths, file systems, circumstances, and kinds of given clones.

Each place is a row of a table, and one check is made in all of them: a round of all verbs with the same commit ids and
the same bytes everywhere (`whole_round`). ERA_PROOF_GITS and ERA_PROOF_PYTHONS name more than what is on the PATH:
folders with a `git` in them, and interpreters, separated by colons.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from kit import FIRST, Project, Result, content, git, make_template, restore_ctrl_c
from tally import LONG

PART = "places"
pytestmark = pytest.mark.slow
GITS = [Path(item) for item in os.environ.get("ERA_PROOF_GITS", "").split(":") if item]
PYTHONS = [item for item in os.environ.get("ERA_PROOF_PYTHONS", "").split(":") if item]

# What the small project must become in every place: the template's commits have a fixed date.
FROZEN = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
ROUND = {
    "alpha": "b99cfa831dc9ce61411b0a6ed8872cd0f41e4e33",
    "beta": "b8547cd47abdf72ca68162154dc9e8a95b4b458a",
    "exported": "407cfeb4c33fa518e9d1f9285b27aad5d14573cb",
    "v2": "b646396df11819d23b26aa866a6dbd2efce47e45",
    "archive": "829fd948b7fcfc3c7e7ff738a08bf52ee6711bfe",  # a tree: the commit names the archive's sha256
    "diff": "8ae4f6fd5152e0e234691e651b8f273d06f0da2332b5ef71abfddf9195ab55ea",
    "local": "85396b1f705b7b90c5f5f4983e84f9e93e8bc84f36c111c51f51de62cf4f4ee2",
    "patches": "f895ae07aebff828e0f600b10f8b874ea16ef7a0197f75ec392eac519868173a",
    "port": "offset offset clean",
    "saved": "37459053c6c98914a520eef27c02a0fe796bf991729e84a389695074bb41bddc",
}
CORE = FIRST["src/core.py"].replace("line 20 of", "line 20, hooked, of").replace("line 40 of", "line 40, hooked, of")
UPSTREAM = {path: text.encode() for path, text in FIRST.items()}
ODD = {"\u00fcber.py": b"u = 1\n", "\u65e5\u672c/a b.txt": b"text\n", "n" * 252 + ".py": b"long = 1\n"}
APPLIED = {
    **UPSTREAM,
    "src/core.py": CORE.encode(),
    "src/util.py": FIRST["src/util.py"].replace("a + b", "b + a").encode(),
    "src/era.py": b"ERA = 1\n",
    "tools/go.sh": b"#!/bin/sh\n",
    **ODD,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The small project of the other tests, with the same commit ids in every run."""
    folder = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        for key, value in FROZEN.items():
            patch.setenv(key, value)
        ids = make_template(folder)
    for path, data in ODD.items():
        target = folder / "project/overlays/alpha" / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
    return folder, ids


def rows(cases: list[tuple], *short: str) -> list:
    """All rows of a table in the long form, those named in the short one; the first column is the id."""
    return [pytest.param(*case, id=case[0].replace(" ", "-")) for case in cases if LONG or case[0] in short]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path: data for path, (_, data) in content(folder, (".git",)).items()}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def whole_round(project: Project, run, folder: Path) -> dict[str, str]:
    """fetch, apply, status, edit, diff, export, port, revert, another version, the archive, a given clone.

    Returns ids and hashes of what was made, which may not depend on git, Python or the place.
    """
    alpha = project.checkout()
    run("fetch")
    run("apply")
    assert bytes_of(alpha) == APPLIED and git(alpha, "fsck", "--strict", check=False) == ""
    found = {name: git(project.checkout(name), "rev-parse", "era") for name in ("alpha", "beta")}
    assert "alpha v1: applied" in run("status").out
    run("export", "alpha", "--check")
    found["diff"] = digest(run("diff", "alpha").raw)

    (alpha / "README.md").write_bytes(b"# mine\n")
    (alpha / "n\u00f6tes.txt").write_bytes(b"mine\n")
    assert run("status", "alpha", "--json", code=1).json["alpha"]["untracked"] == ["n\u00f6tes.txt"]
    found["local"] = digest(run("diff", "alpha", "--local").raw)
    run("export", "alpha")
    patches = sorted((project.root / "patches/alpha/v1").glob("*.patch"))
    found["patches"] = digest(b"".join(path.read_bytes() for path in patches))
    assert len(patches) == 3 and (project.root / "overlays/alpha/n\u00f6tes.txt").read_bytes() == b"mine\n"
    run("apply", "alpha")
    mine = {**APPLIED, "README.md": b"# mine\n", "n\u00f6tes.txt": b"mine\n"}
    assert bytes_of(alpha) == mine
    found["exported"] = git(alpha, "rev-parse", "era")
    ported = run("port", "alpha", "--onto", "v2", "--json").json["alpha"]["patches"]
    found["port"] = " ".join(row["result"] for row in ported)

    (alpha / "bare.txt").write_bytes(b"an edit")
    (alpha / "crlf.txt").unlink()
    run("revert", "alpha", code=5)
    saved = folder / "saved.patch"
    run("revert", "alpha", "--keep-edits", str(saved))
    found["saved"] = digest(saved.read_bytes())
    assert bytes_of(alpha) == UPSTREAM
    run("apply", "alpha")
    subprocess.run(["git", "apply", str(saved)], cwd=alpha, check=True)
    mine["bare.txt"] = b"an edit"
    assert bytes_of(alpha) == {path: data for path, data in mine.items() if path != "crlf.txt"}
    git(alpha, "checkout", "-q", ".")
    run("apply", "alpha", "--version", "v2")
    found["v2"] = git(alpha, "rev-parse", "era")
    run("revert")
    assert git(alpha, "rev-parse", "HEAD") == project.ids["v2"]
    packed = folder / "packed"
    run("apply", "alpha", "--checkouts", str(packed), "--source", str(project.index / "alpha-1.0.tar.gz"))
    found["archive"] = git(packed / "alpha", "rev-parse", "era^{tree}")

    given_round(project, run, make_clone(project, folder), found["exported"])
    return found


def make_clone(project: Project, folder: Path) -> Path:
    plain = project.up.parent / "plain"
    if not plain.exists():
        git(project.up, "clone", "-q", str(project.up / "alpha"), str(plain))
        git(plain, "checkout", "-q", "-b", "mine", project.ids["v1"])
    return Path(shutil.copytree(plain, folder / "given", symlinks=True))


def given_round(project: Project, run, clone: Path, tip: str | None = None) -> None:
    """apply, status and revert of a given clone: the overlay is there, then all is as it was, but for git's objects."""
    where = ("--checkout", str(clone))
    before, state = content(clone, (".git",)), user_state(clone)
    run("apply", "alpha", *where)
    assert tip in (None, git(clone, "rev-parse", "era"))
    applied = bytes_of(clone)
    assert tip or applied == {**{path: data for path, (_, data) in before.items()}, **APPLIED}
    assert run("status", "alpha", "--json", *where).json["alpha"]["state"] == "applied"
    assert "nothing to do" in run("apply", "alpha", *where).out
    run("revert", "alpha", *where)
    assert content(clone, (".git",)) == before
    after = user_state(clone)
    assert after == state, {key: (state[key], after[key]) for key in state if after[key] != state[key]}


def user_state(folder: Path) -> dict:
    """What belongs to the user in a repository, as plain git and the files in .git tell it."""
    own, common = (
        (folder / name).resolve() for name in git(folder, "rev-parse", "--git-dir", "--git-common-dir").split("\n")
    )
    kept = {}
    for path in sorted({*own.rglob("*"), *common.rglob("*")}):
        parts = path.relative_to(common if path.is_relative_to(common) else own).parts
        if not {"objects", "logs", "reftable", "era"} & set(parts) and path.is_file() and "index" not in path.name:
            kept[str(path)] = path.read_bytes()
    debug = git(folder, "ls-files", "--debug")
    return {
        "kept": kept,
        "refs": git(folder, "for-each-ref"),
        "head": git(folder, "symbolic-ref", "--quiet", "HEAD", check=False) or git(folder, "rev-parse", "HEAD"),
        "stash": git(folder, "stash", "list"),
        "entries": git(folder, "ls-files", "-v", "--stage"),
        "fsmonitor": git(folder, "ls-files", "-f"),
        # Those that are stored. A split index is git's way to store it, and any git may join it.
        "flags": [int(line.split("flags:")[1], 16) & 0x6000F000 for line in debug.split("\n") if "flags:" in line],
        "version of the index": (own / "index").read_bytes()[4:8],
        "status": git(folder, "status", "--porcelain=v2", "--branch"),
        "own": (own / "era").exists(),
    }


def everything(folder: Path) -> dict[str, tuple]:
    """Every file and folder with its mode and content, .git included."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        mode = path.lstat().st_mode
        found[str(path)] = (mode, os.readlink(path) if stat.S_ISLNK(mode) else path.is_file() and path.read_bytes())
    return found


def moved(project: Project, base: Path) -> Project:
    """The small project once more, with its cache beside it, in another place."""
    base.mkdir(parents=True, exist_ok=True)
    for part in ("patches", "overlays"):
        shutil.copytree(project.root / part, base / "project" / part)
    other = Project(base / "project", project.upstreams)
    other.ids, other.index, other.up, other.env = project.ids, project.index, project.up, project.env
    return other


def by_process(project: Project, command: list[str], env: dict[str, str], ready=restore_ctrl_c):
    """Verbs as processes, as a user starts them."""

    def run(*args: str, code: int | None = 0) -> Result:
        words = [*command, str(project.root / "apply.py"), *project.with_cache(args)]
        done = subprocess.run(words, capture_output=True, env=env, preexec_fn=ready, cwd=project.root.parent)
        return project.judge(args, Result(done.returncode, done.stdout, done.stderr), code)

    return run


# --- gits and Pythons ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [None, *GITS], ids=lambda folder: folder.name if folder else "PATH")
def test_git(project, tally, tmp_path, monkeypatch, folder):
    program = [str(folder / "git") if folder else "git", "--version"]
    version = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()[2]
    new_enough = tuple(int(part) for part in version.split(".")[:2]) >= (2, 30)
    with tally.counted(PART, f"git {version}", "completed" if new_enough else "refused"):
        with monkeypatch.context() as patch:
            if folder:
                patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
            if new_enough:
                (tmp_path / ".gitconfig").write_text("[diff]\n\tcontext = 0\n")  # in the tests' home: not for us
                assert whole_round(project, project.run, tmp_path) == ROUND
                return
            for verb in ("fetch", "apply", "status"):
                error = project.run(verb, code=2).err
                assert "is too old" in error and "install git 2.30 or newer" in error and "nothing was changed" in error
        assert not project.checkouts.exists() and not project.cache.exists()


@pytest.mark.parametrize("interpreter", [sys.executable, *PYTHONS] if LONG else PYTHONS)
def test_python(project, tally, tmp_path, interpreter):
    report = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    version = subprocess.run([interpreter, "-c", report], capture_output=True, text=True, check=True).stdout.strip()
    new_enough = tuple(int(part) for part in version.split(".")[:2]) >= (3, 10)
    with tally.counted(PART, f"Python {version}", "completed" if new_enough else "refused"):
        env = {**os.environ, **project.env, "PYTHONDONTWRITEBYTECODE": "1"}
        if new_enough:  # whatever would be an error in strict hands is one here
            run = by_process(project, [interpreter], {**env, "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"})
            assert whole_round(project, run, tmp_path) == ROUND
            return
        run = by_process(project, [interpreter], env)
        for verb in ("fetch", "apply", "status"):
            assert run(verb, code=2).err == f"error: apply.py needs Python 3.10 or newer, this is Python {version}\n"
        assert not project.checkouts.exists() and not project.cache.exists()


# --- paths -----------------------------------------------------------------------------------------------------------

PATHS = [
    ("spaces and quotes", " two  words 'it\"s` "),
    ("composed letters", unicodedata.normalize("NFC", "\u00fcber-\u00e9t\u00e9")),
    ("decomposed letters", unicodedata.normalize("NFD", "\u00fcber-\u00e9t\u00e9")),
    ("emoji and right to left", "\U0001f600-\u05e9\u05dc\u05d5\u05dd\u202e"),
    ("newlines and escapes", "two\nlines\ta\x1b[31mc\x07\n"),
    ("leading dash", "--git-dir=x"),
    ("255 characters", "n" * 255),
    ("percent, variables, braces", "%s%(x)s%20-$HOME-$(touch ran)-{name}{0}"),
    ("colon and not UTF-8", os.fsdecode(b"a:b-\xe9\xff")),
    ("backslash, semicolon, glob", "back\\a;b&c|d<e>f*?[a]"),
    ("tilde", "~"),
    ("trailing dot", ".hidden.git. "),
]


@pytest.mark.parametrize("kind, name", rows(PATHS, "colon and not UTF-8"))
def test_path(project, tally, tmp_path, kind, name):
    with tally.counted(PART, f"path with {kind}"):
        other = moved(project, tmp_path / "odd" / name)
        assert whole_round(other, other.run, tmp_path / "odd" / name) == ROUND


@pytest.mark.parametrize("room", [900, 200, 80, 40, 20, 12, 5, 0] if LONG else [40])
def test_path_near_the_limit(project, tally, tmp_path, room):
    """A given clone with that many bytes between its longest path and PATH_MAX; refused, it stays as it was."""
    longest = max(APPLIED, key=len)
    base = tmp_path
    while (left := 4095 - room - len(longest) - len(str(base)) - 1) > 205:
        base = base / ("d" * 200)
    base = base / ("e" * (left - 1))
    base.parent.mkdir(parents=True, exist_ok=True)
    make_clone(project, tmp_path).rename(base)
    where = ("--checkout", str(base))
    before = content(base)
    result = project.run("apply", "alpha", *where, code=None)
    with tally.counted(PART, "path near PATH_MAX", "refused" if result.code else "completed"):
        assert result.code == 0 or result.err.startswith("error: ") and "nothing was changed" in result.err.lower()
        if result.code == 0:
            assert bytes_of(base) == APPLIED
            project.run("revert", "alpha", *where)
        assert content(base) == before and not (base / ".git/era/journal.json").exists(), result.text
        assert json.loads(project.run("status", "alpha", "--json", *where).out)["alpha"]["state"] == "clean"


# --- kinds of given clones -------------------------------------------------------------------------------------------
# Shell scripts that end in the folder of the clone; exit 77 skips. RAN tells a program of the clone that it was started
# by apply.py and not by the test's own git.

SHELL = r"""
set -e
clone() { git clone -q "$@" "file://$UP" clone; cd clone; git checkout -q -b mine $V1; }
needs() { printf '%s\n' "$1" "$(git --version | cut -d' ' -f3)" | sort -VC || exit 77; }
program() { printf '#!/bin/sh\nif test -n "$RAN"; then touch "%s/ran"; fi\n%s\n' "$PLACE" "$2" > "$1"; chmod +x "$1"; }
"""
PICK = "echo x > README.md; git commit -qam one; echo y > README.md; git commit -qam two; TIP=$(git rev-parse HEAD)"
KINDS = [
    ("plain clone", "clone", None),
    ("clone with stash tags notes and ignored files",
     "clone; echo x > README.md; git stash -q; git branch other HEAD~1; git tag -a -m mine mine-1; git notes add -m n; "
     "git update-ref refs/custom/x HEAD; echo '*.log' > .git/info/exclude; touch run.log own.txt; mkdir empty", None),
    ("linked worktree", "clone; git worktree add -q -b second ../tree $V1; cd ../tree", None),
    ("main tree of a clone with a worktree", "clone; git worktree add -q -b second ../tree $V1", None),
    ("worktree of a bare clone",
     "git clone -q --bare $UP bare.git; cd bare.git; git worktree add -q -b second ../tree $V1; cd ../tree", None),
    ("worktree with a configuration of its own",
     "clone; git worktree add -q -b second ../tree $V1; cd ../tree; git config extensions.worktreeConfig true; "
     "git config --worktree core.abbrev 12", None),
    ("submodule",
     "git init -q outer; cd outer; git -c protocol.file.allow=always submodule --quiet add $UP sub; cd sub; "
     "git checkout -q v1; cd ..; git add -A; git commit -qm outer; cd sub", None),
    ("shallow clone", "git clone -q --depth 1 --branch v1 file://$UP clone; cd clone", None),
    ("partial clone offline",
     "git -C $UP config uploadpack.allowFilter true; git -C $UP config uploadpack.allowAnySHA1InWant true; "
     "clone --filter=blob:none; mv $UP $UP-gone", None),
    ("clone --shared", "git clone -q --shared $UP clone; cd clone; git checkout -q -b mine $V1", None),
    ("packed refs and objects", "clone; git gc -q; git pack-refs --all", None),
    ("commit graph and multi-pack index",
     "clone; git commit-graph write --reachable; git repack -qd; git multi-pack-index write", None),
    ("reftable", "needs 2.45; clone --ref-format=reftable", None),
    ("split index", "clone; git config core.splitIndex true; git update-index --split-index", None),
    ("untracked cache", "clone; git update-index --force-untracked-cache; git status > /dev/null", None),
    ("index version 4", "clone; git update-index --index-version 4", None),
    ("many files settings",
     "clone; git config feature.manyFiles true; git config feature.experimental true; "
     "git read-tree HEAD; git status -s", None),
    ("fsmonitor hook",
     "clone; program ../hook \"printf 'token\\\\0/\\\\0'\"; git config core.fsmonitor $PLACE/hook; "
     "git update-index --fsmonitor; git status -s", None),
    ("detached HEAD", "clone; git checkout -q --detach", None),
    ("assume-unchanged and skip-worktree",
     "clone; git update-index --assume-unchanged README.md src/core.py; "
     "git update-index --skip-worktree run.sh src/util.py", None),
    (".git as a link", "clone; mv .git ../the-git; ln -s ../the-git .git", None),
    (".git elsewhere", "clone --separate-git-dir ../the-git", None),
    ("core.worktree on itself", "clone; git config core.worktree $PLACE/clone", None),
    ("replaced objects", "clone; git replace $V1 $V2", None),
    ("filters and hooks",
     "clone; program ../filter cat; for what in clean smudge; do git config filter.shout.$what $PLACE/filter; done; "
     "git config filter.shout.required true; echo '*.sh filter=shout' > .git/info/attributes; mkdir -p .git/hooks; "
     "for name in post-checkout pre-commit post-index-change reference-transaction update; do "
     "program .git/hooks/$name 'exit 0'; done", None),
    ("owned by another user",
     "test $(id -u) = 0 || exit 77; clone; chown -hR 12345:12345 .; git config --file $PLACE/theirs safe.directory '*'",
     None),
    ("odd settings",
     "clone; git config core.abbrev 4; git config color.ui always; git config diff.noprefix true; "
     "git config diff.external false; git config core.protectNTFS false; git config core.logAllRefUpdates always; "
     "git branch upstream/v1; git tag era", None),
    ("sparse checkout", "clone; git sparse-checkout init --cone; git sparse-checkout set src", (3, "sparse checkout")),
    ("sha256 repository",
     "git init -q --object-format=sha256 clone; cd clone; touch a; git add a; git commit -qm first", (3, "expected")),
    ("core.worktree elsewhere",
     "clone; mkdir ../else; mv $(ls) ../else; git config core.worktree $PLACE/else", (5, "local edits")),
    ("bare repository", "git clone -q --bare $UP alpha.git; cd alpha.git", (3, "not a git tree")),
    ("unborn branch", "git init -q clone; cd clone; touch README.md", (3, "it has no commit")),
    ("another commit", "clone; git checkout -q $V1~1", (3, "expected")),
    ("in the middle of a merge",
     "clone; git checkout -qb side HEAD~1; touch a; git add a; git commit -qm side; git checkout -q mine; "
     "git merge -q --no-commit --no-ff -s ours side; test -e .git/MERGE_HEAD", (5, "merge")),
    ("in the middle of a rebase",
     "clone; git commit -q --allow-empty -m on; export GIT_SEQUENCE_EDITOR=true; "
     "! git rebase -qi --keep-empty --exec false HEAD~2", (5, "rebase")),
    ("in the middle of a cherry-pick",
     f"clone; {PICK}; git reset -q --hard $V1; ! git cherry-pick $TIP; git checkout -q HEAD README.md",
     (5, "cherry-pick")),
    ("in the middle of a revert",
     f"clone; {PICK}; git reset -q --hard $V1; ! git revert --no-edit $TIP; git checkout -q HEAD README.md",
     (5, "revert")),
    ("in the middle of git am", "clone; sed 's/line 20/line 2000/' $PATCH > ../bad; ! git am -q ../bad", (5, "rebase")),
    ("in the middle of a bisect", "clone; git bisect start $V2 $V1~1", (5, "bisect")),
    ("intent to add", "clone; echo new > new.txt; git add -N new.txt", (5, "new.txt")),
    ("index.lock present", "clone; touch .git/index.lock", (5, "index.lock")),
]  # fmt: skip


@pytest.mark.parametrize("kind, script, refusal", rows(KINDS, "linked worktree", "in the middle of a merge"))
def test_given_clone(project, tally, tmp_path, monkeypatch, kind, script, refusal):
    place = tmp_path / "place"
    place.mkdir()
    patch = project.patch(1)
    names = {
        "UP": project.up / "alpha",
        "PLACE": place,
        "PATCH": patch,
        "V1": project.ids["v1"],
        "V2": project.ids["v2"],
    }
    user = {f"GIT_{who}_{what}": "user@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {**os.environ, **user, **{key: str(value) for key, value in names.items()}}
    project.run("fetch", "alpha")
    done = subprocess.run(["bash", "-c", f"{SHELL}\n{script}\npwd -P >&2"], cwd=place, env=env, capture_output=True)
    said = done.stderr.decode().splitlines()
    if done.returncode == 77:
        pytest.skip("this git or this user cannot make it")
    assert done.returncode == 0, said
    folder = Path(said[-1])
    if (place / "theirs").exists():  # for the test's own git: apply.py reads no such file
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(place / "theirs"))
    project.env["RAN"] = "1"
    with tally.counted(PART, kind, "refused" if refusal else "completed"):
        if refusal:
            check_refused(project, folder, place, *refusal)
        else:
            given_round(project, project.run, folder)
        assert not (place / "ran").exists()


def check_refused(project: Project, folder: Path, around: Path, code: int, words: str) -> None:
    """apply, revert and status of a given clone end in words, and not one byte there changes."""
    where = ("--checkout", str(folder))
    before = everything(around)
    result = project.run("apply", "alpha", *where, code=code)
    assert words in result.err and result.err.startswith("error: "), result.text
    for verb in ("apply", "status", "revert", "export"):
        project.run(verb, "alpha", *where, code=None)
        assert everything(around) == before, verb


# --- file systems: shell scripts that mount one at $AT; where one fails the test is skipped and says why

IMAGE = "truncate -s {}M $TMP/image; "
SYSTEMS = [
    ("tmpfs", "mount -t tmpfs -o mode=755 none $AT"),
    ("tmpfs noexec", "mount -t tmpfs -o noexec,nosuid,nodev none $AT"),
    ("overlayfs", "mkdir $TMP/l $TMP/u $TMP/w; "
     "mount -t overlay -o lowerdir=$TMP/l,upperdir=$TMP/u,workdir=$TMP/w none $AT"),
    ("ext4", IMAGE.format(64) + "mkfs.ext4 -q $TMP/image; mount -o loop $TMP/image $AT"),
    ("ext4 casefold",
     IMAGE.format(64) + "mkfs.ext4 -q -O casefold $TMP/image; mount -o loop $TMP/image $AT; chattr +F $AT"),
    ("xfs", IMAGE.format(400) + "mkfs.xfs -q $TMP/image; mount -o loop $TMP/image $AT"),
    ("btrfs", IMAGE.format(128) + "mkfs.btrfs -q $TMP/image; mount -o loop $TMP/image $AT"),
    ("vfat", IMAGE.format(64) + "mkfs.vfat $TMP/image; mount -t vfat -o loop $TMP/image $AT"),
    ("exfat (no links, all files executable, any case)",
     IMAGE.format(64) + "mkfs.exfat $TMP/image; LOOP=$(losetup --find --show $TMP/image); "
     "trap 'losetup --detach $LOOP' EXIT; mount.exfat-fuse $LOOP $AT"),
    ("ntfs (all files executable)", IMAGE.format(64) + "mkntfs -F -Q -q $TMP/image; lowntfs-3g $TMP/image $AT"),
    ("ntfs (no file executable)",
     IMAGE.format(64) + "mkntfs -F -Q -q $TMP/image; lowntfs-3g -o fmask=0133,dmask=0022 $TMP/image $AT"),
]  # fmt: skip


@pytest.fixture
def mounted(tmp_path):
    """mounted(script): a folder in which the file system is mounted until the test ends."""
    device, at = tmp_path / "device", tmp_path / "mounted"
    device.mkdir()
    at.mkdir()

    def mount(script: str) -> Path:
        if os.geteuid():
            pytest.skip("only root can mount file systems")
        env = {**os.environ, "TMP": str(device), "AT": str(at)}
        done = subprocess.run(["bash", "-ec", script], env=env, capture_output=True, text=True)
        if done.returncode or not os.path.ismount(at):
            pytest.skip(f"cannot be mounted here: {(done.stderr or done.stdout).strip()[-200:]}")
        return at

    yield mount
    if os.path.ismount(at):
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.mark.parametrize("part", ["project", "cache", "checkouts", "everything"] if LONG else ["everything"])
@pytest.mark.parametrize("kind, script", rows(SYSTEMS, "tmpfs"))
def test_file_system(project, tally, tmp_path, mounted, kind, script, part):
    at = mounted(script)
    with tally.counted(PART, f"{part} on {kind}"):
        here, there = at / "here", tmp_path / "there"
        there.mkdir()
        other = moved(project, here if part in ("project", "everything") else there)
        other.cache = (here if part in ("cache", "everything") else there) / "cache"
        other.checkouts = (here if part in ("checkouts", "everything") else there) / "checkouts"
        folder = here if part == "everything" else there

        def run(verb: str, *args: str, code: int | None = 0) -> Result:
            named = verb == "fetch" or any(word.startswith("--checkout") for word in args)
            return other.run(verb, *args, *(() if named else ("--checkouts", str(other.checkouts))), code=code)

        assert whole_round(other, run, folder) == ROUND
        assert not list(other.checkouts.glob(".*.new-*")) and not list((other.cache / "tmp").iterdir())


# --- circumstances: what a shell, a container or a cluster may have set

HOSTILE_HOME = (
    "[core]\n\tautocrlf = true\n\tabbrev = 4\n[diff]\n\tcontext = 0\n\tnoprefix = true\n[commit]\n\tgpgSign = true\n"
    "[init]\n\tdefaultObjectFormat = sha256\n[i18n]\n\tcommitEncoding = latin1\n[user]\n\tname =\n"
)
HOSTILE_GIT = {  # what git itself would obey
    "GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere", "GIT_INDEX_FILE": "/nowhere/index", "GIT_NAMESPACE": "x",
    "GIT_OBJECT_DIRECTORY": "/nowhere/objects", "GIT_COMMON_DIR": "/nowhere", "GIT_PREFIX": "x/",
    "GIT_AUTHOR_DATE": "1 +0000", "GIT_COMMITTER_NAME": "", "GIT_EXTERNAL_DIFF": "false", "GIT_DIFF_OPTS": "-u0",
    "GIT_PAGER": "false", "GIT_EDITOR": "false", "GIT_TRACE": "1", "GIT_DEFAULT_HASH": "sha256",
    "GIT_CEILING_DIRECTORIES": "/", "GIT_TEST_SPLIT_INDEX": "1", "GIT_INDEX_VERSION": "4", "GIT_ATTR_SOURCE": "HEAD~1",
    "GIT_ICASE_PATHSPECS": "1", "GIT_QUARANTINE_PATH": "x", "GIT_SHALLOW_FILE": "x", "GIT_GRAFT_FILE": "x",
    "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.bare", "GIT_CONFIG_VALUE_0": "true",
}  # fmt: skip
CIRCUMSTANCES = [
    ("locale de_DE.UTF-8", {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}, []),
    ("locale tr_TR.UTF-8", {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"}, []),
    ("locale that does not exist", {"LC_ALL": "xx_YY.nonsense", "LANG": "x", "LANGUAGE": "y"}, []),
    ("ASCII only", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, []),
    ("PYTHONIOENCODING=ascii", {"PYTHONIOENCODING": "ascii"}, []),
    ("time zone", {"TZ": "Asia/Kathmandu"}, []),
    ("umask 077", {"UMASK": "63"}, []),
    ("umask 000", {"UMASK": "0"}, []),
    ("HOME unset", {"HOME": None}, []),
    ("HOME relative", {"HOME": "nowhere"}, []),
    ("HOME with a hostile git configuration", {"HOME": "{folder}"}, []),
    ("hostile GIT_ variables", HOSTILE_GIT, []),
    ("TMPDIR that does not exist", {"TMPDIR": "{folder}/nowhere"}, []),
    ("TMPDIR relative", {"TMPDIR": "."}, []),
    ("PYTHONOPTIMIZE=2", {"PYTHONOPTIMIZE": "2"}, []),
    ("isolated", {}, ["-I", "-S"]),
    ("strict", {"PYTHONSAFEPATH": "1", "PYTHONPATH": "/nowhere", "PYTHONWARNINGS": "error"}, ["-bb", "-X", "dev"]),
    ("terminal settings", {"TERM": "dumb", "COLUMNS": "1", "PAGER": "false", "POSIXLY_CORRECT": "1"}, []),
]  # fmt: skip


@pytest.mark.parametrize("kind, settings, flags", rows(CIRCUMSTANCES, "ASCII only"))
def test_circumstance(project, tally, tmp_path, kind, settings, flags):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".gitconfig").write_text(HOSTILE_HOME)
    given = {key: value and value.format(folder=folder) for key, value in settings.items()}
    env = {key: value for key, value in {**os.environ, **project.env, **given}.items() if value is not None}

    def ready() -> None:
        restore_ctrl_c()
        os.umask(int(settings.get("UMASK", "18")))

    with tally.counted(PART, kind):
        run = by_process(project, [sys.executable, *flags], env, ready)
        assert whole_round(project, run, tmp_path) == ROUND
