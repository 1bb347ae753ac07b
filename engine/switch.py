"""Changing a checkout: a journal first, then files, index and refs. After a kill, every step can be done again.

docs/engine/design.md says under "Kills" what makes a kill harmless at each point.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.checkout import (
    RECORD,
    Checkout,
    edits,
    find_git_dir,
    in_force,
    lock_checkout,
    look,
    on_disk,
    read_own,
    same_entry,
    write_record,
)
from engine.errors import INTERRUPTED, LOCAL, WRONG_BASE, Stop, some
from engine.files import parents, temporary_name, write_file
from engine.git import NULL_ID, Entry, Tree, blob_id, changed_paths, is_ancestor
from engine.run import Run, refuse_interrupted

HALF_WAY = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or a git am",
    "sequencer": "cherry-pick or a revert",
    "BISECT_LOG": "bisect",
}
HALF_WAY_HEADS = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert"}


def refuse_busy(checkout: Checkout, refs: Iterable[str]) -> None:
    """Refuse while git is running there, or in the middle of a merge or rebase, which would go on on another branch."""
    git = checkout.git
    locks = git.locks(refs)
    if locks:
        raise locked_by_git(LOCAL, locks, "run the command again. Nothing was changed")
    found = [what for name, what in HALF_WAY.items() if (git.git_dir / name).exists()]
    rows = git("cat-file", "--batch-check", data="".join(f"{head}\n" for head in HALF_WAY_HEADS).encode()).splitlines()
    found += [what for (head, what), row in zip(HALF_WAY_HEADS.items(), rows) if row != f"{head} missing"]
    if found:
        raise Stop(
            LOCAL,
            f"{checkout.path} is in the middle of a {found[0]}",
            f"`{checkout.shell_git} status` says how to finish it or give it up; then run the command again.",
            "Nothing was changed",
        )


def plan_switch(
    checkout: Checkout, old: Tree, new: Tree, saved: Mapping[str, Entry | None], refs: Iterable[str]
) -> dict[str, tuple[list, Entry | None]]:
    """Path to (contents that may be replaced, new content). Refuses if a file has any other content.

    `saved` are edits that were saved elsewhere: exactly these may be replaced, and no later edit.
    """
    refuse_busy(checkout, refs)
    changed = changed_paths(old, new) | saved.keys()
    plan, in_the_way = {}, []
    index = checkout.git.index()
    for path in sorted(changed):
        found, staged = on_disk(checkout.path, path), index.get(path)
        fine = [old.get(path), new.get(path)]
        if path in saved:
            fine.append(saved[path])
        blocked = path in new and any((checkout.path / folder).is_file() for folder in parents(path))
        if blocked or not any(same_entry(checkout, found, entry) for entry in fine) or staged not in fine:
            in_the_way.append(path)
        plan[path] = ([entry for entry in fine if entry], new.get(path))
    if in_the_way:
        raise Stop(
            LOCAL,
            f"{checkout.path}: local edits are in the way: {some(in_the_way)}",
            *crlf_hint(checkout, in_the_way, old),
            f"see them with `{checkout.context.command('diff', checkout.name, '--local')}`;"
            + export_hint(checkout, "save them with"),
            "commit them elsewhere or move them away, then run the command again. Nothing was changed",
        )
    return plan


def other_worktree(checkout: Checkout, era: str) -> Path | None:
    """The worktree of the same clone in which apply.py made the branch era, as its record there says."""
    git = checkout.git
    common = (checkout.path / git("rev-parse", "--git-common-dir").strip()).resolve()
    places = {common: common.parent}
    for folder in sorted(common.glob("worktrees/*")):
        with contextlib.suppress(OSError):
            places[folder] = Path(os.fsdecode((folder / "gitdir").read_bytes()).strip()).parent
    for folder, path in places.items():
        record = read_own(folder / "era" / "record.json", RECORD) if folder != git.git_dir else None
        if record and record["tip"] and is_ancestor(git, record["tip"], era):
            return path if path.is_dir() else None
    return None


def export_hint(checkout: Checkout, words: str) -> str:
    """Suggest export, which works only where an overlay is applied."""
    return f" {words} `{checkout.context.command('export', checkout.name)}`," if in_force(checkout) else ""


def crlf_hint(checkout: Checkout, paths: list[str], tree: dict) -> list[str]:
    """Files that differ only by CRLF were not edited: git converted them when it checked them out."""
    for path in paths:
        target = checkout.path / path
        if path in tree and target.is_file():
            content = target.read_bytes()
            if b"\r\n" in content and blob_id(content.replace(b"\r\n", b"\n")) == tree[path][1]:
                return [
                    f"{path} differs by CRLF line ends only: git's core.autocrlf converted it. If that is all, run",
                    f"`{checkout.shell_git} config core.autocrlf false`",
                    f"and `{checkout.shell_git} checkout-index -f -a`",
                ]
    return []


def begin_switch(
    checkout: Checkout, verb: str, plan: dict, refs: dict, head: str, record: dict | None, together: list[str]
) -> dict:
    """Write the journal. After a kill from here on, the next run completes the switch."""
    refuse_busy(checkout, refs)
    gone = (checkout.record or {}).get("flags", {})
    flags = {**gone, **checkout.git.flags()}
    if record:  # a removed entry loses its flags; they are kept for when it comes back
        record["flags"] = {
            path: letter for path, letter in flags.items() if (plan[path][1] is None if path in plan else path in gone)
        }
    flags = {path: letter for path, letter in flags.items() if path in plan}
    journal = {
        "verb": verb,
        "name": checkout.name,
        "plan": plan,
        "flags": flags,
        "refs": refs,
        "head": head,
        "record": record,
    }
    journal.update(together=together, **{"from": checkout.ref or checkout.head})
    write_file(checkout.own_folder / "journal.json", json.dumps(journal).encode())
    return journal


def locked_by_git(code: int, locks: list[Path], then: str) -> Stop:
    """Nothing tells whose lock it is: that of a git that was killed with us, or of one that the user runs."""
    return Stop(
        code,
        f"{some([str(path) for path in locks])} exists: another git process is running there, or died",
        f"wait for it, or remove the file if no git runs; then {then}",
    )


def stage_files(checkout: Checkout, plan: dict) -> None:
    """Write the new contents beside the files that they replace: a full disk shows before anything is replaced."""
    blobs = checkout.git.blobs({entry[1] for _, entry in plan.values() if entry})
    for path, (_, entry) in plan.items():
        if entry is None or same_entry(checkout, on_disk(checkout.path, path), tuple(entry)):
            continue
        part = temporary_name(checkout.path / path)
        part.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        if entry[0] == "120000":
            part.symlink_to(os.fsdecode(blobs[entry[1]]))
            continue
        with open(part, "xb") as out:
            out.write(blobs[entry[1]])
            out.flush()
            os.fsync(out.fileno())
        if entry[0] == "100755":
            part.chmod(part.stat().st_mode | 0o111 & ~current_umask())


def current_umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def unstage_files(checkout: Checkout, plan: dict) -> None:
    for path in plan:
        part = temporary_name(checkout.path / path)
        if os.path.lexists(part):  # also False if the path is too long for the system
            part.unlink(missing_ok=True)
        remove_empty_folders(checkout, path)


def remove_empty_folders(checkout: Checkout, path: str) -> None:
    for folder in reversed(parents(path)):
        try:
            (checkout.path / folder).rmdir()
        except OSError:  # not empty, or not there
            break


def finish_switch(checkout: Checkout, journal: dict) -> None:
    """Carry out a journal, from the start or from wherever an earlier run was cut short."""
    completes = checkout.context.command("apply", checkout.name)
    refuse_moved(checkout, journal)
    plan = {
        path: ([tuple(item) for item in fine], entry and tuple(entry))
        for path, (fine, entry) in journal["plan"].items()
    }
    foreign = [path for path, (fine, entry) in plan.items() if not may_replace(checkout, path, fine, entry)]
    if foreign:
        raise Stop(
            INTERRUPTED,
            f"{checkout.path}: {journal['verb']} was cut short, and these files were changed since: {some(foreign)}",
            "they are left as they are. Move your versions away, run",
            f"`{completes}` to complete it, and bring them back",
        )
    stage_files(checkout, plan)
    for path, (fine, entry) in sorted(plan.items(), key=lambda item: item[1][1] is not None):
        replace(checkout, path, fine, entry)
    unstage_files(checkout, plan)
    git = checkout.git
    locks = git.locks(journal["refs"])
    if locks:
        raise locked_by_git(INTERRUPTED, locks, f"run `{completes}` to complete the switch; nothing is lost")
    git.stage({path: entry for path, (_, entry) in plan.items()})
    git.set_flags({path: letter for path, letter in journal["flags"].items() if plan[path][1]})
    move_refs(checkout, journal)
    git("update-index", "-q", "--refresh", ok=(0, 1))
    if journal["record"]:
        write_record(checkout.own_folder, journal["record"])
    else:
        (checkout.own_folder / "record.json").unlink(missing_ok=True)
    (checkout.own_folder / "journal.json").unlink()


def replace(checkout: Checkout, path: str, fine: list, entry: Entry | None) -> None:
    """Bring one file to its new content, after a last check of what it holds now."""
    target = checkout.path / path
    if same_entry(checkout, on_disk(checkout.path, path), entry):
        return
    if not may_replace(checkout, path, fine, entry):
        raise Stop(
            INTERRUPTED,
            f"{target} was changed while apply.py was running; it is left as it is",
            f"move your version away and run `{checkout.context.command('apply', checkout.name)}` to go on",
        )
    if entry is None:
        target.unlink()
        remove_empty_folders(checkout, path)
    else:
        temporary_name(target).replace(target)


def may_replace(checkout: Checkout, path: str, fine: list, entry: Entry | None) -> bool:
    found = on_disk(checkout.path, path)
    return found is None or any(same_entry(checkout, found, item) for item in [*fine, entry] if item)


def refuse_moved(checkout: Checkout, journal: dict) -> None:
    """Branches, tags and HEAD must be where the switch found them or moves them; else somebody committed there."""
    git, place, current = checkout.git, checkout.path, checkout.git.refs()
    then = f"run `{checkout.context.command('apply', checkout.name)}` to complete the switch"
    for ref, (old, new) in journal["refs"].items():
        found = current.get(ref)
        if found not in (old, new, None):
            back = f"update-ref {ref} {old}" if old else f"update-ref -d {ref}"
            raise Stop(
                INTERRUPTED,
                f"{place}: {ref} is {found}, expected {old or 'nothing'} or {new}: someone moved it",
                f"keep what is there under another name (`{checkout.shell_git} branch my-work {found}`),",
                f"move it back (`{checkout.shell_git} {back}`) and {then}",
            )
    head = git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1)).strip() or git.commit("HEAD")
    if head not in (journal["from"], journal["head"]):
        branch = journal["from"].startswith("refs/")
        back = f"symbolic-ref HEAD {journal['from']}" if branch else f"update-ref --no-deref HEAD {journal['from']}"
        raise Stop(
            INTERRUPTED,
            f"{place}: HEAD is {head}, expected {journal['from']} or {journal['head']}:",
            "someone committed or checked out something there",
            f"keep what is there under a name (`{checkout.shell_git} branch my-work HEAD`),",
            f"move HEAD back, which changes no file (`{checkout.shell_git} {back}`), and {then}",
        )


def move_refs(checkout: Checkout, journal: dict) -> None:
    """Move branches, tags and HEAD to where the journal says."""
    git, orders = checkout.git, []
    current = git.refs()
    for ref, (old, new) in journal["refs"].items():
        found = current.get(ref)
        if new and found != new:
            orders.append(f"update {ref} {new} {old if found else NULL_ID}\n")
    if orders:
        git("update-ref", "--stdin", data="".join(orders).encode())
    if journal["head"].startswith("refs/"):
        git("symbolic-ref", "-m", f"era: {journal['verb']}", "HEAD", journal["head"])
    else:
        git("update-ref", "--no-deref", "-m", f"era: {journal['verb']}", "HEAD", journal["head"])
    gone = [f"delete {ref} {old}\n" for ref, (old, new) in journal["refs"].items() if not new and ref in current]
    if gone:  # last: HEAD may have been on it
        git("update-ref", "--stdin", data="".join(gone).encode())


def complete_earlier(run: Run, held: set[Path]) -> None:
    """Before a verb that switches checkouts: complete what an earlier run began."""
    for _, checkout in run.each():
        if checkout.journal and run.options.dry_run:
            refuse_interrupted(checkout)
        if checkout.journal:
            with run.context.uninterrupted():
                resume(checkout, held)
            again = f"run `{run.context.command(run.verb)}` again"
            run.context.advice, run.context.done = (
                "",
                f"only an earlier {checkout.journal['verb']} is complete; {again}",
            )


def resume(checkout: Checkout, held: set[Path]) -> None:
    """Complete an earlier switch, in this checkout and in those that were to change with it."""
    context = checkout.context
    for other in checkout.journal["together"]:
        path = Path(other)
        if path != checkout.path and find_git_dir(path):
            with contextlib.nullcontext() if path in held else lock_checkout(context, path, given=False):
                mate = look(context, path.name, path, given=False)
                if mate.journal:
                    complete(mate)
    complete(checkout)


def complete(checkout: Checkout) -> None:
    context = checkout.context
    context.advice = f"run `{context.command('apply')}` again to complete the switch; nothing is lost"
    finish_switch(checkout, checkout.journal)
    context.say(f"{checkout.name}: completed the {checkout.journal['verb']} that was cut short")


def verify_checkout(checkout: Checkout, tree: Tree, carried: list[str]) -> int:
    """Read every file of the result again, and return their number for the report."""
    wrong = [path for path in edits(checkout, tree) if path not in carried]
    if wrong:
        raise Stop(
            WRONG_BASE,
            f"{checkout.path}: after the switch these files are not what they should be: {some(wrong)}",
            f"was something else writing there? `{checkout.context.command('status', checkout.name)}` shows the state",
        )
    return len(tree) - len(carried)


def switch_all(jobs: list[tuple[Checkout, dict]]) -> None:
    """Write all journals and new contents, then carry them out. A failure before the first file is replaced is undone.

    From here to the end of the run, Ctrl-C has no effect.
    """
    begun = []
    try:
        for checkout, order in jobs:
            checkout.context.interruptible = False
            begun.append((checkout, order["plan"]))
            order["journal"] = begin_switch(checkout, together=[str(mate.path) for mate, _ in jobs], **order)
        for checkout, order in jobs:
            stage_files(checkout, order["plan"])
    except BaseException:
        for checkout, plan in begun:
            with contextlib.suppress(OSError):
                unstage_files(checkout, plan)
                (checkout.own_folder / "journal.json").unlink(missing_ok=True)
        raise
    for checkout, order in jobs:
        checkout.context.advice = f"run `{checkout.context.command('apply')}` to complete the switch; nothing is lost"
        finish_switch(checkout, order["journal"])
        checkout.context.advice = ""
