"""Mutated and hostile inputs: upstreams.json, and of a given clone the record, git settings, hooks and attributes.

Each is refused in words, with everything as it was, or accepted and then equal to the byte to what plain git or a plain
walk over the files gives. Nothing is written elsewhere, and nothing ends in a traceback. (Patches, series, lists and
command lines have tests/engine/test_patches.py, test_project.py and test_command_line.py.)
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
import subprocess
import traceback
from pathlib import Path

import pytest
from kit import content, git
from tally import LONG

PART = "inputs"
pytestmark = pytest.mark.slow
CODES = range(8)  # those of docs/engine/usage.md


def chunks(number: int):
    """The long form in several tests, each with seeds of its own."""
    return pytest.mark.parametrize("chunk", range(number if LONG else 1))


def explore(tally, row: str, chunk: int, cases: int, check) -> None:
    """Try `check` on that many random numbers, always the same ones; a case that fails does not stop the others."""
    lost = []
    for case in range(cases):
        chance = random.Random(f"{row} {chunk} {case}")
        try:
            outcome = check(chance)
        except Exception:
            outcome = "lost"
            lost.append(f"{row}, chunk {chunk}, case {case}: {traceback.format_exc(limit=-4)}")
        tally.count(PART, row, outcome)
    assert not lost, f"{len(lost)} cases\n" + "\n\n".join(lost[:3])


def view(project) -> dict[bytes, tuple[int, bytes]]:
    """Every file around the cache: the project, its upstreams, the folder above. Locks and bytecode aside."""
    top = project.root.parent
    found = {}
    for folder, folders, names in os.walk(top):
        here = Path(folder)
        folders[:] = [
            name for name in folders if here / name not in (project.cache, top / "xdg", project.root / ".git")
        ]
        for path in (here / name for name in names):
            info = path.lstat()
            if not path.name.endswith((".lock", ".pyc")) and stat.S_ISREG(info.st_mode):
                found[os.fsencode(path)] = (info.st_mode, path.read_bytes())
    return found


def differing(old: dict, new: dict) -> set:
    return {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


# --- upstreams.json, and the record of a given clone -----------------------------------------------------------------

ODD = [
    None, True, 0, 1, -1, 1.5, 1e400, 10**30, "", " ", "x", "-x", "--upload-pack=x", "ext::sh -c x", "http://x/y",
    "https://-x/y", "https://x/y\nz", "https://x/y\0", "https://x/\x1b[2J", 'https://x/"y', "https://x/\\y",
    "https://x/\ud800", "file:///x y", "ssh://-oProxyCommand=x/y", "git://x/y", "https://x/\u202ey", "..", "a..b",
    "x.lock", ".x", "a/b", "a//b", "a/.b", "@{", "@", "HEAD", ".", "x~1", "x:y", "*", "x y", "x\\y", "\u0661", "v1\n",
    "e\u0301", "0" * 40, "0" * 64, "A" * 40, "v" * 300, "src/", "/src", "../x", ".git/", "a/.GIT/b", [], {}, [[]],
    {"x": 1}, ["src/", "src/"], [1], ["../x"], ["\ud800"], "../../mine.txt", "/etc/passwd", "refs/heads/mine",
]  # fmt: skip


def mutate_json(data: object, chance: random.Random) -> bytes:
    """A changed object as text that is mostly JSON."""
    data = json.loads(json.dumps(data))
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        node, key = chance.choice(places(data))
        what = chance.choice(["value", "value", "value", "drop", "rename", "add", "copy"])
        if what == "value":
            node[key] = chance.choice(ODD)
        elif what == "drop":
            del node[key]
        elif isinstance(node, dict):
            words = [item for item in ODD if isinstance(item, str)] + [str(key).upper(), "on_request", "tag", "patches"]
            value = {"rename": node.pop, "copy": node.get}.get(what, lambda _: chance.choice(ODD))(key)
            node[chance.choice(words)] = value
        if not places(data):
            break
    raw = json.dumps(data, indent=2, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    what = chance.choice(["as it is"] * 12 + ["bom", "cut", "byte", "twice", "deep", "digits"])
    if what == "bom":
        return b"\xef\xbb\xbf" + raw
    if what == "cut":
        return raw[: chance.randrange(len(raw) + 1)]
    if what == "byte":
        at = chance.randrange(len(raw))
        return raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
    if what == "twice":
        keys = re.findall(rb'"[a-z_]+":', raw)
        return raw.replace(b"{", b"{" + chance.choice(keys or [b'"x":']) + b" 1,", chance.randint(1, 3))
    if what == "deep":
        depth = chance.choice([10, 900, 100000])
        return re.sub(rb'"[^"]*"([,\n])', lambda found: b"[" * depth + b"]" * depth + found[1], raw, count=1)
    if what == "digits":
        return re.sub(rb"\b\d+\b", b"9" * chance.choice([20, 4301, 20000]), raw, count=1)
    return raw


def places(node: object) -> list[tuple]:
    found = []
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += [(node, key), *places(item)]
    return found


@chunks(2)
def test_upstreams(tally, scale, project, chunk):
    """upstreams.json with anything in it: refused with 2, or harmless to git and to the file system."""
    project.pinning = False
    sound = project.upstreams
    sound["alpha"]["git"], sound["beta"]["git"] = "https://example.org/alpha", "ssh://git@example.org/beta"
    sound["beta"]["on_request"] = True
    path = project.root / "upstreams.json"

    def check(chance: random.Random) -> str:
        raw = mutate_json(sound, chance)
        path.write_bytes(raw)
        result = project.run("status", "--json", code=None)
        if result.code:
            assert result.code == 2 and result.err.startswith("error: "), result.text
            return "refused"
        for name, up in json.loads(raw).items():
            assert re.fullmatch(r"\w[\w-]*", name, re.A) and re.match(r"(https|ssh|file)://[^-]", up["git"])
            assert up["git"].isprintable() and not set(' "\\') & set(up["git"])
            refs = [f"refs/tags/upstream/{label}" for label in up["versions"]]
            refs += [f"refs/tags/{version['tag']}" for version in up["versions"].values() if "tag" in version]
            for ref in refs:
                assert subprocess.run(["git", "check-ref-format", ref]).returncode == 0, ref
        return "completed"

    explore(tally, "upstreams.json, mutated", chunk, scale(25, 400), check)


@chunks(2)
def test_records_of_a_given_clone(tally, scale, project, clone, tmp_path, chunk):
    """.git/era of a clone that somebody else prepared: no verb writes outside the clone, or into the user's files."""
    where = ("--checkout", str(clone))
    project.run("apply", "alpha", *where)
    (clone / "README.md").write_text("mine\n")
    (clone / "own.txt").write_text("mine\n")
    fresh = tmp_path / "fresh"
    shutil.copytree(clone, fresh, symlinks=True)
    record = json.loads((clone / ".git/era/record.json").read_text())

    def check(chance: random.Random) -> str:
        shutil.rmtree(clone)
        shutil.copytree(fresh, clone, symlinks=True)
        (clone / ".git/era/record.json").write_bytes(mutate_json(record, chance))
        before = view(project)
        inside = os.fsencode(clone) + b"/"
        codes = []
        for verb in (("status",), ("apply",), ("export", "--check"), ("revert",)):
            codes.append(project.run(verb[0], "alpha", *where, *verb[1:], code=None).code)
            assert codes[-1] in CODES
            assert all(path.startswith(inside) for path in differing(before, view(project)))
            assert {(clone / name).read_text() for name in ("README.md", "own.txt")} == {"mine\n"}
        assert git(clone, "rev-parse", "mine") == project.ids["v1"]
        return "refused" if max(codes) > 1 and codes[0] > 1 else "completed"

    explore(tally, "record of a given clone, mutated", chunk, scale(4, 50), check)


