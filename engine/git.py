"""git, isolated from all configuration except what is passed to it, and object ids computed without it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from engine.context import Context
from engine.errors import USAGE, WRONG_BASE, Damaged, GitFailed, Stop
from engine.files import write_file

# A given checkout's own configuration is read by git whatever we do, so each setting that could run a program or
# change bytes is overridden; the user's and the system's files are not read at all (see environment()).
QUIET_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",  # the shared part would stay in .git, even for a scratch index of ours
    "core.commitGraph": "false",
    "core.bigFileThreshold": "512m",  # a larger file is binary to `git diff`
    "core.quotePath": "false",
    "core.ignoreCase": "false",
    "core.useReplaceRefs": "false",  # true would override GIT_NO_REPLACE_OBJECTS
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.pager": "cat",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "submodule.recurse": "false",
    "diff.suppressBlankEmpty": "false",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "diff.srcPrefix": "a/",
    "diff.dstPrefix": "b/",
}
# How to reach a server is the user's decision: proxies, mirrors, certificates, keys. But a server must not send git to
# other places: redirects (fetch_ref looks at them), bundles, packs elsewhere, promisors.
NETWORK_CONFIG = {
    "core.hooksPath": os.devnull,
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.followRedirects": "false",
    "transfer.bundleURI": "false",
    "fetch.uriProtocols": "",
    "promisor.acceptFromServer": "none",
    "fetch.fsckObjects": "true",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    "protocol.version": "2",
    "protocol.ext.allow": "never",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "30",
}
NETWORK_ENVIRONMENT = (
    "GIT_CONFIG", "GIT_SSH", "GIT_SSL", "GIT_PROXY", "GIT_HTTP", "GIT_ASKPASS", "GIT_ALLOW_PROTOCOL", "GIT_CURL",
    "GIT_EXEC_PATH",
)  # fmt: skip


def environment(network: bool) -> dict[str, str]:
    """The process's environment without the GIT_* variables that could point git elsewhere."""
    keep = NETWORK_ENVIRONMENT if network else ("GIT_EXEC_PATH",)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(keep)}
    env.update(LC_ALL="C", LANGUAGE="C", GIT_TERMINAL_PROMPT="0", GIT_ATTR_NOSYSTEM="1")
    env.update(GIT_NO_REPLACE_OBJECTS="1", GIT_GRAFT_FILE=os.devnull)  # an id stands for its own object
    if not network:
        env.update(
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=os.devnull,
            HOME=os.devnull,  # git before 2.32 does not know GIT_CONFIG_GLOBAL
            XDG_CONFIG_HOME=os.devnull,
            GIT_CONFIG_SYSTEM=os.devnull,
            GIT_ALLOW_PROTOCOL="none",  # a partial clone must not fetch behind our back
            GIT_NO_LAZY_FETCH="1",
            GIT_OPTIONAL_LOCKS="0",
            GIT_LITERAL_PATHSPECS="1",
        )
    return env


def settings(values: dict[str, str]) -> list[str]:
    return [word for key, value in values.items() for word in ("-c", f"{key}={value}")]


AUTHOR = ("ERA overlays", "era-overlays@users.noreply.github.com")
DATE_RAW = "1767225600 +0000"  # fixed, so that the same input makes the same commit ids everywhere
MODES = ("100644", "100755")  # a plain file, without and with the exec bit
NULL_ID = "0" * 40
Entry = tuple[str, str]  # mode and object id, as in `git ls-tree`
Tree = dict[str, Entry]
Content = tuple[str, bytes]  # mode and bytes


