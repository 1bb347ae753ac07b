"""Patch files: reading them, and having git apply them; the ids in their `index` lines verify the result."""

from __future__ import annotations

import dataclasses
import re

from engine.errors import CONFLICT, USAGE, WRONG_BASE, GitFailed, Stop
from engine.git import MODES, Git

NAME = re.compile(r"[0-9]{4}-[A-Za-z0-9._-]+\.patch")
DIFF = re.compile(r"diff --git a/(?P<path>.+) b/(?P=path)")
INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})( [0-7]{6})?")
# What `git apply` says of a patch that does not fit, and of a full disk and the like; else it cannot read the patch.
MISFIT = re.compile(
    r"patch failed|does not apply|does not exist|does not match|leaves file contents|still has contents"
)
HINDERED = re.compile(r"diskspace|No space left|write error|[Uu]nable to (write|create)|denied|Input/output|Read-only")
UNSUPPORTED = ("new file mode ", "rename ", "copy ", "similarity ", "GIT binary patch", "Binary files ")


@dataclasses.dataclass(frozen=True)
class Patch:
    file: str
    raw: bytes
    subject: str
    body: str
    ids: dict[str, tuple[str, str] | None]  # path to its blob before and after; None where only the mode changes

    @property
    def message(self) -> str:
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"

    @property
    def changed_lines(self) -> int:
        lines = self.raw.decode("utf-8", "replace").split("\ndiff --git ", 1)[1].split("\n")
        return sum(line[:1] in ("+", "-") and not line.startswith(("+++ ", "--- ")) for line in lines)


def read_patch(name: str, raw: bytes) -> Patch:
    """A patch in mail format, as `git format-patch --full-index` writes it."""

    def fail(problem: str, *advice: str) -> Stop:
        advice = advice or ("bring it back with `git checkout -- patches`, or make it again with the verb export",)
        return Stop(USAGE, f"{name}: {problem}", *advice, "nothing was changed")

    if b"\r\n" in raw.split(b"\n\n", 1)[0]:
        raise fail(
            "the patch has CRLF line ends: git converted it when it was checked out (core.autocrlf)",
            "run `git config core.autocrlf false`, delete the file",
            "and bring it back with `git checkout -- patches overlays`",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # the patched file has another encoding; headers and paths are ASCII
    head, start, diffs = text.partition("\ndiff --git ")
    subject, body = read_mail(head)
    if not start or not subject:
        raise fail("expected mail format: `From <id> <date>`, one Subject:, and `diff --git` below")
    ids: dict[str, tuple[str, str] | None] = {}
    for block in re.split(r"^(?=diff --git )", "diff --git " + diffs, flags=re.M)[1:]:
        lines = block.split("\n@@ ")[0].splitlines()  # everything above the first hunk
        found = DIFF.fullmatch(lines[0])
        if not found:
            raise fail(f"expected `diff --git a/PATH b/PATH` with one unquoted path, found {lines[0][:80]!r}")
        path = found["path"]
        unsupported = [line for line in lines if line.startswith(UNSUPPORTED)]
        if unsupported:
            raise fail(
                f"not supported: {unsupported[0][:60]!r}",
                "patches change or delete text files; new files belong in overlays/",
            )
        index = [found for line in lines if (found := INDEX.fullmatch(line))]
        only_mode = not index and any(line.startswith("new mode ") for line in lines) and "\n@@ " not in block
        if path in ids or not (only_mode or len(index) == 1):
            raise fail(f"expected one `index` line with two full ids of 40 digits for {path}")
        ids[path] = None if only_mode else (index[0][1], index[0][2])
    return Patch(name, raw, subject, body, ids)


def read_mail(head: str) -> tuple[str, str]:
    """Subject and text of the commit; both are empty if the mail headers are not as expected."""
    headers, _, body = head.partition("\n\n")
    lines = re.sub(r"\n[ \t]+", " ", headers).split("\n")
    subjects = [line[8:].strip() for line in lines if line.startswith("Subject:")]
    if not lines[0].startswith("From ") or len(subjects) != 1:
        return "", ""
    return re.sub(r"^\[PATCH[^]]*\]\s*", "", subjects[0]), body.split("\n---\n")[0].strip("\n")


def apply_patch(git: Git, patch: Patch, before: str) -> str:
    """Apply to the index of `git`, which holds the tree `before`; returns the tree after it.

    What git made must be exactly what the patch's `index` lines say, file by file: that rules out fuzz, moved hunks,
    parts of the file that git reads and we do not, and edits by hand.
    """
    try:
        git("apply", "--cached", "-", data=patch.raw)
    except GitFailed as failed:
        if MISFIT.search(failed.stderr):
            raise Stop(CONFLICT, f"{patch.file} does not apply", *failed.lines[1:]) from None
        if HINDERED.search(failed.stderr):
            raise
        advice = "it was cut short or edited; `git checkout -- patches` brings it back. Nothing was changed"
        raise Stop(USAGE, f"{patch.file} is not a patch that git can read", *failed.lines[1:], advice) from None
    after = git.write_tree()
    found = git.changes(before, after)
    ids = {path: (old[1], new[1]) for path, (old, new) in found.items()}
    wanted = {path: pair or (ids.get(path, ("", ""))[0],) * 2 for path, pair in patch.ids.items()}
    odd = [path for path, (old, new) in found.items() if old[0] not in MODES or new[0] not in (*MODES, "000000")]
    wrong = sorted(path for path in ids.keys() | wanted.keys() if ids.get(path) != wanted.get(path))
    if wrong:
        path = wrong[0]
        raise Stop(
            WRONG_BASE,
            f"{patch.file}: git made {' -> '.join(ids.get(path, ('no change',)))} of {path}, "
            f"its index line says {' -> '.join(wanted.get(path, ('nothing',)))}",
            "the patch was edited by hand or cut short, or belongs to another version; bring it back with git,",
            "or make the change in an applied checkout and export it (docs/engine/usage.md); nothing was changed",
        )
    if odd:
        raise Stop(
            USAGE, f"{patch.file}: {odd[0]} is not a plain file, before or after the patch", "nothing was changed"
        )
    return after
