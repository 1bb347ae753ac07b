"""What the proof of the inputs found once, each as one plain case."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest
from kit import HEADER, git

DIFF = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    "patch",
    [
        HEADER + DIFF.replace("-1 ", f"-{'1' * 5000} "),  # Python turns no more than 4,300 digits into a number
        HEADER + DIFF + "-- \n2.39.5\n" + DIFF.replace("/f", "/g"),
        HEADER + "--- a/g\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n" + DIFF,
        HEADER.replace("none", "no\0ne") + DIFF,
        HEADER + DIFF.replace("\n---", "\nnew mode 100755\n---"),
        HEADER
        + DIFF.replace("\n---", "\ndeleted file mode \n---")
        .replace("+++ b/f", "+++ /dev/null")
        .replace("+1 @@", "+0,0 @@")
        .replace("+b\n", ""),
        HEADER + DIFF.replace("\n---", "\nold mode 100644\nold mode 100644\nnew mode 100755\n---"),
        HEADER + DIFF + "\\ No ne\n",
        HEADER + DIFF.replace("/f", "/.g\u200cit/f"),
        HEADER + DIFF.replace("/f", "/.git::$DATA/f"),
    ],
)
def test_patches_that_git_reads_in_another_way(project, patch):
    with pytest.raises(project.engine.common.Stop) as stop:
        project.engine.patches.PatchReader("x.patch", patch.format(subject="x").encode()).read()
    assert stop.value.code == 2 and stop.value.lines[0].startswith("x.patch")


@pytest.mark.parametrize(
    ("path", "code"),
    [(".git:x", 2), (".g\u200cit/x", 2), ("MAIN.PY/x", 3), ("Main.py", 3), ("main.py/x", 3)],
)
def test_overlay_files_that_would_meet_others_elsewhere(project, path, code):
    target = project.root / "overlays/beta" / path
    target.parent.mkdir(parents=True)
    target.write_text("x\n")
    project.run("apply", "beta", code=code)
    assert not project.checkout("beta").exists()


def test_overlay_files_that_differ_by_the_form_of_an_accent(project):
    top = project.root / "overlays/beta"
    top.mkdir(parents=True)
    for name in ("\u00e9.py", "e\u0301.py"):
        (top / name).write_text("x\n")
    if len(list(top.iterdir())) == 2:
        assert "would overwrite" in project.run("apply", "beta", code=3).err


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["beta"].update(git="https://x/\0y"),
        lambda data: data["beta"].update(git="https://x/\ud800"),
        lambda data: data["beta"].update(git="https://x/y#z"),
        lambda data: data["beta"].update(git='https://x/"y'),
        lambda data: data["beta"]["versions"]["b1"].update(tag="a..b"),
        lambda data: data["beta"]["versions"]["b1"].update(tag="a.lock/b"),
        lambda data: data["beta"]["versions"]["b1"].update(tag="a/"),
        lambda data: data["beta"]["versions"].update({"v1.": data["beta"]["versions"]["b1"]}),
        lambda data: data.update(BETA=data["beta"]),
        lambda data: data.update({"n" * 300: data["beta"]}),
    ],
)
def test_words_that_git_or_a_file_system_reads_in_another_way(project, change):
    data = json.loads((project.root / "upstreams.json").read_text())
    change(data)
    (project.root / "upstreams.json").write_text(json.dumps(data))
    assert "upstreams.json" in project.run("status", code=2).err


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as made:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(data)
            made.addfile(member, io.BytesIO(data))
    return out.getvalue()


GOOD = archive(("p/a", tarfile.REGTYPE, b"a" * 600), ("p/b", tarfile.REGTYPE, b"b"))
LONG_NAME = tarfile.TarInfo("p/x")
LONG_NAME.type, LONG_NAME.size = tarfile.GNUTYPE_LONGNAME, 1 << 30


@pytest.mark.parametrize(
    "plain",
    [
        GOOD[:1536],  # no second file, and no end
        GOOD[:1536] + b"x" * 512 + GOOD[2048:],  # tarfile takes a broken header for the end
        GOOD + b"something behind the end",
        LONG_NAME.tobuf(tarfile.GNU_FORMAT) + bytes(4096),
        archive(("p/a", tarfile.XHDTYPE, b"")) [:512] * 3000 + GOOD,  # headers of headers
        archive(("p/a", tarfile.REGTYPE, b"x"), ("p/a", tarfile.DIRTYPE, b"")),
        archive(("p/A/x", tarfile.REGTYPE, b"x"), ("p/a/y", tarfile.REGTYPE, b"")),
        archive(("p/\u00e9", tarfile.REGTYPE, b"x"), ("p/e\u0301", tarfile.REGTYPE, b"")),
    ],
)  # fmt: skip
def test_packages_that_tarfile_reads_in_part(project, tmp_path, plain):
    path = tmp_path / "p.tar.gz"
    path.write_bytes(gzip.compress(plain))
    with pytest.raises(project.engine.common.Stop) as stop:
        project.engine.sources.unpack(path)
    assert stop.value.code == 3


def test_a_package_with_wrong_bytes_behind_its_last_file(project, tmp_path):
    """The checksum of gzip stands at its end, to which tarfile does not read."""
    path = tmp_path / "p.tar.gz"
    packed = bytearray(gzip.compress(GOOD))
    packed[-8] ^= 1
    path.write_bytes(packed)
    with pytest.raises(project.engine.common.Stop, match="CRC"):
        project.engine.sources.unpack(path)


def test_the_users_settings_and_attributes_change_no_export(project, clone):
    project.run("apply", "alpha", "--checkout", str(clone))
    plain = project.run("diff", "alpha", "--checkout", str(clone)).out
    for key, value in (
        ("diff.context", "0"),
        ("diff.algorithm", "patience"),
        ("diff.orderFile", "/nowhere"),
        ("core.bigFileThreshold", "1"),
    ):
        git(clone, "config", key, value)
    assert project.run("diff", "alpha", "--checkout", str(clone)).out == plain
    (clone / ".git/info/attributes").write_text("* -diff\n")
    project.run("export", "alpha", "--check", "--checkout", str(clone))


def test_no_part_of_an_index_is_left_in_a_clone(project, clone):
    git(clone, "config", "core.splitIndex", "true")
    before = {path.name for path in (clone / ".git").iterdir()}
    project.run("apply", "alpha", "--checkout", str(clone))
    project.run("revert", "alpha", "--checkout", str(clone))
    assert {path.name for path in (clone / ".git").iterdir()} == before
