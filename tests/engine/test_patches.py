"""The strict patch reader and applier, against git's own on random files, and on mutated patches."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import HEADER, PROJECT, load_engine

engine = load_engine(PROJECT)
ENV = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

# Few different lines, so that a hunk often fits in several places.
LINE = st.sampled_from(
    [
        b"a",
        b"b",
        b"c",
        b"",
        b" ",
        b"-",
        b"+x",
        b"@@ -1 +1 @@",
        b"diff --git a/f b/f",
        b"\\ x",
        b"\xff\xfe",
        b"cr\r",
        b"--",
        b"\t",
    ]
)


@st.composite
def contents(draw):
    body = b"\n".join(draw(st.lists(LINE, max_size=25)))
    return body + draw(st.sampled_from([b"", b"\n"])) if body else body


@st.composite
def edited(draw):
    """A file and a version of it with a few lines changed."""
    old = draw(contents())
    lines = engine.patches.split_lines(old)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 3))] = [line + b"\n" for line in draw(st.lists(LINE, max_size=3))]
    if lines and draw(st.booleans()):
        lines[-1] = lines[-1].rstrip(b"\n")
    return old, b"".join(
        line if line.endswith(b"\n") or i == len(lines) - 1 else line + b"\n" for i, line in enumerate(lines)
    )


def git_diff(old: bytes, new: bytes, context: int, more: tuple[str, ...] = ()) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").mkdir(), Path(folder, "b").mkdir()
        Path(folder, "a/f").write_bytes(old), Path(folder, "b/f").write_bytes(new)
        command = [
            "git",
            "diff",
            "--no-index",
            "--text",
            "--full-index",
            f"-U{context}",
            "--no-prefix",
            *more,
            "a/f",
            "b/f",
        ]
        return subprocess.run(command, cwd=folder, env=ENV, capture_output=True).stdout


def git_apply(patch: bytes, content: bytes) -> tuple[bytes | None, bool]:
    """What git makes of a patch, None when it refuses, and whether it had to look elsewhere (an offset)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f").write_bytes(content)
        env = {**ENV, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent), "LC_ALL": "C"}
        done = subprocess.run(
            ["git", "apply", "-v", "--whitespace=nowarn", "-"], cwd=folder, env=env, input=patch, capture_output=True
        )
        moved = b"offset" in done.stderr
        return (Path(folder, "f").read_bytes() if done.returncode == 0 and Path(folder, "f").exists() else None), moved


def ours(patch: bytes, content: bytes) -> bytes | None:
    """What the strict applier makes of it, None when it refuses."""
    try:
        read = engine.patches.PatchReader("x.patch", HEADER.format(subject="x").encode() + patch).read()
        after = engine.patches.apply_diff(read.diffs[0], ("100644", content))
    except (engine.common.Stop, engine.patches.Conflict):
        return None
    return after and after[1]


SLOW = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@SLOW
@given(edited(), st.integers(1, 4))
def test_a_diff_of_git_gives_the_new_file(pair, context):
    old, new = pair
    patch = git_diff(old, new, context)
    if old != new:
        assert ours(patch, old) == new


@SLOW
@given(edited(), contents(), st.integers(1, 3))
def test_on_another_file_we_agree_with_git_or_refuse(pair, other, context):
    old, new = pair
    patch = git_diff(old, new, context)
    if old == new or not patch:
        return
    mine, (theirs, moved) = ours(patch, other), git_apply(patch, other)
    if mine is not None:
        assert mine == theirs
    elif theirs is not None:
        # git also lets a newline at the end of the file be or not be; we do not.
        at_the_end = b"\\ No newline" in patch or not other.endswith(b"\n")
        assert moved or at_the_end, "git applied at the very line, so should we"


@SLOW
@given(edited(), st.data())
def test_mutated_patches_are_refused_or_agree_with_git(pair, data):
    old, new = pair
    patch = git_diff(old, new, 3)
    if old == new or not patch:
        return
    lines = engine.patches.split_lines(patch)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.sampled_from(["drop", "double", "cut", "byte"]))
        if what == "drop":
            del lines[at]
        elif what == "double":
            lines.insert(at, lines[at])
        elif what == "cut":
            lines[at] = lines[at][: len(lines[at]) // 2]
        else:
            lines[at] = data.draw(st.sampled_from([b" ", b"-", b"+", b"\\", b"@", b"x"])) + lines[at][1:]
        lines = lines or [b""]
    mutated = b"".join(lines)
    mine = ours(mutated, old)
    if mine is not None:
        theirs, _ = git_apply(mutated, old)
        assert theirs is None or theirs == mine


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_refused_in_words(raw):
    for prefix in (
        b"",
        HEADER.format(subject="x").encode(),
        HEADER.format(subject="x").encode() + b"diff --git a/f b/f\n",
    ):
        try:
            engine.patches.PatchReader("x.patch", prefix + raw).read()
        except engine.common.Stop as stop:
            assert stop.lines[0].startswith("x.patch")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-c.]{1,3}(/[a-c.]{1,3}){0,2}", fullmatch=True),
        st.binary(max_size=20),
        min_size=1,
        max_size=12,
    )
)
def test_tree_ids_equal_those_of_git(files):
    kept = {}
    for path, data in files.items():
        folders = engine.patches.parents(path)
        if not any(part in (".", "..") for part in path.split("/")) and not any(f in kept for f in folders):
            if not any(other.startswith(path + "/") for other in kept):
                kept[path] = data
    if not kept:
        return
    with tempfile.TemporaryDirectory() as folder:
        engine.git.init_repository(Path(folder) / "r", bare=True)
        git = engine.git.Git(Path(folder) / "r")
        tree = {path: ("100644", engine.git.blob_id(data)) for path, data in kept.items()}
        git.write_blobs(list(kept.values()))
        with engine.git.scratch_index(git) as scratch:
            scratch("update-index", "-z", "--index-info", data=engine.git.index_lines(tree))
            assert scratch("write-tree").strip() == engine.git.tree_id(tree)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30))
