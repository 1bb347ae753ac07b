"""A fault at every system call that changes a file: kill -9, torn write, Ctrl-C, full disk, no permission, I/O error.

After each: nothing of the user's is lost, status tells the truth, and the next run completes what was asked for or says
what stands in its way.
"""

from __future__ import annotations

import random
import re
import shlex
import shutil
from pathlib import Path

import pytest
from kit import git
from scenes import SCENES, World
from supervisor import FAULTS, INTERRUPT, KILLS
from tally import LONG

PART = "faults"
QUICK = "apply, own clone"  # the one that `make test` runs
CHUNKS = 4


def cases() -> list:
    """(scene, faults, chunk): in the short form one test per scene, as a world takes a second to make."""
    if LONG:
        loads = [((fault,), chunk) for fault in FAULTS for chunk in range(CHUNKS if fault == "kill all" else 1)]
        rows = [(scene, *load) for scene in SCENES for load in loads]
        return [pytest.param(*row, marks=pytest.mark.slow, id=f"{row[0].title}-{row[1][0]}-{row[2]}") for row in rows]
    return [
        pytest.param(scene, FAULTS, 0, marks=() if scene.title == QUICK else pytest.mark.slow, id=scene.title)
        for scene in SCENES
    ]


def steps(total: int, fault: str, title: str, scale, chunk: int) -> list[int]:
    """Every call for kill -9 in the long form; a seeded sample for the rest."""
    if fault == "kill all" and LONG:
        return list(range(1 + chunk, total + 1, CHUNKS))
    wanted = scale(2, 10**6) if fault == "kill all" else scale(1, 12 if fault in KILLS else 8)
    return sorted(random.Random(f"{fault} {title}").sample(range(1, total + 1), min(wanted, total)))


@pytest.mark.parametrize(("world", "faults", "chunk"), cases(), indirect=["world"])
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
            except Exception as error:
                outcome = "lost"
                where = f"{fault} at call {at} of {len(world.calls)} ({done['calls'][-1]}) of {world.scene.title}"
                lost.append(f"{where}: {type(error).__name__}: {error}\nit had said: {done['out']}{done['err']}")
            tally.count(PART, f"{world.scene.title}: {fault}", outcome)
    assert not lost, f"{len(lost)} cases\n" + "\n\n".join(lost[:5])


def check_end(world: World, fault: str, done: dict) -> None:
    """What the run itself said about its end is true."""
    code, said = done["code"], done["err"]
    assert "Traceback" not in said
    if fault in KILLS:
        assert code is None
        return
    now = world.picture()
    assert code in ((world.scene.code, 130) if fault == INTERRUPT else (world.scene.code, 3, 5, 6, 7)), code
    if code == world.scene.code:
        assert now == world.after
        assert done["out"] == world.said or not world.scene.title.startswith("port"), "another result than undisturbed"
    if "othing was changed" in said or code == 130:
        but = {"kept": world.after["kept"]} if "except that your edits are saved in" in said else {}
        assert without_parts(now) == without_parts({**world.before, **but})


def without_parts(picture):
    """Without the new files beside their places that a run may have been forbidden to remove; the next one does."""
    if not isinstance(picture, dict):
        return picture
    return {path: without_parts(item) for path, item in picture.items() if ".era-new-" not in path}


def check_truth(world: World) -> None:
    """Each checkout is as before, or as after, and status says which; or it is between, and status says so."""
    for path, data in world.keep.items():
        assert path.read_bytes() == data, f"{path} was lost"
    now, told = world.picture(), world.status()
    check_between(now["project"], world.before["project"], world.after["project"])
    if told is None or without_parts(now["project"]) not in (world.before["project"], world.after["project"]):
        assert world.scene.title == "export"  # patches and lists are half-written; the checkout is not touched
        assert now["alpha"] == world.before["alpha"]
        return
    for name in world.scene.names:
        if told[name]["state"] == "interrupted":
            check_between(now[name]["files"], world.before[name]["files"], world.after[name]["files"])
            continue
        matches = [
            said[name]
            for side, said in ((world.before, world.told_before), (world.after, world.told_after))
            if now[name] == side[name]
        ]
        assert matches, f"{name} is neither as before nor as after, and status says {told[name]}"
        assert told[name] in matches, f"status says {told[name]}"


def check_between(now: dict, before: dict, after: dict) -> None:
    """Each file has its old bytes or its new ones; what has neither is a new file beside its place."""
    for path in now.keys() | before.keys() | after.keys():
        if ".era-new-" not in path:
            assert now.get(path) in (before.get(path), after.get(path)), path


def next_run(world: World) -> str:
    """The same command again, following what it says where it refuses, ends where an undisturbed run ends."""
    project, scene = world.project, world.scene
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
    if left and all("/.git/" in path and path.endswith(".lock") for path in left):  # of a git that ended well
        said = project.run("apply", *scene.names, *world.place(scene), code=None)
        assert all(path in said.err for path in left), f"{left} is not named: {said.text}"
        return "refused"
    assert not left
    return outcome


def follow_advice(world: World, done) -> list[str]:
    """Do what a refusal says; returns the command to run next."""
    if done.code == 0:
        return world.argv()
    assert done.code in (5, 7), done.text
    locks = re.findall(r"(/\S+\.lock)(?:,| exists)", done.err)
    exists = re.search(r"--keep-edits (\S+): the file exists", done.err)
    command = re.search(r"`python apply\.py (apply|export) ", done.err)
    for lock in locks:
        Path(lock).unlink()
    if exists:
        Path(exists[1]).rename(exists[1] + ".first")
    if locks or exists:
        return world.argv()
    commands = [shlex.split(line) for line in re.findall(r"`((?:git -C|rm -r) [^`]+)`", done.err)]
    for program, *words in commands:  # one of them may have nothing to do
        if program == "rm":
            shutil.rmtree(words[-1])
        else:
            git(Path(words[1]), *words[2:], check=False)
    if commands:
        return world.argv()
    assert command, done.err
    return [command[1], *world.scene.names, *world.place(world.scene)]
