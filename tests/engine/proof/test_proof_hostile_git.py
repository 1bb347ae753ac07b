"""A given clone whose own git configuration, attributes, hooks and tables are hostile: the same bytes, or a clean refusal.

The settings are those of git's documentation that run a program or change what git reads, prints or writes.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from kit import content, git
from properties import PatchBench
from test_proof_inputs import SEEDS, chunks, explore, kit_files

PART = "inputs"

PROGRAM = "{canary}"
SETTINGS = [
    *((key, PROGRAM) for key in (
        "core.fsmonitor", "core.sshCommand", "core.editor", "core.pager", "core.askPass", "core.gitProxy", "core.alternateRefsCommand",
        "sequence.editor", "diff.external", "diff.evil.command", "diff.evil.textconv", "filter.evil.clean", "filter.evil.smudge",
        "filter.evil.process", "merge.evil.driver", "merge.tool", "mergetool.evil.cmd", "difftool.evil.cmd", "gpg.program", "gpg.ssh.program",
        "gpg.x509.program", "gpg.ssh.defaultKeyCommand", "credential.helper", "interactive.diffFilter", "pager.diff", "pager.status", "pager.log",
        "man.viewer", "browser.evil.cmd", "web.browser", "sendemail.smtpServer", "trailer.evil.command", "trailer.evil.cmd",
        "uploadpack.packObjectsHook", "remote.origin.uploadpack", "remote.origin.receivepack", "remote.origin.proxy", "imap.tunnel",
        "trace2.normalTarget", "submodule.x.update", "init.templateDir", "http.cookieFile", "hook.evil.command",
    )),
    *((f"alias.{name}", "!{canary}") for name in ("apply", "diff", "status", "rev-parse", "ls-files", "read-tree", "cat-file")),
    ("core.hooksPath", "{hooks}"), ("core.worktree", "{elsewhere}"), ("core.bare", "true"), ("core.bare", "false"), ("include.path", "{included}"),
    ("includeIf.gitdir:/.path", "{included}"), ("url.ext::{canary} .insteadOf", "file://"), ("url.file:///nowhere/.pushInsteadOf", "file://"),
    ("protocol.ext.allow", "always"), ("protocol.allow", "always"), ("extensions.partialClone", "origin"), ("remote.origin.promisor", "true"),
    ("remote.origin.url", "ext::{canary}"), ("remote.origin.partialclonefilter", "blob:none"), ("extensions.worktreeConfig", "true"),
    ("filter.evil.required", "true"), ("core.autocrlf", "true"), ("core.autocrlf", "input"), ("core.eol", "crlf"), ("core.safecrlf", "true"),
    ("core.attributesFile", "{attributes}"), ("core.excludesFile", "{everything}"), ("core.ignoreCase", "true"), ("core.precomposeUnicode", "true"),
    ("core.quotePath", "true"), ("core.quotePath", "false"), ("core.abbrev", "4"), ("core.abbrev", "40"), ("core.compression", "0"),
    ("core.looseCompression", "9"), ("core.bigFileThreshold", "1"), ("core.packedGitLimit", "1"), ("core.sharedRepository", "0666"),
    ("core.sharedRepository", "group"), ("core.logAllRefUpdates", "always"), ("core.untrackedCache", "true"), ("core.splitIndex", "true"),
    ("core.checkStat", "minimal"), ("core.trustctime", "false"), ("core.preloadIndex", "false"), ("core.commitGraph", "true"),
    ("core.multiPackIndex", "true"), ("core.notesRef", "refs/notes/x"), ("core.whitespace", "trailing-space,cr-at-eol"), ("core.fsync", "all"),
    ("core.protectNTFS", "false"), ("core.symlinks", "true"), ("core.sparseCheckoutCone", "true"), ("core.useReplaceRefs", "true"),
    ("core.commentChar", "l"), ("index.version", "4"), ("index.version", "2"), ("index.sparse", "true"), ("index.threads", "true"),
    ("index.skipHash", "true"), ("splitIndex.maxPercentChange", "0"), ("splitIndex.sharedIndexExpire", "now"), ("feature.manyFiles", "true"),
    ("feature.experimental", "true"), ("gc.auto", "1"), ("gc.autoDetach", "false"), ("maintenance.auto", "true"), ("log.showSignature", "true"),
    ("log.decorate", "full"), ("log.follow", "true"), ("log.date", "iso"), ("log.mailmap", "true"), ("commit.gpgSign", "true"), ("tag.gpgSign", "true"),
    ("diff.noprefix", "true"), ("diff.mnemonicPrefix", "true"), ("diff.srcPrefix", "x/"), ("diff.dstPrefix", "y/"), ("diff.context", "0"),
    ("diff.context", "40"), ("diff.interHunkContext", "30"), ("diff.algorithm", "patience"), ("diff.indentHeuristic", "false"),
    ("diff.renames", "copies"), ("diff.renames", "false"), ("diff.orderFile", "{order}"), ("diff.orderFile", "/nowhere/at/all"),
    ("diff.relative", "true"), ("diff.colorMoved", "zebra"), ("diff.wsErrorHighlight", "all"), ("diff.suppressBlankEmpty", "true"),
    ("diff.statGraphWidth", "1"), ("diff.statNameWidth", "5"), ("diff.submodule", "log"), ("diff.ignoreSubmodules", "all"), ("diff.wordRegex", "."),
    ("diff.evil.binary", "true"), ("diff.evil.xfuncname", "x"), ("diff.dirstat", "lines"), ("color.ui", "always"), ("color.diff", "always"),
    ("color.diff.new", "red"), ("column.ui", "always"), ("apply.whitespace", "fix"), ("apply.whitespace", "error-all"),
    ("apply.ignoreWhitespace", "change"), ("status.showUntrackedFiles", "no"), ("status.relativePaths", "false"), ("status.short", "true"),
    ("i18n.commitEncoding", "ISO-8859-1"), ("i18n.logOutputEncoding", "UTF-16"), ("pack.packSizeLimit", "1m"), ("pack.indexVersion", "1"),
    ("pack.depth", "0"), ("pack.threads", "1"), ("pack.island", "refs/"), ("fastimport.unpackLimit", "0"), ("transfer.unpackLimit", "1"),
    ("transfer.fsckObjects", "true"), ("transfer.hideRefs", "refs/"), ("submodule.recurse", "true"), ("merge.renormalize", "true"),
    ("rerere.enabled", "true"), ("user.useConfigOnly", "true"), ("author.name", "X"), ("committer.email", "x@y"), ("attr.tree", "HEAD"),
    ("grep.patternType", "perl"), ("versionsort.suffix", "-"), ("tag.sort", "-refname"), ("branch.sort", "-committerdate"), ("safe.directory", "/x"),
    ("safe.bareRepository", "explicit"), ("advice.detachedHead", "false"), ("help.autocorrect", "1"), ("fsck.skipList", "/nowhere"),
]  # fmt: skip
WRONG = [("core.compression", "99"), ("core.repositoryFormatVersion", "7"), ("extensions.unheardOf", "x"), ("core.abbrev", "x"), ("index.version", "99"),
         ("pack.threads", "-3"), ("core.filemode", "maybe"), ("diff.context", "-1"), ("filter.a=b.clean", PROGRAM)]  # fmt: skip
ATTRIBUTES = (
    "* filter=evil diff=evil merge=evil\n*.py ident working-tree-encoding=UTF-16 eol=crlf text\n*.md -diff export-subst\n"
    "src/** binary\n[attr]evil filter=evil\n*.txt text=auto whitespace=fix\n"
)
VERBS = (
    ("apply",), ("status", "--json"), ("diff",), ("diff", "--stat"), ("export", "--check"), ("apply",), ("diff", "--local"), ("revert",), ("status",),
)  # fmt: skip


def tables(clone: Path, chance: random.Random) -> None:
    """What lies beside the configuration: hooks, attributes, grafts, replacements, a split index, an odd excludes file."""
    dot = clone / ".git"
    if chance.random() < 0.5:
        (dot / "info").mkdir(exist_ok=True)
        (dot / "info/attributes").write_text(ATTRIBUTES)
    if chance.random() < 0.3:
        (dot / "info/exclude").write_text("*\n")
    if chance.random() < 0.3:
        head, below = git(clone, "rev-parse", "HEAD"), git(clone, "rev-parse", "v2")
        (dot / "info/grafts").write_text(chance.choice([f"{head}\n", f"{head} {below}\n", "junk\n"]))
    if chance.random() < 0.3:
        git(clone, "update-ref", f"refs/replace/{git(clone, 'rev-parse', 'HEAD')}", git(clone, "rev-parse", "v2"))
    if chance.random() < 0.3:
        blob = git(clone, "rev-parse", "HEAD:src/core.py")
        git(clone, "update-ref", f"refs/replace/{blob}", git(clone, "rev-parse", "HEAD:README.md"))
    if chance.random() < 0.3:
        git(clone, "update-index", chance.choice(["--split-index", "--untracked-cache", "--index-version=4"]))
    if chance.random() < 0.2:
        (dot / "objects/info/alternates").write_text(
            chance.choice(["/nowhere\n", str(clone / ".git/objects") + "\n", "# x\n\n"])
        )
    if chance.random() < 0.2:
        git(clone, "commit-graph", "write", "--reachable")


@pytest.fixture
def outcome(project, clone, tmp_path):
    """What the verbs give on a plain clone."""
    project.run("fetch", "alpha")
    results = play(project, clone)
    assert [code for code, *_ in results] == [0] * len(VERBS)
    return results


def play(project, clone: Path) -> list[tuple]:
    found = []
    for words in VERBS:
        result = project.run(words[0], "alpha", "--checkout", str(clone), *words[1:], code=None)
        shown = result.raw if words == ("diff",) or words[0] == "export" else b""
        found.append((result.code, shown, content(clone), result.text))
        if result.code:
            assert result.code < 8 and result.text.strip()
            break
    return found


@chunks(8)
def test_hostile_configurations(tally, scale, project, clone, outcome, tmp_path, chunk):
    ran = tmp_path / "the-canary-ran"
    canary = tmp_path / "canary.sh"
    canary.write_text(f"#!/bin/sh\necho \"$0 $@\" >> '{ran}'\nexec cat\n")
    canary.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction", "post-checkout", "pre-commit", "fsmonitor-watchman", "post-rewrite", "pre-auto-gc",
                 "applypatch-msg", "pre-applypatch", "post-applypatch", "post-merge", "pre-push", "proc-receive"):  # fmt: skip
        shutil.copy(canary, hooks / name)
    places = {name: str(tmp_path / name) for name in ("elsewhere", "included", "attributes", "everything", "order")}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/kept").write_text("kept")
    (tmp_path / "included").write_text(
        f'[core]\n\tfsmonitor = {canary}\n[filter "evil"]\n\tclean = {canary}\n\trequired = true\n'
    )
    (tmp_path / "attributes").write_text(ATTRIBUTES)
    (tmp_path / "everything").write_text("*\n")
    (tmp_path / "order").write_text("zzz\n*.txt\nsrc/u*\n")
    places.update(canary=str(canary), hooks=str(hooks))
    fresh = tmp_path / "fresh"
    clone.rename(fresh)
    bench = PatchBench(project.engine, tmp_path / "bench", kit_files())

    def same_diff(mine: bytes, plain: bytes) -> bool:
        """Attributes and core.abbrev have a say in how a diff looks, but not in what it does."""
        return mine == plain or bench.by_git(mine) == bench.by_git(plain) is not None

    def check(number: int) -> str:
        chance = random.Random(number)
        shutil.rmtree(clone, ignore_errors=True)
        shutil.copytree(fresh, clone, symlinks=True)
        tables(clone, chance)
        shutil.copytree(hooks, clone / ".git/hooks", dirs_exist_ok=True)
        chosen = chance.sample(SETTINGS, chance.choice([1, 2, 5, 20, 60])) + (
            [chance.choice(WRONG)] if chance.random() < 0.15 else []
        )
        for key, value in chosen:
            section, _, name = key.rpartition(".")
            section, dot, sub = section.partition(".")
            sub = sub.format(**places)
            with open(clone / ".git/config", "a") as config:
                config.write(
                    f'[{section}{f" {chr(34)}{sub}{chr(34)}" if dot else ""}]\n\t{name} = "{value.format(**places)}"\n'
                )
        ours = {path: data for path, data in files_of(clone / ".git").items() if chosen_for_good(path)}
        before = content(clone)
        results = play(project, clone)
        assert not ran.exists(), ran.read_text()
        assert content(tmp_path / "elsewhere") == {"kept": (False, b"kept")}
        if results[-1][0] in (0, 1) and len(results) == len(VERBS):
            for words, mine, plain in zip(VERBS, results, outcome):
                assert mine[0] == plain[0] and same_diff(mine[1], plain[1]), (
                    f"{words}: {mine[:2]}, on a plain clone {plain[:2]}"
                )
                assert mine[2] == plain[2], f"{words}: other files than on a plain clone"
            left = {path: data for path, data in files_of(clone / ".git").items() if chosen_for_good(path)}
            assert left == ours, (
                f"left in .git: {sorted(set(left) ^ set(ours)) or [path for path in left if left[path] != ours[path]]}"
            )
            return "completed"
        if len(results) == 1:  # apply refused
            assert content(clone) == before
            return "refused"
        raise AssertionError(
            f"apply worked, and then {VERBS[len(results) - 1]} ended with {results[-1][0]}: {results[-1][3]}"
        )

    explore(tally, "hostile git configuration in a given clone", chunk, scale(5, 12), SEEDS, check)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def chosen_for_good(path: str) -> bool:
    """Objects stay until git collects them, logs are git's own, and the index is written anew."""
    return not path.startswith(("objects/", "logs/")) and path != "index"
