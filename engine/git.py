# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""git as a subprocess: one repository, and the questions and orders that the verbs have for it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from engine.session import LOCAL, SESSION, USAGE, WRONG_BASE, Stop

# git reads no configuration but these (see Git.at), except in a fetch, where it reads the user's own, and where export
# asks for the state of this project.
SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.commitGraph": "false",  # it says which tree a commit has, and git would not look at the commit
    "apply.whitespace": "nowarn",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
}
# Give up on a server that sends next to nothing for a minute.
PATIENCE = {"http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"}
# The user's and the system's configuration count only in fetching: mirrors, proxies, certificates (`url.insteadOf`).
# git before 2.32 does not know GIT_CONFIG_GLOBAL but reads HOME, so HOME is hidden too.
ISOLATED = {name: os.devnull for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "HOME", "XDG_CONFIG_HOME")}
ISOLATED.update(GIT_CONFIG_NOSYSTEM="1", GIT_ATTR_NOSYSTEM="1", GIT_ALLOW_PROTOCOL="none")  # and no transport at all
FOR_NETWORK = ("CONFIG", "SSH", "SSL", "PROXY", "HTTP", "ASKPASS", "ALLOW_PROTOCOL", "EXEC_PATH")

AUTHOR, EMAIL = "ERA overlays", "era-overlays@users.noreply.github.com"
DATE = "1767225600 +0000"  # fixed, so that the same input makes the same commit ids everywhere
IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in {"NAME": AUTHOR, "EMAIL": EMAIL, "DATE": DATE}.items()
}
NO_ID = "0" * 40
PLAIN_MODES = ("100644", "100755")  # of a file, without and with the exec bit
# The same change gives the same text everywhere: `git diff-tree` obeys less of the configuration than `git diff`.
DIFF = ["diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"]
PATCH = [*DIFF, "--patch", "--text", "--no-color", "--full-index", "--no-renames", "--diff-algorithm=myers"]
PATCH += ["--unified=3", "--inter-hunk-context=0", "--indent-heuristic"]
# What a repository keeps of its own while git works in it: not its configuration, hooks and attributes (Git.at).
LINKED = ("objects", "refs", "logs", "packed-refs", "shallow", "info/exclude")
FILE_SYSTEM = "^core[.](filemode|symlinks|ignorecase|precomposeunicode)$"  # what `git init` found out about the disk
# For info/attributes, which git reads first: files keep their bytes, whatever .gitattributes and configurations say.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding !eol\n"
EXCLUDES = "__pycache__/\n*.py[cod]\n*.egg-info/\n.DS_Store\n*~\n.*.sw?\n"
KINDS = {stat.S_IFREG: "", stat.S_IFDIR: "", stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
POINTERS = ("commondir", "objects/info/alternates")  # files that lead git into another repository
UNOPENED = ("hooks", "fsmonitor--daemon.ipc")  # often links, and a daemon's socket; no git that we start opens them
DISK = (*(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)), "Out of diskspace")
Entry = tuple[str, str]  # mode and object id, as in `git ls-tree`; the id is NO_ID where there is nothing


def places(folder: Path, bare: bool) -> dict[str, str]:
    """Return the variables that name the parts of a repository to git.

    They are always set, so that git never searches the folders above, and core.worktree has no effect.
    """
    return {"GIT_DIR": str(folder)} if bare else {"GIT_DIR": f"{folder}/.git", "GIT_WORK_TREE": str(folder)}


