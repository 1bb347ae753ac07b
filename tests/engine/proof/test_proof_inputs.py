"""Generated and mutated inputs: patches, overlay files, upstreams.json, source packages and command lines.

Each is refused in words, or accepted and then equal to the byte to what an independent reading gives: git, GNU tar or a
walk over the bytes. Nothing is written elsewhere, and nothing ends in a traceback.
"""

from __future__ import annotations

import collections
import gzip
import io
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kit import HEADER, PROJECT, content, git_state, load_engine
from mutations import PATHS, make_tar, mutate_json, mutate_patch, mutate_tar, pack
from properties import PatchBench, check_archive, check_number, check_upstreams, plain_git

PART = "inputs"
LONG = os.environ.get("ERA_PROOF") == "long"
engine = load_engine(PROJECT)


def chunks(number: int):
    """The long form in pieces of less than a minute, each with a seed of its own."""
    return pytest.mark.parametrize("chunk", range(number if LONG else 1))


def explore(tally, row: str, chunk: int, cases: int, strategy, check) -> None:
    """Try `check` on that many cases, always the same ones, and count how they end."""
    counts = collections.Counter()

    @seed(chunk)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(case):
        counts["lost"] += 1
        outcome = check(case)
        counts["lost"] -= 1
        counts[outcome] += 1

    try:
        one()
    finally:
        counts["lost"] = min(counts["lost"], 1)  # a lost case is tried again to show it
        for outcome, number in counts.items():
            tally.count(PART, row, outcome, number)


SEEDS = st.integers(0, 2**32 - 1)

# --- patches ---------------------------------------------------------------------------------------------------------

LINE = st.sampled_from(
    [b"a", b"b", b"", b" ", b"-", b"+x", b"@@ -1 +1 @@", b"diff --git a/f b/f", b"\\ No newline at end of file", b"\xff\xfe", b"cr\r",
     b"--", b"-- ", b"\t", b"--- a/f", b"+++ b/f", "é\u2028".encode(), b"\x0c", b"x" * 5000]
)  # fmt: skip
NAME = st.sampled_from(
    [b"f", b"g.py", b"src/core.py", b"src/deep/er/x", b"a b", b" lead", b"tail ", b"-x", b"--output=x", "é.py".encode(), "e\u0301".encode(),
     b"b/f", b"a/f b", b"x\ty", b'q"q', b"back\\slash", b"new\nline", b"\xff", b"dev/null", b"x.patch"]
)  # fmt: skip


@st.composite
def texts(draw):
    lines = draw(st.lists(LINE, max_size=30))
    if draw(st.integers(0, 19)) == 0:
        lines *= 300
    body = b"\n".join(lines)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + b"\0" + body[at:]
    return body + draw(st.sampled_from([b"", b"\n"]))


@st.composite
def edits(draw):
    """One file before and after: (mode, bytes) or None."""
    old = draw(texts())
    what = draw(st.sampled_from(["edit"] * 12 + ["other", "delete", "mode", "new", "link", "empty"]))
    mode = draw(st.sampled_from(["100644", "100755"]))
    if what == "edit":
        lines = old.split(b"\n")
        for _ in range(draw(st.integers(1, 5))):
            at = draw(st.integers(0, len(lines)))
            lines[at : at + draw(st.integers(0, 3))] = draw(st.lists(LINE, max_size=3))
        return (mode, old), (mode, b"\n".join(lines))
    other = "100755" if mode == "100644" else "100644"
    after = {
        "other": (mode, draw(texts())),
        "mode": (other, old),
        "link": ("120000", b"to"),
        "empty": (mode, b""),
        "delete": None,
    }
    return ((mode, old), after[what]) if what != "new" else (None, (mode, old))


def commit_stream(name: str, files: dict) -> bytes:
    out = b"commit refs/heads/%s\ncommitter a <a@b> 0 +0000\ndata 0\ndeleteall\n" % name.encode()
    for path, (mode, data) in files.items():
        quoted = b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
        out += b"M %s inline %s\ndata %d\n%s\n" % (mode.encode(), quoted, len(data), data)
    return out + b"\n"


