# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The verbs fetch, apply, revert, status and diff."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable

from engine import switch
from engine.call import Call
from engine.checkout import DRIFTED, Checkout, edits, make_fresh, record_ref, refuse_unfinished
from engine.git import DIFF, Git
from engine.overlay import build
from engine.project import Upstream, read_overlay
from engine.session import DRIFT, LOCAL, OK, WRONG_BASE, Stop, count, hint, locked, say, shell_git, some, uninterrupted
from engine.source import bring, requested


def verb_fetch(call: Call) -> int:
    for name in call.names:
        up = call.upstreams[name]
        version = up.version(call.label(up) or up.default)
        call.cache.repair(name)
        with call.or_left_out(name):
            source = call.cache.find(up, version, call.options.source)
            say(f"{name} {version.label}: in the cache and verified ({source.kind}, {source.base[:12]})")
            call.result[name] = {"version": version.label, "source": source.kind, "commit": source.base}
    return OK


# --- apply and revert ---


def verb_apply(call: Call) -> int:
    return change_all(call, plan_apply)


def verb_revert(call: Call) -> int:
    return change_all(call, plan_revert)


def change_all(call: Call, plan: Callable) -> int:
    """Apply or revert, after everything was built and checked for all upstreams, before the first work tree changes."""
    with locked(call.checkouts), contextlib.ExitStack() as temporary:
        steps: list[Callable] = []
        for name in call.names:
            with call.or_left_out(name):
                steps += plan(call, call.upstreams[name], temporary)
        with uninterrupted("the same command again completes it; nothing is lost"):
            for step in steps:
                step()
    return OK


def plan_apply(call: Call, up: Upstream, temporary: contextlib.ExitStack) -> list[Callable]:
    """Prepare one checkout. Returns what is left to do, if anything."""
    checkout, wanted = call.look(up.name, repair=True), call.label(up)
    label = wanted or (checkout.version if checkout.version in up.versions else up.default)
    call.result[up.name] = {"version": label, "action": "none", "path": str(checkout.path)}
    refuse_unfit(up, label, checkout)
    kind = requested(call.options.source)[0] or checkout.kind
    if checkout.applied and checkout.state != "stale" and kind == checkout.kind:
        say(f"{up.name} {label}: {nothing_to_do(up, label, checkout, wanted)}")
        return []
    recorded = checkout.kind if checkout.label == label else ""
    source = call.cache.find(up, up.version(label), call.options.source, recorded)
    git = checkout.git or make_fresh(up, checkout.path, temporary)
    bring(git, call.cache.repository(up.name), source)
    built = build(git, up, label, source.base)
    forged = git.forged(source.base, built.tip)
    if forged:  # an object that was there before
        raise Stop(WRONG_BASE, f"{checkout.path}: {forged}", move_away(checkout))
    refs, way, carried = plan_refs(checkout, label, source.base, built.tip), None, []
    if checkout.git:
        way = switch.plan(checkout, built.tip)
        carried = sorted({*checkout.edited} - {*way.paths})
    else:
        switch.fill(git, refs, built.tip)

    def finish() -> None:
        if way:
            switch.carry_out(way, refs, to_branch=True)
        number = verify(git, built.tip, carried)
        if not way:
            git.folder.rename(checkout.path)  # which is an empty folder, or not there
        call.result[up.name]["action"] = "switch" if way else "fresh"
        text = f"applied {built} to {source.base[:12]} ({source.kind}); verified {number} files in {checkout.path}"
        kept = f"; your edits are kept: {some(carried)}" if carried else ""
        say(f"{up.name} {label}: {text}{kept}")
        if source.kind == "pypi":
            say(f"{up.name} {label}: the source package lacks {up.version(label).sdist.lacks}")

    return [finish]


def refuse_unfit(up: Upstream, label: str, checkout: Checkout) -> None:
    """Refuse a checkout on another commit, or one with edits and no overlay."""
    if checkout.state == "wrong-base":
        back = [f"or {shell_git(checkout.path, 'checkout', up.version(label).commit)}"] if checkout.head else []
        raise Stop(WRONG_BASE, f"{checkout.path}: {checkout.note}", move_away(checkout), *back)
    if checkout.files and not checkout.applied:
        problem = f"{checkout.path} has local edits on {checkout.version}: {some(checkout.files)}"
        stash = shell_git(checkout.path, "stash")
        raise Stop(LOCAL, problem, f"stash them: {stash}; `git stash pop` brings them back after apply")


def move_away(checkout: Checkout) -> str:
    words = shlex.join(["mv", str(checkout.path), f"{checkout.path}-old"])
    return f"move it away (`{words}`) and run {hint('apply', checkout.name)} again"


def nothing_to_do(up: Upstream, label: str, checkout: Checkout, wanted: str | None) -> str:
    text = f"already applied to {checkout.base[:12]} ({checkout.kind}), nothing to do"
    kept = [*checkout.files, *(f"commit {oid[:12]}" for oid in checkout.commits)]
    text += f"; your edits are kept: {some(kept)}" if kept else ""
    newer = label != up.default and not wanted
    return text + (f"; {up.default} is the default now, --version {up.default} switches to it" if newer else "")