# --- git's own settings, hooks, attributes and tables in a given clone ------------------------------------------------

PROGRAMS = """
core.fsmonitor core.sshCommand core.editor core.pager core.askPass core.gitProxy core.alternateRefsCommand
sequence.editor diff.external diff.evil.command diff.evil.textconv filter.evil.clean filter.evil.smudge
filter.evil.process merge.evil.driver gpg.program gpg.ssh.program credential.helper interactive.diffFilter pager.diff
pager.status pager.log trailer.evil.command uploadpack.packObjectsHook remote.origin.uploadpack remote.origin.proxy
submodule.x.update hook.evil.command
"""
SETTINGS = """
core.bare=true core.bare=false protocol.ext.allow=always extensions.partialClone=origin remote.origin.promisor=true
remote.origin.partialclonefilter=blob:none extensions.worktreeConfig=true filter.evil.required=true core.autocrlf=true
core.autocrlf=input core.eol=crlf core.safecrlf=true core.ignoreCase=true core.precomposeUnicode=true
core.quotePath=false core.abbrev=4 core.abbrev=40 core.compression=0 core.bigFileThreshold=1
core.sharedRepository=0666 core.logAllRefUpdates=always core.untrackedCache=true core.splitIndex=true
core.checkStat=minimal core.trustctime=false core.multiPackIndex=true core.whitespace=trailing-space,cr-at-eol
core.protectNTFS=false core.symlinks=true core.useReplaceRefs=true core.commentChar=l index.version=4 index.version=2
index.sparse=true index.skipHash=true feature.manyFiles=true feature.experimental=true gc.auto=1 gc.autoDetach=false
log.showSignature=true log.decorate=full log.follow=true commit.gpgSign=true diff.noprefix=true
diff.mnemonicPrefix=true diff.srcPrefix=x/ diff.context=0 diff.context=40 diff.interHunkContext=30
diff.algorithm=patience diff.indentHeuristic=false diff.renames=copies diff.orderFile=/nowhere diff.relative=true
diff.colorMoved=zebra diff.suppressBlankEmpty=true diff.statGraphWidth=1 diff.ignoreSubmodules=all
diff.evil.binary=true diff.dirstat=lines color.ui=always column.ui=always apply.whitespace=fix
apply.whitespace=error-all apply.ignoreWhitespace=change status.showUntrackedFiles=no status.short=true
i18n.commitEncoding=ISO-8859-1 i18n.logOutputEncoding=UTF-16 pack.packSizeLimit=1m transfer.unpackLimit=1
transfer.hideRefs=refs/ submodule.recurse=true merge.renormalize=true rerere.enabled=true user.useConfigOnly=true
author.name=X committer.email=x@y attr.tree=HEAD safe.bareRepository=explicit help.autocorrect=1
fsck.skipList=/nowhere core.compression=99 core.repositoryFormatVersion=7 extensions.unheardOf=x core.abbrev=x
index.version=99 core.filemode=maybe diff.context=-1
"""
ATTRIBUTES = (
    "* filter=evil diff=evil merge=evil\n*.py ident working-tree-encoding=UTF-16 eol=crlf text\n"
    "*.md -diff export-subst\nsrc/** binary\n[attr]evil filter=evil\n*.txt text=auto whitespace=fix\n"
)
HOOKS = """
post-index-change reference-transaction post-checkout pre-commit fsmonitor-watchman post-rewrite pre-auto-gc
applypatch-msg pre-applypatch post-applypatch post-merge
"""
VERBS = (
    ("apply",), ("status", "--json"), ("diff",), ("diff", "--stat"), ("export", "--check"), ("apply",),
    ("diff", "--local"), ("revert",), ("status",),
)  # fmt: skip