@chunks(10)
def test_patches_that_git_made(tally, scale, tmp_path, chunk):
    """Real edits, turned into a patch by git: exactly git's bytes, or one of the refusals that docs/engine/usage.md names."""
    repository = tmp_path / "r"
    plain_git(tmp_path, "init", "-q", "--bare", str(repository))

    def check(case) -> str:
        pairs, context = case
        old = {path: pair[0] for path, pair in pairs.items() if pair[0]}
        new = {path: pair[1] for path, pair in pairs.items() if pair[1]}
        stream = commit_stream("old", old) + commit_stream("new", new)
        assert plain_git(repository, "fast-import", "--quiet", "--force", data=stream).returncode == 0
        diff = plain_git(
            repository,
            "-c",
            "core.quotePath=false",
            "diff",
            "--full-index",
            "--no-renames",
            f"-U{context}",
            "old",
            "new",
        ).stdout
        changed = [path for path in pairs if old.get(path) != new.get(path)]
        assert bool(diff) == bool(changed)
        try:
            patch = engine.patches.PatchReader("0001-x.patch", HEADER.format(subject="x").encode() + diff).read()
        except engine.common.Stop as stop:
            assert stop.code == 2 and "nothing was changed" in stop.lines
            assert not changed or any(beyond(path, old.get(path), new.get(path)) for path in changed), (
                f"a plain patch is refused: {stop}"
            )
            return "refused"
        assert not any(beyond(path, old.get(path), new.get(path)) for path in changed), (
            "what the docs say is refused was accepted"
        )
        assert sorted(os.fsencode(diff.path) for diff in patch.diffs) == sorted(changed)
        for item in patch.diffs:
            before = old[os.fsencode(item.path)]
            try:
                after = engine.patches.apply_diff(item, before)
            except engine.patches.Conflict:
                assert context == 0, "a patch with context does not fit the file that it was made of"
                return "refused"
            engine.patches.check_ids(patch, item, before, after)
            assert after == new.get(os.fsencode(item.path))
        return "completed"

    files = st.dictionaries(NAME, edits(), min_size=1, max_size=3).filter(lambda pairs: not clash(pairs))
    cases = st.tuples(files, st.sampled_from([3, 3, 3, 1, 0, 10]))
    explore(tally, "patch made by git of a random edit", chunk, scale(80, 300), cases, check)


def clash(pairs: dict) -> bool:
    return any(other.startswith(path + b"/") for path in pairs for other in pairs)


def beyond(path: bytes, old, new) -> bool:
    """New files, links, binary contents, and names that git writes in quotes or that no file system shares."""
    try:
        named = unicodedata.normalize("NFC", path.decode()) is None
    except UnicodeDecodeError:
        named = True
    binary = any(side and b"\0" in side[1][:8000] for side in (old, new)) and (old and old[1]) != (new and new[1])
    return (
        named
        or any(char < 32 or char in b'"\\' for char in path)
        or old is None
        or binary
        or (new is not None and new[0] == "120000")
    )


def kit_files() -> dict:
    from kit import FIRST

    return {path: ("100755" if path.endswith(".sh") else "100644", text.encode()) for path, text in FIRST.items()}


def seeds_of(folder: Path, bench: PatchBench) -> list[bytes]:
    """Sound patches of every sort that the docs allow, on the kit's files."""
    files = {os.fsencode(path): item for path, item in bench.files.items()}
    core, crlf_text, bare = files[b"src/core.py"][1], files[b"crlf.txt"][1], files[b"bare.txt"][1]
    many = (
        core.replace(b"line 5 ", b"line five ")
        .replace(b"line 30 of the core\n", b"")
        .replace(b"line 50 ", b"new\nline 50 ")
    )
    after = [
        {b"src/core.py": ("100644", many)},
        {b"src/core.py": ("100644", core + b"last\n"), b"src/util.py": None},
        {
            b"crlf.txt": ("100644", crlf_text.replace(b"two", b"three")),
            b"README.md": ("100755", files[b"README.md"][1]),
        },
        {b"bare.txt": ("100644", bare + b"\n"), b"run.sh": ("100644", b"#!/bin/sh\necho ran\n")},
        {b"bare.txt": ("100644", b"first\n" + bare), b"src/old.py": ("100644", b"")},
        {b"README.md": ("100644", b"no newline")},
    ]
    work = folder / "seeds"
    plain_git(folder, "init", "-q", "--bare", str(work))
    plain_git(work, "fast-import", "--quiet", "--force", data=commit_stream("old", files))
    made = []
    for number, changes in enumerate(after):
        new = {path: item for path, item in {**files, **changes}.items() if item}
        plain_git(work, "fast-import", "--quiet", "--force", data=commit_stream("new", new))
        for context in (3, 1):
            diff = plain_git(work, "diff", "--full-index", "--no-renames", f"-U{context}", "old", "new").stdout
            made.append(HEADER.format(subject=f"Change {number}").encode() + diff)
    return made