def unmarked_mode(content: bytes) -> str:
    """The mode of a file where the file system keeps no exec bits: scripts are executable."""
    return MODES[content.startswith(b"#!")]


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def changed_paths(old: Tree, new: Tree) -> set[str]:
    return {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


def tree_id(tree: Tree) -> str:
    """The id that git must give a tree with these entries, computed without git."""
    nested: dict = {}
    for path, entry in tree.items():
        *folders, name = path.split("/")
        node = nested
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = entry

    def identify(node: dict) -> str:
        rows = []
        for name, child in node.items():
            mode, oid = ("40000", identify(child)) if isinstance(child, dict) else child
            raw = os.fsencode(name)
            rows.append(
                (raw + b"/" if mode == "40000" else raw, mode.encode() + b" " + raw + b"\0" + bytes.fromhex(oid))
            )
        body = b"".join(row for _, row in sorted(rows))
        return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()

    return identify(nested)


def committer() -> dict[str, str]:
    """The environment that gives commits the same ids on every machine."""
    who = {}
    for role in ("AUTHOR", "COMMITTER"):
        who.update({f"GIT_{role}_NAME": AUTHOR[0], f"GIT_{role}_EMAIL": AUTHOR[1], f"GIT_{role}_DATE": DATE_RAW})
    return who


class Git:
    """One repository. `--git-dir` is always given, so git never searches the folders above for one."""

    def __init__(self, context: Context, git_dir: Path, work_tree: Path | None = None, extra: dict | None = None):
        self.context, self.git_dir, self.work_tree = context, git_dir, work_tree
        self.extra: dict[str, str] = extra or {}
        self.config = QUIET_CONFIG

    def run(self, *args: str, data: bytes = b"", ok: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess:
        """Run a git that works on local files. Ctrl-C does not reach it: it inherits our blocked SIGINT."""
        context = self.context
        context.check_interrupt()
        command = ["git", *settings(self.config), f"--git-dir={self.git_dir}"]
        if self.work_tree:
            command.append(f"--work-tree={self.work_tree}")
        context.trace(["git", f"--git-dir={self.git_dir}", *args])
        env = {**environment(network=False), **self.extra}
        folder = self.work_tree or self.git_dir
        done = subprocess.run(
            [*command, *args], input=data, capture_output=True, env=env, cwd=folder, pass_fds=context.locks
        )
        if done.returncode not in ok:
            raise GitFailed(args[0], os.fsdecode(done.stderr), self.git_dir)
        return done

    def __call__(self, *args: str, data: bytes = b"", ok: tuple[int, ...] = (0,)) -> str:
        return os.fsdecode(self.run(*args, data=data, ok=ok).stdout)

    def with_env(self, **extra: str) -> Git:
        other = Git(self.context, self.git_dir, self.work_tree, {**self.extra, **extra})
        other.config = self.config
        return other

    def commit(self, name: str) -> str | None:
        """The commit a name stands for, or None."""
        return self("rev-parse", "--verify", "--quiet", name + "^{commit}", ok=(0, 1, 128)).strip() or None

    def has_whole(self, commit: str) -> bool:
        """Whether a commit is there with all its files. Of an import that was killed the commit alone may be there."""
        return self.run("rev-list", "--objects", "--no-walk", commit, ok=(0, 128)).returncode == 0

    def refs(self, *places: str) -> dict[str, str]:
        rows = self("for-each-ref", "--format=%(refname) %(objectname)", *places).splitlines()
        return dict(row.split(" ") for row in rows)

    def tree(self, treeish: str) -> Tree:
        """The files of a tree, checked against its id: git checks a commit that it reads, but not the trees."""
        oid = self("rev-parse", "--verify", f"{treeish}^{{tree}}").strip()
        rows = self("ls-tree", "-r", "-z", "--full-tree", oid).split("\0")[:-1]
        parsed = (row.split("\t", 1) for row in rows)
        found = {path: (info.split()[0], info.split()[2]) for info, path in parsed}
        if tree_id(found) != oid:
            raise Damaged(self.git_dir, f"the entries of the tree {oid} do not match its id")
        return found

    def index(self) -> Tree:
        """What is staged; a path in a merge conflict gets the mode "conflict"."""
        found = {}
        for row in self("ls-files", "--stage", "-z").split("\0")[:-1]:
            info, path = row.split("\t", 1)
            mode, oid, stage = info.split()
            found[path] = (mode, oid) if stage == "0" else ("conflict", oid)
        return found

    def locks(self, refs: Iterable[str]) -> list[Path]:
        """Lock files that stand in the way of writing the index, HEAD and these refs."""
        common = Path(self("rev-parse", "--git-common-dir").strip())
        common = common if common.is_absolute() else (self.work_tree or self.git_dir) / common
        names = [self.git_dir / "index", self.git_dir / "HEAD", common / "packed-refs", *(common / ref for ref in refs)]
        paths = [name.with_name(f"{name.name}.lock") for name in names]
        return [path for path in paths if path.exists()]

    def flags(self) -> dict[str, str]:
        """The flags that the user set in the index: h for assume-unchanged, S for skip-worktree, s for both."""
        rows = (row.split(" ", 1) for row in self("ls-files", "-v", "-z").split("\0")[:-1])
        return {path: letter for letter, path in rows if letter in "hSs"}

    def set_flags(self, flags: dict[str, str]) -> None:
        for option, letters in (("--assume-unchanged", "hs"), ("--skip-worktree", "Ss")):
            paths = "".join(f"{path}\0" for path, letter in flags.items() if letter in letters)
            if paths:
                self("update-index", option, "-z", "--stdin", data=os.fsencode(paths))

    def stage(self, changes: dict[str, Entry | None]) -> None:
        """Put entries into the index, or take paths out of it, without looking at any file."""
        self("update-index", "-z", "--index-info", data=index_lines(changes))

    def write_tree(self) -> str:
        return self("write-tree").strip()

    def blobs(self, oids: set[str]) -> dict[str, bytes]:
        """Contents by id, each checked against its id: git itself does not check what it reads."""
        wanted = sorted(oids)
        if not wanted:
            return {}
        out = self.run("cat-file", "--batch", data="".join(f"{oid}\n" for oid in wanted).encode()).stdout
        found, at = {}, 0
        for oid in wanted:
            end = out.index(b"\n", at)
            head = out[at:end].split()
            if len(head) != 3:
                raise Damaged(self.git_dir, f"the object {oid} is missing")
            size = int(head[2])
            found[oid] = out[end + 1 : end + 1 + size]
            at = end + size + 2
            if blob_id(found[oid]) != oid:
                raise Damaged(self.git_dir, f"the bytes of the object {oid} do not match its id")
        return found

    def write_blobs(self, contents: list[bytes]) -> None:
        """Store file contents: one process for all, no filters."""
        stream = b"".join(b"blob\ndata %d\n%s\n" % (len(content), content) for content in contents)
        if stream:
            self("fast-import", "--quiet", "--done", data=stream + b"done\n")

    def commit_tree(self, tree: str, parents: list[str], message: str) -> str:
        flags = [word for parent in parents for word in ("-p", parent)]
        git = self.with_env(**committer())
        return git("commit-tree", tree, *flags, "-F", "-", data=message.encode()).strip()

    def changes(self, old: str, new: str) -> dict[str, tuple[Entry, Entry]]:
        """Path to (entry before, entry after) of what differs; an absent side has mode 000000 and the null id."""
        rows = self("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", old, new).split("\0")[:-1]
        found = {}
        for info, path in zip(rows[::2], rows[1::2]):
            mode, new_mode, oid, new_id, _ = info[1:].split(" ")
            found[path] = ((mode, oid), (new_mode, new_id))
        return found

    def import_objects(self, source: Git, objects: str) -> None:
        """Copy objects (lines of `rev-list --objects`). The receiving git computes every id again.

        So an object whose bytes do not match its id arrives under another id, and is then missing here.
        """
        pack = source.run("pack-objects", "--stdout", "-q", data=os.fsencode(objects)).stdout
        few = objects.count("\n") <= 200
        self.run(*(("unpack-objects", "-q") if few else ("index-pack", "--stdin")), data=pack)
        names = "".join(f"{line[:40]}\n" for line in objects.split("\n") if line).encode()
        missing = [
            row for row in self("cat-file", "--batch-check", data=names).splitlines() if row.endswith(" missing")
        ]
        if missing:
            raise Damaged(
                source.git_dir, f"the object {missing[0].split()[0]} is missing, or its bytes do not match its id"
            )


@contextlib.contextmanager
def scratch_index(git: Git):
    """The same repository with an index of its own, so that nobody's real index is touched."""
    with git.context.scratch_folder("index") as folder:
        yield git.with_env(GIT_INDEX_FILE=str(folder / "index"))


def index_lines(changes: dict[str, Entry | None]) -> bytes:
    """Input for `git update-index -z --index-info`; removals first, so that a file can give way to a folder."""
    rows = sorted(changes.items(), key=lambda item: (item[1] is not None, item[0]))
    lines = (f"0 {NULL_ID}\t{path}\0" if entry is None else f"{entry[0]} {entry[1]}\t{path}\0" for path, entry in rows)
    return os.fsencode("".join(lines))


def check_git() -> None:
    advice = "install git 2.30 or newer and run the command again; nothing was changed"
    try:
        text = subprocess.run(["git", "--version"], capture_output=True, text=True, env=environment(False)).stdout
    except OSError:
        raise Stop(USAGE, "git was not found on the PATH", advice) from None
    found = re.search(r"(\d+)\.(\d+)", text)
    if found and (int(found[1]), int(found[2])) < (2, 30):
        raise Stop(USAGE, f"git {found[0]} is too old", advice)


def init_repository(context: Context, path: Path, bare: bool) -> Git:
    command = ["git", *settings(QUIET_CONFIG), "init", "--quiet", "--template=", "--object-format=sha1"]
    command += [*(["--bare"] if bare else []), str(path)]
    context.trace(["git", "init", str(path)])
    done = subprocess.run(command, capture_output=True, env=environment(False), pass_fds=context.locks)
    if done.returncode:
        raise GitFailed("init", os.fsdecode(done.stderr))
    return Git(context, path) if bare else Git(context, path / ".git", path)


def take_commit(git: Git, owner: Git, commit: str, *more: str) -> None:
    """Copy a commit (and more of them, on top of it) with its files, but not its history.

    The mark comes first: a kill in between leaves the mark of a commit that is not there, which git ignores.
    """
    add_shallow(git, commit, owner)
    git.import_objects(owner, owner("rev-list", "--objects", "--no-walk", commit, *more))


def add_shallow(git: Git, commit: str, owner: Git) -> None:
    """Tell a repository that the parents of a commit, which the owner has, are left out on purpose."""
    if not re.search(r"^parent ", owner("cat-file", "commit", commit).split("\n\n")[0], re.M):
        return
    path = git.git_dir / "shallow"
    known = path.read_text().split() if path.exists() else []
    write_file(path, "".join(f"{oid}\n" for oid in sorted({*known, commit})).encode())


def is_ancestor(git: Git, older: str, newer: str) -> bool:
    return older == newer or git.run("merge-base", "--is-ancestor", older, newer, ok=(0, 1, 128)).returncode == 0


def store_files(git: Git, files: dict[str, Content], parent: str | None, message: str) -> str:
    """A commit whose tree is the parent's with these files added."""
    entries = {path: (mode, blob_id(content)) for path, (mode, content) in files.items()}
    git.write_blobs([content for _, content in files.values()])
    with scratch_index(git) as scratch:
        if parent:
            scratch("read-tree", parent)
        scratch.stage(entries)
        tree = scratch.write_tree()
    expected = {**(git.tree(parent) if parent else {}), **entries}
    refused = sorted(changed_paths(git.tree(tree), expected))  # update-index silently leaves out paths that it refuses
    if refused:
        raise Stop(WRONG_BASE, f"git does not store the path {refused[0]!r}", "nothing was changed")
    return git.commit_tree(tree, [parent] if parent else [], message)