def spoil(clone: Path, folder: Path, canary: Path, chance: random.Random) -> None:
    """Settings that run a program or change what git reads and prints, hooks, attributes, grafts, replacements."""
    dot = clone / ".git"
    rows = [f"{key}={canary}" for key in PROGRAMS.split()] + SETTINGS.split()
    rows += [f"core.hooksPath={folder}/hooks", f"core.worktree={folder}/elsewhere", f"include.path={folder}/included"]
    rows += [f"core.attributesFile={folder}/attributes", f"alias.diff=!{canary}", f"remote.origin.url=ext::{canary}"]
    for row in chance.sample(rows, chance.choice([1, 2, 5, 20, 60])):
        key, _, value = row.partition("=")
        section, *middle, name = key.split(".")
        with open(dot / "config", "a") as config:
            config.write(
                f'[{section}{"".join(f" {chr(34)}{part}{chr(34)}" for part in middle)}]\n\t{name} = "{value}"\n'
            )
    (dot / "info").mkdir(exist_ok=True)
    if chance.random() < 0.5:
        (dot / "info/attributes").write_text(ATTRIBUTES)
    if chance.random() < 0.3:
        (dot / "info/exclude").write_text("*\n")
    head, other = (git(folder / "fresh", "rev-parse", name) for name in ("HEAD", "v2"))
    if chance.random() < 0.3:
        (dot / "info/grafts").write_text(chance.choice([f"{head}\n", f"{head} {other}\n", "junk\n"]))
    if chance.random() < 0.3:
        blobs = [git(folder / "fresh", "rev-parse", f"HEAD:{path}") for path in ("src/core.py", "README.md")]
        for old, new in ((head, other), blobs):
            (dot / "refs/replace").mkdir(exist_ok=True)
            (dot / "refs/replace" / old).write_text(f"{new}\n")
    if chance.random() < 0.2:
        (dot / "objects/info/alternates").write_text(chance.choice(["/nowhere\n", f"{dot}/objects\n", "# x\n\n"]))