@chunks(14)
def test_mutated_patches(tally, scale, tmp_path, chunk):
    """Spoilt patches are refused, or make the tree that git apply makes of the same bytes."""
    bench = PatchBench(engine, tmp_path / "bench", kit_files())
    seeds = seeds_of(tmp_path, bench)
    for raw in seeds:
        assert bench.check(raw) == "completed"

    def check(number: int) -> str:
        chance = random.Random(number)
        return bench.check(mutate_patch(chance.choice(seeds), chance, seeds))

    explore(tally, "mutated patch, by the reader", chunk, scale(150, 500), SEEDS, check)


@chunks(2)
def test_mutated_patches_of_this_project(tally, scale, tmp_path, chunk):
    """The real patches: most of what is mutated is refused, and nothing is refused with a traceback."""
    seeds = [path.read_bytes() for path in sorted((PROJECT / "patches").glob("*/*/*.patch"))]

    def check(number: int) -> str:
        chance = random.Random(number)
        raw = mutate_patch(chance.choice(seeds), chance, seeds)
        try:
            engine.patches.PatchReader("0001-x.patch", raw).read()
        except engine.common.Stop as stop:
            assert stop.code == 2 and stop.lines[0].startswith("0001-x.patch")
            return "refused"
        return "completed"

    explore(tally, "mutated patch of this project, by the reader", chunk, scale(100, 1500), SEEDS, check)


def project_view(project) -> dict:
    """Everything around the cache: the project, its upstreams, the folder above; the locks of checkouts aside."""
    top = project.root.parent
    skip = (project.cache, top / "xdg")
    found = {}
    for folder, folders, names in os.walk(top):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name not in skip and name != "__pycache__"]
        for name in names:
            path = here / name
            info = path.lstat()
            if not name.endswith(".lock") and stat.S_ISREG(info.st_mode):
                found[os.fsencode(path)] = (info.st_mode, path.read_bytes())
    return found


def whole(project, *args: str) -> tuple[int, dict | None]:
    """apply: its exit code, and the tree that git sees in the checkout made, which is then taken away."""
    result = project.run("apply", *args, code=None)
    assert result.code in (0, 2, 3, 4, 5, 6), result.text
    folder = project.checkout(args[0])
    if result.code:
        assert result.err.startswith("error: ") and not folder.exists(), result.text
        return result.code, None
    rows = os.fsdecode(plain_git(folder, "ls-files", "--stage", "-z").stdout).split("\0")[:-1]
    assert plain_git(folder, "status", "--porcelain").stdout == b""
    for row in rows:  # the files, not only what git has in its index
        path = folder / row.split("\t", 1)[1]
        found = plain_git(folder, "hash-object", "--no-filters", "--", str(path)).stdout.decode().strip()
        assert found == row.split(" ")[1] and bool(path.lstat().st_mode & 0o100) == row.startswith("100755")
    shutil.rmtree(project.checkouts)
    return 0, {row.split("\t", 1)[1]: tuple(row.split(" ")[:2]) for row in rows}


@chunks(4)
def test_mutated_patches_by_apply(tally, scale, project, tmp_path, chunk):
    """The same through the whole verb: a checkout as git would make it, or nothing changed at all."""
    bench = PatchBench(engine, tmp_path / "bench", kit_files())
    seeds = seeds_of(tmp_path, bench)
    for path in (project.root / "patches/alpha/v1").iterdir():
        path.unlink()
    shutil.rmtree(project.root / "overlays/alpha")
    project.run("fetch", "alpha")

    def check(number: int) -> str:
        chance = random.Random(number)
        raw = mutate_patch(chance.choice(seeds), chance, seeds) if number % 8 else chance.choice(seeds)
        (project.root / "patches/alpha/v1/0001-x.patch").write_bytes(raw)
        project.pin_numbers()
        before = project_view(project)
        code, tree = whole(project, "alpha")
        assert project_view(project) == before
        expected = bench.by_git(raw)
        assert tree in (None, expected) and code in (0, 2, 3, 4)
        return "completed" if tree else "refused"

    explore(tally, "mutated patch, by the whole verb apply", chunk, scale(6, 40), SEEDS, check)