def refuse_foreign(root: Path, inner: str, deep: bool = True) -> None:
    """Refuse what is on the way to a folder of ours, root/inner, or with `deep` in it, and cannot be ours.

    The user named `root`, which may be a link. Below it git and apply.py make plain files and folders alone. A link, or
    a file that names another repository, would lead our writing and deleting elsewhere; git waits at a FIFO for ever.
    """
    top = root / inner
    way = [str(place) for place in [top, *top.parents][: len(Path(inner).parts)]][::-1]
    walk = (f"{folder}/{name}" for folder, *names in (os.walk(top) if deep else ()) for name in itertools.chain(*names))
    for place in itertools.chain(way, walk):
        with contextlib.suppress(FileNotFoundError):  # a git at work removes files
            info, part = os.lstat(place), place[len(str(top)) + 1 :]
            kind = KINDS.get(stat.S_IFMT(info.st_mode), "a device")
            if place in way and stat.S_ISREG(info.st_mode):
                kind = "a file in a folder's place"
            elif part in POINTERS:
                kind = "a pointer to another repository"
            elif part.startswith("logs/") and info.st_nlink > 1 and stat.S_ISREG(info.st_mode):
                kind = "a hard link"  # git adds lines to it, while it replaces other files
            if kind and part.split("/")[0] not in UNOPENED:
                problem = f"{place} is {kind}; apply.py makes only plain files and folders there"
                raise Stop(WRONG_BASE, problem, "nothing was changed: look at it, and remove it or move it away")


class GitFailed(Stop):
    """A git command that should have worked failed."""

    def __init__(self, command: str, stderr: bytes):
        lines = os.fsdecode(stderr).strip().splitlines() or ["nothing"]
        reasons = [line for line in lines if not line.startswith(("hint:", "warning:"))] or lines
        super().__init__(LOCAL, f"git {command} failed", *(f"git said: {line}" for line in reasons[-6:]))


