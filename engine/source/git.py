"""Upstream from a git repository. What a server sends is quarantined; only the pinned commit goes on to the cache."""

from __future__ import annotations

import contextlib
import re
import urllib.parse

from engine.context import Context
from engine.errors import SOURCE, WRONG_BASE, Stop
from engine.git import NETWORK_CONFIG, Git, environment, init_repository, settings, take_commit
from engine.project import Version
from engine.source.download import watched

SILENCE = 60.0  # seconds without a sign of life, after which a download is stopped
MAX_MOVES = 3  # redirects within one host that are followed
REFUSES_IDS = re.compile(r"not our ref|unadvertised object|does not allow request|couldn't find remote ref", re.I)
MOVED = re.compile(r"The requested URL returned error: 30[12378]\b")
SERVICE = "/info/refs?service=git-upload-pack"


def network_git(git: Git, *args: str, **env: str) -> tuple[int, str]:
    """A git that may reach the network, with the user's own configuration for that."""
    command = ["git", *settings(NETWORK_CONFIG), f"--git-dir={git.git_dir}", *args]
    return watched(git.context, command, {**environment(network=True), **env}, SILENCE, git.git_dir)


def fetch_ref(git: Git, url: str, wanted: str, into: str, depth: bool = True, moves: int = MAX_MOVES) -> str | None:
    """Fetch one revision. Returns None, or what git said if it failed; an unreachable server is a Stop."""
    options = ["--progress", "--no-tags", "--force", "--no-write-fetch-head", *(["--depth=1"] if depth else [])]
    status, text = network_git(git, "fetch", *options, "--", url, f"{wanted}:{into}")
    if status == 0:
        return None
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.startswith(("fatal:", "error:", "ssh:"))]
    said = "; ".join(lines[:3]) or text.strip()[-200:]
    if REFUSES_IDS.search(text):
        return said
    moved = new_place(git, url) if moves and MOVED.search(said) else None
    if moved:
        path = urllib.parse.urlsplit(moved).path
        git.context.say(f"{url}: the server says that it has moved within this host, to {path}")
        return fetch_ref(git, moved, wanted, into, depth, moves - 1)
    raise Stop(SOURCE, f"the repository {url} cannot be reached", f"git said: {said}")


def new_place(git: Git, url: str) -> str | None:
    """Where a server says that a repository has moved to, as forges do after a renaming. Another host is a Stop.

    git itself (http.followRedirects) would contact the other host, whichever it is, before we could refuse.
    """
    asked = network_git(git, "ls-remote", "--get-url", url)[1].strip().splitlines()[-1]  # after url.insteadOf
    trace = {"GIT_TRACE_CURL": "1", "GIT_TRACE_CURL_NO_DATA": "1"}
    _, text = network_git(git, "ls-remote", "--", url, "HEAD", **trace)
    headers = re.findall(r"<= Recv header: location: *(\S+)", text, re.I)
    if not headers:
        return None
    old = urllib.parse.urlsplit(asked)
    try:
        new = urllib.parse.urlsplit(urllib.parse.urljoin(asked + SERVICE, headers[-1]))
    except ValueError:  # not a URL
        return None
    here, there = f"{old.scheme}://{old.netloc.rpartition('@')[2]}", f"{new.scheme}://{new.netloc}"
    if here != there:
        raise Stop(
            SOURCE,
            f"{url}: {here} redirects to {there}",
            "another host or protocol is not followed, nor contacted. If the project moved, check who is there,",
            "then put the new URL into upstreams.json, or tell git: `git config --global url.NEW.insteadOf OLD`",
        )
    place = f"{new.path}?{new.query}"
    return f"{old.scheme}://{old.netloc}{place.removesuffix(SERVICE)}" if place.endswith(SERVICE) else None


@contextlib.contextmanager
def quarantine(context: Context):
    """A repository of its own for what a server sends: its refs, shallow marks and other objects go no further."""
    with context.scratch_folder("fetch") as folder:
        yield init_repository(context, folder / "new", bare=True)


def pin_ref(version: Version) -> str:
    """The name under which the cache holds the pinned commit, given only after it was verified."""
    return f"refs/pins/{version.commit}"


def fetch_revision(git: Git, url: str, refs: list[str], kept: str) -> str | None:
    """The commit of the first of these refs that the repository has, kept in the cache; None where it has none."""
    for ref in refs:
        with quarantine(git.context) as outside:
            said = fetch_ref(outside, url, ref, "refs/found")
            found = None if said else outside.commit("refs/found")
            if found:
                take_commit(git, outside, found)
                git("update-ref", kept, found)
                return found
    return None


def fetch_pin(git: Git, url: str, version: Version) -> None:
    """Bring the pinned commit into the cache: by its id, or by its tag where a server refuses ids."""
    with quarantine(git.context) as outside:
        said = refused = fetch_ref(outside, url, version.commit, "refs/pin")
        if refused and version.tag:
            said = fetch_ref(outside, url, f"refs/tags/{version.tag}", "refs/pin")
        elif refused:  # no fetch by id, and no tag: fetch all branches, which must hold the commit
            said = fetch_ref(outside, url, "refs/heads/*", "refs/incoming/*", depth=False)
            if not said and outside.commit(version.commit) == version.commit:
                outside("update-ref", "refs/pin", version.commit)
        found = outside.commit("refs/pin")
        if said or not found or (found != version.commit and not refused):
            detail = "no branch contains it" if refused else "what it has under that id is not a commit"
            detail = f"git said: {said}" if said else detail
            raise Stop(SOURCE, f"{url} does not hold the pinned commit {version.commit}", detail)
        if found != version.commit:
            raise Stop(
                WRONG_BASE,
                f"{url}: the tag {version.tag} is the commit {found}, expected the pinned {version.commit}",
                "either the tag was moved there, or upstreams.json was edited here (`git diff upstreams.json`):",
                "bring the pinned commit back, or pin the new one after checking what changed. Nothing was changed",
            )
        take_commit(git, outside, version.commit)
    git("update-ref", pin_ref(version), version.commit)