# --- overlay files ---------------------------------------------------------------------------------------------------

OVERLAY_NAMES = [
    *(name for name in PATHS if not name.startswith(b"/") and b".." not in name.split(b"/") and b"//" not in name and len(name) < 256),
    b"main.py", b"MAIN.PY", b"Main.py/x", b"main.py/x", b"new.py", b"NEW.py", b"New.py/x", b"new.sh", "\u00e9.py".encode(), "e\u0301.py".encode(),
    "\u00c9.py".encode(), b"dir/a", b"DIR/b", b"dir", b".git", b".git/x", b"sub/.git", b".GIT/x", b"GIT~1", b".git. .", b".git::$DATA", b"tail.",
    b"-x", b"--help", b"n" * 255, b"n" * 250, b"m" * 244, b"d" * 200 + b"/" + b"e" * 200, b"nl\nnl", b"tab\tx", b"\x80", b"\xed\xa0\x80", b"a:b",
    "\u202e.py".encode(), b"*", b"?", b"$(x)", b"%s", b"{}", b"__pycache__/x", b"x.pyc", b".DS_Store", b"empty", "\u00df".encode(), b"ss",
    "\ufb01".encode(), b"fi", b".gitattributes", b".gitmodules", b"aux", b"x;y", b"'", b"`x`", b"#", b"!", b"~", b"~root/x",
]  # fmt: skip


def put_overlay(top: Path, chance: random.Random) -> dict[bytes, tuple[int, bytes | None]]:
    """Files of odd names and kinds; returns what is there by a walk over the bytes (None: no plain file)."""
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(parents=True)
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 5])):
        path_in = chance.choice(OVERLAY_NAMES)
        path = os.path.join(os.fsencode(top), path_in)
        kind = chance.choice(["file"] * 14 + ["link", "dangling", "folder", "fifo", "socket", "up"])
        try:
            if os.path.realpath(os.path.dirname(path)) != os.path.dirname(
                os.path.join(os.path.realpath(os.fsencode(top)), path_in)
            ):
                continue  # behind a link of before, which leads out of here
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if kind == "file":
                with open(path, "xb") as out:
                    out.write(chance.choice([b"", b"x\n", b"\r\n", b"\0\xff", b"* filter=evil\n", b"x" * 70000]))
                os.chmod(path, chance.choice([0o644, 0o755, 0o600, 0o4755]))
            elif kind == "folder":
                os.makedirs(path)
            elif kind == "fifo":
                os.mkfifo(path)
            elif kind == "socket":
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(path)
            else:
                os.symlink({"link": os.fsencode(__file__), "dangling": b"nowhere", "up": b"../../.."}[kind], path)
        except OSError:  # the file system does not take this one, so nobody can meet it here
            continue
    found = {}
    for folder, folders, names in os.walk(os.fsencode(top)):
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            plain = stat.S_ISREG(info.st_mode)
            found[os.path.relpath(path, os.fsencode(top))] = (info.st_mode, open(path, "rb").read() if plain else None)
    return found


def junk(path: bytes) -> bool:
    return path.endswith((b".pyc", b".DS_Store")) or b"__pycache__" in path


