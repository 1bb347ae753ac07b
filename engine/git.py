# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""git as a subprocess: one repository, and the questions and orders that the verbs have for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from engine.session import LOCAL, SESSION, USAGE, Stop

# Whatever a repository's configuration says, git must not run programs for it or change the bytes that we make.
SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.splitIndex": "false",  # the shared part would stay in .git, even for a scratch index
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.bigFileThreshold": "512m",  # a larger file is binary to `git diff`
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "am.threeWay": "true",
    "commit.gpgSign": "false",
    "diff.suppressBlankEmpty": "false",
    "i18n.commitEncoding": "UTF-8",
    "submodule.recurse": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
}
# Give up on a server that sends next to nothing for a minute.
PATIENCE = {"http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"}
# The user's and the system's configuration count only in fetching: mirrors, proxies, certificates (`url.insteadOf`).
# git before 2.32 does not know GIT_CONFIG_GLOBAL but reads HOME, so HOME is hidden too.
ISOLATED = {name: os.devnull for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "HOME", "XDG_CONFIG_HOME")}
ISOLATED.update(GIT_CONFIG_NOSYSTEM="1", GIT_ATTR_NOSYSTEM="1", GIT_NO_LAZY_FETCH="1")
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
# For info/attributes, which git reads first: files keep their bytes, whatever .gitattributes and configurations say.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding !eol\n"
EXCLUDES = "__pycache__/\n*.py[cod]\n*.egg-info/\n.DS_Store\n*~\n.*.sw?\n"
Entry = tuple[str, str]  # mode and object id, as in `git ls-tree`; the id is NO_ID where there is nothing


class GitFailed(Stop):
    """A git command that should have worked failed."""

    def __init__(self, command: str, stderr: bytes):
        lines = os.fsdecode(stderr).strip().splitlines() or ["nothing"]
        reasons = [line for line in lines if line.startswith(("fatal:", "error:", "\t"))] or lines
        super().__init__(LOCAL, f"git {command} failed", *(f"git said: {line}" for line in reasons[-6:]))


class Git:
    """One repository: `folder` is the top of a work tree, or a bare repository."""

    def __init__(self, folder: Path, bare: bool = False, env: dict[str, str] | None = None):
        self.folder, self.bare = folder, bare
        # The places are always named, so git never searches the folders above, and core.worktree has no effect.
        places = {"GIT_DIR": str(folder)} if bare else {"GIT_DIR": f"{folder}/.git", "GIT_WORK_TREE": str(folder)}
        self.env = {**places, **(env or {})}

    def run(self, *args: str, data: bytes = b"", ok: tuple | None = (0,), network=False) -> subprocess.CompletedProcess:
        """Run a command. `ok` are the exit codes that do not mean a failure; None stands for all of them."""
        if SESSION.verbose:
            print("+ git -C", self.folder, *args, file=sys.stderr, flush=True)
        kept = FOR_NETWORK if network else ("EXEC_PATH",)
        env = {key: value for key, value in os.environ.items() if key[:4] != "GIT_" or key[4:].startswith(kept)}
        env.update(LC_ALL="C", GIT_TERMINAL_PROMPT="0", GIT_NO_REPLACE_OBJECTS="1", GIT_OPTIONAL_LOCKS="0")
        env.update(GIT_LITERAL_PATHSPECS="1", **IDENTITY, **({} if network else ISOLATED), **self.env)
        settings = {**SETTINGS, **(PATIENCE if network else {})}
        command = ["git", *(word for key, value in settings.items() for word in ("-c", f"{key}={value}"))]
        # A download may leave a helper behind (git's credential-cache), which must not hold our locks.
        more = {"capture_output": True, "env": env, "pass_fds": () if network else SESSION.locks}
        try:
            done = subprocess.run([*command, "-C", str(self.folder), *args], input=data, **more)
        except FileNotFoundError:
            raise Stop(USAGE, "git was not found on the PATH", "install git 2.30 or newer") from None
        if ok and done.returncode not in ok:
            raise GitFailed(args[0], done.stderr)
        return done

    def __call__(self, *args: str, data: str = "", ok: tuple | None = (0,)) -> str:
        return os.fsdecode(self.run(*args, data=os.fsencode(data), ok=ok).stdout).rstrip("\n")

    @classmethod
    def init(cls, folder: Path, bare: bool) -> Git:
        folder.mkdir(parents=True, exist_ok=True)
        git = cls(folder, bare)
        git("init", "--quiet", "--template=", "--object-format=sha1", *(["--bare"] if bare else []))
        git("config", "core.autocrlf", "false")
        info = folder / ("info" if bare else ".git/info")
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text(ATTRIBUTES)
        (info / "exclude").write_text(EXCLUDES)
        return git

    # --- the same repository, without touching what is in it ---

    @contextlib.contextmanager
    def scratch_index(self, tree: str):
        """The same repository with a new index that holds `tree`, without timestamps, so that git reads each file."""
        with tempfile.TemporaryDirectory(prefix="era-") as folder:
            git = Git(self.folder, self.bare, {**self.env, "GIT_INDEX_FILE": f"{folder}/index"})
            git("read-tree", tree)
            yield git

    @contextlib.contextmanager
    def copied_index(self):
        """The same repository with a copy of its index."""
        with tempfile.TemporaryDirectory(prefix="era-") as folder:
            shutil.copyfile(self("rev-parse", "--git-path", "index"), f"{folder}/index")
            yield Git(self.folder, self.bare, {**self.env, "GIT_INDEX_FILE": f"{folder}/index"})

    @contextlib.contextmanager
    def scratch_objects(self):
        """The same repository, with a temporary folder for new objects: for verbs that only read."""
        with tempfile.TemporaryDirectory(prefix="era-") as folder:
            own = self("rev-parse", "--git-path", "objects")
            quoted = '"' + own.replace("\\", "\\\\").replace('"', '\\"') + '"'
            more = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted}
            yield Git(self.folder, self.bare, {**self.env, **more})

    # --- questions ---

    def commit(self, name: str) -> str:
        """The id of the commit that a name stands for, or an empty string."""
        return self("rev-parse", "--verify", "--quiet", name + "^{commit}", ok=None)

    def has(self, commit: str) -> bool:
        """Whether a commit is there with all its files."""
        return self.run("rev-list", "--objects", "--no-walk", commit, ok=None).returncode == 0

    def is_ancestor(self, older: str, newer: str) -> bool:
        return older == newer or self.run("merge-base", "--is-ancestor", older, newer, ok=None).returncode == 0

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
        found = {path: (self.folder / path) for path in paths}
        folders = {path for path, place in found.items() if place.is_dir() and not place.is_symlink()}
        if folders:
            self.stage({path: ("0", NO_ID) for path in folders})
        names = "".join(f"{path}\0" for path in found if path not in folders)
        self("update-index", "--add", "--remove", "--replace", "-z", "--stdin", data=names)

    def snapshot(self, tree: str, paths: Iterable[str]) -> str:
        """A tree with some paths as they are on disk right now."""
        with self.scratch_index(tree) as git:
            git.stage_files(paths)
            return git("write-tree")

    def commit_tree(self, tree: str, message: str, *parents: str) -> str:
        above = (word for parent in parents for word in ("-p", parent))
        return self("commit-tree", tree, *above, data=message)

    def update_refs(self, *orders: str) -> None:
        """Orders of `git update-ref --stdin`: all of them, or none."""
        self("update-ref", "--stdin", data="".join(f"{order}\n" for order in orders))
