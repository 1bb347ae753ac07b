"""The verb apply: base + overlay files + patches become commits, and checkouts are brought to them.

The commits are made by git and computed a second time by Python; both must agree before a checkout is touched.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from engine.checkout import (
    BRANCH,
    Checkout,
    Run,
    Status,
    edits,
    evaluate,
    in_force,
    look,
    refuse_half_exported,
    write_record,
)
from engine.common import CONFLICT, LOCAL, WRONG_BASE, Stop, command, count, say, some, unfinished, uninterrupted
from engine.git import (
    Content,
    Git,
    Tree,
    add_shallow,
    blob_id,
    init_repository,
    read_contents,
    scratch_index,
    store_files,
    tree_id,
)
from engine.patches import Conflict, Patch, apply_diff, check_ids, patched_paths
from engine.project import (
    FORMAT,
    JUNK_PATTERNS,
    Overlay,
    Upstream,
    check_no_overwrite,
    count_project,
    read_overlay,
    select_patches,
)
from engine.sources import Source, find_source, wished_kind
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
class Built:
    tip: str
    commits: list[str]
    tree: Tree
    patches: list[Patch]
    skipped: list[str]
    new_files: int

    @property
    def changed_lines(self) -> int:
        return sum(patch.changed for patch in self.patches)


def compute(patches: list[Patch], tree: Tree, contents: dict[str, Content]):
    """After each patch: the whole tree, as strict Python sees it. `contents` holds the patched files to begin with."""
    tree = dict(tree)
    for patch in patches:
        for diff in patch.diffs:
            before = contents.get(diff.path)
            after = apply_diff(diff, before)
            check_ids(patch, diff, before, after)
            if after is None:
                del contents[diff.path], tree[diff.path]
            else:
                contents[diff.path] = after
                tree[diff.path] = (after[0], blob_id(after[1]))
        yield patch, dict(tree)


def build(up: Upstream, label: str, overlay: Overlay, source: Source) -> Built:
    """The overlay as commits on the base, in the cache repository."""
    git = source.git
    base = git.tree(source.base)
    patches, skipped = select_patches(overlay, source.lacks)
    check_no_overwrite(up.name, overlay.files, base)
    commits, tip, tree = [], source.base, base
    if overlay.files:
        tip = store_files(git, overlay.files, tip, f"New files of the ERA overlay for {up.name}\n")
        tree = {**base, **{path: (mode, blob_id(content)) for path, (mode, content) in overlay.files.items()}}
        commits.append(tip)
    contents = {**read_contents(git, base, patched_paths(patches)), **overlay.files}
    with scratch_index(git) as scratch:
        scratch("read-tree", tip)
        steps = compute(patches, tree, contents)
        for patch in patches:
            try:
                _, tree = next(steps)
            except Conflict as conflict:
                raise conflict_stop(up, label, patch, conflict) from None
            scratch("apply", "--cached", "-", data=patch.raw)
            written = scratch.write_tree()
            if written != tree_id(tree):
                raise Stop(
                    WRONG_BASE,
                    f"{patch.file}: git apply made another tree than the patch defines",
                    "nothing was changed; please report this",
                )
            tip = git.commit_tree(written, [tip], f"{patch.message}\nEra-Patch: {patch.file}\n")
            commits.append(tip)
    return Built(tip, commits, tree, patches, skipped, len(overlay.files))


def conflict_stop(up: Upstream, label: str, patch: Patch, conflict: Conflict) -> Stop:
    return Stop(
        CONFLICT,
        f"{up.name} {label}: {patch.file} does not apply",
        *conflict.lines,
        f"to see where it would go: {command('port', up.name, '--onto', label)}",
        "nothing was changed",
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
    status = evaluate(up, checkout, run.version)
    label = run.version or (status.version if status.version in up.versions else up.default)
    job = Job(up, label, checkout, "fresh" if status.state == "absent" else "switch")
    run.result[up.name] = {"version": label, "action": "none"}
    if status.state == "wrong-base":
        raise Stop(
            WRONG_BASE,
            f"{checkout.path}: {status.note}",
            *(
                []
                if checkout.git
                else ["expected a clone of the upstream repository, with its .git, as the folder itself"]
            ),
            *way_there(up, label, checkout),
            "nothing was changed",
        )
    refuse_half_exported(up, status)
    record = in_force(checkout)
    wish = wished_kind(run.source)
    if record and status.state != "stale" and wish in (None, record["source"]):
        kept = [*status.files, *(f"commit {commit[:12]}" for commit in status.commits)]
        count_project(up, label)
        job.kind = "none"
        job.message = f"already applied ({record['source']}, {record['base'][:12]}), nothing to do" + (
            f"; your edits are kept: {some(kept)}" if kept else ""
        )
        if label != up.default and not run.version:
            job.message += f"; {up.default} is the default now, --version {up.default} switches to it"
        return job
    if not record and status.files:
        raise Stop(
            LOCAL,
            f"{checkout.path} has local edits on {status.version}: {some(status.files)}",
            *crlf_hint(checkout, status.files, checkout.git.tree(checkout.head)),
            f"stash them (`git -C {checkout.path} stash`), or commit them to a branch of yours and go back",
            f"(`git -C {checkout.path} checkout {checkout.head[:12]}`), then run the command again. Nothing was changed",
        )
    recorded = "git" if checkout.given else (checkout.record or {}).get("source") if status.version == label else None
    job.overlay = read_overlay(up, label)
    job.source = find_source(run.cache, up, up.version(label), run.source, checkout.git, recorded)
    job.built = build(up, label, job.overlay, job.source)
    job.record = make_record(job, record)
    if job.kind == "switch":
        plan_refs(job, record, status)
        head_tree = checkout.git.tree(checkout.head)
        job.plan = plan_switch(checkout, head_tree, job.built.tree, {}, job.refs)
        job.carried = [path for path in edits(checkout, head_tree) if path not in job.plan]
    return job


def way_there(up: Upstream, label: str, checkout: Checkout) -> list[str]:
    commit = up.version(label).commit
    if checkout.git:
        fetch = (
            []
            if checkout.git.commit(commit)
            else [f"it is not in this clone: git -C {checkout.path} fetch {up.url} {commit}"]
        )
        return [*fetch, f"to get there: git -C {checkout.path} checkout {commit}"]
    return [] if checkout.given else [f"move the folder away and run `{command('apply', up.name)}` to get a fresh one"]


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
        "made": checkout.record["made"] if checkout.record else [],  # also where the user left the overlay by himself
    }


def plan_refs(job: Job, record: dict | None, status: Status) -> None:
    """Branch and tag of the new state; commits that only `era` holds are never dropped."""
    checkout, tip, base = job.checkout, job.built.tip, job.source.base
    if checkout.given and base != (record["base"] if record else checkout.head):
        raise Stop(
            WRONG_BASE,
            f"{checkout.path} stands on {record['base'] if record else checkout.head}, expected {base}",
            f"to get there: {command('revert', job.up.name)}, then git -C {checkout.path} checkout {base}",
            "nothing was changed",
        )
    era = checkout.refs.get(BRANCH)
    ours = [tip, base, checkout.record["tip"], None] if checkout.record else [None]
    moved = record is not None and checkout.head != record["tip"]  # the user committed on era
    if moved and checkout.git("rev-parse", f"{checkout.head}^{{tree}}").strip() == tree_id(job.built.tree):
        job.refs[f"refs/heads/era-backup-{checkout.head[:12]}"] = (None, checkout.head)
        ours.append(checkout.head)
    elif moved or era not in ours:
        other = None if checkout.record else other_worktree(checkout, era)
        if other:
            raise Stop(
                LOCAL,
                f"{checkout.path}: the overlay is applied in another worktree of this clone, {other}",
                "all worktrees of a clone share the branch era, so it can be applied in one of them only",
                f"revert it there first: `{command('revert', job.up.name, checkout=other)}`. Nothing was changed",
            )
        turn = export_hint(checkout, "turn them into patches with").removeprefix(" ").removesuffix(",")
        turn = f"{turn}, or " if turn else ""
        raise Stop(
            LOCAL,
            f"{checkout.path}: the branch era holds commits that are not ours: {some(status.commits or [era])}",
            f"{turn}keep them under another name with",
            f"`git -C {checkout.path} branch -m era my-work` and check out {base[:12]}. Nothing was changed",
        )
    job.refs[BRANCH] = (era, tip)
    found = checkout.refs.get(job.tag)
    if found is None or job.tag in job.record["made"]:
        job.refs[job.tag] = (found, base)
        job.record["made"] = sorted({*job.record["made"], job.tag})


def make_fresh(job: Job) -> Path:
    """The whole checkout beside its place; the rename that brings it there is the last step."""
    path = job.checkout.path
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.new-*"):  # ours: we hold the lock, so whoever made it is dead
        shutil.rmtree(old)
    part = path.parent / f".{path.name}.new-{os.getpid()}"
    try:
        fill_fresh(job, part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return part


def fill_fresh(job: Job, part: Path) -> None:
    built, cache = job.built, job.source.git
    init_repository(part, bare=False)
    git_dir = part / ".git"
    git = Git(git_dir, part)
    # Bytes are bytes here, whatever the user's configuration says about line ends and filters.
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text("* -text -ident -filter -working-tree-encoding !eol\n")
    (git_dir / "info" / "exclude").write_text("".join(f"{pattern}\n" for pattern in JUNK_PATTERNS))
    with open(git_dir / "config", "a", encoding="utf-8") as config:
        config.write("[core]\n\tautocrlf = false\n\tsafecrlf = false\n")
        config.write(f'[remote "origin"]\n\turl = {job.up.url}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n')
    git.import_objects(cache, cache("rev-list", "--objects", "--no-walk", job.source.base, *built.commits))
    add_shallow(git, job.source.base)
    git("update-ref", "--stdin", data=f"create {BRANCH} {built.tip}\ncreate {job.tag} {job.source.base}\n".encode())
    git("symbolic-ref", "HEAD", BRANCH)
    git("read-tree", "--reset", "-u", built.tip)
    job.record.update(before=job.source.base, made=[job.tag])
    write_record(git_dir / "era", job.record)
    job.verified = verify_checkout(look(job.up.name, part, given=False), built.tree, [])


def bring_objects(job: Job) -> None:
    """The new commits, and the base where it is new there too."""
    git, cache, base = job.checkout.git, job.source.git, job.source.base
    if git.commit(base):
        git.import_objects(cache, cache("rev-list", "--objects", job.built.tip, f"^{base}"))
    else:
        git.import_objects(cache, cache("rev-list", "--objects", "--no-walk", base, *job.built.commits))
        add_shallow(git, base)


def verb_apply(run: Run) -> int:
    with run.held() as held:
        complete_earlier(run, held)
        jobs = []
        for up, checkout in run.each():
            with run.or_left_out(up.name):
                jobs.append(plan_apply(run, up, checkout))
        if run.dry_run:
            for job in jobs:
                say(f"{job.title}: " + (job.message or f"would be applied: {describe(job)}; nothing was changed"))
                run.result[job.up.name].update(action=job.kind)
            return run.code
        carry_out(run, jobs)
        for job in jobs:
            if job.kind == "switch":
                fresh_look = run.look(job.up.name)
                job.verified = verify_checkout(fresh_look, job.built.tree, job.carried)
            report(run, job)
    return run.code


def carry_out(run: Run, jobs: list[Job]) -> None:
    made = []
    try:
        for job in jobs:
            if job.kind == "fresh":
                made.append((make_fresh(job), job.checkout.path))
            elif job.kind == "switch":
                bring_objects(job)
        if any(job.kind != "none" for job in jobs):
            carry_over(run, jobs, made)
    finally:
        for part, _ in made:
            shutil.rmtree(part, ignore_errors=True)


def carry_over(run: Run, jobs: list[Job], made: list[tuple[Path, Path]]) -> None:
    """The step that counts: before it nothing has changed, after it all has."""
    but = f", but {some(list(run.left_out))} could not be had" if run.left_out else ""
    with uninterrupted(f"the apply is complete{but}; `{command('status')}` shows it", run.code):
        switch_all([(job.checkout, apply_order(job)) for job in jobs if job.kind == "switch"])
        unfinished.advice = f"run `{command('apply')}` to complete it; nothing is lost"
        for part, path in made:
            part.rename(path)


def apply_order(job: Job) -> dict:
    return {"verb": "apply", "plan": job.plan, "refs": job.refs, "head": BRANCH, "record": job.record}


def describe(job: Job) -> str:
    built = job.built
    if not built.patches and not built.new_files:
        text = "no overlay (upstream as it is)"
    else:
        text = f"{count(len(built.patches), 'patch', 'es')} ({count(built.changed_lines, 'line')}), {count(built.new_files, 'new file')}"
    if built.skipped:
        text += f"; skipped, as the source package lacks their files: {some(built.skipped)}"
    return text


def report(run: Run, job: Job) -> None:
    run.result[job.up.name].update(action=job.kind, path=str(job.checkout.path))
    if job.kind == "none":
        say(f"{job.title}: {job.message}")
        return
    origin = "fetched" if job.source.fresh else "from the cache"
    kept = f"; your edits are kept: {some(job.carried)}" if job.carried else ""
    say(
        f"{job.title}: {origin} ({job.source.kind}, {job.source.base[:12]}); applied {describe(job)}; "
        f"verified {count(job.verified, 'file')} in {job.checkout.path}{kept}"
    )