def same_for_some(path: str) -> str:
    """One name for all that a file system without case, or with one form of accents, takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


@chunks(4)
def test_overlay_files(tally, scale, tmp_path, monkeypatch, chunk):
    """What is read is what a walk over the bytes finds, and names that could meet on some file system are refused."""
    monkeypatch.setattr(engine.project, "ROOT", tmp_path)
    (tmp_path / "apply.py").touch(0o755)  # by these two the engine sees that exec bits are kept here
    (tmp_path / "upstreams.json").touch(0o644)
    base = {"main.py": 1, "src/core.py": 1, "README.md": 1}

    def check(number: int) -> str:
        there = put_overlay(tmp_path / "overlays/beta", random.Random(number))
        wanted = {path: item for path, item in there.items() if not junk(path)}
        try:
            found = engine.project.read_overlay_files("beta")
            engine.project.check_no_overwrite("beta", found, base)
        except engine.common.Stop as stop:
            assert stop.code in (2, 3) and "othing was changed" in stop.lines[-1]
            return "refused"
        read = {os.fsencode(path): (mode == "100755", data) for path, (mode, data) in found.items()}
        assert read == {path: (bool(mode & 0o100), data) for path, (mode, data) in wanted.items()}
        names = collections.Counter()
        for path in [*found, *base]:
            parts = path.split("/")
            names.update({("/".join(parts[: i + 1]), i + 1 == len(parts)) for i in range(len(parts))})
        spellings = collections.defaultdict(set)
        for (path, is_file), number in names.items():
            assert not (is_file and number > 1)
            spellings[same_for_some(path)].add((path, is_file))
        assert all(len(group) == 1 for group in spellings.values()), "two that meet on some file systems"
        return "completed"

    explore(tally, "overlay files, by the reader", chunk, scale(80, 600), SEEDS, check)


@chunks(4)
def test_overlay_files_by_apply(tally, scale, project, chunk):
    """Through the verb: to the byte, or nothing at all; also as a change to a checkout that is there already."""
    shutil.rmtree(project.root / "patches/beta")
    project.run("apply", "beta")
    base = {path.encode(): item for path, item in content(project.checkout("beta")).items()}
    project.run("revert", "beta")
    kept = project.root.parent / "kept"
    shutil.copytree(project.checkouts, kept, symlinks=True)

    def check(number: int) -> str:
        shutil.rmtree(project.checkouts, ignore_errors=True)
        if number % 2:
            shutil.copytree(kept, project.checkouts, symlinks=True)
        there = put_overlay(project.root / "overlays/beta", random.Random(number))
        project.pin_numbers()
        before = project_view(project)
        result = project.run("apply", "beta", code=None)
        if result.code:
            assert result.code in (2, 3, 4, 5) and result.err.startswith("error: ")
            assert project_view(project) == before
            return "refused"
        checkout = os.fsencode(project.checkout("beta"))
        inside = checkout + b"/"
        assert {path: item for path, item in project_view(project).items() if not path.startswith(inside)} == {
            path: item for path, item in before.items() if not path.startswith(inside)
        }
        found = {
            path[len(inside) :]: (bool(mode & 0o100), data)
            for path, (mode, data) in project_view(project).items()
            if path.startswith(inside)
        }
        found = {path: item for path, item in found.items() if not path.startswith(b".git/")}
        assert found == {
            **base,
            **{path: (bool(mode & 0o100), data) for path, (mode, data) in there.items() if not junk(path)},
        }
        return "completed"

    explore(tally, "overlay files, by the whole verb apply", chunk, scale(6, 40), SEEDS, check)


# --- upstreams.json --------------------------------------------------------------------------------------------------

KIT = {
    "alpha": {
        "git": "https://example.org/alpha",
        "license": "Apache-2.0",
        "default": "v1",
        "overlay_files": 2,
        "versions": {
            "v1": {
                "tag": "v1",
                "commit": "1" * 40,
                "patches": 2,
                "sdist": {"project": "alpha", "version": "1.0", "sha256": "2" * 64, "lacks": ["extra/"], "adds": ["PKG-INFO"]},
            },
            "v2": {"tag": "v2", "commit": "3" * 40, "patches": 0},
        },
    },
    "beta": {"git": "ssh://git@example.org/beta", "license": "MIT", "default": "b1", "overlay_files": 0, "on_request": True,
             "versions": {"b1": {"commit": "4" * 40, "patches": 1}}},
}  # fmt: skip


@chunks(4)
def test_upstreams(tally, scale, tmp_path, chunk):
    """upstreams.json with anything in it: refused with 2, or harmless to git and to the file system."""
    real = json.loads((PROJECT / "upstreams.json").read_text())
    for data in (real, KIT):
        assert check_upstreams(engine, tmp_path, json.dumps(data).encode()) == "completed"

    def check(number: int) -> str:
        chance = random.Random(number)
        return check_upstreams(engine, tmp_path, mutate_json(real if chance.random() < 0.2 else KIT, chance))

    explore(tally, "upstreams.json", chunk, scale(300, 1500), SEEDS, check)


WORDS = st.sampled_from(
    [
        "alpha",
        "overlay_files",
        "versions",
        "v1",
        "patches",
        "a",
        "",
        "\u00e9",
        'q"',
        "\\",
        "{",
        "[",
        ":",
        ",",
        "\n",
        "\U0001f600",
    ]
)
NUMBER = st.integers(-(10**20), 10**20)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBER | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def json_texts(draw):
    """A text with any white space and escapes, and the place of a number in it, mostly."""
    name, label = draw(WORDS), draw(WORDS)
    data = draw(st.dictionaries(WORDS, VALUES, max_size=4))
    shape = draw(st.integers(0, 9))
    place = (name, "versions", label, "patches") if shape % 2 else (name, "overlay_files")
    if shape:
        node = data
        for key in place[:-1]:
            node[key] = {
                **draw(st.dictionaries(WORDS, VALUES, max_size=3)),
                **(node[key] if isinstance(node.get(key), dict) else {}),
            }
            node = node[key]
        node[place[-1]] = draw(NUMBER)
    chance = draw(st.randoms(use_true_random=False))
    return written(data, chance), place


def written(node, chance) -> str:
    def gap() -> str:
        return "".join(chance.choice(" \t\n\r") for _ in range(chance.choice([0, 0, 0, 1, 3])))

    def string(text: str) -> str:
        if chance.random() < 0.2:
            return '"' + "".join(f"\\u{unit:04x}" for unit in units(text)) + '"'
        return json.dumps(text, ensure_ascii=chance.random() < 0.5)

    if isinstance(node, dict):
        rows = list(node.items())
        chance.shuffle(rows)
        text = (
            "{" + ",".join(f"{gap()}{string(key)}{gap()}:{written(item, chance)}" for key, item in rows) + gap() + "}"
        )
    elif isinstance(node, list):
        text = "[" + ",".join(written(item, chance) for item in node) + gap() + "]"
    else:
        text = string(node) if isinstance(node, str) else json.dumps(node)
    return gap() + text + gap()


def units(text: str) -> list[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]


@chunks(2)
def test_numbers_in_json(tally, scale, chunk):
    """The editor of one number in a JSON text, which export uses on upstreams.json."""
    cases = st.tuples(json_texts(), st.integers(0, 10**6))
    explore(
        tally,
        "JSON number editor",
        chunk,
        scale(150, 1500),
        cases,
        lambda case: check_number(engine, *case[0], case[1]),
    )


# --- source packages -------------------------------------------------------------------------------------------------


@chunks(8)
def test_archives(tally, scale, tmp_path, chunk):
    """Source packages with anything in them: refused with 3, or read as GNU tar reads them."""
    path = tmp_path / "p-1.0.tar.gz"

    def check(number: int) -> str:
        chance = random.Random(number)
        path.write_bytes(pack(mutate_tar(make_tar(chance), chance), chance))
        return check_archive(engine, path, tmp_path / "scratch")

    explore(tally, "source package", chunk, scale(150, 500), SEEDS, check)


def test_a_package_cut_at_any_byte(tally, scale, tmp_path):
    """However much of it is missing, it is refused: a part is never taken for the whole."""
    path = tmp_path / "p-1.0.tar.gz"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name, size in (("p/a", 10), ("p/sub/\u00e9" * 20, 700), ("p/empty", 0), ("p/last", 512)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(range(1, 251)) * 3))
    plain = out.getvalue()
    packed = gzip.compress(plain, 9, mtime=0)
    path.write_bytes(packed)
    assert check_archive(engine, path, tmp_path / "scratch") == "completed"
    end = len(plain.rstrip(b"\0")) + 511 & ~511  # of the last file; a block of zeros after it says that this is the end
    places = [("gzip", at) for at in range(0, len(packed), scale(40, 1))] + [
        ("tar", at) for at in range(0, end, scale(256, 16))
    ]
    for what, at in places:
        path.write_bytes(packed[:at] if what == "gzip" else gzip.compress(plain[:at], 1, mtime=0))
        outcome = check_archive(engine, path, tmp_path / "scratch")
        assert outcome == "refused", f"{what} cut at {at}"
        tally.count(PART, "source package cut short", outcome)


BOMBS = {
    "pax": lambda: header(b"p/x", 1 << 30, b"x") + bytes(1 << 30),
    "pax-negative": lambda: header(b"p/x", -512, b"x") + bytes(600 << 20),
    "global-pax": lambda: header(b"p/x", 1 << 30, b"g") + bytes(1 << 30),
    "long-name": lambda: header(b"p/x", 1 << 30, b"L") + b"x" * (1 << 30),
    "file": lambda: header(b"p/x", 5 << 30, b"0") + bytes(1 << 30),
    "claims": lambda: header(b"p/x", (1 << 62), b"0") + bytes(1024),
    "folders": lambda: b"".join(header(b"p/d%d" % n, 0, b"5") for n in range(400_000)),
    "files": lambda: b"".join(header(b"p/f%d" % n, 0, b"0") for n in range(400_000)),
    "headers": lambda: header(b"p/x", 512, b"x") * 3000,
    "headers-in-a-row": lambda: (header(b"p/x", 0, b"x")) * 3000,
    "tail": lambda: header(b"p/x", 0, b"0") + bytes(3 << 30),
}


def header(name: bytes, size: int, kind: bytes) -> bytes:
    head = bytearray(512)
    head[:100] = name.ljust(100, b"\0")
    head[100:124] = b"0000644\0" + b"0000000\0" * 2
    head[124:136] = (
        b"%011o\0" % size
        if 0 <= size < 8**11
        else bytes([0x80 if size > 0 else 0xFF]) + (size % 256**11).to_bytes(11, "big")
    )
    head[136:148] = b"00000000000\0"
    head[156:157] = kind
    head[257:265] = b"ustar\x0000"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


UNPACK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))
from pathlib import Path
from engine import sources
from engine.common import Stop
try:
    sources.unpack(Path(sys.argv[2]))
except Stop as stop:
    print(stop)
    sys.exit(stop.code)
"""


