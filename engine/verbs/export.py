"""The verb export: from an edited checkout back to patches and overlay files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import stat
from pathlib import Path

from engine.checkout import Checkout, edits, find_git_dir, lock_checkout, snapshot, untracked, write_record
from engine.errors import DRIFT, LOCAL, OK, USAGE, WRONG_BASE, Stop, some
from engine.files import JUNK, check_path, sha256, write_file
from engine.git import AUTHOR, MODES, NULL_ID, Content, Entry, Git, blob_id
from engine.patches import read_patch
from engine.project import (
    FIELDS,
    PLACEHOLDER,
    ROOT,
    Upstream,
    check_no_overwrite,
    list_file,
    read_file,
    read_series,
    read_sources,
    series_file,
)
from engine.run import Run, applied_record
from engine.switch import refuse_busy

DATE_MAIL = "Thu, 1 Jan 2026 00:00:00 +0000"
MAX_EXPORT = 1 << 20  # bytes: a larger new file in a checkout is data, not an overlay


@dataclasses.dataclass
class Layer:
    """A patch in the making: its commit message, and the upstream files that it touches as it leaves them."""

    message: str
    after: dict[str, Entry | None]

    @property
    def subject(self) -> str:
        return self.message.split("\n")[0]


@dataclasses.dataclass
class Export:
    """What the export of one upstream would write; None for a file to be removed."""

    up: Upstream
    checkout: Checkout
    record: dict
    present: dict[str, Content]
    wanted: dict[str, Content]
    changes: dict[str, Content | None]
    notes: list[str]


def verb_export(run: Run) -> int:
    reads = run.options.check or run.options.dry_run
    with contextlib.ExitStack() as locks:
        for name in [] if reads else run.names:
            locks.enter_context(lock_checkout(run.context, run.path(name), given=run.checkout is not None))
        exports = [plan_export(run, up, checkout) for up, checkout in run.each()]
        for export in [] if reads else exports:
            run.context.interruptible = False
            again = run.context.command("export", export.up.name)
            run.context.done = f"some files may be written already; `{again}` writes the others"
            write_files(export.changes, export.present)
            keep_known(export.checkout, export.record, export.wanted)
    for export in exports:
        report(run, export)
    return DRIFT if run.options.check and any(export.changes for export in exports) else OK


def plan_export(run: Run, up: Upstream, checkout: Checkout) -> Export:
    record = applied_record(up, checkout)
    if record is None:
        raise Stop(
            WRONG_BASE,
            f"{checkout.path}: no overlay is applied there, so there is nothing to export",
            f"run `{run.context.command('apply', up.name)}` first; nothing was changed",
        )
    refuse_busy(checkout, ())
    present = project_files(up, record["version"])
    wanted, notes = export_files(up, checkout, record)
    changes = {path: item for path, item in wanted.items() if present.get(path) != item}
    changes.update({path: None for path in present if path not in wanted})
    refuse_unsaved(checkout, record, present, changes)
    if record["version"] not in up.versions:
        changes["upstreams.json"] = with_version(up, record)
    return Export(up, checkout, record, present, wanted, changes, notes)


def report(run: Run, export: Export) -> None:
    name, changes = export.up.name, export.changes
    run.result[name] = {"version": export.record["version"], "changes": sorted(changes), "notes": export.notes}
    for note in export.notes:
        run.context.say(f"{name}: {note}")
    for path in sorted(changes):
        done = "removed" if changes[path] is None else "written"
        verb = "differs" if run.options.check else "would change" if run.options.dry_run else done
        run.context.say(f"{name}: {verb}: {path}")
    if not changes:
        where = f"the checkout {export.checkout.path}"
        run.context.say(f"{name} {export.record['version']}: patches and overlay files equal {where}")


# --- what is there, and what may be overwritten ---


def project_files(up: Upstream, label: str) -> dict[str, Content]:
    """Series, patches, overlay list and overlay files as they are now, by their paths in the project.

    Listed or not: an export that was killed leaves files and lists that do not agree, and the next one completes it.
    """
    paths = [ROOT / series_file(up.name, label), ROOT / list_file(up.name)]
    paths += (ROOT / "patches" / up.name / label).glob("*.patch")
    paths += (ROOT / "overlays" / up.name).rglob("*")
    paths += (ROOT / source for source in read_sources(up.name).values())
    names = {path.relative_to(ROOT).as_posix() for path in paths if path.is_file()}
    return {name: read_file(name) for name in names if not JUNK.search(name)}


def refuse_unsaved(checkout: Checkout, record: dict, present: dict[str, Content], changes: dict) -> None:
    """Overwrite only what git has committed, and what the checkout was made from: git can bring that back."""
    if not changes.keys() & present.keys():
        return
    committed = committed_blobs(checkout)
    for path in sorted(changes.keys() & present.keys()):
        content = present[path][1]
        if committed.get(path) != blob_id(content):
            raise Stop(
                LOCAL,
                f"export would overwrite {path}, whose content is not committed in this project",
                f"commit it, or bring it back with `git checkout -- {path}`, and run the command again",
                "nothing was changed",
            )
        if sha256(content) not in record["inputs"].get(path, ()):
            raise Stop(
                LOCAL,
                f"{path} was changed in this project since {checkout.path} was made from it; export would undo that",
                f"run `{checkout.context.command('apply', checkout.name)}` first. Nothing was changed",
            )


def committed_blobs(checkout: Checkout) -> dict[str, str]:
    """Path in this project to the id of its content in the last commit of the repository that holds the project."""
    for top in (ROOT, *ROOT.parents):
        git_dir = find_git_dir(top)
        if git_dir:
            git = Git(checkout.context, git_dir, top)
            tree = git.tree("HEAD") if git.commit("HEAD") else {}
            prefix = "" if top == ROOT else f"{ROOT.relative_to(top).as_posix()}/"
            return {path.removeprefix(prefix): oid for path, (_, oid) in tree.items() if path.startswith(prefix)}
    raise Stop(
        LOCAL,
        f"{ROOT} is not a git repository, so what export overwrites could not be brought back",
        "`git init`, `git add -A` and `git commit` in it make it one. Nothing was changed",
    )


def with_version(up: Upstream, record: dict) -> Content:
    """upstreams.json with a version that a port has made."""
    path = ROOT / "upstreams.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    tag = {"tag": record["tag"]} if record.get("tag") else {}
    data[up.name]["versions"][record["version"]] = {**tag, "commit": record["base"]}
    return MODES[0], (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def write_files(changes: dict[str, Content | None], present: dict[str, Content]) -> None:
    """Removals first, so that a file can give way to a folder. After a kill, the same command goes on from there."""
    for path, item in sorted(changes.items(), key=lambda entry: entry[1] is not None):
        target = ROOT / path
        if item is not None:
            with contextlib.suppress(OSError):
                target.rmdir()  # an empty folder that gives way to a file
        look = functools.partial(refuse_changed, path, present.get(path))
        if item is None:
            look()
            target.unlink()
            with contextlib.suppress(OSError):  # not empty
                target.parent.rmdir()
        else:
            write_file(target, item[1], 0o755 if item[0] == MODES[1] else 0o644, check=look)


def refuse_changed(path: str, expected: Content | None) -> None:
    found = read_file(path) if (ROOT / path).is_file() else None
    if path != "upstreams.json" and found != expected:
        again = "it is left as it is; run the command again to go on"
        raise Stop(LOCAL, f"{path} was changed while apply.py was running", again)


def keep_known(checkout: Checkout, record: dict, wanted: dict[str, Content]) -> None:
    """Record in the checkout what was exported, beside what it was made from, in case git brings that back."""
    known = {path: list(digests) for path, digests in record["inputs"].items()}
    for path, (_, content) in wanted.items():
        known[path] = sorted({*known.get(path, ()), sha256(content)})
    if known != record["inputs"]:
        write_record(checkout.own_folder, {**record, "inputs": known})


# --- from commits and edits to files ---


def export_files(up: Upstream, checkout: Checkout, record: dict) -> tuple[dict[str, Content], list[str]]:
    git, label = checkout.git, record["version"]
    base = git.tree(record["base"])
    new = untracked(checkout)
    data = [path for path in new if path not in base and not looks_like_source(checkout.path / path)]
    notes = [f"left out, as it is not a small text file: {path}" for path in data]
    edited = edits(checkout, git.tree(checkout.head))
    with snapshot(checkout, sorted({*edited, *new} - {*data})) as (scratch, tree):
        final = scratch.tree(tree)
        layers = read_layers(git, record, checkout.head, base)
        fold_edits(layers, base, final, notes)
        files = write_layers(scratch, up, label, record, layers)
        added = {path: entry for path, entry in final.items() if path not in base}
        for path, (mode, _) in added.items():
            check_path(path, str(checkout.path), LOCAL)
            if mode not in MODES:
                problem = f"{checkout.path / path} is not a plain file, so it cannot become an overlay file"
                raise Stop(LOCAL, problem, "nothing was changed")
        check_no_overwrite(up.name, added, base)
        blobs = scratch.blobs({oid for _, oid in added.values()})
    sources = read_sources(up.name)
    for path, (mode, oid) in added.items():
        files[sources.get(path, own_file(up, path))] = (mode, blobs[oid])
    files[list_file(up.name)] = listing(up, sources, added)
    return files, notes


def own_file(up: Upstream, path: str) -> str:
    return f"overlays/{up.name}/{path}"


def listing(up: Upstream, sources: dict[str, str], added: dict[str, Entry]) -> Content:
    """The overlay list, unchanged if it names the same files."""
    if added.keys() == sources.keys():
        return MODES[0], (ROOT / list_file(up.name)).read_bytes()
    origins = {path: sources.get(path, own_file(up, path)) for path in added}
    lines = [path if source == own_file(up, path) else f"{path} <- {source}" for path, source in origins.items()]
    return text_file(sorted(lines))


def text_file(lines: list[str]) -> Content:
    return MODES[0], "".join(f"{line}\n" for line in lines).encode()


def looks_like_source(path: Path) -> bool:
    info = path.lstat()
    return stat.S_ISREG(info.st_mode) and info.st_size <= MAX_EXPORT and b"\0" not in path.read_bytes()


def read_layers(git: Git, record: dict, head: str, base: dict) -> list[Layer]:
    """The commits on top of the base, each reduced to its changes of upstream files."""
    layers, before = [], record["base"]
    for row in git("rev-list", "--reverse", "--parents", f"{record['base']}..{head}").splitlines():
        commit, *above = row.split()
        if above != [before]:
            raise Stop(
                LOCAL,
                f"the commit {commit} on era is a merge or does not follow {before}",
                "make the history straight (git rebase) and run the command again; nothing was changed",
            )
        names = git("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, commit).split("\0")[:-1]
        tree = git.tree(commit)
        message = git("cat-file", "commit", commit).split("\n\n", 1)[1]
        layer = Layer(message.strip("\n"), {name: tree.get(name) for name in names if name in base})
        if layer.after:
            layers.append(layer)
        before = commit
    return layers


def fold_edits(layers: list[Layer], base: dict, final: dict, notes: list[str]) -> None:
    """Uncommitted edits of upstream files go into the last patch that touches the file, or into a new one."""
    fresh = Layer("Describe this change", {})
    for path, entry in base.items():
        owner = next((layer for layer in reversed(layers) if path in layer.after), None)
        if owner and owner.after[path] != final.get(path):
            owner.after[path] = final.get(path)
            notes.append(f"the edit of {path} goes into the patch {owner.subject!r}")
        elif owner is None and entry != final.get(path):
            fresh.after[path] = final.get(path)
            notes.append(f"the edit of {path} goes into a new patch; fill in its header")
    if fresh.after:
        layers.append(fresh)


def write_layers(git: Git, up: Upstream, label: str, record: dict, layers: list[Layer]) -> dict[str, Content]:
    """The patch files and their series. A patch that keeps its subject keeps its name."""
    folder = f"patches/{up.name}/{label}"
    series = read_series(up.name, label) if (ROOT / series_file(up.name, label)).exists() else []
    subjects: dict[str, list[str]] = {}
    for file in series:  # a listed patch that is gone, after a kill for example, is known by the name of its file
        path = ROOT / folder / file
        subject = read_patch(file, path.read_bytes()).subject if path.exists() else file[5:-6]
        subjects.setdefault(subject, []).append(file)
    number = max((int(file[:4]) for file in series), default=0)
    git("read-tree", record["base"])
    before = git.write_tree()
    names, files = [], {}
    for layer in layers:
        git.stage(layer.after)
        after = git.write_tree()
        text = format_patch(git, layer, before, after)
        before = after
        if not text:
            continue
        known = subjects.get(layer.subject) or subjects.get(slug(layer.subject))
        number += not known
        names.append(known.pop(0) if known else f"{number:04d}-{slug(layer.subject)}.patch")
        files[f"{folder}/{names[-1]}"] = (MODES[0], text)
    for file in record["skipped"]:  # this source lacks what they change: they stay unchanged, in their places
        earlier = [names.index(name) for name in series[: series.index(file)] if name in names]
        names.insert(max(earlier, default=-1) + 1, file)
        files[f"{folder}/{file}"] = (MODES[0], (ROOT / folder / file).read_bytes())
    path = series_file(up.name, label)
    files[path] = (MODES[0], (ROOT / path).read_bytes()) if names == series and series else text_file(names)
    return files


def slug(subject: str) -> str:
    """As `git format-patch` names files."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", re.sub(r"\.{2,}", ".", subject)).strip("-.")[:52].strip("-.") or "change"