def tree_by_git(clone: Path, start: str, raw: bytes, index: Path) -> str | None:
    """The tree that plain git makes of a commit and a patch."""
    env = {**os.environ, "GIT_INDEX_FILE": str(index)}
    subprocess.run(["git", "read-tree", start], cwd=clone, env=env, check=True)
    command = ["git", "apply", "--cached", "--whitespace=nowarn", "-"]
    if raw and subprocess.run(command, cwd=clone, env=env, input=raw, capture_output=True).returncode:
        return None
    return subprocess.run(["git", "write-tree"], cwd=clone, env=env, capture_output=True, text=True).stdout.strip()


def play(project, clone: Path) -> list[tuple]:
    """What the verbs give until one refuses: (code, what is shown, files, all of its words)."""
    found = []
    for verb, *options in VERBS:
        result = project.run(verb, "alpha", "--checkout", str(clone), *options, code=None)
        shown = result.raw if [verb, *options] == ["diff"] or verb == "export" else b""
        found.append((result.code, shown, content(clone), result.text))
        if result.code:
            break
    return found


@chunks(4)
def test_hostile_git_settings(tally, scale, project, clone, tmp_path, chunk):
    """The same bytes as on a plain clone, or a clean refusal; none of the programs runs."""
    ran, canary = tmp_path / "ran", tmp_path / "canary.sh"
    canary.write_text(f"#!/bin/sh\necho \"$0 $@\" >> '{ran}'\nexec cat\n")
    canary.chmod(0o755)
    for name in ("hooks", "elsewhere"):
        (tmp_path / name).mkdir()
    for name in HOOKS.split():
        shutil.copy(canary, tmp_path / "hooks" / name)
    (tmp_path / "elsewhere/kept").write_text("kept")
    (tmp_path / "included").write_text(f"[core]\n\tfsmonitor = {canary}\n")
    (tmp_path / "attributes").write_text(ATTRIBUTES)
    shutil.copytree(clone, tmp_path / "fresh", symlinks=True)
    project.run("fetch", "alpha")
    project.commit()
    project.pinning = False
    plain = play(project, clone)
    assert [code for code, *_ in plain] == [0] * len(VERBS)

    def same_diff(mine: bytes, other: bytes) -> bool:
        """Attributes and core.abbrev have a say in how a diff looks, but not in what it does."""
        trees = [tree_by_git(tmp_path / "fresh", "v1", raw, tmp_path / "an-index") for raw in (mine, other)]
        return mine == other or trees[0] == trees[1] is not None

    def check(chance: random.Random) -> str:
        shutil.rmtree(clone)
        shutil.copytree(tmp_path / "fresh", clone, symlinks=True)
        spoil(clone, tmp_path, canary, chance)
        shutil.copytree(tmp_path / "hooks", clone / ".git/hooks", dirs_exist_ok=True)
        before, ours = content(clone), users_files(clone / ".git")
        results = play(project, clone)
        assert not ran.exists(), ran.read_text()
        assert content(tmp_path / "elsewhere") == {"kept": (False, b"kept")}
        if len(results) == 1 and results[0][0]:  # apply refused
            assert results[0][0] in CODES and results[0][3].startswith("error: ") and content(clone) == before
            return "refused"
        for words, mine, other in zip(VERBS, results, plain):
            assert mine[0] == other[0], f"apply worked, and then {words} ended with {mine[0]}: {mine[3]}"
            assert same_diff(mine[1], other[1]), f"{words}: {mine[1]}, on a plain clone {other[1]}"
            assert mine[2] == other[2], f"{words}: other files than on a plain clone"
        left = users_files(clone / ".git")
        assert left == ours, f"left in .git: {sorted(differing(left, ours))}"
        return "completed"

    explore(tally, "git settings, hooks, attributes of a given clone", chunk, scale(3, 25), check)


def users_files(dot: Path) -> dict[str, bytes]:
    """Objects stay until git collects them, logs are git's own, and the index is written again."""
    paths = {path: path.relative_to(dot).as_posix() for path in dot.rglob("*") if path.is_file()}
    kept = {
        path: name for path, name in paths.items() if not name.startswith(("objects/", "logs/")) and name != "index"
    }
    return {name: path.read_bytes() for path, name in kept.items()}
