"""The verb port: try every patch on another upstream revision, or, with --write, carry them there."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path

from engine.build import build
from engine.checkout import PORT_BRANCHES, Checkout, find_git_dir, write_record
from engine.errors import CONFLICT, LOCAL, OK, SOURCE, WRONG_BASE, GitFailed, Stop, count, some
from engine.git import Git, add_shallow, committer, init_repository, store_files, take_commit
from engine.patches import Patch
from engine.project import LABELS, ROOT, Overlay, Upstream, check, check_no_overwrite, read_overlay
from engine.run import Run
from engine.source import Source, find_source, requested_path, sdist
from engine.source.git import fetch_revision
from engine.switch import refuse_busy

AM = ("am", "--3way", "--keep-cr", "--whitespace=nowarn")
RESULTS = ("landed", "clean", "offset", "conflict", "gone")  # of a patch, the best first
BAD = RESULTS[3:]
RELEASE = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?:[.-]?post([0-9]{1,9}))?")  # a tag that is a version number


def verb_port(run: Run) -> int:
    codes = [write_port(run, name) if run.options.write else print_port(run, name) for name in run.names]
    return CONFLICT if CONFLICT in codes else OK


def print_port(run: Run, name: str) -> int:
    up, onto = run.upstreams[name], run.options.onto
    label = run.options.version or up.default
    overlay, source = pinned(run, up, label)
    target = find_target(run, up, onto)
    with trial(run, up, [source.git, target.git]) as git:
        rows = try_patches(git, up, overlay, target.base)
    run.context.say(f"{name}: {label} ({source.base[:12]}) onto {onto or 'HEAD'} ({target.base[:12]})")
    print_rows(run, rows)
    if not rows:
        run.context.say("  no patches")
    run.result[name] = {"version": label, "onto": onto or "HEAD", "commit": target.base, "patches": rows}
    bad = any(row["result"] in BAD for row in rows)
    if bad:
        write = run.context.command("port", name, *(["--onto", onto] if onto else []), "--write")
        run.context.say(f"to resolve it in a worktree: {write}")
    return CONFLICT if bad else OK


def print_rows(run: Run, rows: list[dict]) -> None:
    for row in rows:
        run.context.say(f"  {row['result']:9} {row['patch']}")
        for line in row["detail"]:
            run.context.say(f"            {line}")


def pinned(run: Run, up: Upstream, label: str) -> tuple[Overlay, Source]:
    """What is ported: a version's patches and overlay files, and the source that they were made for.

    Building the overlay there leaves every blob in the cache that a three-way merge of the patches needs.
    """
    overlay = read_overlay(up, label)
    source = find_source(run.cache, up, up.version(label), None, run.look(up.name).git, None)
    build(up, label, overlay, source)
    return overlay, source


def find_target(run: Run, up: Upstream, onto: str | None) -> Source:
    """The revision to port onto. Unless it is a pinned version, it is not verified."""
    if run.checkout:
        git = run.look(up.name).git
        commit = git.commit(onto or "HEAD") if git else None
        if not commit:
            command = shlex.join(["git", "-C", str(run.checkout), "fetch", up.url, onto or ""])
            fetch = f"`{command}` may bring it. " if git and onto else ""
            raise Stop(WRONG_BASE, f"{run.checkout} has no commit {onto or 'HEAD'}", f"{fetch}Nothing was changed")
        return Source("git", commit, git, (), False)
    if onto in up.versions:
        return find_source(run.cache, up, up.version(onto), run.options.source, None, None)
    check("--onto", onto, "tag")
    path = requested_path(run.options.source)
    with run.cache.lock(up.name):
        git = run.cache.repository(up.name)
        if path and path.is_file():
            return Source("pypi", store_files(git, sdist.unpack(path), None, f"{onto}\n"), git, (), True)
        kept = f"refs/onto/{onto.replace('/', '%')}"  # so that branches x and x/y do not clash
        if run.cache.offline:
            found = git.commit(kept)
            if not found:
                raise Stop(SOURCE, f"{up.name} {onto} is not in the cache, and --offline forbids fetching it")
            return Source("git", found, git, (), False)
        refs = [onto] if re.fullmatch(r"[0-9a-f]{40}", onto) else [f"refs/tags/{onto}", f"refs/heads/{onto}"]
        found = fetch_revision(git, str(path or up.url), refs, kept)
        if not found:
            raise Stop(SOURCE, f"{path or up.url} has no version, tag, branch or commit {onto!r}")
        return Source("git", found, git, (), True)


# --- the table ---


@contextlib.contextmanager
def trial(run: Run, up: Upstream, owners: list[Git]):
    """A scratch work tree in which patches are tried; it reads objects directly from the other repositories."""
    places = [Path(git("rev-parse", "--git-path", "objects").strip()) for git in owners]
    roots = [git.work_tree or git.git_dir for git in owners]
    quoted = [str(root / place).replace("\\", "\\\\").replace('"', '\\"') for root, place in zip(roots, places)]
    with run.context.scratch_folder("port") as folder:
        git = init_repository(run.context, folder / up.name, bare=False)
        alternates = os.pathsep.join(f'"{place}"' for place in quoted)
        yield git.with_env(GIT_ALTERNATE_OBJECT_DIRECTORIES=alternates, **committer())


def try_patches(git: Git, up: Upstream, overlay: Overlay, target: str) -> list[dict]:
    """Each patch in order, on the result of those before it. One that conflicts is left out."""
    add_shallow(git, target, git)
    git("checkout", "--quiet", "--force", "--detach", target)
    rows = []
    tree = git.tree(target)
    taken = sorted(overlay.files.keys() & tree.keys())
    if taken:
        detail = [f"upstream has files of these names there: {some(taken)}"]
        rows.append({"patch": f"overlays/{up.name}", "result": "conflict", "detail": detail})
    for patch in overlay.patches:
        result, detail = try_patch(git, patch, tree)
        rows.append({"patch": patch.file, "result": result, "detail": detail})
    return rows


def try_patch(git: Git, patch: Patch, tree: dict) -> tuple[str, list[str]]:
    before = git.commit("HEAD")
    plain = git.run("apply", "--cached", "--check", "--verbose", "-", data=patch.raw, ok=(0, 1, 128))
    done = git.run(*AM, data=patch.raw, ok=(0, 1, 128))
    if done.returncode == 0:
        if git.commit("HEAD") == before:
            return "landed", []
        said = os.fsdecode(plain.stderr)
        if plain.returncode == 0 and "(offset " not in said:
            return "clean", []
        renamed = [f"{path}: renamed there; the merge follows" for path in patch.ids if path not in tree]
        return "offset", moved_hunks(said) or renamed or ["merges three-way: lines around it changed"]
    detail = conflicts(git, tree, patch, os.fsdecode(done.stderr))
    git.run("am", "--abort", ok=(0, 1, 128))
    git("reset", "--hard", "--quiet", before)
    return "gone" if any(path not in tree for path in patch.ids) else "conflict", detail


def moved_hunks(said: str) -> list[str]:
    """From `git apply --verbose`: per file, how many hunks moved and by how many lines."""
    moves: dict[str, list[int]] = {}
    for block in re.split(r"^Checking patch ", said, flags=re.M)[1:]:
        offsets = [int(number) for number in re.findall(r"\(offset (-?\d+) lines?\)", block)]
        if offsets:
            moves[block.partition("...")[0]] = offsets
    shown = {path: ", ".join(f"{offset:+d}" for offset in sorted({*offsets})) for path, offsets in moves.items()}
    return [f"{path}: {count(len(moves[path]), 'hunk')} moved by {lines} lines" for path, lines in shown.items()]


def conflicts(git: Git, tree: dict, patch: Patch, said: str) -> list[str]:
    """The files in which a patch stopped, with the lines of git's conflict markers.

    If there are none, `git am` itself failed, on a full disk for example: that is not a conflict.
    """
    found = []
    for path in patch.ids:
        if path not in tree:
            same = [other for other in tree if other.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]]
            found.append(f"{path}: does not exist there" + (f"; files of that name: {some(same, 3)}" if same else ""))
    unmerged = {path for path, entry in git.index().items() if entry[0] == "conflict"}
    for path in sorted(unmerged & tree.keys()):
        target = git.work_tree / path
        lines = target.read_bytes().split(b"\n") if target.is_file() else []
        places = [str(number) for number, line in enumerate(lines, 1) if line.startswith(b"<<<<<<< ")]
        found.append(f"{path}: conflict" + (f" at line {', '.join(places)}" if places else ""))
    if not found and re.search("lacks necessary blobs|lacking or useless|build fake ancestor", said):
        found.append("the source that it was made for lacks its files, so that it cannot be merged: use --source git")
    if not found:
        raise GitFailed("am", said, git.git_dir)
    return found


# --- with --write ---


def write_port(run: Run, name: str) -> int:
    """A worktree of the checkout, on a branch of its own, with the overlay on top of another revision."""
    up, onto = run.upstreams[name], run.options.onto
    label = run.options.version or up.default
    overlay, source = pinned(run, up, label)
    with run.held():
        checkout = run.look(name)
        if checkout.git is None or checkout.head is None:
            hint = f"run `{run.context.command('apply', name)}` first. Nothing was changed"
            raise Stop(WRONG_BASE, f"{checkout.path}: there is no checkout to make a worktree of", hint)
        target = find_target(run, up, onto)
        new_label = port_label(onto, target.base)
        suffix = "era" if checkout.given and not onto else new_label
        path = checkout.path.parent / f"{checkout.path.name}-{suffix}"
        branch = PORT_BRANCHES + new_label
        refuse_busy(checkout, [branch])
        refuse_left_over(checkout, path, branch)
        refuse_carried(overlay, target)
        check_no_overwrite(name, overlay.files, target.git.tree(target.base))
        bring_blobs(checkout, source, target, overlay)
        try:
            git, tip = make_worktree(checkout, overlay, target.base, path, branch)
            write_record(git.git_dir / "era", port_record(overlay, new_label, onto, target.base, tip))
            run.context.interruptible = False  # from here on the worktree is worth keeping
            files = [str(ROOT / "patches" / name / label / patch.file) for patch in overlay.patches]
            number, detail = carry(git, overlay, files) if files else (0, [])
        except BaseException:
            clean_up(checkout, path, branch)
            raise
        title = f"{name}: {label} ({source.base[:12]}) onto {onto or 'HEAD'} ({target.base[:12]})"
        return report(run, checkout, title, git, branch, rows_of(git, overlay.patches, number, detail))


def clean_up(checkout: Checkout, path: Path, branch: str) -> None:
    """Remove a worktree that could not be completed; if that fails too, say how to do it."""
    context = checkout.context
    context.interruptible = False
    for command in (("worktree", "remove", "--force", "--force", str(path)), ("branch", "-D", short(branch))):
        checkout.git.run(*command, ok=tuple(range(-64, 256)))
    if os.path.lexists(path):
        git = checkout.shell_git
        steps = (f"rm -r {shlex.quote(str(path))}", f"{git} worktree prune", f"{git} branch -D {short(branch)}")
        context.advice = "to remove what is left: " + ", ".join(f"`{step}`" for step in steps)


def short(branch: str) -> str:
    return branch.removeprefix("refs/heads/")


def carry(git: Git, overlay: Overlay, files: list[str]) -> tuple[int, list[str]]:
    """`git am` of all patches: how many went in, and where the next one conflicts."""
    done = git.with_env(**committer()).run(*AM, *files, ok=(0, 1, 128))
    if done.returncode == 0:
        return len(files), []
    following = git.git_dir / "rebase-apply" / "next"
    number = int(following.read_text()) - 1 if following.exists() else 0
    return number, conflicts(git, git.tree("HEAD"), overlay.patches[number], os.fsdecode(done.stderr))


def port_label(onto: str | None, commit: str) -> str:
    """The name of the new version: the tag or branch, or the beginning of the commit id."""
    if onto and re.fullmatch(LABELS, onto) and not re.fullmatch(r"[0-9a-f]{40}", onto):
        return onto
    return commit[:7]


def refuse_left_over(checkout: Checkout, path: Path, branch: str) -> None:
    """What an earlier port left, or one that was killed: git locks a worktree until it is complete."""
    name, git, quoted = short(branch), checkout.shell_git, shlex.quote(str(path))
    entries = checkout.git("worktree", "list", "--porcelain").split("\n\n")
    entry = next((entry for entry in entries if entry.startswith(f"worktree {path}\n")), "")
    steps = [f"`rm -r {quoted}`"] if os.path.lexists(path) else []
    steps += [f"`{git} worktree unlock {quoted}`"] if "\nlocked" in entry else []
    steps += [f"`{git} worktree prune`"] if entry or branch in checkout.refs else []
    steps += [f"`{git} branch -D {name}`"] if branch in checkout.refs else []
    if steps:
        raise Stop(
            LOCAL,
            f"{path} or the branch {name} exists already, perhaps from an earlier port",
            f"go on there, or remove it: {', '.join(steps)}. Nothing was changed",
        )


def refuse_carried(overlay: Overlay, target: Source) -> None:
    if overlay.files and overlay.files.keys() <= target.git.tree(target.base).keys():
        raise Stop(
            LOCAL,
            f"{target.base[:12]} has the overlay's files already: ERA was carried there before",
            "to bring it up to date, port onto the commit before that (--onto) and merge the new branch too",
            "nothing was changed",
        )


def bring_blobs(checkout: Checkout, source: Source, target: Source, overlay: Overlay) -> None:
    """Copy the target (a given clone has it), and what a merge needs: contents that patches start from and lead to."""
    if not checkout.given and not checkout.git.has_whole(target.base):
        take_commit(checkout.git, target.git, target.base)
    ids = {oid for patch in overlay.patches for pair in patch.ids.values() if pair for oid in pair}
    names = "".join(f"{oid}\n" for oid in sorted(ids))
    rows = source.git("cat-file", "--batch-check", data=names.encode()).splitlines()
    checkout.git.import_objects(source.git, "".join(f"{row.split()[0]}\n" for row in rows if " blob " in row))


def make_worktree(checkout: Checkout, overlay: Overlay, base: str, path: Path, branch: str) -> tuple[Git, str]:
    """The worktree with the overlay's new files committed, and that commit."""
    tip = base
    if overlay.files:
        tip = store_files(checkout.git, overlay.files, base, f"New files of the ERA overlay for {checkout.name}\n")
    checkout.git("worktree", "add", "--quiet", "-b", short(branch), str(path), tip)
    git = Git(checkout.context, find_git_dir(path), path)
    git.config = checkout.git.config
    return git, tip