class Git:
    """One repository: `folder` is the top of a work tree or a bare repository, `env` says where git finds its parts."""

    def __init__(self, folder: Path, bare: bool, env: dict[str, str]):
        self.folder, self.bare, self.env = folder, bare, env

    @classmethod
    def at(cls, folder: Path) -> Git | None:
        """The repository of a folder, or None if git finds none there.

        Whatever it says in its configuration, hooks and attributes, git must not run programs, use a transport or
        change bytes for it. So git is shown a folder of ours in their place, as the GIT_COMMON_DIR, where objects and
        refs are links to the repository's. `rev-parse` and `config --file` alone see the real one; they run nothing.
        """
        bare = not os.path.lexists(folder / ".git")
        git = cls(folder, bare, places(folder, bare))
        answer = git.run("rev-parse", "--git-common-dir", ok=None)
        if answer.returncode:
            return None
        real = folder / os.fsdecode(answer.stdout).rstrip("\n")
        rows = git("config", "--file", str(real / "config"), "--type=bool", "--get-regexp", FILE_SYSTEM, ok=(0, 1))
        lines = [f"bare = {bare}", *(row.removeprefix("core.").replace(" ", " = ") for row in rows.splitlines())]
        shown = Path(tempfile.mkdtemp(dir=SESSION.scratch))
        (shown / "config").write_text("\n\t".join(["[core]", *lines, ""]))
        (shown / "HEAD").write_text("ref: refs/heads/none\n")  # a fetch takes it for a repository of its own
        (shown / "info").mkdir()
        (shown / "info/attributes").write_text(ATTRIBUTES)
        for name in LINKED:  # also where there is no such file yet: git writes through the link
            if name not in ("logs", "info/exclude") or (real / name).exists():
                (shown / name).symlink_to(real / name)
        git.env["GIT_COMMON_DIR"] = str(shown)
        return git

    def run(self, *args: str, data: bytes = b"", ok: tuple | None = (0,), network=False) -> subprocess.CompletedProcess:
        """Run a command. `ok` are the exit codes that do not mean a failure, None is all; a full disk always does."""
        if SESSION.verbose:
            print("+ git -C", self.folder, *args, file=sys.stderr, flush=True)
        kept = FOR_NETWORK if network else ("EXEC_PATH",)
        env = {key: value for key, value in os.environ.items() if key[:4] != "GIT_" or key[4:].startswith(kept)}
        env.update(LC_ALL="C", GIT_TERMINAL_PROMPT="0", GIT_NO_REPLACE_OBJECTS="1", GIT_OPTIONAL_LOCKS="0")
        env.update(GIT_LITERAL_PATHSPECS="1", GIT_NO_LAZY_FETCH="1", GIT_DEFAULT_REF_FORMAT="files")
        env.update(**IDENTITY, **({} if network else ISOLATED), **self.env)
        settings = {**SETTINGS, **(PATIENCE if network else {})}
        command = ["git", *(word for key, value in settings.items() for word in ("-c", f"{key}={value}"))]
        # A download may leave a helper behind (git's credential-cache), which must not hold our locks.
        more = {"capture_output": True, "env": env, "pass_fds": () if network else SESSION.locks}
        try:
            done = subprocess.run([*command, "-C", str(self.folder), *args], input=data, **more)
        except FileNotFoundError:
            raise Stop(USAGE, "git was not found on the PATH", "install git 2.30 or newer") from None
        for line in os.fsdecode(done.stderr).splitlines() if done.returncode else ():
            if line.endswith(DISK):
                raise OSError(0, f"git {args[0]} said: {line}", f"{self.folder} or {tempfile.gettempdir()}")
        if ok and done.returncode not in ok:
            shown, real = (os.fsencode(self.env.get(name, "\n")) for name in ("GIT_COMMON_DIR", "GIT_DIR"))
            raise GitFailed(args[0], done.stderr.replace(shown, real))
        return done

    def __call__(self, *args: str, data: str = "", ok: tuple | None = (0,)) -> str:
        return os.fsdecode(self.run(*args, data=os.fsencode(data), ok=ok).stdout).rstrip("\n")

    @classmethod
    def init(cls, folder: Path, bare: bool, **config: str) -> Git:
        """A new repository. Its configuration is for the user's own git."""
        folder.mkdir(parents=True, exist_ok=True)
        git = cls(folder, bare, places(folder, bare))
        git("init", "--quiet", "--template=", "--object-format=sha1", *(["--bare"] if bare else []))
        for key, value in {"core.autocrlf": "false", **config}.items():
            git("config", key, value)
        own = Path(git.env["GIT_DIR"])
        for name in ("info", "logs"):
            (own / name).mkdir(exist_ok=True)
        (own / "info/attributes").write_text(ATTRIBUTES)
        (own / "info/exclude").write_text(EXCLUDES)
        return cls.at(folder)

    # --- the same repository, without touching what is in it ---

    def with_env(self, **more: str) -> Git:
        return Git(self.folder, self.bare, {**self.env, **more})

    def scratch_index(self, tree: str) -> Git:
        """The same repository with a new index that holds `tree`, without timestamps, so that git reads each file."""
        git = self.with_env(GIT_INDEX_FILE=f"{tempfile.mkdtemp(dir=SESSION.scratch)}/index")
        git("read-tree", tree)
        return git

    def copied_index(self) -> Git:
        """The same repository with a copy of its index."""
        place = shutil.copy(self("rev-parse", "--git-path", "index"), tempfile.mkdtemp(dir=SESSION.scratch))
        return self.with_env(GIT_INDEX_FILE=place)

    def scratch_objects(self) -> Git:
        """The same repository, with a temporary folder for new objects: for verbs that only read."""
        own = self("rev-parse", "--git-path", "objects")
        quoted = '"' + own.replace("\\", "\\\\").replace('"', '\\"') + '"'
        folder = tempfile.mkdtemp(dir=SESSION.scratch)
        return self.with_env(GIT_OBJECT_DIRECTORY=folder, GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted)

    # --- questions ---

    def commit(self, name: str) -> str:
        """The id of the commit that a name stands for, or an empty string."""
        return self("rev-parse", "--verify", "--quiet", name + "^{commit}", ok=None)

    def has(self, commit: str) -> bool:
        """Whether a commit is there with all its files."""
        return self.run("rev-list", "--objects", "--no-walk", commit, ok=None).returncode == 0

    def forged(self, *commits: str) -> str:
        """Say which of these commits and their trees is not what its id says, or return "". git itself does not look.

        Blobs are left out: the files on disk, which are hashed, are compared with the ids in the trees.
        """
        rows = self("rev-list", "--objects", "--filter=blob:none", "--no-walk", *commits).splitlines()
        ids, at = [row[:40] for row in rows], 0
        raw = self.run("cat-file", "--batch", data="\n".join(ids).encode()).stdout
        for oid in ids:
            start = raw.index(b"\n", at) + 1
            _, kind, size = raw[at:start].split()
            at = start + int(size) + 1
            if hashlib.sha1(b"%s %s\0" % (kind, size) + raw[start : at - 1]).hexdigest() != oid:
                return f"the {kind.decode()} {oid} in .git has other content than its id says"
        return ""

    def is_ancestor(self, older: str, newer: str) -> bool:
        return older == newer or self.run("merge-base", "--is-ancestor", older, newer, ok=None).returncode == 0

    def held_nowhere(self, ends: set[str], known: Iterable[str]) -> list[str]:
        """Commits below `ends` that are neither in `known` nor on a branch other than era.

        rev-list goes by dates: where upstream's commit is newer than ours, which all have one date, it may stop before
        it sees that upstream's is below ours. merge-base goes on until it knows.
        """
        known = [*known, *(oid for name, oid in self.refs("refs/heads").items() if name != "refs/heads/era")]
        ends = [end for end in ends if not any(self.is_ancestor(end, each) for each in known)]
        return self("rev-list", *ends, "--not", *known).split() if ends else []

    def paths(self, tree: str) -> list[str]:
        return self("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree).split("\0")[:-1]

    def refs(self, place: str) -> dict[str, str]:
        rows = self("for-each-ref", "--format=%(refname) %(objectname)", place).splitlines()
        return dict(row.split(" ") for row in rows)

    def changes(self, old: str, new: str) -> dict[str, tuple[Entry, Entry]]:
        """What differs between two trees: path to the entries before and after."""
        return {} if old == new else self._raw("diff-tree", "-r", old, new)

    def staged(self, tree: str) -> dict[str, tuple[Entry, Entry]]:
        """What differs between a tree and the index. An unmerged path has NO_ID as its second id."""
        return self._raw("diff-index", "--cached", tree)

    def _raw(self, command: str, *args: str) -> dict[str, tuple[Entry, Entry]]:
        rows = self(command, "-z", "--raw", "--no-renames", "--no-abbrev", *args).split("\0")
        split = ((path, info[1:].split(" ")) for info, path in zip(rows[::2], rows[1::2]))
        return {path: ((mode, oid), (new_mode, new_id)) for path, (mode, new_mode, oid, new_id, _) in split}

    # --- orders ---

    def stage(self, entries: dict[str, Entry]) -> None:
        """Put entries into the index, or take those with NO_ID out, without looking at any file."""
        rows = sorted(entries.items(), key=lambda row: row[1][1] != NO_ID)  # a file gives way to a folder
        lines = (f"{mode if oid != NO_ID else 0} {oid}\t{path}\0" for path, (mode, oid) in rows)
        self("update-index", "-z", "--index-info", data="".join(lines))

    def stage_files(self, paths: Iterable[str]) -> None:
        """Put files into the index as they are on disk; those that are not there are taken out."""
        places = {path: (self.folder / path) for path in paths}
        folders = {path for path, place in places.items() if place.is_dir() and not place.is_symlink()}
        if folders:
            self.stage({path: ("0", NO_ID) for path in folders})
        names = "".join(f"{path}\0" for path in places if path not in folders)
        self("update-index", "--add", "--remove", "--replace", "-z", "--stdin", data=names)

    def snapshot(self, tree: str, paths: Iterable[str]) -> str:
        """A tree with some paths as they are on disk right now."""
        git = self.scratch_index(tree)
        git.stage_files(paths)
        return git("write-tree")

    def commit_tree(self, tree: str, message: str, *parents: str) -> str:
        above = (word for parent in parents for word in ("-p", parent))
        return self("commit-tree", tree, *above, data=message)

    def update_refs(self, *orders: str) -> None:
        """Orders of `git update-ref --stdin`: all of them, or none."""
        self("update-ref", "--stdin", data="".join(f"{order}\n" for order in orders))
