"""How a run of apply.py ends: exit codes (docs/engine/usage.md), and the errors that the user is told about."""

from __future__ import annotations

OK, DRIFT, USAGE, WRONG_BASE, CONFLICT, LOCAL, SOURCE, INTERRUPTED = range(8)
STOPPED = 130  # Ctrl-C before anything was changed


class Stop(Exception):
    """The end of a run, with an exit code and the lines to print. The first line says what is wrong."""

    def __init__(self, code: int, *lines: str):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


class GitFailed(Stop):
    """A git command that should have worked failed."""

    def __init__(self, command: str, stderr: str, git_dir=None):
        lines = stderr.strip().splitlines() or ["(git printed nothing)"]
        reasons = [line for line in lines if line.startswith(("fatal:", "error:"))]
        super().__init__(LOCAL, f"git {command} failed", *(f"git said: {line}" for line in (reasons or lines)[-6:]))
        self.stderr, self.git_dir = stderr, git_dir


class Damaged(Stop):
    """A repository lacks an object, or has one whose content does not match its id."""

    def __init__(self, git_dir, what: str):
        advice = f"`git --git-dir={git_dir} fsck` shows more; the verb fetch repairs a repository in the cache"
        super().__init__(WRONG_BASE, f"{git_dir}: {what}: the repository is damaged", advice)


def count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def some(names: list[str], limit: int = 8) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
