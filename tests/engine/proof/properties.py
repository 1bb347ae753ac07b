"""What must hold for any input of the parsers that are our own. The random tests and the fuzzer assert the same.

Each function returns "completed" (accepted, and equal to what an independent reading gives) or "refused" (a Stop in
words), and fails on everything else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

ENV = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C",
}
Files = dict[str, tuple[str, bytes]]  # path -> mode and bytes


def plain_git(
    folder: Path, *args: str, data: bytes | None = None, index: Path | None = None
) -> subprocess.CompletedProcess:
    """git without any of the engine's settings but the one that lets bytes be."""
    env = {**ENV, "GIT_CEILING_DIRECTORIES": str(folder.parent), **({"GIT_INDEX_FILE": str(index)} if index else {})}
    return subprocess.run(
        ["git", "-c", "core.autocrlf=false", *args], cwd=folder, env=env, input=data, capture_output=True
    )


def in_words(stop, codes: tuple[int, ...]) -> str:
    """A refusal that a user can be shown."""
    text = "\n".join(stop.lines)
    assert stop.code in codes, f"refused with {stop.code}: {text}"
    assert text.strip() and stop.lines[0].strip()
    text.encode("utf-8", "backslashreplace")
    return "refused"


class PatchBench:
    """A tree of files that patches are tried on, by the engine and by plain git."""

    def __init__(self, engine, folder: Path, files: Files):
        self.engine, self.folder, self.files = engine, folder, files
        self.tree = {path: (mode, engine.git.blob_id(content)) for path, (mode, content) in files.items()}
        plain_git(folder.parent, "init", "-q", "--bare", str(folder))
        self.start, self.work = folder / "start", folder / "work"
        rows = b""
        for path, (mode, content) in files.items():
            oid = plain_git(folder, "hash-object", "-w", "--stdin", data=content).stdout.strip()
            rows += b"%s %s\t%s\0" % (mode.encode(), oid, os.fsencode(path))
        assert plain_git(folder, "update-index", "-z", "--index-info", data=rows, index=self.start).returncode == 0

    def by_git(self, raw: bytes) -> dict[str, tuple[str, str]] | None:
        shutil.copy(self.start, self.work)
        if plain_git(
            self.folder, "apply", "--cached", "--whitespace=nowarn", "-", data=raw, index=self.work
        ).returncode:
            return None
        rows = os.fsdecode(plain_git(self.folder, "ls-files", "--stage", "-z", index=self.work).stdout).split("\0")[:-1]
        return {row.split("\t", 1)[1]: (row.split(" ")[0], row.split(" ")[1]) for row in rows}

    def by_engine(self, raw: bytes):
        """The tree, or the refusal."""
        engine = self.engine
        try:
            patch = engine.patches.PatchReader("0001-x.patch", raw).read()
            contents = {path: self.files[path] for path in engine.patches.patched_paths([patch]) if path in self.files}
            ((_, tree),) = engine.apply.compute([patch], self.tree, contents)
            return tree
        except (engine.common.Stop, engine.patches.Conflict) as refused:
            return refused

    def check(self, raw: bytes) -> str:
        ours = self.by_engine(raw)
        if isinstance(ours, self.engine.patches.Conflict):
            assert ours.lines and all(isinstance(line, str) for line in ours.lines)
            return "refused"
        if isinstance(ours, self.engine.common.Stop):
            return in_words(ours, (2, 3))
        theirs = self.by_git(raw)
        assert theirs == ours, f"git made {'nothing' if theirs is None else 'another tree'} of it"
        return "completed"


