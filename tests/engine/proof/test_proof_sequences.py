"""Random sequences of verbs and of what users do, each step held against a model (model.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
from pathlib import Path

import pytest
from kit import git, make_patch, replace_in, write_tree
from model import (
    ERA,
    PACKED,
    USER,
    Place,
    Want,
    World,
    above,
    apply_with_git,
    differing,
    entries,
    ids,
    plain,
    read_files,
    read_folder,
    tree_with_git,
)
from tally import LONG

PART = "sequences"
pytestmark = pytest.mark.slow
ALPHA = ["src/core.py", "src/util.py", "src/old.py", "README.md", "run.sh", "crlf.txt", "bare.txt", "extra/recipe.py"]
ALPHA += ["src/era.py", "tools/go.sh", "src/helpers.py", "notes.txt", "new/deep/file.py"]
PATHS = {"alpha": ALPHA, "beta": ["main.py", "other.py"]}
OVERLAY = ["src/era.py", "tools/go.sh", "src/extra_era.py", "src/helpers.py", "tools", "notes.txt"]
STEPS: list = []  # (method, choices), as often as its weight says


def step(weight: int = 1, **choices):
    """A step of a sequence; one value is drawn for each of its arguments."""

    def add(method):
        STEPS.extend([(method.__name__, choices)] * weight)
        return method

    return add


SIDE = ["here"] * 4 + ["ours", "clone", "beta"]  # here: where the sequence began
ANY = range(10**6)


def more_patches(project) -> dict:
    """Other sets of patches for alpha: (label, set) -> (file -> text, path -> entry that they make)."""
    alpha, start = project.up / "alpha", project.ids
    kit = {path.name: path.read_text() for path in (project.root / "patches/alpha/v1").glob("*.patch")}

    def second(work: Path) -> None:
        replace_in("README.md", "# alpha\n", "# alpha\nwith era\n")(work)
        replace_in("crlf.txt", "two\r\n", "two\r\nthree\r\n")(work)
        replace_in("bare.txt", "no newline at the end", "no newline\nat the end")(work)
        (work / "src/old.py").unlink()
        (work / "run.sh").chmod(0o644)

    hooked = replace_in("src/core.py", "line 20 of", "line 20, hooked, of")
    one, after = make_patch(alpha, start["v1"], hooked, "Hook first")
    two, after = make_patch(alpha, after, second, "Many kinds")
    three, _ = make_patch(alpha, after, replace_in("extra/recipe.py", "recipe = 1", "recipe = 2"), "Recipe")
    newer, _ = make_patch(alpha, start["v2"], hooked, "Hook the newer core")
    core = entries(PACKED)["src/core.py"][1]
    line20, line40 = (b"line 20 of", b"line 20, hooked, of"), (b"line 40 of", b"line 40, hooked, of")
    many = {
        "src/core.py": ("100644", core.replace(*line20)),
        "README.md": ("100644", b"# alpha\nwith era\n"),
        "crlf.txt": ("100644", b"one\r\ntwo\r\nthree\r\n"),
        "bare.txt": ("100644", b"no newline\nat the end"),
        "src/old.py": None,
        "run.sh": ("100644", b"#!/bin/sh\necho run\n"),
        "extra/recipe.py": ("100644", b"recipe = 2\n"),
    }
    both = {
        "src/core.py": ("100644", core.replace(*line20).replace(*line40)),
        "src/util.py": ("100644", b"def add(a, b):\n    return b + a\n"),
    }
    moved = {"src/core.py": ("100644", (b"# a new line above\n" * 5 + core).replace(*line20))}
    return {
        ("v1", "kit"): (kit, both),
        ("v1", "many"): ({"0001-hook-first.patch": one, "0002-many.patch": two, "0003-recipe.patch": three}, many),
        ("v1", "none"): ({}, {}),
        ("v2", "newer"): ({"0001-hook-the-newer-core.patch": newer}, moved),
        ("v2", "none"): ({}, {}),
    }


class Field:
    """The small project as it is at the start of every sequence, kept beside to be copied back."""

    def __init__(self, project, tmp_path: Path, tally):
        self.project, self.folder, self.tally = project, tmp_path, tally
        self.sets = more_patches(project)
        write_tree(project.root / "patches/alpha/v2", self.sets["v2", "newer"][0])
        shutil.rmtree(project.root / "overlays/alpha/src/__pycache__")
        project.write_lists()
        project.commit()
        project.pinning = False
        project.run("fetch")
        project.run("fetch", "alpha", "--version", "v2")
        project.run("fetch", "alpha", "--source", str(project.index / "alpha-1.0.tar.gz"))
        packed = git(project.cache / "git/alpha.git", "rev-parse", f"refs/pins/sdist-{project.ids['sha256']}")
        rows = plain(project.cache / "git/alpha.git", "ls-tree", "-r", packed).splitlines()
        assert {row.split("\t")[1]: tuple(row.split("\t")[0].split()[::2]) for row in rows} == ids(entries(PACKED))
        self.bases = {
            ("alpha", "v1", "git"): project.ids["v1"],
            ("alpha", "v2", "git"): project.ids["v2"],
            ("alpha", "v1", "pypi"): packed,
            ("beta", "b1", "git"): project.ids["beta"],
        }
        git(tmp_path, "clone", "-q", str(project.up / "alpha"), str(tmp_path / "clone"))
        git(tmp_path / "clone", "checkout", "-q", "-b", "mine", project.ids["v1"])
        root = project.root
        self.parts = [root / "patches", root / "overlays", root / ".git", project.cache, tmp_path / "clone"]
        self.kept = tmp_path / "kept"
        for path in self.parts:
            shutil.copytree(path, self.kept / path.name, symlinks=True)

    def reset(self) -> None:
        for path in (*self.parts, self.project.checkouts, self.folder / "edits"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.parts:
            shutil.copytree(self.kept / path.name, path, symlinks=True)
        (self.folder / "edits").mkdir()


class Player:
    """One sequence. v_ are verbs, u_ what users do in a checkout, p_ what they do in the project."""

    def __init__(self, field: Field, chance: random.Random):
        field.reset()
        self.field, self.project, self.tally, self.chance = field, field.project, field.tally, chance
        effects = {("alpha", "v1"): field.sets["v1", "kit"][1], ("alpha", "v2"): field.sets["v2", "newer"][1]}
        effects["beta", "b1"] = {"main.py": ("100644", b"print(1)\nprint(22)\nprint(3)\n")}
        self.world = World(self.project.root, field.bases, effects)
        self.places = {
            "ours": Place(self.world, "alpha", self.project.checkout("alpha"), given=False),
            "clone": Place(self.world, "alpha", field.folder / "clone", given=True),
            "beta": Place(self.world, "beta", self.project.checkout("beta"), given=False),
        }
        self.number = 0
        self.earlier = []
        self.round = {}  # place -> what it was like before apply, while only verbs were run since
        self.told = []  # the steps so far

    def play(self, steps: int) -> None:
        start = self.chance.choice(["nothing", "ours", "ours", "clone", "clone", "both", "beta"])
        self.here = start if start in self.places else "ours"
        for on in {"nothing": [], "both": ["ours", "clone"]}.get(start, [start]):
            self.apply(on)
        for _ in range(steps):
            name, choices = self.chance.choice(STEPS)
            drawn = {key: self.chance.choice(values) for key, values in choices.items()}
            if drawn.get("on") == "here":
                drawn["on"] = self.here
            self.told.append(f"{name}({', '.join(f'{key}={value}' for key, value in drawn.items())})")
            getattr(self, name)(**drawn)

    # --- what every step is held against ---

    def mark(self) -> str:
        self.number += 1
        return f"user-{self.number}"

    def see(self) -> dict:
        return {key: place.see() for key, place in self.places.items()}

    def project_side(self) -> dict:
        root = self.project.root
        tops = ("patches", "overlays")
        found = {f"{top}/{path}": item for top in tops for path, item in read_folder(root / top).items()}
        found["upstreams.json"] = ("100644", (root / "upstreams.json").read_bytes())
        found["edits"] = read_folder(self.field.folder / "edits")
        return found

    def owned(self, seen: dict) -> set[bytes]:
        """The marks of everything that the user wrote and that stands somewhere."""
        found = set().union(*(self.places[key].user_bytes(item) for key, item in seen.items() if item))
        tops = (self.project.root / "patches", self.project.root / "overlays", self.field.folder / "edits")
        return found | {mark for top in tops for _, data in read_files(top).values() for mark in USER.findall(data)}

    def of_the_project(self) -> set[bytes]:
        """What an overlay brought: taking it away again is not a loss."""
        found = set()
        for place in self.places.values():
            if place.record and place.record.tip and place.path.exists():
                blobs = frozenset(oid for _, oid in place.tree(place.record.tip).values())
                found |= self.world.marks(place.path, blobs)
        return found

    def run(self, row: str, words: list[str], wants: dict[str, Want], looks: bool = False, exports: bool = False):
        """Run a verb that each place wants to end so. `looks`: it changes nothing, however it ends."""
        seen, side = self.see(), self.project_side()
        must, may = (set().union(*(getattr(want, what) for want in wants.values())) for what in ("codes", "may"))
        moves = not looks and any(want.action in ("switch", "revert") for want in wants.values())
        alive = self.owned(seen) - self.of_the_project() if moves else set()
        result = self.project.run(*words, code=None)
        allowed = must or {0, *may}
        told = f"{words} ended with {result.code}, expected {allowed}\n{result.text}"
        assert result.code in allowed, told
        self.tally.count(PART, row, "refused" if result.code else "completed")
        after = self.see()
        still = looks or result.code != 0
        for key, place in self.places.items():
            want = wants.get(key, Want())
            if still or want.action == "none":
                but = ".git/era/record.json" if exports and not still else ""
                self.check_same(key, seen[key], after[key], told, but)
            else:
                self.check_arrived(place, seen[key], after[key], want, told)
                self.check_round(key, seen[key], after[key], want, told)
        changed = differing(side, self.project_side())
        if exports and not still:
            changed = set()
        if "--keep-edits" in words and not still:
            changed -= {"edits"}
        assert not changed, f"{changed}\n{told}"
        lost = alive - self.owned(after) if moves else set()
        assert not lost, f"{lost} of the user's are nowhere any more\n{told}"
        return result

    def check_same(self, key: str, before, after, told: str, but: str) -> None:
        old, new = (
            {path: item for path, item in seen.everything.items() if path != but} if seen else {}
            for seen in (before, after)
        )
        assert old == new, f"{key}: {sorted(differing(old, new))} should not have changed\n{told}"

    def check_arrived(self, place: Place, before, after, want: Want, told: str) -> None:
        """The tree is the one wanted, and what is the user's is as it was."""
        record = want.record or place.record
        assert after.refs.get(f"refs/tags/upstream/{record.label}") == record.base or want.action == "revert", told
        if want.action == "fresh":
            assert ids(after.files) == want.new and after.ref == ERA, told
            assert place.tree(after.head) == want.new and after.index == want.new, told
        else:
            coming = {path: item for path, item in before.files.items() if path not in want.paths}
            found = {path: item for path, item in after.files.items() if path not in want.paths}
            assert found == coming, f"{sorted(differing(found, coming))}\n{told}"
            for path in want.paths:
                assert after.stands(path) == want.new.get(path), f"{path} is {after.stands(path)}\n{told}"
                assert after.index.get(path) == want.new.get(path), f"{path} in the index\n{told}"
            for path in before.files.keys() & after.files.keys():
                if before.files[path] == after.files[path]:
                    assert before.everything[path] == after.everything[path], f"{path} was written again\n{told}"
            index = {path for path in differing(before.index, after.index) if path not in want.paths}
            assert not index, f"{index} in the index\n{told}"
            flags = {path for path in before.index.keys() & after.index if before.flags[path] != after.flags[path]}
            assert not flags, f"the flags of {flags}\n{told}"
            assert (before.config, before.stash) == (after.config, after.stash), told
        self.check_refs(place, before, after, want, told)

    def check_refs(self, place: Place, before, after, want: Want, told: str) -> None:
        if want.action == "fresh":
            assert set(after.refs) == {ERA, f"refs/tags/upstream/{want.record.label}"}, told
            want.record.tip = after.head
        elif want.action == "switch":
            expected = {**before.refs, ERA: after.head}
            if place.applied(before) and before.head != place.record.tip:
                expected[f"refs/heads/era-backup-{before.head[:12]}"] = before.head
            tag = f"refs/tags/upstream/{want.record.label}"
            if tag in want.record.made or tag not in expected:
                expected[tag] = want.record.base
            assert after.refs == expected and after.ref == ERA, f"{after.refs} is not {expected}\n{told}"
            assert place.tree(after.head) == want.new, told
            want.record.tip = after.head
        else:
            record = place.record
            gone = {ERA, *(record.made if place.given else ())}
            expected = {ref: oid for ref, oid in before.refs.items() if ref not in gone}
            if before.head != record.tip:
                expected[f"refs/heads/era-backup-{before.head[:12]}"] = before.head
            assert after.refs == expected, f"{after.refs} is not {expected}\n{told}"
            back = record.before if expected.get(record.before) == record.base else None
            assert (after.ref, after.head) == (back, record.base), told
            assert not (place.given and after.records), told
            want.record = None if place.given else dataclasses.replace(record, tip=None)
        place.record = want.record
        if place.record and place.record.tip:
            key = (place.record.base, repr(sorted(place.record.inputs.items())))
            assert self.world.tips.setdefault(key, after.head) == after.head, f"one input, two commits\n{told}"

    def check_round(self, key: str, before, after, want: Want, told: str) -> None:
        """apply, then revert, with nothing but verbs between: all as it was."""
        clean = before is not None and before.ref != ERA and before.head in self.field.bases.values()
        if want.action == "switch" and key not in self.round and clean:
            self.round[key] = before
        elif want.action == "revert" and key in self.round:
            first = self.round.pop(key)
            for what in ("files", "index", "flags", "config", "stash", "ref", "head"):
                assert getattr(first, what) == getattr(after, what), f"after apply and revert: {what}\n{told}"
            assert not self.places[key].given or first.refs == after.refs, told

    # --- verbs ---

    @step(7, on=SIDE, version=[None, None, None, None, "v1", "v2"], source=[None, None, None, "git", "pypi", "file"])
    def v_apply(self, on, version, source):
        self.apply(on, version, source)

    def apply(self, on, version=None, source=None):
        place = self.places[on]
        if on == "beta":
            version = source = None
        elif on == "clone" and source in ("pypi", "file"):
            source = None
        words = ["apply", *place.words]
        words += ["--version", version] if version else []
        if source == "file" and (version or place.state(place.see(), None)[1]) == "v2":
            source = "git"
        archive = str(self.project.index / "alpha-1.0.tar.gz")
        words += ["--source", archive if source == "file" else source] if source else []
        want = place.want_apply(place.see(), version, "pypi" if source == "file" else source)
        self.run("apply", words, {on: want})

    @step(2, dry=[False, False, True])
    def v_apply_all(self, dry):
        wants = {on: self.places[on].want_apply(self.places[on].see(), None, None) for on in ("ours", "beta")}
        self.run("apply, all" + " --dry-run" * dry, ["apply", *["--dry-run"] * dry], wants, looks=dry)

    @step(6, on=SIDE, keep=[None, "new", "new", "taken"], dry=[False, False, False, True])
    def v_revert(self, on, keep, dry):
        place, words, target = self.places[on], [], None
        if keep:
            target = self.field.folder / "edits" / f"edits-{self.number}.patch"
            self.number += 1
            if keep == "taken":
                target.write_text(f"{self.mark()}\n")
            words = ["--keep-edits", str(target)]
        seen = place.see()
        want = place.want_revert(seen, target)
        final = place.final(seen) if want.saves and not want.codes else None
        tip = place.record.tip if place.record else None
        row = "revert" + " --keep-edits" * bool(keep) + " --dry-run" * dry
        result = self.run(row, ["revert", *place.words, *words, *["--dry-run"] * dry], {on: want}, looks=dry)
        if keep == "new" and want.saves and result.code == 0 and not dry:
            for path in seen.untracked:  # these stay in place and are not in the patch
                final.pop(path, None)
            scratch = self.field.folder / "scratch"
            got = apply_with_git(place.path, scratch, tip, target.read_bytes())
            assert got == tree_with_git(place.path, scratch, final), "the kept patch does not give the edits back"

    @step(dry=[False, True])
    def v_revert_all(self, dry):
        wants = {on: self.places[on].want_revert(self.places[on].see(), None) for on in ("ours", "beta")}
        self.run("revert, all" + " --dry-run" * dry, ["revert", *["--dry-run"] * dry], wants, looks=dry)

    @step(2, on=SIDE, version=[None, None, "v1", "v2"])
    def v_status(self, on, version):
        place = self.places[on]
        version = None if on == "beta" else version
        seen = place.see()
        state, label = place.state(seen, version)
        code = {1} if state in ("modified", "stale", "wrong-base") else set()
        words = ["status", *place.words, "--json", *(["--version", version] if version else [])]
        found = self.run("status", words, {on: Want(code)}, looks=True).json[place.name]
        assert (found["state"], found["version"]) == (state, label), f"{found} is not {state} {label}"
        if state not in ("absent", "wrong-base"):
            tree = place.tree(seen.head)
            files = set(seen.edits(tree))
            if place.applied(seen):
                files |= differing(tree, place.tree(place.record.tip))
            assert found["files"] == sorted(files) and found["untracked"] == seen.untracked, found
            assert found["commit"] == seen.head, found

    @step(5, on=SIDE, how=[[], [], ["--check"], ["--dry-run"]])
    def v_export(self, on, how):
        place = self.places[on]
        seen = place.see()
        want, check = place.want_export(seen)
        before = self.project_side()
        words = ["export", *place.words, *how]
        if how:
            ends = want.codes or want.may | (check if how == ["--check"] else {0})
            self.run("export " + how[0], words, {on: Want(ends)}, looks=True)
            return
        result = self.run("export", words, {on: want}, exports=True)
        if result.code == 0:
            del before["edits"]
            self.after_export(place, seen, want, result, before)
            if self.number % 4:
                self.p_commit()

    def after_export(self, place: Place, seen, want: Want, result, before: dict) -> None:
        record, world = place.record, self.world
        base = place.tree(record.base)
        blobs = {entry: self.content(place, seen, path, entry) for path, entry in want.new.items()}
        overlay = {path: (entry[0], blobs[entry]) for path, entry in want.new.items() if path not in base}
        assert world.overlay(place.name) == overlay, result.text
        old = world.effects[place.name, record.label]
        effect = {path: e for path, e in old.items() if record.source == "pypi" and path.startswith("extra/")}
        for path in base:
            if want.new.get(path) != base[path]:
                effect[path] = (want.new[path][0], blobs[want.new[path]]) if path in want.new else None
        world.effects[place.name, record.label] = effect
        now = world.inputs(place.name, record.label)
        for path, item in before.items():  # what the user changed in the project since is not overwritten
            if path in now and item[1] not in record.known.get(path, ()):
                assert now[path][1] == item[1], f"{path} of the project was overwritten\n{result.text}"
        record.learn(now)
        record.exported = (seen.head, want.new, now)
        again = self.field.folder / "again"
        shutil.rmtree(again, ignore_errors=True)
        _, codes = world.expected(place.name, record.label, record.source)
        source = str(self.project.index / "alpha-1.0.tar.gz") if record.source == "pypi" else "git"
        words = ["apply", place.name, "--version", record.label, "--source", source, "--checkouts", str(again)]
        fresh = self.project.run(*words, code=None)
        assert fresh.code == 0 and not codes, f"what was exported cannot be applied\n{result.text}{fresh.text}"
        files = {path: item for path, item in read_files(again / place.name).items() if not path.startswith(".git/")}
        assert ids(files) == want.new, result.text
        self.tally.count(PART, "export, then apply from nothing", "completed")

    def content(self, place: Place, seen, path: str, entry) -> bytes:
        if seen.stands(path) == entry:
            return seen.files[path][1]
        return os.fsencode(plain(place.path, "cat-file", "blob", entry[1]))

    @step(2, on=SIDE)
    def v_export_and_apply(self, on):
        self.v_export(on, [])
        self.apply(on)

    # --- what users do in a checkout ---

    def user(self, on) -> Path | None:
        self.round.pop(on, None)
        return self.places[on].path if self.places[on].path.is_dir() else None

    def user_git(self, folder: Path, *args: str) -> None:
        """What the user does with git may fail; then they go on."""
        git(folder, *args, check=False)

    def path_for(self, on, number: int, tracked: bool) -> str:
        """One of the paths that matter; of those that are there, if `tracked`."""
        names = PATHS[self.places[on].name]
        folder = self.places[on].path
        if tracked:
            names = [name for name in names if os.path.lexists(folder / name) and not (folder / name).is_dir()] or names
        return names[number % len(names)]

    @step(9, on=SIDE, number=ANY, how=["append", "append", "insert", "replace", "new", "new"])
    def u_edit(self, on, number, how):
        if not (folder := self.user(on)):
            return
        path = self.path_for(on, number, how != "new")
        target = folder / path
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink() or target.is_dir() or any((folder / p).is_symlink() for p in above(path)):
                return
            old = target.read_bytes() if target.exists() and how in ("append", "insert") else b""
            lines = old.splitlines(keepends=True)
            at = len(lines) // 2 if how == "insert" else len(lines)
            if at == len(lines) and lines and not lines[-1].endswith(b"\n"):
                lines[-1] += b"\n"
            lines.insert(at, f"{self.mark()}\n".encode())
            target.write_bytes(b"".join(lines))

    @step(4, on=SIDE, number=ANY, how=["delete", "delete", "chmod", "chmod", "touch", "link", "folder"])
    def u_alter(self, on, number, how):
        if not (folder := self.user(on)):
            return
        target = folder / (path := self.path_for(on, number, True))
        if not target.is_file() or target.is_symlink() or any((folder / p).is_symlink() for p in above(path)):
            return
        if how == "chmod":
            target.chmod(target.stat().st_mode ^ 0o111)
        elif how == "touch":
            os.utime(target, ns=(0, self.number * 10**9))
        else:
            target.unlink()
            if how == "link":
                target.symlink_to(f"nowhere-{self.mark()}")
            elif how == "folder":
                target.mkdir()
                (target / "inside.txt").write_text(f"{self.mark()}\n")

    @step(on=SIDE, what=["src", "tools", "extra"], how=["link", "file", "gone"])
    def u_folder(self, on, what, how):
        if not (folder := self.user(on)) or not (folder / what).is_dir() or (folder / what).is_symlink():
            return
        if how == "link":
            if not (folder / f"{what}-real").exists():
                (folder / what).rename(folder / f"{what}-real")
                (folder / what).symlink_to(f"{what}-real")
            return
        shutil.rmtree(folder / what)
        if how == "file":
            (folder / what).write_text(f"{self.mark()}\n")

    @step(on=SIDE, how=["junk", "binary", "upper"])
    def u_leavings(self, on, how):
        if not (folder := self.user(on)):
            return
        if how == "junk" and not (folder / "src").is_symlink() and (folder / "src").is_dir():
            (folder / "src/__pycache__").mkdir(exist_ok=True)
            (folder / "src/__pycache__/core.pyc").write_bytes(b"\0")
        elif how == "binary" and not (folder / "data.bin").exists():
            (folder / "data.bin").write_bytes(b"\0" + self.mark().encode())
        elif how == "upper":
            (folder / "readme.md").write_text(f"{self.mark()}\n")

    @step(3, on=SIDE, number=ANY, how=["add", "add", "add -A", "rm -q --cached", "add -N", "reset -q", "checkout -q"])
    def u_stage(self, on, number, how):
        if folder := self.user(on):
            path = ["--", self.path_for(on, number, how != "add")] if how != "add -A" else []
            self.user_git(folder, *how.split(), *path)

    @step(4, on=SIDE, how=["commit -q -a", "commit -q -a", "commit -q -a --amend", "commit -q --allow-empty",
                           "stash -q", "reset -q --hard", "reset -q --hard", "clean -fdq"])  # fmt: skip
    def u_commit(self, on, how):
        if folder := self.user(on):
            self.number += 1
            if "--amend" in how and git(folder, "rev-parse", "HEAD") in self.field.bases.values():
                return
            message = ["--no-edit"] if "--amend" in how else ["-m", f"My work {self.number}"]
            self.user_git(folder, *how.split(), *(message if "commit" in how else []))

    @step(4, on=SIDE, how=["branch side-N", "tag mark-N", "config user.nickname N", "checkout -q -b work-N",
                           "checkout -q era", "checkout -q --detach", "checkout -q upstream/v1", "checkout -q HEAD~1",
                           "checkout -q mine", "branch -D mine"])  # fmt: skip
    def u_refs(self, on, how):
        if folder := self.user(on):
            self.number += 1
            self.user_git(folder, *how.replace("N", str(self.number)).replace(f"HEAD~{self.number}", "HEAD~1").split())

    @step(2, on=SIDE, number=ANY, flag=["--assume-unchanged", "--skip-worktree", "--no-skip-worktree"])
    def u_flag(self, on, number, flag):
        if folder := self.user(on):
            self.user_git(folder, "update-index", flag, "--", self.path_for(on, number, True))

    @step(on=["ours", "beta"])
    def u_remove(self, on):
        if self.number % 4 == 0 and self.user(on):
            shutil.rmtree(self.places[on].path)
            self.places[on].record = None

    # --- what users do in the project ---

    @contextlib.contextmanager
    def changes_project(self):
        root = self.project.root
        if self.number % 2:
            self.earlier.append((read_files(root / "patches"), read_files(root / "overlays"), dict(self.world.effects)))
        yield
        self.project.write_lists()
        if self.chance.random() < 0.7:
            self.p_commit()

    @step(2)
    def p_commit(self):
        self.project.commit()
        self.world.commit()

    @step(2, path=OVERLAY, how=["write", "write", "remove"])
    def p_overlay(self, path, how):
        target = self.project.root / "overlays/alpha" / path
        with self.changes_project(), contextlib.suppress(OSError):
            if how == "remove":
                target.unlink()
            elif not target.is_dir():
                target.parent.mkdir(parents=True, exist_ok=True)
                self.number += 1
                target.write_text(f"ERA = {self.number}\n")

    @step(2, version=["v1", "v1", "v2"], number=ANY)
    def p_patches(self, version, number):
        with self.changes_project():
            names = [key for key in self.field.sets if key[0] == version]
            files, effect = self.field.sets[names[number % len(names)]]
            folder = self.project.root / "patches/alpha" / version
            shutil.rmtree(folder, ignore_errors=True)
            write_tree(folder, files)
            self.world.effects["alpha", version] = effect

    @step()
    def p_back(self):
        if not self.earlier:
            return
        patches, overlays, effects = self.earlier.pop()
        with self.changes_project():
            self.world.effects = effects
            for top, files in (("patches", patches), ("overlays", overlays)):
                shutil.rmtree(self.project.root / top, ignore_errors=True)
                for path, (mode, data) in files.items():
                    target = self.project.root / top / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
                    target.chmod(0o755 if mode == "100755" else 0o644)

    @step(what=["git", "git/alpha.git", ""])
    def p_cache(self, what):
        archives = self.field.kept / "cache/archives"
        shutil.rmtree(self.project.cache / what, ignore_errors=True)
        if not (self.project.cache / "archives").exists():  # pip takes seconds, and has tests of its own
            shutil.copytree(archives, self.project.cache / "archives")


@pytest.mark.parametrize("chunk", range(12 if LONG else 1))
def test_sequences(chunk, scale, project, tmp_path, tally):
    field = Field(project, tmp_path, tally)
    lost = []
    for case in range(scale(4, 12)):
        player = Player(field, random.Random(f"{chunk} {case}"))
        try:
            player.play(scale(12, 20))
        except Exception as error:
            tally.count(PART, "sequences", "lost")
            lost.append(f"chunk {chunk}, case {case}, after {player.told}:\n{type(error).__name__}: {error}")
        else:
            tally.count(PART, "sequences", "completed")
    assert not lost, f"{len(lost)} sequences\n" + "\n\n".join(lost[:3])
