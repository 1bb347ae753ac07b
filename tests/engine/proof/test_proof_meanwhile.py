"""Somebody else at work in the same folders while apply.py is: an editor that saves a file, or a second apply.py.

It joins in at system calls of the first, so also between its last look at a file and the rename that replaces it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conftest import LONG
from kit import content
from scenes import SCENES, World
from supervisor import SAVED, SECOND, WRITTEN

PART = "meanwhile"
THEIRS = "saved by somebody else\n"
CODES = range(8)  # those of docs/engine/usage.md
# What apply.py reads, replaces, removes or creates in each scene.
FILES = {
    "apply, no checkout yet": ("project/checkouts/alpha/mine.txt",),
    "apply, stale, with edits": tuple(
        f"project/checkouts/alpha/{path}"
        for path in (
            "src/era.py",
            "src/core.py",
            "deep/er/new.py",
            "deep/er/mine.py",
            "tools/go.sh",
            "README.md",
            "tools/mine.sh",
        )
    ),
    "apply, own clone": tuple(
        f"clone/{path}" for path in ("src/core.py", "src/era.py", "README.md", "tools/go.sh", "tools/mine.sh")
    ),
    "revert": tuple(
        f"project/checkouts/alpha/{path}" for path in ("src/core.py", "src/era.py", "tools/go.sh", "tools/mine.sh")
    ),
    "revert, own clone, edits kept": (
        "clone/src/util.py",
        "clone/src/old.py",
        "clone/src/era.py",
        "clone/notes.txt",
        "kept/edits.patch",
    ),
    "export": (
        "project/patches/alpha/v1/0002-hook-core-and-util.patch",
        "project/patches/alpha/v1/0003-describe-this-change.patch",
        "project/overlays/alpha/src/era.py",
        "project/overlays/alpha/src/era2.py",
        "project/checkouts/alpha/src/util.py",
        "project/checkouts/alpha/src/era2.py",
    ),
}
SECONDS = ("apply", "revert", "export", "fetch", "status", "port alpha --onto v2")


@pytest.mark.parametrize("how", [SAVED, WRITTEN])
@pytest.mark.parametrize(
    "world", [scene for scene in SCENES if scene.title in FILES], ids=lambda scene: scene.title, indirect=True
)
def test_somebody_saves_a_file(world: World, how: str, scale, tally):
    chance = random.Random(f"{world.scene.title} {how}")
    total, files = len(world.calls), FILES[world.scene.title]
    tries = [(chance.choice(files), chance.randint(1, total)) for _ in range(scale(2, 50))]
    lost = []
    for file, at in tries:
        world.reset()
        path = world.folder / file
        done = world.shoot(how, at, {"path": str(path), "text": THEIRS})
        if not done["fired"]:
            continue
        try:
            outcome = check_theirs(world, path, done)
        except AssertionError as error:
            outcome = "lost"
            lost.append(
                f"{file} {how} at call {at} ({done['calls'][at - 1]}) of {world.scene.title}: {error}\nit had said: {done}"
            )
        tally.count(PART, f"{world.scene.title}: a file {how}", outcome)
    assert not lost, "\n\n".join(lost[:5])


def check_theirs(world: World, path: Path, done: dict) -> str:
    """Their bytes stay where they were put, status shows them, and the next run leaves them alone too."""
    assert done["code"] in CODES and "Traceback" not in done["err"]
    check_kept(world, path)
    told = world.project.run("status", *world.scene.names, *world.place(world.scene), "--json", code=None)
    assert told.code in (0, 1, 2), told.text
    if told.code == 2:  # a patch or overlay file too many
        assert path.is_relative_to(world.project.root / "patches") or path.is_relative_to(
            world.project.root / "overlays"
        ), told.text
    else:
        for name, status in told.json.items():
            checkout = world.checkout(name, world.scene)
            if path.is_relative_to(checkout):
                shown = path.relative_to(checkout).as_posix() in status["files"] + status["untracked"]
                assert shown or status["state"] in ("interrupted", "wrong-base"), f"status does not show it: {status}"
    again = world.project.run(*world.argv(), code=None)
    assert again.code in CODES, again.text
    if not any(
        THEIRS.encode() in data for _, data in content(world.folder / "kept").values()
    ):  # as an edit that was kept
        check_kept(world, path)
    return "completed" if again.code == 0 else "refused"


def check_kept(world: World, path: Path) -> None:
    assert path.is_file() and path.read_text() == THEIRS, f"what somebody saved in {path} was lost"
    for mine, data in world.keep.items():
        assert mine == path or mine.read_bytes() == data, f"{mine} was lost"


@pytest.mark.parametrize("seconds", [(second,) for second in SECONDS] if LONG else [SECONDS], ids="-".join)
@pytest.mark.parametrize(
    "world", [scene for scene in SCENES if not scene.given], ids=lambda scene: scene.title, indirect=True
)
def test_a_second_process(world: World, seconds: tuple[str, ...], scale, tally):
    """Whatever the two do to each other's plans, both end in words, and one apply afterwards brings everything right."""
    for second in seconds:
        chance = random.Random(f"{world.scene.title} {second}")
        for at in chance.sample(range(1, len(world.calls) + 1), min(scale(1, 8), len(world.calls))):
            world.reset()
            check_both(world, second, at, tally)


def check_both(world: World, second: str, at: int, tally) -> None:
    project = world.project
    done = world.shoot(SECOND, at, [str(project.root / "apply.py"), "--cache", str(project.cache), *second.split()])
    where = f"{second} started at call {at} of {world.scene.title}: {done}"
    code, text = done["second"]
    assert done["code"] in CODES and code in CODES, where
    assert "Traceback" not in done["err"] + text, where
    for path, data in world.keep.items():
        assert path.read_bytes() == data, f"{path} was lost: {where}"
    if world.scene.title != "export":  # a second export in other scenes has nothing to take away
        assert world.before["project"].keys() <= world.picture()["project"].keys(), (
            f"files of the project are gone: {where}"
        )
    again = project.run("apply", *world.scene.names, "--offline", code=None)
    assert again.code == 0, f"{where}\n{again.text}"
    assert {told["state"] for told in world.status().values()} <= {"applied", "modified"}, where
    assert not world.leftovers(), where
    tally.count(
        PART,
        f"{world.scene.title}: {second.split()[0]} at the same time",
        "completed" if code in (0, 1, 4) else "refused",
    )