def port_record(overlay: Overlay, label: str, onto: str | None, base: str, tip: str) -> dict:
    """What export needs in order to make the patches of the new version."""
    files = {*overlay.sources.values()}
    inputs = {path: [digest] for path, digest in overlay.inputs.items() if path in files or path.endswith(".list")}
    record = {"version": label, "source": "git", "base": base, "tip": tip, "digest": "", "inputs": inputs}
    tag = onto if onto and RELEASE.fullmatch(onto) else None
    return {**record, "skipped": [], "before": base, "made": [], "tag": tag}


def rows_of(git: Git, patches: list[Patch], number: int, detail: list[str]) -> list[dict]:
    """What became of each patch; `number` of them went in before the conflict, if there was one."""
    subjects = git("log", "--format=%s", f"-{len(patches) + 1}", "HEAD").splitlines()
    rows = []
    for at, patch in enumerate(patches):
        done = "committed" if patch.subject in subjects else "landed"
        result = done if at < number else "conflict" if at == number else "to come"
        rows.append({"patch": patch.file, "result": result, "detail": detail if at == number else []})
    return rows


def report(run: Run, checkout: Checkout, title: str, git: Git, branch: str, rows: list[dict]) -> int:
    context, path = run.context, git.work_tree
    name = short(branch)
    context.say(f"{title}: {path}, on the branch {name}")
    print_rows(run, rows)
    stopped = any(row["result"] == "conflict" for row in rows)
    in_worktree = f"git -C {shlex.quote(str(path))}"
    resolve = f"resolve the conflict there, `{in_worktree} add -A` and `{in_worktree} am --continue`, until all are in"
    steps = [resolve] if stopped else []
    if checkout.given:
        steps += [f"merge it into your branch: `{checkout.shell_git} merge {name}`"]
    steps += [f"to keep it as patches here: `{context.command('export', checkout.name, checkout=path)}`"]
    context.say(f"next: {steps[0]}")
    for step in steps[1:]:
        context.say(f"then: {step}")
    commit = git("rev-parse", "HEAD").strip()
    run.result[checkout.name] = {"path": str(path), "branch": name, "commit": commit, "patches": rows}
    return CONFLICT if stopped else OK
