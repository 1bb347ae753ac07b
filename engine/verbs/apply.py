"""The verb apply: build the patched tree in the cache, verify it, and bring checkouts to it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from engine.build import Built, build
from engine.checkout import BRANCH, Checkout, Status, edits, evaluate, in_force, look, write_record
from engine.errors import LOCAL, WRONG_BASE, Stop, count, some
from engine.files import JUNK_PATTERNS
from engine.git import init_repository, take_commit
from engine.project import FORMAT, Overlay, Upstream, read_overlay
from engine.run import Run
from engine.source import Source, find_source, requested_kind
from engine.switch import (
    complete_earlier,
    crlf_hint,
    export_hint,
    other_worktree,
    plan_switch,
    switch_all,
    verify_checkout,
)


@dataclasses.dataclass
class Job:
    """What apply is about to do to one checkout."""

    up: Upstream
    label: str
    checkout: Checkout
    kind: str  # "none", "fresh" or "switch"
    message: str = ""
    source: Source | None = None
    overlay: Overlay | None = None
    built: Built | None = None
    plan: dict = dataclasses.field(default_factory=dict)
    refs: dict = dataclasses.field(default_factory=dict)
    record: dict = dataclasses.field(default_factory=dict)
    carried: list[str] = dataclasses.field(default_factory=list)
    verified: int = 0

    @property
    def title(self) -> str:
        return f"{self.up.name} {self.label}"

    @property
    def tag(self) -> str:
        return f"refs/tags/upstream/{self.label}"


def plan_apply(run: Run, up: Upstream, checkout: Checkout) -> Job:
    """Decide, build and check; nothing outside of the cache is written here."""
    if checkout.given and not checkout.exists:
        raise Stop(
            WRONG_BASE,
            f"--checkout {checkout.path}: there is no such folder, or it is empty",
            "expected a git clone of the upstream; nothing was changed",
        )
    options = run.options
    status = evaluate(up, checkout, options.version)
    label = options.version or (status.version if status.version in up.versions else up.default)
    job = Job(up, label, checkout, "fresh" if status.state == "absent" else "switch")
    run.result[up.name] = {"version": label, "action": "none"}
    record = in_force(checkout)
    refuse_unfit(run, up, label, checkout, status, record)
    if record and status.state != "stale" and requested_kind(options.source) in (None, record["source"]):
        job.kind, job.message = "none", nothing_to_do(up, label, record, status, options.version)
        return job
    recorded = "git" if checkout.given else (checkout.record or {}).get("source") if status.version == label else None
    job.overlay = read_overlay(up, label)
    job.source = find_source(run.cache, up, up.version(label), options.source, checkout.git, recorded)
    job.built = build(up, label, job.overlay, job.source)
    job.record = make_record(job, record)
    if job.kind == "switch":
        plan_refs(job, record, status)
        head_tree = checkout.git.tree(checkout.head)
        job.plan = plan_switch(checkout, head_tree, job.built.tree, {}, job.refs)
        job.carried = [path for path in edits(checkout, head_tree) if path not in job.plan]
    return job


def refuse_unfit(run: Run, up: Upstream, label: str, checkout: Checkout, status: Status, record: dict | None) -> None:
    """Refuse a checkout on another commit, or one with edits and no overlay."""
    if status.state == "wrong-base":
        raise Stop(
            WRONG_BASE,
            f"{checkout.path}: {status.note}",
            *way_there(run, up, label, checkout),
            "nothing was changed",
        )
    if not record and status.files:
        raise Stop(
            LOCAL,
            f"{checkout.path} has local edits on {status.version}: {some(status.files)}",
            *crlf_hint(checkout, status.files, checkout.git.tree(checkout.head)),
            f"stash them (`{checkout.shell_git} stash`), or commit them to a branch of yours and go back",
            f"(`{checkout.shell_git} checkout {checkout.head[:12]}`), then run the command again",
            "nothing was changed",
        )


def nothing_to_do(up: Upstream, label: str, record: dict, status: Status, requested: str | None) -> str:
    message = f"already applied ({record['source']}, {record['base'][:12]}), nothing to do"
    kept = [*status.files, *(f"commit {commit[:12]}" for commit in status.commits)]
    if kept:
        message += f"; your edits are kept: {some(kept)}"
    if label != up.default and not requested:
        message += f"; {up.default} is the default now, --version {up.default} switches to it"
    return message


def way_there(run: Run, up: Upstream, label: str, checkout: Checkout) -> list[str]:
    """What to do about a wrong base."""
    commit, git = up.version(label).commit, checkout.shell_git
    if not checkout.git:
        again = f"move the folder away and run `{run.context.command('apply', up.name)}` to get a fresh one"
        expected = "expected a clone of the upstream repository, with its .git, as the folder itself"
        return [expected] if checkout.given else [expected, again]
    lacking = f"it is not in this clone; if this is a clone of {up.name}: {git} fetch {up.url} {commit}"
    fetch = [] if checkout.git.commit(commit) else [lacking]
    port = run.context.command("port", up.name, "--write")
    carry = [f"to carry ERA into your own version, on a branch of its own: {port}"] if checkout.given else []
    return [*fetch, f"to get there: {git} checkout {commit}", *carry]


def make_record(job: Job, record: dict | None) -> dict:
    checkout = job.checkout
    return {
        "format": FORMAT,
        "version": job.label,
        "source": job.source.kind,
        "base": job.source.base,
        "tip": job.built.tip,
        "digest": job.overlay.digest(job.source.base),
        "inputs": {path: [digest] for path, digest in job.overlay.inputs.items()},
        "skipped": job.built.skipped,
        "before": record["before"] if record else checkout.ref or checkout.head,
        "made": checkout.record["made"] if checkout.record else [],  # even if the user left without `revert`
    }


def plan_refs(job: Job, record: dict | None, status: Status) -> None:
    """Branch and tag of the new state; commits that only `era` holds are never dropped."""
    checkout, tip, base = job.checkout, job.built.tip, job.source.base
    if checkout.given and base != (record["base"] if record else checkout.head):
        raise Stop(
            WRONG_BASE,
            f"{checkout.path} stands on {record['base'] if record else checkout.head}, expected {base}",
            f"to get there: {checkout.context.command('revert', job.up.name)},",
            f"then {checkout.shell_git} checkout {base}",
            "nothing was changed",
        )
    era = checkout.refs.get(BRANCH)
    ours = [tip, base, checkout.record["tip"], None] if checkout.record else [None]
    moved = record is not None and checkout.head != record["tip"]  # the user committed on era
    if moved and checkout.git("rev-parse", f"{checkout.head}^{{tree}}").strip() == job.built.tree_id:
        job.refs[f"refs/heads/era-backup-{checkout.head[:12]}"] = (None, checkout.head)
        ours.append(checkout.head)
    elif moved or era not in ours:
        refuse_foreign_branch(job, status, era)
    job.refs[BRANCH] = (era, tip)
    found = checkout.refs.get(job.tag)
    if found is None or job.tag in job.record["made"]:
        job.refs[job.tag] = (found, base)
        job.record["made"] = sorted({*job.record["made"], job.tag})


def refuse_foreign_branch(job: Job, status: Status, era: str) -> None:
    """Refuse: the branch era belongs to another worktree's overlay, or holds commits of the user's."""
    checkout = job.checkout
    other = None if checkout.record else other_worktree(checkout, era)
    if other:
        raise Stop(
            LOCAL,
            f"{checkout.path}: the overlay is applied in another worktree of this clone, {other}",
            "all worktrees of a clone share the branch era, so only one of them can have the overlay",
            f"revert it there first: `{checkout.context.command('revert', job.up.name, checkout=other)}`",
            "nothing was changed",
        )
    hint = export_hint(checkout, "turn them into patches with").removeprefix(" ").removesuffix(",")
    raise Stop(
        LOCAL,
        f"{checkout.path}: the branch era holds commits that are not ours: {some(status.commits or [era])}",
        f"{hint}, or keep them under another name with" if hint else "keep them under another name with",
        f"`{checkout.shell_git} branch -m era my-work` and check out {job.source.base[:12]}. Nothing was changed",
    )


def make_fresh(job: Job) -> Path:
    """Make the whole checkout beside its place; renaming it (in carry_out) is the last step."""
    path = job.checkout.path
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.new-*"):  # left by a killed run: we hold the lock
        shutil.rmtree(old)
    part = path.parent / f".{path.name}.new-{os.getpid()}"
    try:
        fill_fresh(job, part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return part


def fill_fresh(job: Job, part: Path) -> None:
    built, cache, context = job.built, job.source.git, job.checkout.context
    git = init_repository(context, part, bare=False)
    # Files keep their bytes here, whatever the user's configuration says about line ends and filters.
    (git.git_dir / "info").mkdir(exist_ok=True)
    (git.git_dir / "info" / "attributes").write_text("* -text -ident -filter -working-tree-encoding !eol\n")
    (git.git_dir / "info" / "exclude").write_text("".join(f"{pattern}\n" for pattern in JUNK_PATTERNS))
    with open(git.git_dir / "config", "a", encoding="utf-8") as config:
        config.write("[core]\n\tautocrlf = false\n\tsafecrlf = false\n")
        config.write(f'[remote "origin"]\n\turl = {job.up.url}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n')
    take_commit(git, cache, job.source.base, *built.commits)
    git("update-ref", "--stdin", data=f"create {BRANCH} {built.tip}\ncreate {job.tag} {job.source.base}\n".encode())
    git("symbolic-ref", "HEAD", BRANCH)
    git("read-tree", "--reset", "-u", built.tip)
    job.record.update(before=job.source.base, made=[job.tag])
    write_record(git.git_dir / "era", job.record)
    job.verified = verify_checkout(look(context, job.up.name, part, given=False), built.tree, [])


def bring_objects(checkout: Checkout, source: Source, built: Built) -> None:
    """Copy the new commits into the checkout, and the base if it lacks that too; a given clone stands on it."""
    git, cache, base = checkout.git, source.git, source.base
    if checkout.given or git.has_whole(base):
        git.import_objects(cache, cache("rev-list", "--objects", built.tip, f"^{base}"))
    else:
        take_commit(git, cache, base, *built.commits)


def verb_apply(run: Run) -> int:
    with run.held() as held:
        complete_earlier(run, held)
        jobs = []
        for up, checkout in run.each():
            with run.or_left_out(up.name):
                jobs.append(plan_apply(run, up, checkout))
        if run.options.dry_run:
            for job in jobs:
                planned = job.message or f"would be applied: {describe(job.built)}; nothing was changed"
                run.context.say(f"{job.title}: {planned}")
                run.result[job.up.name].update(action=job.kind)
            return run.code
        carry_out(run, jobs)
        for job in jobs:
            if job.kind == "switch":
                job.verified = verify_checkout(run.look(job.up.name), job.built.tree, job.carried)
            report(run, job)
    return run.code


def carry_out(run: Run, jobs: list[Job]) -> None:
    """All is prepared first, which can be undone; then existing checkouts are switched and new ones renamed."""
    made: list[tuple[Path, Path]] = []
    try:
        for job in jobs:
            if job.kind == "fresh":
                made.append((make_fresh(job), job.checkout.path))
            elif job.kind == "switch":
                bring_objects(job.checkout, job.source, job.built)
        switched = [(job.checkout, switch_order(job)) for job in jobs if job.kind == "switch"]
        switch_all(switched)
        for number, (part, path) in enumerate(made):
            run.context.interruptible = False
            if switched or number:
                run.context.advice = f"run `{run.context.command('apply')}` to complete it; nothing is lost"
            part.rename(path)
        run.context.advice = ""
    finally:
        for part, _ in made:
            shutil.rmtree(part, ignore_errors=True)


def switch_order(job: Job) -> dict:
    return {"verb": "apply", "plan": job.plan, "refs": job.refs, "head": BRANCH, "record": job.record}


def describe(built: Built) -> str:
    if not built.patches and not built.new_files:
        return "no overlay (upstream as it is)"
    lines = sum(patch.changed_lines for patch in built.patches)
    text = f"{count(len(built.patches), 'patch', 'es')} ({count(lines, 'line')}), {count(built.new_files, 'new file')}"
    skipped = f"; skipped, as the source package lacks their files: {some(built.skipped)}" if built.skipped else ""
    return text + skipped


def report(run: Run, job: Job) -> None:
    run.result[job.up.name].update(action=job.kind, path=str(job.checkout.path))
    if job.kind == "none":
        run.context.say(f"{job.title}: {job.message}")
        return
    origin = "fetched" if job.source.fresh else "from the cache"
    kept = f"; your edits are kept: {some(job.carried)}" if job.carried else ""
    run.context.say(
        f"{job.title}: {origin} ({job.source.kind}, {job.source.base[:12]}); applied {describe(job.built)}; "
        f"verified {count(job.verified, 'file')} in {job.checkout.path}{kept}"
    )
