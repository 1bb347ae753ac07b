"""The verb diff: the overlay, or the user's edits on top of it, as git shows them."""

from __future__ import annotations

import sys

from engine.checkout import Checkout, edits, snapshot, untracked
from engine.errors import OK, WRONG_BASE, Stop, some
from engine.git import Git
from engine.run import Run, applied_record


def git_diff(git: Git, old: str, new: str, *more: str) -> bytes:
    # Not `git diff`, which obeys the diff.* settings of the checkout: its context lines, order of files, algorithm.
    flags, paths = more[: more.index("--")], more[more.index("--") :]
    return git.run("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", *flags, old, new, *paths).stdout


def verb_diff(run: Run) -> int:
    shape = ["--stat"] if run.options.stat else ["--binary"]
    color = "always" if not run.context.json and sys.stdout.isatty() else "never"
    flags = [*shape, f"--color={color}", "--", *run.paths]
    for up, checkout in run.each():
        record = applied_record(up, checkout)
        if checkout.git is None:
            hint = f"run `{run.context.command('apply', up.name)}` first"
            raise Stop(WRONG_BASE, f"{checkout.path}: there is no checkout yet", hint)
        tip = record["tip"] if record else checkout.head
        if run.options.local:
            files = [*edits(checkout, checkout.git.tree(checkout.head)), *untracked(checkout)]
            with snapshot(checkout, files) as (git, tree):
                out = git_diff(git, tip, tree, *flags)
        else:
            out = git_diff(checkout.git, record["base"] if record else tip, tip, *flags)
        if not out:
            print(f"{up.name}: {why_empty(run, checkout, record)}", file=sys.stderr, flush=True)
        run.result[up.name] = {"diff": out.decode("utf-8", "backslashreplace")}
        if not run.context.json:
            sys.stdout.flush()
            sys.stdout.buffer.write(out)
            sys.stdout.buffer.flush()
    return OK


def why_empty(run: Run, checkout: Checkout, record: dict | None) -> str:
    if record is None and not run.options.local:
        return f"no overlay is applied in {checkout.path}, so there is no difference"
    if not run.options.local and record["tip"] == record["base"]:
        return f"{checkout.path}: this upstream has no overlay, so there is no difference"
    what = "your edits" if run.options.local else "the overlay"
    if run.paths:
        return f"no path that differs matches {some(run.paths)}"
    return f"{what} in {checkout.path}: no difference"
