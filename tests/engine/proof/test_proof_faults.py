"""A fault at every system call that changes a file: kill -9, a torn write, Ctrl-C, a full disk, permission lost, an I/O error.

After each: nothing of the user's is lost, status tells the truth, and the next run completes what was asked for, or says
what stands in its way.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from conftest import LONG
from kit import Project
from scenes import SCENES, Scene, World
from supervisor import FAULTS, INTERRUPT, KILLS

PART = "faults"
# (fault, chunk) of each test: one test per scene in the short form, as a world takes a second to make
LOADS = [((fault,), chunk) for fault in FAULTS for chunk in range(4)] if LONG else [(FAULTS, 0)]


def steps(total: int, fault: str, title: str, scale, chunk: int) -> list[int]:
    """All of them for kill -9 in the long form; a seeded sample for the rest."""
    wanted = scale(3, total) if fault == "kill all" else scale(1, 60 if fault in KILLS else 30)
    chosen = sorted(random.Random(f"{fault} {title}").sample(range(1, total + 1), min(wanted, total)))
    return chosen[chunk::4] if LONG else chosen


@pytest.mark.parametrize(("faults", "chunk"), LOADS, ids=lambda load: load if isinstance(load, int) else "-".join(load))
@pytest.mark.parametrize("world", SCENES, ids=lambda scene: scene.title, indirect=True)
def test_fault(world: World, faults: tuple[str, ...], chunk: int, scale, tally):
    lost = []
    for fault in faults:
        for at in steps(len(world.calls), fault, world.scene.title, scale, chunk):
            world.reset()
            done = world.shoot(fault, at)
            if not done["fired"]:
                continue
            try:
                check_end(world, fault, done)
                check_truth(world)
                outcome = next_run(world)
            except AssertionError as error:
                outcome = "lost"
                where = f"{fault} at call {at} of {len(world.calls)} ({done['calls'][-1]}) of {world.scene.title}"
                lost.append(f"{where}: {error}\nit had said: {done['out']}{done['err']}")
            tally.count(PART, f"{world.scene.title}: {fault}", outcome)
    assert not lost, "\n\n".join(lost[:5])


def check_end(world: World, fault: str, done: dict) -> None:
    """What the run itself said of its end is true."""
    code, said, now = done["code"], done["err"], world.picture()
    assert "Traceback" not in said
    if fault in KILLS:
        assert code is None
        return
    assert code in ((world.scene.code, 130) if fault == INTERRUPT else (world.scene.code, 3, 5, 6, 7)), code
    if code == world.scene.code:
        assert now == world.after
    if "othing was changed" in said or code == 130:
        but = {"kept": world.after["kept"]} if "except that your edits are saved in" in said else {}
        assert without_parts(now) == without_parts({**world.before, **but})


def without_parts(picture: dict) -> dict:
    """Without the files beside their places that a run may have been forbidden to remove; the next one does."""
    if not isinstance(picture, dict):
        return picture
    return {path: without_parts(item) for path, item in picture.items() if ".era-new-" not in path}


def check_truth(world: World) -> None:
    """Each checkout is as before, or as after, and status says which; or it is between, and status says so."""
    for path, data in world.keep.items():
        assert path.read_bytes() == data, f"{path} was lost"
    now, told = world.picture(), world.status()
    for name in world.scene.names:
        if told[name]["state"] == "interrupted":
            check_between(now[name]["files"], world.before[name]["files"], world.after[name]["files"])
            continue
        matches = [
            said
            for side, said in ((world.before, world.told_before), (world.after, world.told_after))
            if now[name] == side[name]
        ]
        assert matches, f"{name} is neither as before nor as after, and status says {told[name]}"
        assert told[name] in [said[name] for said in matches], f"status says {told[name]}"
    check_between(now["project"], world.before["project"], world.after["project"])


def check_between(now: dict, before: dict, after: dict) -> None:
    """Each file has its old bytes or its new ones; what has neither is a file beside its place."""
    for path in now.keys() | before.keys() | after.keys():
        if ".era-new-" not in path:
            assert now.get(path) in (before.get(path), after.get(path)), path


def next_run(world: World) -> str:
    """The same command again, following what it says where it refuses, ends where an undisturbed run ends."""
    project: Project = world.project
    scene: Scene = world.scene
    outcome = "completed"
    argv = world.argv()
    for _ in range(6):
        done = project.run(*argv, code=None)
        if done.code == scene.code and argv == world.argv():
            break
        outcome = "refused"
        argv = follow_advice(world, done)
    assert done.code == scene.code, done.text
    now = world.picture()
    for part, wanted in world.after.items():
        if part == "kept":  # perhaps under another name, and perhaps with a torn one beside it
            assert set(wanted.values()) <= set(now[part].values()), "the kept patch has other bytes"
        else:
            assert now[part] == wanted, f"{part}: the next run ended elsewhere"
    left = world.leftovers()
    if left and all(
        "/.git/" in path and path.endswith(".lock") for path in left
    ):  # git itself was hindered, and ended well
        said = project.run("apply", *scene.names, *world.place(scene), code=None)
        assert all(path in said.err for path in left), f"{left} is not named: {said.text}"
        return "refused"
    assert not left
    return outcome


def follow_advice(world: World, done) -> list[str]:
    """Do what a refusal says; the command to run next."""
    locks = re.findall(r"(/\S+\.lock)(?:,| exists)", done.err)
    exists = re.search(r"--keep-edits (\S+): the file exists", done.err)
    command = re.search(r"`python apply\.py (apply|export) ", done.err)
    if done.code == 0:
        return world.argv()
    assert done.code in (5, 7), done.text
    if locks:
        for lock in locks:
            Path(lock).unlink()
        return world.argv()
    if exists:
        Path(exists[1]).rename(exists[1] + ".first")
        return world.argv()
    assert command, done.err
    return [command[1], *world.scene.names, *world.place(world.scene)]