def plan_refs(checkout: Checkout, label: str, base: str, tip: str) -> list[str]:
    """Return the refs to be written before a switch. Commits that only the branch era holds are never dropped."""
    orders = [f"update {record_ref(label, base, tip)} {tip}", f"update refs/tags/upstream/{label} {base}"]
    git, ends = checkout.git, {checkout.head, checkout.era} - {""}
    if checkout.commits and not git.changes(checkout.head, tip):  # exported since: kept, and out of the way
        orders.append(f"update refs/heads/era-saved/{checkout.head[:12]} {checkout.head}")
        ends.remove(checkout.head)
    if ends and (mine := git.held_nowhere(ends, [*checkout.tips, base])):
        keep = f"{shell_git(checkout.path, 'branch', 'my-work', mine[0])} keeps them on a branch"
        export = [f"{hint('export', checkout.name)} makes patches of them"] if checkout.applied else []
        problem = f"{checkout.path} has commits of yours that no other branch holds: {some(oid[:12] for oid in mine)}"
        raise Stop(LOCAL, problem, *export, keep)
    return orders


def verify(git: Git, commit: str, carried: list[str]) -> int:
    """Read every file of the result. Returns their number."""
    wrong = {*edits(git, commit)[0]} - {*carried}
    if wrong:
        raise Stop(WRONG_BASE, f"{git.folder}: after the switch these files differ: {some(sorted(wrong))}")
    return len(git.paths(commit)) - len(carried)


def plan_revert(call: Call, up: Upstream, _: contextlib.ExitStack) -> list[Callable]:
    checkout, name = call.look(up.name, repair=True), up.name
    result = call.result[name] = {"action": "none"}
    if checkout.applied and checkout.era not in ("", checkout.tip, checkout.head):
        checkout.state, checkout.note = "wrong-base", "the branch era is elsewhere: check it out first"
    if checkout.state == "wrong-base":
        raise Stop(WRONG_BASE, f"{checkout.path}: {checkout.note}", move_away(checkout))
    if not checkout.applied:
        say(f"{name}: nothing to revert, no overlay is applied in {checkout.path}")
        return []
    checkout.git("rev-list", "--objects", "--no-walk", checkout.base)  # ends here if there is a file that git lacks
    mine = [*checkout.edited, *(f"commit {oid[:12]}" for oid in checkout.commits)]
    if mine and not call.options.keep_edits:
        advice = f"{hint('revert', name, '--keep-edits')} puts them on a branch first"
        raise Stop(LOCAL, f"{checkout.path} has local edits: {some(mine)}", advice)
    if mine:
        tree = checkout.git.snapshot(checkout.head, checkout.edited)
    way = switch.plan(checkout, checkout.base, checkout.edited, saved=bool(mine))

    def finish() -> None:
        if mine:
            switch.save(checkout, tree, f"your edits of {name}")
        switch.carry_out(way, [], to_branch=False)
        number = verify(checkout.git, checkout.base, [])
        text = f"back on upstream {checkout.base[:12]} ({checkout.kind}); verified {number} files in {checkout.path}"
        say(f"{name} {checkout.label}: {text}")
        result.update(action="reverted", version=checkout.label, commit=checkout.base)

    return [finish]


# --- status and diff ---


def verb_status(call: Call) -> int:
    drift, failed = False, []
    for name in call.names:
        try:
            checkout = call.look(name)
            if checkout.version in call.upstreams[name].versions:
                read_overlay(name, checkout.version)  # a patch or file that is missing is an error here too
        except Stop as stop:  # the others are shown all the same
            failed.append(stop)
            continue
        drift = drift or checkout.state in DRIFTED
        known = checkout.state not in ("absent", "wrong-base", "interrupted")
        values = {**vars(checkout), "path": str(checkout.path), "commit": checkout.head or None}
        values["source"] = checkout.kind if known else None
        shown = ("version", "state", "source", "commit", "path", "files", "untracked", "commits", "note")
        call.result[name] = {key: values[key] for key in shown}
        base = checkout.base if checkout.applied else checkout.head  # what `apply` prints
        text = f"{name} {checkout.version}: {checkout.state}"
        text += f" ({checkout.kind}, {base[:12]})" if known else ""
        text += f" in {checkout.path}" + (f"; {checkout.note}" if checkout.note else "")
        text += f"; edited: {some(checkout.files)}" if checkout.files else ""
        text += f"; {count(len(checkout.commits), 'commit')} of yours on top" if checkout.commits else ""
        text += f"; {count(len(checkout.untracked), 'untracked file')}" if checkout.untracked else ""
        say(text)
    if failed:
        raise Stop(failed[0].code, *(line for stop in failed for line in stop.lines))
    return DRIFT if drift else OK


def verb_diff(call: Call) -> int:
    """Print what `git diff` shows between upstream and the overlay; with --local, between the overlay and the files."""
    shape = ["--stat"] if call.options.stat else ["--patch", "--binary"]
    color = "always" if not call.options.json and sys.stdout.isatty() else "never"
    for name in call.names:
        checkout = call.look(name)
        if checkout.state in ("absent", "wrong-base"):
            problem = f"{checkout.path}: {checkout.note or 'there is no checkout yet'}"
            raise Stop(WRONG_BASE, problem, f"{hint('apply', name)} makes one")
        refuse_unfinished(checkout)
        tip = checkout.tip if checkout.applied else checkout.head
        git = checkout.git.scratch_objects()
        ends = (checkout.base if checkout.applied else tip, tip)
        if call.options.local:
            ends = (tip, git.snapshot(checkout.head, [*checkout.edited, *checkout.untracked]))
        out = git.run(*DIFF, "-M", f"--color={color}", *shape, *ends, "--", *call.paths).stdout
        if not out:
            print(f"{name}: no difference in {checkout.path}", file=sys.stderr, flush=True)
        call.result[name] = {"diff": out.decode("utf-8", "backslashreplace")}
        if not call.options.json:
            sys.stdout.flush()
            sys.stdout.buffer.write(out)
            sys.stdout.buffer.flush()
    return OK