# Whatever the user's configuration and the checkout's attributes say, the same change gives the same bytes.
DIFF_OPTIONS = ["--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--text"]
DIFF_OPTIONS += ["--diff-algorithm=myers", "--unified=3", "--inter-hunk-context=0", "--indent-heuristic"]
DIFF_OPTIONS += ["--src-prefix=a/", "--dst-prefix=b/"]


def format_patch(git: Git, layer: Layer, before: str, after: str) -> bytes:
    diff = git.run("diff-tree", "-r", "-p", *DIFF_OPTIONS, before, after).stdout
    if not diff:
        return b""
    if b"\0" in diff:
        raise Stop(
            USAGE,
            f"the patch {layer.subject!r} would change a binary file ({some(sorted(layer.after))})",
            "take that change back (`git checkout` in the checkout), then run the command again; nothing was changed",
        )
    body = layer.message.partition("\n")[2].strip("\n")
    fields = [f"{field}: {PLACEHOLDER}" for field in FIELDS if not re.search(rf"^{field}:", body, re.M)]
    text = "\n".join([*([body] if body else []), *fields])
    sender = f"From: {AUTHOR[0]} <{AUTHOR[1]}>\nDate: {DATE_MAIL}\nSubject: [PATCH] {layer.subject}\n"
    patch = f"From {NULL_ID} Mon Sep 17 00:00:00 2001\n{sender}\n{text}\n\n".encode() + diff
    read_patch(f"the patch {layer.subject!r}", patch)  # make sure that we can read what we write
    return patch
