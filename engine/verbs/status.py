"""The verb status: one line, or one JSON object, per upstream."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from engine.checkout import DRIFTED, Status, evaluate, lock_checkout
from engine.errors import DRIFT, OK, Damaged, GitFailed, Stop, count, some
from engine.project import Upstream, read_overlay
from engine.run import Run


def verb_status(run: Run) -> int:
    drift, failed = False, []
    for up in map(run.upstreams.get, run.names):
        path = run.path(up.name)
        try:
            status = examine(run, up, path)
            if status.version in up.versions and status.state != "interrupted":
                read_overlay(up, status.version)  # a patch or overlay file that is missing is an error here too
        except Stop as stop:  # the other upstreams are shown all the same
            failed.append(stop)
            continue
        drift = drift or status.state in DRIFTED
        run.result[up.name] = {**dataclasses.asdict(status), "path": str(path)}
        if not run.context.json:
            run.context.say(status_line(up, path, status))
    if failed:
        raise Stop(failed[0].code, *(line for stop in failed for line in stop.lines))
    return DRIFT if drift else OK


def examine(run: Run, up: Upstream, path: Path) -> Status:
    """The state of one checkout, even of one that git itself cannot read."""
    requested = run.options.version
    try:
        checkout = run.look(up.name)
        if checkout.journal:  # perhaps another apply.py is switching it right now: wait for it
            with lock_checkout(run.context, path, checkout.given):
                checkout = run.look(up.name)
        return evaluate(up, checkout, requested)
    except (GitFailed, Damaged) as failed:
        said = failed.lines[1].removeprefix("git said: ") if isinstance(failed, GitFailed) else failed.lines[0]
        again = f"move the folder away, then `{run.context.command('apply', up.name)}`"
        advice = "repair it (`git fsck`), or clone again" if run.checkout else again
        return Status("wrong-base", requested or up.default, note=f"its .git is damaged ({said}); {advice}")


def status_line(up: Upstream, path: Path, status: Status) -> str:
    text = f"{up.name} {status.version}: {status.state}"
    if status.state not in ("absent", "wrong-base", "interrupted"):
        text += f" ({status.source}, {(status.commit or '')[:12]})"
    parts = [status.note] if status.note else []
    deleted = [file for file in status.files if not os.path.lexists(path / file)]
    edited = [file for file in status.files if file not in deleted]
    parts += [f"{what}: {some(files)}" for what, files in (("edited", edited), ("deleted", deleted)) if files]
    if status.commits:
        parts.append(f"{count(len(status.commits), 'commit')} of yours on top")
    if status.untracked:
        parts.append(count(len(status.untracked), "untracked file"))
    return text + f" in {path}" + "".join(f"; {part}" for part in parts)