def check_upstreams(engine, folder: Path, raw: bytes) -> str:
    """upstreams.json is refused, or everything in it is harmless where it will be used."""
    (folder / "upstreams.json").write_bytes(raw)
    before, engine.project.ROOT = engine.project.ROOT, folder
    try:
        found = engine.project.read_upstreams()
    except engine.common.Stop as stop:
        return in_words(stop, (2,))
    finally:
        engine.project.ROOT = before
    data = json.loads(raw)
    assert list(found) == list(data)
    assert len({name.lower() for name in found}) == len(found), "two names, one folder"
    for name, up in found.items():
        assert re.fullmatch(r"[\w-]+", name, re.A) and len(name) <= 200 and name[0] != "-"
        assert up.url == data[name]["git"] and sound_url(folder, up.url), up.url
        assert up.default in up.versions and type(up.overlay_files) is int and up.overlay_files >= 0
        for label, version in up.versions.items():
            assert sound_ref(f"refs/tags/upstream/{label}"), label
            assert "/" not in label and label not in (".", "..") and len(label) <= 200
            assert version.tag is None or (sound_ref(f"refs/tags/{version.tag}") and version.tag[0] != "-"), version.tag
            assert (
                re.fullmatch(r"[0-9a-f]{40}", version.commit, re.A)
                and type(version.patches) is int
                and version.patches >= 0
            )
            for path in (*version.sdist.lacks, *version.sdist.adds) if version.sdist else ():
                assert (
                    os.path.normpath(path) == path.rstrip("/") and not path.startswith(("/", "..")) and "\0" not in path
                )
    return "completed"


SOUND: dict[str, bool] = {}


def sound_ref(ref: str) -> bool:
    if ref not in SOUND:
        SOUND[ref] = ref.isprintable() and subprocess.run(["git", "check-ref-format", ref], env=ENV).returncode == 0
    return SOUND[ref]


def sound_url(folder: Path, url: str) -> bool:
    """One word that is no option, asks for no program, and that git's configuration gives back as it was."""
    if url not in SOUND:
        if not url.isprintable() or " " in url or not url.startswith(("https://", "ssh://", "file://")):
            return False
        config = folder / "config-of-a-checkout"
        config.write_text(f'[remote "origin"]\n\turl = {url}\n\tfetch = x\n', encoding="utf-8")
        done = subprocess.run(
            ["git", "config", "-f", str(config), "--get", "remote.origin.url"], env=ENV, capture_output=True
        )
        SOUND[url] = os.fsdecode(done.stdout) == url + "\n" and not url.split("://", 1)[1].startswith("-")
    return SOUND[url]


def check_number(engine, text: str, place: tuple[str, ...], number: int) -> str:
    """One number of a JSON text changes, and nothing else."""
    wanted = json.loads(text)
    node = wanted
    for key in place[:-1]:
        node = node[key] if isinstance(node, dict) and key in node else None
    there = isinstance(node, dict) and type(node.get(place[-1])) is int
    try:
        found = engine.project.replace_number(text, place, number)
    except engine.common.Stop as stop:
        assert not there, "the number is there"
        return in_words(stop, (2,))
    if there:  # else whoever calls has checked it: read_upstreams refuses such a file
        old = str(node[place[-1]])
        node[place[-1]] = number
        assert json.loads(found) == wanted
        assert len(found) - len(text) == len(str(number)) - len(old) or "-0" in text
    return "completed"


# What tar refuses in a header though no name, size or content hangs on it. A record without its length is where Python
# ends its reading of the header; what follows is not read by us either.
OWNERS_AND_TIMES = re.compile(
    rb"invalid [acm]time=|header [ug]id=\S+ is out of range|Malformed extended header: missing length"
)


def check_archive(engine, path: Path, scratch: Path) -> str:
    """A source package is refused, or read as GNU tar reads it."""
    try:
        found = engine.sources.unpack(path)
    except engine.common.Stop as stop:
        return in_words(stop, (3,))
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    command = ["tar", "-xzf", str(path), "-C", str(scratch), "--no-same-owner", "--warning=none"]
    done = subprocess.run(command, env={**ENV, "LC_ALL": "C.UTF-8"}, capture_output=True)
    if done.returncode and all(OWNERS_AND_TIMES.search(line) for line in done.stderr.splitlines()[:-1]):
        return "completed"
    assert done.returncode == 0, f"read by us, but tar says {done.stderr!r}"
    tops = os.listdir(scratch)
    assert len(tops) == 1
    there = {}
    for folder, _, names in os.walk(scratch / tops[0]):
        for name in names:
            file = Path(folder, name)
            info = file.lstat()
            assert stat.S_ISREG(info.st_mode) and info.st_nlink == 1
            there[str(file.relative_to(scratch / tops[0]))] = (bool(info.st_mode & 0o100), file.read_bytes())
    assert {name: (mode == "100755", content) for name, (mode, content) in found.items()} == there
    return "completed"