@pytest.mark.parametrize("name", sorted(BOMBS) if LONG else ["pax-negative", "headers-in-a-row", "claims"])
def test_bombs(tally, tmp_path, name):
    """A small package that would fill the memory is refused in 700 MB of address space, which Python itself takes a part of."""
    path = tmp_path / "p.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(BOMBS[name]() + (bytes(1024) if name != "tail" else b"x"))
    done = subprocess.run([sys.executable, "-c", UNPACK, str(PROJECT), str(path)], capture_output=True, text=True)
    assert done.returncode == 3 and "Traceback" not in done.stderr, (done.stdout + done.stderr)[-2000:]
    tally.count(PART, "source package that is a bomb", "refused")


# --- command lines ---------------------------------------------------------------------------------------------------

ARGV = [
    "apply", "status", "diff", "revert", "export", "fetch", "port", "alpha", "beta", "gamma", "--", "--version", "v1", "v2", "--source", "git", "pypi",
    "nowhere", "--offline", "--checkouts", "--checkout", "--cache", "--dry-run", "--json", "-v", "--stat", "--local", "--keep-edits", "--check",
    "--onto", "main", "", " ", "-", "--x", "-x", "--version=v1", "--version=", "--version=-x", "--onto=--upload-pack=x", "--source=ext::sh -c x",
    "--checkout=.", "--check=1", "--ver", "\udcff", "\ud800", "x" * 5000, "/" + "y" * 300, "a\nb", "\x1b[2J", "é", "~nobody-there/x", "../..", "..",
    "/dev/null", "/", "README.md", "src/*", ":(top)x", ":/", "-h", "--help", "@argsfile", "%s", "{}", "--stat=x", "-vv", "-vx", "--json=1", "--no-json",
]  # fmt: skip


@chunks(4)
def test_command_lines(tally, scale, project, clone, monkeypatch, chunk):
    """Any words: an exit code of the table, no traceback, and after a refusal everything as it was."""
    monkeypatch.chdir(project.root.parent)
    monkeypatch.setenv("COLUMNS", "80")
    project.run("apply", "beta")
    project.run("fetch", "alpha")

    def check(words: list[str]) -> str:
        try:
            [os.fsencode(word) for word in words]
        except UnicodeEncodeError:  # no shell can hand this over
            words = [word for word in words if word != "\ud800"]
        before, state = project_view(project), git_state(clone)
        try:
            code = project.run(*words, code=None).code
        finally:
            shutil.rmtree(project.checkout("alpha"), ignore_errors=True)
        assert code in range(8), code
        after = project_view(project)
        assert git_state(clone) == state
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        if code in (0, 1, 6):
            ours = os.fsencode(project.checkouts) + b"/"
            assert all(path.startswith(ours) for path in changed), changed
            return "completed" if code < 2 else "refused"
        assert not changed, changed
        return "refused"

    explore(tally, "command line", chunk, scale(25, 150), st.lists(st.sampled_from(ARGV), max_size=6), check)
