"""Somebody else in the same folders while apply.py runs: an editor that saves a file, or a second apply.py.

They join in at system calls of the first. A file saved between the last look at it and the rename (or unlink) that
takes its place is lost: SECURITY.md names that window. The supervisor stops a run right before each such call, so a
save exactly there is expected to be lost and counted as `window`; one call earlier it must be kept.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kit import content
from scenes import SCENES, World
from supervisor import SAVED, SECOND, WRITTEN
from tally import LONG

PART = "meanwhile"
pytestmark = pytest.mark.slow
THEIRS = "saved by somebody else\n"
CODES = range(8)  # those of docs/engine/usage.md
OURS, CLONE = "project/checkouts/alpha", "clone"
# What apply.py reads, replaces, removes or creates in each scene.
FILES = {
    "apply, no checkout yet": (OURS, ("mine.txt",)),
    "apply, stale, with edits": (
        OURS,
        ("src/era.py", "src/core.py", "deep/er/new.py", "deep/er/mine.py", "tools/go.sh", "README.md", "tools/mine.sh"),
    ),
    "apply, own clone": (CLONE, ("src/core.py", "src/era.py", "README.md", "tools/go.sh", "tools/mine.sh")),
    "revert": (OURS, ("src/core.py", "src/era.py", "tools/go.sh", "tools/mine.sh")),
    "revert, own clone, edits kept": (
        ".",
        ("clone/src/util.py", "clone/src/old.py", "clone/src/era.py", "clone/notes.txt", "kept/edits.patch"),
    ),
    "export": (
        "project",
        (
            "patches/alpha/v1/0002-hook-core-and-util.patch",
            "patches/alpha/v1/0003-Describe-this-change.patch",
            "patches/alpha/v1/series",
            "overlays/alpha.list",
            "overlays/alpha/src/era.py",
            "overlays/alpha/src/era2.py",
            "checkouts/alpha/src/util.py",
            "checkouts/alpha/src/era2.py",
        ),
    ),
    "port --write": (OURS, ("README.md", "src/core.py", "mine.txt")),
}
SECONDS = ("apply", "revert", "export", "fetch", "status", "port alpha --onto v2")
SHORT = ("apply, stale, with edits", "revert, own clone, edits kept", "export")
SAVES = [scene for scene in SCENES if scene.title in (FILES if LONG else SHORT)]


def title_of(scene) -> str:
    return scene.title


@pytest.mark.parametrize("how", [SAVED, WRITTEN] if LONG else [SAVED])
@pytest.mark.parametrize("world", SAVES, ids=title_of, indirect=True)
def test_somebody_saves_a_file(world: World, how: str, scale, tally):
    chance = random.Random(f"{world.scene.title} {how}")
    lost = []
    for _ in range(scale(2, 12)):
        path, at = chance.choice(watched(world)), chance.randint(1, len(world.calls))
        save(world, how, path, at, tally, lost)
    assert not lost, "\n\n".join(lost[:5])


@pytest.mark.parametrize("world", SAVES, ids=title_of, indirect=True)
def test_the_window(world: World, scale, tally):
    """At each rename or unlink of a watched file and one call before it: only the first may lose what was saved."""
    lost = []
    files = watched(world)
    ends = [(at, Path(call.split(" ", 1)[1])) for at, call in enumerate(world.calls, 1) if " " in call]
    ends = [(at, path) for at, path in ends if path in files]
    for at, path in ends[: scale(1, len(ends))]:
        for when in (at - 1, at):
            save(world, SAVED, path, when, tally, lost)
    assert not lost, "\n\n".join(lost[:5])


def watched(world: World) -> list[Path]:
    folder, names = FILES[world.scene.title]
    return [(world.folder / folder / name) for name in names]


def save(world: World, how: str, path: Path, at: int, tally, lost: list[str]) -> None:
    world.reset()
    done = world.shoot(how, at, {"path": str(path), "text": THEIRS})
    if not done["fired"]:
        return
    call = done["calls"][at - 1]
    row = f"{world.scene.title}: a file {how}"
    try:
        if call.partition(" ")[2] == str(path):
            row, outcome = f"{world.scene.title}: a file {how} in the window", check_window(world, path, done)
        else:
            outcome = check_theirs(world, path, done)
    except Exception as error:
        outcome = "lost"
        where = f"{path} {how} at call {at} ({call}) of {world.scene.title}"
        lost.append(f"{where}: {type(error).__name__}: {error}\nit had said: {done}")
    tally.count(PART, row, outcome)


def check_window(world: World, path: Path, done: dict) -> str:
    """Their bytes may be gone; whatever else the user has is there, and the next run ends in words."""
    assert done["code"] in CODES and "Traceback" not in done["err"]
    check_kept(world, {path})
    kept = path.is_file() and path.read_text() == THEIRS
    assert world.project.run(*world.argv(), code=None).code in CODES
    check_kept(world, {path})
    return "completed" if kept else "window"


def check_theirs(world: World, path: Path, done: dict) -> str:
    """Their bytes stay where they were put, status shows them, and the next run leaves them alone too."""
    assert done["code"] in CODES and "Traceback" not in done["err"]
    check_kept(world, {path})
    assert is_theirs(path), f"what somebody saved in {path} was lost"
    told = world.project.run("status", *world.scene.names, *world.place(world.scene), "--json", code=None)
    root = world.project.root
    if told.code == 2:  # a patch or overlay file too many, or one whose bytes are no patch
        assert path.is_relative_to(root / "patches") or path.is_relative_to(root / "overlays"), told.text
    else:
        assert told.code in (0, 1), told.text
        for name, status in told.json.items():
            checkout = world.checkout(name, world.scene)
            if path.is_relative_to(checkout):
                shown = path.relative_to(checkout).as_posix() in status["files"] + status["untracked"]
                assert shown or status["state"] in ("interrupted", "wrong-base"), f"status does not show it: {status}"
    again = world.project.run(*world.argv(), code=None)
    assert again.code in CODES, again.text
    check_kept(world, {path})
    saved = [data for _, data in content(world.folder / "kept").values()]
    assert is_theirs(path) or any(THEIRS.encode() in data for data in saved), "the next run lost what somebody saved"
    return "completed" if again.code == world.scene.code else "refused"


def is_theirs(path: Path) -> bool:
    return path.is_file() and path.read_text() == THEIRS


def check_kept(world: World, but: set[Path]) -> None:
    for path, data in world.keep.items():
        assert path in but or path.read_bytes() == data, f"{path} was lost"


@pytest.mark.parametrize("seconds", [(second,) for second in SECONDS] if LONG else [SECONDS], ids="-".join)
@pytest.mark.parametrize(
    "world", [scene for scene in (SCENES if LONG else SAVES) if not scene.given], ids=title_of, indirect=True
)
def test_a_second_process(world: World, seconds: tuple[str, ...], scale, tally):
    """Whatever the two do to each other, both end in words, and one apply afterwards brings everything right."""
    chance = random.Random(f"{world.scene.title} {seconds}")
    if not LONG:
        seconds = chance.sample(seconds, 1)
    lost = []
    for second in seconds:
        for at in chance.sample(range(1, len(world.calls) + 1), min(scale(1, 2), len(world.calls))):
            world.reset()
            more = [str(world.project.root / "apply.py"), "--cache", str(world.project.cache), *second.split()]
            done = world.shoot(SECOND, at, more)
            try:
                outcome = check_both(world, done)
            except Exception as error:
                outcome = "lost"
                lost.append(
                    f"{second} started at call {at} of {world.scene.title}: {type(error).__name__}: {error}\n{done}"
                )
            tally.count(PART, f"{world.scene.title}: {second.split()[0]} at the same time", outcome)
    assert not lost, "\n\n".join(lost[:5])


def check_both(world: World, done: dict) -> str:
    code, text = done["second"]
    assert done["code"] in CODES and code in CODES
    assert "Traceback" not in done["err"] + text
    for path, data in world.keep.items():
        assert path.read_bytes() == data, f"{path} was lost"
    if world.scene.title != "export":  # a second export in other scenes has nothing to take away
        assert world.before["project"].keys() <= world.picture()["project"].keys(), "files of the project are gone"
    again = world.project.run("apply", *world.scene.names, "--offline", code=None)
    assert again.code == 0, again.text
    assert {told["state"] for told in world.status().values()} <= {"applied", "modified"}
    assert not world.leftovers()
    return "completed" if code in (0, 1, 4) else "refused"
