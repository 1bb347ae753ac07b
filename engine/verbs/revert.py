"""The verb revert: back to the pinned upstream, byte for byte; --keep-edits saves the user's edits as a patch."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from engine.checkout import BRANCH, Checkout, edits, on_disk, snapshot
from engine.errors import LOCAL, OK, Stop, count, some
from engine.files import absolute, temporary_name, write_file
from engine.git import Entry
from engine.project import Upstream
from engine.run import Run, applied_record
from engine.switch import complete_earlier, plan_switch, switch_all, verify_checkout
from engine.verbs.diff import git_diff


def verb_revert(run: Run) -> int:
    say = run.context.say
    with run.held() as held:
        complete_earlier(run, held)
        jobs = []
        for up, checkout in run.each():
            record = applied_record(up, checkout)
            if record is None:
                refuse_unkept(run, checkout)
                say(f"{up.name}: nothing to revert, no overlay is applied in {checkout.path}")
                run.result[up.name] = {"action": "none"}
            else:
                jobs.append((checkout, record, plan_revert(run, up, checkout, record)))
        if run.options.dry_run:
            for checkout, _, order in jobs:
                say(f"{checkout.name}: would change {count(len(order['plan']), 'file')} back; nothing was changed")
                run.result[checkout.name] = {"action": "none", "would_change": sorted(order["plan"])}
            return OK
        switch_all([(checkout, order) for checkout, _, order in jobs])
        for checkout, record, order in jobs:
            finish(run, checkout, record, order)
    return OK


def finish(run: Run, checkout: Checkout, record: dict, order: dict) -> None:
    if checkout.given:
        shutil.rmtree(checkout.own_folder, ignore_errors=True)  # useless without the record
    after = run.look(checkout.name)
    verified = verify_checkout(after, after.git.tree(record["base"]), [])
    where = order["head"].removeprefix("refs/heads/") if order["head"].startswith("refs/") else "detached"
    run.context.say(
        f"{checkout.name} {record['version']}: back on upstream {record['base'][:12]} ({where}); "
        f"verified {count(verified, 'file')} in {checkout.path}"
    )
    run.result[checkout.name] = {"action": "reverted", "version": record["version"], "commit": record["base"]}


def plan_revert(run: Run, up: Upstream, checkout: Checkout, record: dict) -> dict:
    git, base = checkout.git, record["base"]
    head_tree = git.tree(checkout.head)
    edited = edits(checkout, head_tree)
    mine = git("rev-list", f"{record['tip']}..{checkout.head}").split()
    keep = run.options.keep_edits
    if (edited or mine) and not keep:
        raise Stop(
            LOCAL,
            f"{checkout.path} has local edits: {some([*edited, *(f'commit {oid[:12]}' for oid in mine)])}",
            f"save them as a patch first: {run.context.command('revert', up.name, '--keep-edits', 'my-edits.patch')}",
            "nothing was changed",
        )
    refs: dict[str, tuple] = {BRANCH: (checkout.refs.get(BRANCH), None)}
    if checkout.refs.get(BRANCH) not in (record["tip"], checkout.head, None):
        raise Stop(
            LOCAL,
            f"{checkout.path}: the branch era was moved to {checkout.refs[BRANCH]}",
            f"check it out ({checkout.shell_git} checkout era) and run the command again. Nothing was changed",
        )
    if mine:
        refs[f"refs/heads/era-backup-{checkout.head[:12]}"] = (None, checkout.head)
    head = record["before"] if checkout.refs.get(record["before"]) == base else base
    after = {**record, "tip": None}
    if checkout.given:
        refs.update({tag: (checkout.refs.get(tag), None) for tag in record["made"]})
        after = None
    if edited or mine:
        refuse_existing(absolute(keep))
    patch, saved = edits_as_patch(checkout, record, edited) if edited or mine else (b"", {})
    plan = plan_switch(checkout, head_tree, git.tree(base), saved, refs)
    if (edited or mine) and not run.options.dry_run:
        keep_patch(checkout, patch, absolute(keep))
    return {"verb": "revert", "plan": plan, "refs": refs, "head": head, "record": after}


def refuse_unkept(run: Run, checkout: Checkout) -> None:
    """Refuse when --keep-edits would save nothing."""
    edited = edits(checkout, checkout.git.tree(checkout.head)) if run.options.keep_edits and checkout.head else []
    if edited:
        raise Stop(
            LOCAL,
            f"{checkout.path}: no overlay is applied there, so --keep-edits would save nothing of {some(edited)}",
            f"`{checkout.shell_git} diff HEAD --binary > FILE` saves it. Nothing was changed",
        )


def edits_as_patch(checkout: Checkout, record: dict, edited: list[str]) -> tuple[bytes, dict[str, Entry | None]]:
    """The user's edits and commits as one patch on the overlay, and what the edited files hold.

    The patch is applied here once, to prove that it brings the edits back.
    """
    staged, head = checkout.git.index(), checkout.git.tree(checkout.head)
    for path in edited:
        if staged.get(path) not in (head.get(path), on_disk(checkout.path, path)):
            raise Stop(
                LOCAL,
                f"{checkout.path}: {path} has staged content that is not in the file",
                f"save it (`{checkout.shell_git} diff --cached --binary -- {shlex.quote(path)} > FILE`),",
                f"unstage it (`{checkout.shell_git} reset -- {shlex.quote(path)}`), then run the command again",
                "nothing was changed",
            )
    with snapshot(checkout, edited) as (git, tree):
        patch = git_diff(git, record["tip"], tree, "--binary", "--full-index", "--no-renames", "--")
        git("read-tree", record["tip"])
        if patch:
            git("apply", "--cached", "-", data=patch)
        if git.write_tree() != tree:
            raise Stop(
                LOCAL,
                f"{checkout.path}: the edits cannot be saved as a patch",
                "save them yourself. Nothing was changed",
            )
        contents = git.tree(tree)
    return patch, {path: contents.get(path) for path in edited}


def refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise Stop(
            LOCAL,
            f"--keep-edits {target}: the file exists and is not overwritten",
            "give another name. Nothing was changed",
        )


def keep_patch(checkout: Checkout, patch: bytes, target: Path) -> None:
    part = temporary_name(target)
    write_file(part, patch)
    try:
        os.link(part, target)  # unlike a rename it does not replace a file that has just appeared
    except FileExistsError:
        refuse_existing(target)
    except OSError:  # a file system without hard links
        part.rename(target)
    part.unlink(missing_ok=True)
    checkout.context.saved = str(target)
    back = shlex.join(["git", "-C", str(checkout.path), "apply", str(target)])
    saved = f"{checkout.name}: your edits are saved in {target}"
    checkout.context.say(f"{saved}; `{back}` on the applied overlay brings them back")
