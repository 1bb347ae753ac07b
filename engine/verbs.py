"""The verbs fetch, status, diff and revert."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from pathlib import Path

from engine.checkout import (
    BRANCH,
    DRIFTED,
    Checkout,
    Run,
    Status,
    applied_record,
    edits,
    evaluate,
    lock_checkout,
    on_disk,
    snapshot,
    untracked,
)
from engine.common import (
    DRIFT,
    LOCAL,
    OK,
    WRONG_BASE,
    Stop,
    absolute,
    command,
    count,
    interrupts_held,
    put_in_place,
    say,
    some,
    unfinished,
    uninterrupted,
    write_beside,
)
from engine.git import Damaged, Entry, Git, GitFailed
from engine.project import Upstream, count_project
from engine.sources import find_source, repair_cache
from engine.switch import complete_earlier, plan_switch, switch_all, verify_checkout


def verb_fetch(run: Run) -> int:
    for name in run.names:
        up = run.upstreams[name]
        label = run.version or up.default
        version = up.version(label)
        run.result[name] = {"version": label, "commit": version.commit, "fetched": False}
        if run.dry_run:
            say(
                f"{name} {label}: would fetch {version.commit[:12]} from {up.url}, unless the cache {run.cache.root} has it"
            )
            continue
        repair_cache(run.cache, up)
        with run.or_left_out(name):
            source = find_source(run.cache, up, version, run.source, None, None)
            origin = "fetched" if source.fresh else "in the cache"
            say(f"{name} {label}: {origin} and verified ({source.kind}, {source.base[:12]})")
            run.result[name].update(source=source.kind, commit=source.base, fetched=source.fresh)
    return run.code


def verb_status(run: Run) -> int:
    drift = False
    for up in map(run.upstreams.get, run.names):
        path = run.path(up.name)
        status = examine(run, up, path)
        if status.version in up.versions and status.state != "interrupted":
            count_project(up, status.version)
        drift = drift or status.state in DRIFTED
        run.result[up.name] = {**dataclasses.asdict(status), "path": str(path)}
        if not run.options.json:
            say(status_line(up, path, status))
    return DRIFT if drift else OK


def examine(run: Run, up: Upstream, path: Path) -> Status:
    """The state of one checkout, also of one that git itself cannot read."""
    try:
        checkout = run.look(up.name)
        if checkout.journal:  # perhaps only because another apply.py is at work right now
            with lock_checkout(path, checkout.given):
                checkout = run.look(up.name)
        return evaluate(up, checkout, run.version)
    except (GitFailed, Damaged) as failed:
        said = failed.lines[1].removeprefix("git said: ") if isinstance(failed, GitFailed) else failed.lines[0]
        advice = (
            "mend it (`git fsck`), or clone anew"
            if run.checkout
            else f"move the folder away, then `{command('apply', up.name)}`"
        )
        return Status("wrong-base", run.version or up.default, note=f"its .git is damaged ({said}); {advice}")


def status_line(up: Upstream, path: Path, status: Status) -> str:
    text = f"{up.name} {status.version}: {status.state}"
    if status.state not in ("absent", "wrong-base", "interrupted"):
        text += f" ({status.source}, {(status.commit or '')[:12]})"
    parts = [status.note] if status.note else []
    if status.files:
        parts.append(f"edited: {some(status.files)}")
    if status.commits:
        parts.append(f"{count(len(status.commits), 'commit')} of yours on top")
    if status.untracked:
        parts.append(f"{count(len(status.untracked), 'untracked file')}")
    return text + f" in {path}" + "".join(f"; {part}" for part in parts)


def git_diff(git: Git, old: str, new: str, *more: str) -> bytes:
    # Not `git diff`, which obeys the diff.* settings of the checkout: its context lines, order of files, algorithm.
    flags, paths = more[: more.index("--")], more[more.index("--") :]
    return git.run("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", *flags, old, new, *paths).stdout


def verb_diff(run: Run) -> int:
    shape = ["--stat"] if run.options.stat else ["--binary"]
    color = not run.options.json and sys.stdout.isatty()
    for up, checkout in run.each():
        record = applied_record(run, up, checkout)
        if checkout.git is None:
            raise Stop(
                WRONG_BASE, f"{checkout.path}: there is no checkout yet", f"run `{command('apply', up.name)}` first"
            )
        tip = record["tip"] if record else checkout.head
        flags = [*shape, f"--color={'always' if color else 'never'}", "--", *run.paths]
        if run.options.local:
            with snapshot(checkout, [*edits(checkout, checkout.git.tree(checkout.head)), *untracked(checkout)]) as (
                git,
                tree,
            ):
                out = git_diff(git, tip, tree, *flags)
        else:
            out = git_diff(checkout.git, record["base"] if record else tip, tip, *flags)
        if not out:
            print(f"{up.name}: {empty_diff(run, checkout, record)}", file=sys.stderr, flush=True)
        run.result[up.name] = {"diff": out.decode("utf-8", "backslashreplace")}
        if not run.options.json:
            sys.stdout.flush()
            sys.stdout.buffer.write(out)
            sys.stdout.buffer.flush()
    return OK


def empty_diff(run: Run, checkout: Checkout, record: dict | None) -> str:
    if record is None and not run.options.local:
        return f"no overlay is applied in {checkout.path}, so there is no difference"
    if not run.options.local and record["tip"] == record["base"]:
        return f"{checkout.path}: this upstream has no overlay, so there is no difference"
    what = "your edits" if run.options.local else "the overlay"
    return (
        f"no path that differs matches {some(run.paths)}" if run.paths else f"{what} in {checkout.path}: no difference"
    )


def verb_revert(run: Run) -> int:
    with run.held() as held:
        complete_earlier(run, held)
        jobs = []
        for up, checkout in run.each():
            record = applied_record(run, up, checkout)
            if record is None:
                refuse_unkept(run, checkout)
                say(f"{up.name}: nothing to revert, no overlay is applied in {checkout.path}")
                run.result[up.name] = {"action": "none"}
                continue
            jobs.append((checkout, record, plan_revert(run, up, checkout, record)))
        if run.dry_run:
            for checkout, _, order in jobs:
                say(f"{checkout.name}: would change {count(len(order['plan']), 'file')} back; nothing was changed")
                run.result[checkout.name] = {"action": "none", "would_change": sorted(order["plan"])}
            return OK
        if jobs:
            with uninterrupted(f"the revert is complete; `{command('status')}` shows it"):
                switch_all([(checkout, order) for checkout, _, order in jobs])
        for checkout, record, order in jobs:
            if checkout.given:
                shutil.rmtree(
                    checkout.own_folder, ignore_errors=True
                )  # what is left there means nothing without a record
            after = run.look(checkout.name)
            verified = verify_checkout(after, after.git.tree(record["base"]), [])
            where = order["head"].removeprefix("refs/heads/") if order["head"].startswith("refs/") else "detached"
            say(
                f"{checkout.name} {record['version']}: back on upstream {record['base'][:12]} ({where}); "
                f"verified {count(verified, 'file')} in {checkout.path}"
            )
            run.result[checkout.name] = {"action": "reverted", "version": record["version"], "commit": record["base"]}
    return OK


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
            f"save them as a patch first: {command('revert', up.name, '--keep-edits', 'my-edits.patch')}. Nothing was changed",
        )
    refs: dict[str, tuple] = {BRANCH: (checkout.refs.get(BRANCH), None)}
    if checkout.refs.get(BRANCH) not in (record["tip"], checkout.head, None):
        raise Stop(
            LOCAL,
            f"{checkout.path}: the branch era was moved to {checkout.refs[BRANCH]}",
            f"check it out (git -C {checkout.path} checkout era) and run the command again. Nothing was changed",
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
    if (edited or mine) and not run.dry_run:
        keep_patch(checkout, patch, absolute(keep))
    return {"verb": "revert", "plan": plan, "refs": refs, "head": head, "record": after}


def refuse_unkept(run: Run, checkout: Checkout) -> None:
    """Who asks for a patch of his edits must not take the end of the run for one."""
    edited = edits(checkout, checkout.git.tree(checkout.head)) if run.options.keep_edits and checkout.head else []
    if edited:
        raise Stop(
            LOCAL,
            f"{checkout.path}: no overlay is applied there, so --keep-edits would save nothing of {some(edited)}",
            f"`git -C {checkout.path} diff HEAD --binary > FILE` saves it. Nothing was changed",
        )


def edits_as_patch(checkout: Checkout, record: dict, edited: list[str]) -> tuple[bytes, dict[str, Entry | None]]:
    """The user's edits and commits as one patch on the overlay, proven to give them back; and what the edited files hold."""
    staged, head = checkout.git.index(), checkout.git.tree(checkout.head)
    for path in edited:
        if staged.get(path) not in (head.get(path), on_disk(checkout.path, path)):
            raise Stop(
                LOCAL,
                f"{checkout.path}: {path} has staged content that is not in the file",
                f"save it (`git -C {checkout.path} diff --cached --binary -- {path} > FILE`), unstage it (`git -C {checkout.path} reset -- {path}`),",
                "then run the command again. Nothing was changed",
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
    with interrupts_held():
        part = write_beside(target, patch)
        if not put_in_place(part, target, lambda _: False):
            part.unlink()
            refuse_existing(target)
        unfinished.saved = str(target)
    back = shlex.join(["git", "-C", str(checkout.path), "apply", str(target)])
    say(f"{checkout.name}: your edits are saved in {target}; `{back}` on the applied overlay brings them back")
