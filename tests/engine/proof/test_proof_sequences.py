"""Random sequences of verbs and of what users do, each step held against a model (model.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
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
    user_git,
)

PART = "sequences"
REFUSED = (2, 3, 4, 5, 6)
ALPHA = [
    "src/core.py",
    "src/util.py",
    "src/old.py",
    "README.md",
    "run.sh",
    "crlf.txt",
    "bare.txt",
    "extra/recipe.py",
    "src/era.py",
]
ALPHA += ["tools/go.sh", "src/helpers.py", "notes.txt", "new/deep/file.py"]
PATHS = {"alpha": ALPHA, "beta": ["main.py", "other.py"]}
SIDES = ["here", "here", "here", "here", "ours", "clone", "beta"]  # here: where the sequence began
OVERLAY = ["src/era.py", "tools/go.sh", "src/extra_era.py", "src/helpers.py", "tools", "notes.txt"]


def more_patches(project) -> dict:
    """Other sets of patches for alpha: (label, set) -> (file -> text, path -> entry that they make)."""
    alpha, start = project.up / "alpha", project.ids
    first = read_files(project.root / "patches/alpha/v1")
    kit = {file: item[1].decode() for file, item in first.items()}

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
    moved = b"# a new line above\n" * 5 + core
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
    return {
        ("v1", "kit"): (kit, both),
        ("v1", "many"): (
            {"0001-hook-first.patch": one, "0002-many-kinds.patch": two, "0003-recipe.patch": three},
            many,
        ),
        ("v1", "none"): ({}, {}),
        ("v2", "newer"): (
            {"0001-hook-the-newer-core.patch": newer},
            {"src/core.py": ("100644", moved.replace(*line20))},
        ),
        ("v2", "none"): ({}, {}),
    }


class Field:
    """The made-up project as it is at the start of every sequence, kept beside to be copied back."""

    def __init__(self, project, tmp_path: Path, tally):
        self.project, self.folder, self.tally = project, tmp_path, tally
        self.sets = more_patches(project)
        write_tree(
            project.root, {f"patches/alpha/v2/{file}": text for file, text in self.sets["v2", "newer"][0].items()}
        )
        project.pin_numbers()
        project.pinning = False
        project.run("fetch")
        project.run("fetch", "alpha", "--version", "v2")
        project.run("fetch", "alpha", "--source", str(project.index / "alpha-1.0.tar.gz"))
        project.run("fetch", "alpha", "--source", "pypi")
        cache = project.cache / "git/alpha.git"
        packed = git(cache, "rev-parse", f"refs/pins/sdist-{project.ids['sha256']}")
        rows = plain(cache, "ls-tree", "-r", packed).splitlines()
        assert {row.split("\t")[1]: tuple(row.split("\t")[0].split()[::2]) for row in rows} == ids(entries(PACKED))
        self.bases = {
            ("alpha", "v1", "git"): project.ids["v1"],
            ("alpha", "v2", "git"): project.ids["v2"],
            ("alpha", "v1", "pypi"): packed,
            ("beta", "b1", "git"): project.ids["beta"],
        }
        git(tmp_path, "clone", "-q", str(project.up / "alpha"), str(tmp_path / "clone"))
        git(tmp_path / "clone", "checkout", "-q", "-b", "mine", project.ids["v1"])
        self.kept = tmp_path / "kept"
        for path in (project.root / "patches", project.root / "overlays", project.cache, tmp_path / "clone"):
            shutil.copytree(path, self.kept / path.name, symlinks=True)
        shutil.copy(project.root / "upstreams.json", self.kept)

    def reset(self) -> None:
        root, folder = self.project.root, self.folder
        for path in (
            root / "patches",
            root / "overlays",
            self.project.cache,
            folder / "clone",
            root / "checkouts",
            folder / "edits",
        ):
            shutil.rmtree(path, ignore_errors=True)
            if (self.kept / path.name).exists():
                shutil.copytree(self.kept / path.name, path, symlinks=True)
        shutil.copy(self.kept / "upstreams.json", root)
        (folder / "edits").mkdir()


def make_machine(field: Field):
    """The machine's rules: V for verbs, U for what users do in a checkout, P for what they do in the project."""
    project, tally = field.project, field.tally
    side = st.sampled_from(SIDES)
    pick = st.integers(0, 10**6)
    steps, names = {}, []

    def step(weight: int = 1, **choices):
        """A rule. Not hypothesis' own, as that leaves whole rules out of a sequence, and without apply it says little."""

        def enter(method):
            steps[method.__name__] = st.fixed_dictionaries(choices)
            names.extend([method.__name__] * weight)
            return method

        return enter

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            field.reset()
            effects = {("alpha", "v1"): field.sets["v1", "kit"][1], ("alpha", "v2"): field.sets["v2", "newer"][1]}
            effects["beta", "b1"] = {"main.py": ("100644", b"print(1)\nprint(22)\nprint(3)\n")}
            self.world = World(project.root, field.bases, effects)
            self.places = {
                "ours": Place(self.world, "alpha", project.checkout("alpha"), given=False),
                "clone": Place(self.world, "alpha", field.folder / "clone", given=True),
                "beta": Place(self.world, "beta", project.checkout("beta"), given=False),
            }
            self.failed = False
            self.number = 0
            self.earlier = []
            self.round = {}  # place -> what it was like before apply, while only verbs were run since

        def teardown(self):
            if not self.failed:
                tally.count(PART, "sequences", "completed")

        # What every step is held against

        def mark(self) -> str:
            self.number += 1
            return f"user-{self.number}"

        def see(self) -> dict:
            return {key: place.see() for key, place in self.places.items()}

        def project_side(self) -> dict:
            found = {
                f"{top}/{p}": item
                for top in ("patches", "overlays")
                for p, item in read_folder(project.root / top).items()
            }
            found["upstreams.json"] = ("100644", (project.root / "upstreams.json").read_bytes())
            found["edits"] = read_folder(field.folder / "edits")
            return found

        def owned(self, seen: dict) -> set[bytes]:
            """The marks of everything that the user wrote and that stands somewhere."""
            found = set()
            for key, item in seen.items():
                if item:
                    found |= self.places[key].user_bytes(item)
            return found.union(
                *(
                    marks_in(top)
                    for top in (project.root / "patches", project.root / "overlays", field.folder / "edits")
                )
            )

        def of_the_project(self) -> set[bytes]:
            """What an overlay brought: taking it away again is not a loss."""
            found = set()
            for place in self.places.values():
                if place.record and place.record.tip and place.path.exists():
                    found |= self.world.marks(
                        place.path, frozenset(oid for _, oid in place.tree(place.record.tip).values())
                    )
            return found

        def run(self, row: str, words: list[str], wants: dict[str, Want], looks: bool = False, exports: bool = False):
            """Run a verb that each place wants to end so. `looks`: it changes nothing, however it ends."""
            seen, side = self.see(), self.project_side()
            must, may = (set().union(*(getattr(want, what) for want in wants.values())) for what in ("codes", "may"))
            moves = not looks and any(want.action in ("switch", "revert") for want in wants.values())
            alive = self.owned(seen) - self.of_the_project() if moves else set()
            result = project.run(*words, code=None)
            allowed = must or {0, *may}
            told = f"{words} ended with {result.code}, expected {allowed}\n{result.text}"
            assert result.code in allowed, told
            tally.count(PART, row, "refused" if result.code else "completed")
            after = self.see()
            still = looks or result.code != 0
            for key, place in self.places.items():
                want = wants.get(key, Want())
                if still or want.action == "none":
                    self.same(
                        key, seen[key], after[key], told, but=".git/era/record.json" if exports and not still else ""
                    )
                else:
                    self.arrived(place, seen[key], after[key], want, told)
                    self.identity(key, seen[key], after[key], want, told)
            changed = differing(side, self.project_side())
            if exports and not still:
                changed = set()
            if "--keep-edits" in words and not still:
                changed -= {"edits"}
            assert not changed, f"{changed}\n{told}"
            lost = alive - self.owned(after) if moves else set()
            assert not lost, f"{lost} of the user's are nowhere any more\n{told}"
            return result

        def same(self, key: str, before, after, told: str, but: str) -> None:
            old, new = (
                {p: item for p, item in seen.everything.items() if p != but} if seen else None
                for seen in (before, after)
            )
            assert old == new, f"{key}: {sorted(differing(old or {}, new or {}))} should not have changed\n{told}"

        def arrived(self, place: Place, before, after, want: Want, told: str) -> None:
            """The tree is the one wanted, and what is the user's is as it was."""
            record = want.record or place.record
            assert after.refs.get(f"refs/tags/upstream/{record.label}") == record.base or want.action == "revert", told
            if want.action == "fresh":
                assert ids(after.files) == want.new and after.ref == ERA, told
                assert place.tree(after.head) == want.new and after.index == want.new, told
            else:
                coming = {path: before.files[path] for path in before.files if path not in want.paths}
                found = {path: item for path, item in after.files.items() if path not in want.paths}
                assert found == coming, (
                    f"{sorted(p for p in found.keys() | coming.keys() if found.get(p) != coming.get(p))}\n{told}"
                )
                for path in want.paths:
                    assert after.stands(path) == want.new.get(path), (
                        f"{path} is {after.stands(path)}, not {want.new.get(path)}\n{told}"
                    )
                    assert after.index.get(path) == want.new.get(path), f"{path} in the index\n{told}"
                for path in before.files.keys() & after.files.keys():
                    if before.files[path] == after.files[path]:
                        assert before.everything[path] == after.everything[path], f"{path} was written again\n{told}"
                for path in before.index.keys() | after.index.keys():
                    if path not in want.paths:
                        assert before.index.get(path) == after.index.get(path), f"{path} in the index\n{told}"
                    if path in before.index and path in after.index:
                        flags = before.flags[path], after.flags[path]
                        assert flags[0] == flags[1], f"the flag of {path} was {flags[0]}, is {flags[1]}\n{told}"
                assert (before.config, before.stash) == (after.config, after.stash), told
            self.refs_after(place, before, after, want, told)

        def refs_after(self, place: Place, before, after, want: Want, told: str) -> None:
            if want.action == "fresh":
                assert set(after.refs) == {ERA, f"refs/tags/upstream/{want.record.label}"}, told
                want.record.tip = after.head
            elif want.action == "switch":
                expected = {**before.refs, ERA: after.head}
                if place.applied(before) and before.head != place.record.tip:
                    expected[f"refs/heads/era-backup-{before.head[:12]}"] = before.head
                expected.setdefault(f"refs/tags/upstream/{want.record.label}", want.record.base)
                if f"refs/tags/upstream/{want.record.label}" in want.record.made:
                    expected[f"refs/tags/upstream/{want.record.label}"] = want.record.base
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
                if place.given:
                    assert not after.records, told
                want.record = None if place.given else dataclasses.replace(record, tip=None)
            place.record = want.record
            if place.record and place.record.tip:
                key = (place.record.base, repr(sorted(place.record.inputs.items())))
                assert self.world.tips.setdefault(key, after.head) == after.head, (
                    f"the same input made another commit\n{told}"
                )

        def identity(self, key: str, before, after, want: Want, told: str) -> None:
            """apply, then revert, with nothing but verbs between: all as it was."""
            if want.action == "switch" and key not in self.round and self.clean_before(before):
                self.round[key] = before
            elif want.action == "revert" and key in self.round:
                first = self.round.pop(key)
                for what in ("files", "index", "flags", "config", "stash", "ref", "head"):
                    assert getattr(first, what) == getattr(after, what), f"after apply and revert: {what}\n{told}"
                mine = [
                    {r: o for r, o in seen.refs.items() if not r.startswith(("refs/tags/upstream/", ERA))}
                    for seen in (first, after)
                ]
                assert mine[0] == mine[1] and (not self.places[key].given or first.refs == after.refs), told

        def clean_before(self, seen) -> bool:
            return seen.ref != ERA and seen.head in field.bases.values()

        # Verbs

        @step(
            3,
            on=side,
            version=st.sampled_from([*[None] * 3, "v1", "v2"]),
            source=st.sampled_from([*[None] * 3, "git", "pypi", "file"]),
        )
        def v_apply(self, on, version, source):
            self.apply(on, version, source, [])

        @step(2, on=side)
        def v_apply_plain(self, on):
            self.apply(on, None, None, [])

        @step(2, on=side)
        def v_apply_again(self, on):
            place = self.places[on]
            self.apply(on, None, None, [])
            seen = place.see()
            if (
                place.state(seen, None)[0] in ("applied", "modified")
                and place.record
                and place.record.tip
                and seen.ref == ERA
            ):
                self.run("apply twice", ["apply", *place.words], {on: Want()}, looks=True)

        @step(on=side, version=st.sampled_from([None, "v1", "v2"]))
        def v_apply_dry(self, on, version):
            self.apply(on, version, None, ["--dry-run"])

        def apply(self, on, version, source, more):
            place = self.places[on]
            if on == "beta":
                version = source = None
            if on == "clone":
                source = None if source in ("pypi", "file") else source
            words = ["apply", *place.words, *more]
            words += ["--version", version] if version else []
            if source == "file":
                if version == "v2" or place.state(place.see(), version)[1] == "v2" and not version:
                    source = "git"
            words += (
                ["--source", str(project.index / "alpha-1.0.tar.gz") if source == "file" else source] if source else []
            )
            kind = "pypi" if source == "file" else source
            want = place.want_apply(place.see(), version, kind)
            self.run("apply --dry-run" if more else "apply", words, {on: want}, looks=bool(more))

        @step(2, dry=st.sampled_from([False, False, True]))
        def v_apply_all(self, dry):
            wants = {on: self.places[on].want_apply(self.places[on].see(), None, None) for on in ("ours", "beta")}
            self.run("apply, all" + " --dry-run" * dry, ["apply", *["--dry-run"] * dry], wants, looks=dry)

        @step(
            6,
            on=side,
            keep=st.sampled_from([None, "new", "new", "taken"]),
            dry=st.sampled_from([False, False, False, True]),
        )
        def v_revert(self, on, keep, dry):
            place, words = self.places[on], []
            target = None
            if keep:
                target = field.folder / "edits" / f"edits-{self.number}.patch"
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
                scratch = field.folder / "scratch"
                got = apply_with_git(place.path, scratch, tip, target.read_bytes())
                assert got == tree_with_git(place.path, scratch, final), "the kept patch does not give the edits back"

        @step(dry=st.sampled_from([False, True]))
        def v_revert_all(self, dry):
            wants = {on: self.places[on].want_revert(self.places[on].see(), None) for on in ("ours", "beta")}
            self.run("revert, all" + " --dry-run" * dry, ["revert", *["--dry-run"] * dry], wants, looks=dry)

        @step(2, on=side, version=st.sampled_from([None, None, "v1", "v2"]))
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

        @step(2, on=side, how=st.sampled_from([[], ["--local"], ["--stat"], ["--local", "--stat"]]))
        def v_diff(self, on, how):
            place = self.places[on]
            seen = place.see()
            want = Want({3}) if place.state(seen, None)[0] in ("absent", "wrong-base") else Want()
            record = place.applied(seen)
            if seen and not want.codes and "--local" in how and place.behind_something(seen):
                want.codes.add(5)
            result = self.run("diff " + " ".join(how), ["diff", *place.words, *how], {on: want}, looks=True)
            if result.code == 0 and not how:
                assert result.raw.decode() == (
                    plain(place.path, "diff", "--binary", record.base, record.tip) if record else ""
                )
            if result.code == 0 and how == ["--local"]:
                tree, final = place.tree(record.tip if record else seen.head), self.with_new_files(place, seen)
                changed = {p for p in tree.keys() | final.keys() if tree.get(p) != final.get(p)}
                assert set(re.findall(r"^diff --git a/(.*) b/", result.out, re.M)) == changed, result.out

        def with_new_files(self, place: Place, seen) -> dict:
            found = dict(place.tree(seen.head))
            for path in [*seen.edits(found), *seen.untracked]:
                found.pop(path, None)
                if seen.stands(path) not in (None, "other"):
                    found[path] = seen.stands(path)
            return found

        @step(5, on=side, how=st.sampled_from([[], [], ["--check"], ["--dry-run"]]))
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

        def after_export(self, place: Place, seen, want: Want, result, before: dict) -> None:
            record, world = place.record, self.world
            base = place.tree(record.base)
            blobs = {entry: self.content(place, seen, path, entry) for path, entry in want.new.items()}
            overlay = {path: (entry[0], blobs[entry]) for path, entry in want.new.items() if path not in base}
            assert world.overlay(place.name) == overlay, result.text
            old = world.effects[place.name, record.label]
            effect = {p: e for p, e in old.items() if record.source == "pypi" and p.startswith("extra/")}
            for path in base:
                if want.new.get(path) != base[path]:
                    effect[path] = (want.new[path][0], blobs[want.new[path]]) if path in want.new else None
            world.effects[place.name, record.label] = effect
            now = world.inputs(place.name, record.label)
            for path, item in before.items():  # what the user changed in the project since is not written over
                inside = path.startswith((f"patches/{place.name}/{record.label}/", f"overlays/{place.name}/"))
                if not inside or "__pycache__" in path or item[1] in record.known.get(path, ()):
                    continue
                assert path in now and now[path][1] == item[1], f"{path} of the project was written over\n{result.text}"
            record.learn(now)
            record.exported = (seen.head, want.new, now)
            again = field.folder / "again"
            shutil.rmtree(again, ignore_errors=True)
            _, codes = world.expected(place.name, record.label, record.source)
            source = str(project.index / "alpha-1.0.tar.gz") if record.source == "pypi" else "git"
            words = ["apply", place.name, "--version", record.label, "--source", source, "--checkouts", str(again)]
            fresh = project.run(*words, code=None)
            assert fresh.code == 0 and not codes, f"what was exported cannot be applied\n{result.text}{fresh.text}"
            assert (
                ids({p: i for p, i in read_files(again / place.name).items() if not p.startswith(".git/")}) == want.new
            ), result.text
            tally.count(PART, "export, then apply from nothing", "completed")

        def content(self, place: Place, seen, path: str, entry) -> bytes:
            if seen.stands(path) == entry:
                return seen.files[path][1]
            return os.fsencode(plain(place.path, "cat-file", "blob", entry[1]))

        @step(2, on=side)
        def v_export_and_apply(self, on):
            self.v_export(on, [])
            self.apply(on, None, None, [])

        @step(onto=st.sampled_from(["v1", "v2", "main"]), version=st.sampled_from([None, "v1", "v2"]))
        def v_port(self, onto, version):
            words = ["port", "alpha", "--onto", onto, *(["--version", version] if version else [])]
            label = version or "v1"
            files = {
                path: item[1].decode() for path, item in read_files(project.root / "patches/alpha" / label).items()
            }
            want = Want(may={4})
            if label == onto or (label, onto) == ("v2", "main"):
                want = Want()
            elif files == field.sets["v1", "kit"][0]:
                want = Want({4})
            self.run("port", words, {"ours": want}, looks=True)

        @step(version=st.sampled_from([None, "v1", "v2"]), dry=st.booleans())
        def v_fetch(self, version, dry):
            words = ["fetch", "alpha", *(["--version", version] if version else []), *["--dry-run"] * dry]
            self.run("fetch" + " --dry-run" * dry, words, {}, looks=True)

        # What users do in a checkout

        def user(self, on) -> Path | None:
            self.round.pop(on, None)
            return self.places[on].path if self.places[on].path.is_dir() else None

        def path_for(self, on, number: int, tracked: bool) -> str:
            """One of the paths that matter; of those that are there, if `tracked`."""
            names = PATHS[self.places[on].name]
            folder = self.places[on].path
            if tracked:
                names = [p for p in names if (folder / p).is_file() or (folder / p).is_symlink()] or names
            return names[number % len(names)]

        @step(6, on=side, number=pick, how=st.sampled_from(["append", "append", "insert", "replace"]))
        def u_edit(self, on, number, how):
            if folder := self.user(on):
                self.write(folder, self.path_for(on, number, True), how)

        @step(3, on=side, number=pick)
        def u_add(self, on, number):
            if folder := self.user(on):
                self.write(folder, self.path_for(on, number, False), "replace")

        def write(self, folder: Path, path: str, how: str) -> None:
            target = folder / path
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_symlink() or target.is_dir() or any((folder / p).is_symlink() for p in above(path)):
                    return
                old = target.read_bytes() if target.exists() and how != "replace" else b""
                lines = old.splitlines(keepends=True)
                at = len(lines) // 2 if how == "insert" else len(lines)
                if at == len(lines) and lines and not lines[-1].endswith(b"\n"):
                    lines[-1] += b"\n"
                lines.insert(at, f"{self.mark()}\n".encode())
                target.write_bytes(b"".join(lines))

        @step(
            4,
            on=side,
            number=pick,
            how=st.sampled_from(["delete", "delete", "chmod", "chmod", "touch", "link", "folder"]),
        )
        def u_alter(self, on, number, how):
            if (
                (folder := self.user(on))
                and (target := folder / self.path_for(on, number, True)).is_file()
                and not target.is_symlink()
            ):
                if any(part.is_symlink() for part in target.parents if part != folder and folder in part.parents):
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

        @step(on=side, what=st.sampled_from(["src", "tools", "extra"]), how=st.sampled_from(["link", "file", "gone"]))
        def u_folder(self, on, what, how):
            if (folder := self.user(on)) and (folder / what).is_dir() and not (folder / what).is_symlink():
                if how == "link":
                    if not (folder / f"{what}-real").exists():
                        (folder / what).rename(folder / f"{what}-real")
                        (folder / what).symlink_to(f"{what}-real")
                    return
                shutil.rmtree(folder / what)
                if how == "file":
                    (folder / what).write_text(f"{self.mark()}\n")

        @step(on=side, number=pick, how=st.sampled_from(["junk", "binary", "ignored", "upper"]))
        def u_leavings(self, on, number, how):
            if folder := self.user(on):
                if how == "junk" and not (folder / "src").is_symlink() and (folder / "src").is_dir():
                    (folder / "src/__pycache__").mkdir(exist_ok=True)
                    (folder / "src/__pycache__/core.pyc").write_bytes(b"\0")
                elif how == "binary" and not (folder / "data.bin").exists():
                    (folder / "data.bin").write_bytes(b"\0" + self.mark().encode())
                elif how == "upper":
                    (folder / "readme.md").write_text(f"{self.mark()}\n")

        @step(
            3, on=side, number=pick, how=st.sampled_from(["add", "add", "all", "rm", "intent", "unstage", "checkout"])
        )
        def u_stage(self, on, number, how):
            if folder := self.user(on):
                path = self.path_for(on, number, how != "add")
                words = {"add": ["add", "--", path], "all": ["add", "-A"], "rm": ["rm", "-q", "--cached", "--", path]}
                words |= {"intent": ["add", "-N", "--", path], "unstage": ["reset", "-q", "--", path]}
                words |= {"checkout": ["checkout", "-q", "--", path]}
                user_git(folder, *words[how])

        @step(4, on=side, how=st.sampled_from(["commit", "commit", "amend", "empty", "stash", "undo", "undo", "clean"]))
        def u_commit(self, on, how):
            if folder := self.user(on):
                self.number += 1
                message = f"My work {self.number}"
                words = {
                    "commit": ["commit", "-q", "-a", "-m", message],
                    "amend": ["commit", "-q", "-a", "--amend", "--no-edit"],
                }
                words |= {
                    "empty": ["commit", "-q", "--allow-empty", "-m", message],
                    "stash": ["stash", "-q"],
                    "clean": ["clean", "-fdq"],
                }
                words |= {"undo": ["reset", "-q", "--hard"]}
                if how == "amend" and git(folder, "rev-parse", "HEAD") in field.bases.values():
                    return
                user_git(folder, *words[how])

        @step(
            4,
            on=side,
            what=st.sampled_from(
                ["branch", "tag", "config", "work", "era", "detach", "base", "before", "mine", "delete"]
            ),
        )
        def u_refs(self, on, what):
            if folder := self.user(on):
                self.number += 1
                words = {"branch": ["branch", f"side-{self.number}"], "tag": ["tag", f"mark-{self.number}"]}
                words |= {
                    "config": ["config", "user.nickname", str(self.number)],
                    "work": ["checkout", "-q", "-b", f"work-{self.number}"],
                }
                words |= {"era": ["checkout", "-q", "era"], "detach": ["checkout", "-q", "--detach"]}
                words |= {"before": ["checkout", "-q", "HEAD~1"]}
                words |= {
                    "base": ["checkout", "-q", "upstream/v1"],
                    "mine": ["checkout", "-q", "mine"],
                    "delete": ["branch", "-D", "mine"],
                }
                user_git(folder, *words[what])

        @step(
            2,
            on=side,
            number=pick,
            flag=st.sampled_from(["--assume-unchanged", "--skip-worktree", "--no-skip-worktree"]),
        )
        def u_flag(self, on, number, flag):
            if folder := self.user(on):
                user_git(folder, "update-index", flag, "--", self.path_for(on, number, True))

        @step(on=st.sampled_from(["ours", "beta"]))
        def u_remove(self, on):
            if self.number % 4 == 0 and self.user(on):
                shutil.rmtree(self.places[on].path)
                self.places[on].record = None

        # What users do in the project

        def changes_project(self) -> None:
            if self.number % 2:
                self.earlier.append(
                    (
                        read_files(project.root / "patches"),
                        read_files(project.root / "overlays"),
                        dict(self.world.effects),
                    )
                )

        @step(2, path=st.sampled_from(OVERLAY), how=st.sampled_from(["write", "write", "remove"]))
        def p_overlay(self, path, how):
            self.changes_project()
            target = project.root / "overlays/alpha" / path
            with contextlib.suppress(OSError):
                if how == "remove":
                    target.unlink()
                elif not target.is_dir():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self.number += 1
                    target.write_text(f"ERA = {self.number}\n")
            project.pin_numbers()

        @step(2, version=st.sampled_from(["v1", "v1", "v2"]), number=pick)
        def p_patches(self, version, number):
            self.changes_project()
            names = [key for key in field.sets if key[0] == version]
            files, effect = field.sets[names[number % len(names)]]
            shutil.rmtree(project.root / "patches/alpha" / version, ignore_errors=True)
            write_tree(project.root / "patches/alpha" / version, files)
            self.world.effects["alpha", version] = effect
            project.pin_numbers()

        @step()
        def p_back(self):
            if not self.earlier:
                return
            patches, overlays, self.world.effects = self.earlier.pop()
            for top, files in (("patches", patches), ("overlays", overlays)):
                shutil.rmtree(project.root / top, ignore_errors=True)
                for path, (mode, data) in files.items():
                    target = project.root / top / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
                    target.chmod(0o755 if mode == "100755" else 0o644)
            project.pin_numbers()

        @step(what=st.sampled_from(["git", "git/alpha.git", ""]))
        def p_cache(self, what):
            archives = field.kept / "cache/archives"
            shutil.rmtree(project.cache / what, ignore_errors=True)
            if (
                archives.is_dir() and not (project.cache / "archives").exists()
            ):  # pip takes seconds, and has tests of its own
                shutil.copytree(archives, project.cache / "archives")

        @rule(what=st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), steps[name])))
        def go(self, what):
            name, choices = what
            if choices.get("on") == "here":
                choices = {**choices, "on": self.here}
            with self.counted():
                getattr(self, name)(**choices)

        @contextlib.contextmanager
        def counted(self):
            try:
                yield
            except AssertionError:
                tally.count(PART, "sequences", "lost")
                self.failed = True
                raise

        @initialize(start=st.sampled_from(["nothing", "ours", "ours", "clone", "clone", "both", "beta"]))
        def start(self, start):
            self.here = start if start in self.places else "ours"
            with self.counted():
                for on in {"nothing": [], "both": ["ours", "clone"]}.get(start, [start]):
                    self.apply(on, None, None, [])

    return Machine


def marks_in(top: Path) -> set[bytes]:
    return {mark for _, data in read_files(top).values() for mark in USER.findall(data)}


@pytest.mark.parametrize("chunk", range(16 if os.environ.get("ERA_PROOF") == "long" else 1))
def test_sequences_of_verbs_and_users(chunk, scale, project, tmp_path, tally):
    machine = seed(chunk)(make_machine(Field(project, tmp_path, tally)))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=scale(12, 10),
            stateful_step_count=scale(10, 25),
            derandomize=scale(True, False),
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