def test_paths_that_pass_stay_inside(path):
    try:
        engine.patches.check_path(path, "x")
    except engine.common.Stop:
        return
    inside = os.path.normpath(os.path.join("/top", path))
    assert inside.startswith("/top/") and inside == "/top/" + path and ".git" not in path.lower().split("/")


@pytest.mark.parametrize(
    "diff",
    [
        "diff --git a/f b/g\nsimilarity index 90%\nrename from f\nrename to g\n",
        "diff --git a/f b/f\nnew file mode 100644\nindex "
        + "0" * 40
        + ".."
        + "1" * 40
        + "\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/f b/f\nold mode 100644\nnew mode 120000\n",
        "diff --git a/f b/f\nGIT binary patch\nliteral 1\nIcmZ\n",
        "diff --git a/../f b/../f\n--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/.git/config b/.git/config\n--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a//etc/f b//etc/f\n--- a//etc/f\n+++ b//etc/f\n@@ -1 +1 @@\n-a\n+b\n",
        'diff --git "a/f\\303\\244" "b/f\\303\\244"\n--- "a/f\\303\\244"\n',
        "diff --git a/f b/f\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/f b/f\nindex 123..456 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n+b\n",
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n a\n",
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n",
        "diff --git a/f b/f\n",
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n" * 2,
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\njunk\n",
    ],
)
def test_what_is_not_supported_is_refused(diff):
    with pytest.raises(engine.common.Stop) as stop:
        engine.patches.PatchReader("x.patch", (HEADER.format(subject="x") + diff).encode()).read()
    assert stop.value.code == 2 and "nothing was changed" in stop.value.lines


def test_mode_change_and_deletion():
    text = (
        HEADER.format(subject="x")
        + "diff --git a/f b/f\nold mode 100644\nnew mode 100755\ndiff --git a/g b/g\ndeleted file mode 100644\nindex {} ..{}\n"
    )
    text = (
        text.replace("index {} ..{}", f"index {engine.git.blob_id(b'x' + bytes([10]))}..{'0' * 40}")
        + "--- a/g\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    patch = engine.patches.PatchReader("x.patch", text.encode()).read()
    assert engine.patches.apply_diff(patch.diffs[0], ("100644", b"q\n")) == ("100755", b"q\n")
    assert engine.patches.apply_diff(patch.diffs[1], ("100644", b"x\n")) is None
    engine.patches.check_ids(patch, patch.diffs[1], ("100644", b"x\n"), None)
    with pytest.raises(engine.patches.Conflict):
        engine.patches.apply_diff(patch.diffs[1], ("100644", b"x\ny\n"))


def test_folded_subject_and_a_mail_signature():
    diff = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n-- \n2.39.5\n\n"
    head = HEADER.format(subject="a long\n subject").replace("[PATCH]", "[PATCH 1/2]")
    patch = engine.patches.PatchReader("x.patch", (head + diff).encode()).read()
    assert patch.subject == "a long subject" and len(patch.diffs[0].hunks) == 1


def test_real_patches_survive_a_seeded_storm_of_changed_bytes():
    """Whatever single byte of a real patch changes: it is refused, or only words of its header changed."""
    paths = sorted((PROJECT / "patches").glob("*/*/*.patch"))
    chance = random.Random(5)
    for path in paths:
        raw = path.read_bytes()
        clean = engine.patches.PatchReader(path.name, raw).read()
        for _ in range(300):
            at = chance.randrange(len(raw))
            changed = raw[:at] + bytes([raw[at] ^ (1 << chance.randrange(8))]) + raw[at + 1 :]
            try:
                engine.patches.PatchReader(path.name, changed).read()
            except engine.common.Stop:
                continue
        assert clean.diffs


@pytest.mark.skipif(not shutil.which("git"), reason="git is missing")
def test_git_am_reads_our_patches(project, tmp_path):
    """The format is git's own: `git am` makes the same tree."""
    project.run("apply", "alpha")
    tree = tmp_path / "am"
    subprocess.run(
        ["git", "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(tree)],
        check=True,
        env=ENV,
        capture_output=True,
    )
    patches = [str(project.patch(1)), str(project.patch(2))]
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, "am", "-q", *patches], cwd=tree, check=True, env=ENV, capture_output=True)
    assert (tree / "src/core.py").read_bytes() == (project.checkout() / "src/core.py").read_bytes()
