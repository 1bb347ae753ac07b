"""Supply chain: servers, archives, the cache and a clone's own objects may lie as they like; what is used is what is pinned.

Every attack is tried with the verbs that reach a source, with an empty cache and with one that has the source already. An
attack ends in a clean refusal, or in exactly the pinned bytes; in both cases nothing of it stays in the cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from forge import Forge, make_certificate
from kit import FIRST, SDIST_ONLY, Project, content, git, make_archive, make_upstream

PART = "supply"
LONG = os.environ.get("ERA_PROOF") == "long"
# No patch touches what differs here, so the ids in the patches cannot tell.
EVIL = {**FIRST, "src/old.py": "import evil\n", "README.md": "# evil\n", "evil.py": "evil = 1\n"}
UNVOUCHED = "a certificate that nobody vouches for"
PYTHON = shlex.quote(sys.executable)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def expected_files(template: tuple[Path, dict], folder: Path) -> dict:
    """What a checkout must hold, made by plain git from the genuine repository."""
    root, ids = template
    git(folder, "clone", "-q", str(root / "up/alpha"), "plain")
    git(folder / "plain", "checkout", "-q", ids["v1"])
    patches = sorted((root / "project/patches/alpha/v1").glob("*.patch"))
    git(folder / "plain", "apply", *map(str, patches))
    found = content(folder / "plain")
    found.update(
        {path: item for path, item in content(root / "project/overlays/alpha").items() if "__pycache__" not in path}
    )
    return found


@pytest.fixture(scope="session")
def expected(template, tmp_path_factory) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        whole = expected_files(template, tmp_path_factory.mktemp("expected"))
    return {"git": whole, "pypi": {path: item for path, item in whole.items() if not path.startswith("extra/")}}


@dataclasses.dataclass
class Case:
    """One try: a project whose upstream alpha is on `forge`, and `other`, a server that must never be asked."""

    project: Project
    forge: Forge
    other: Forge
    folder: Path
    expected: dict
    repository: Path
    evil: str
    canary: Path
    grounds: Path
    start: tuple = ()
    extra: Forge | None = None  # a mirror that an index may send on to

    def fresh(self) -> None:
        """As it was in the beginning, for the next try: many of them share one project, which saves time."""
        project, sources = self.project, self.project.engine.sources
        self.start = self.start or (
            json.dumps(project.upstreams),
            dict(project.env),
            sources.MAX_DOWNLOAD,
            sources.STALL,
        )
        project.upstreams, project.env = json.loads(self.start[0]), dict(self.start[1])
        sources.MAX_DOWNLOAD, sources.STALL = self.start[2:]
        project.save()
        for path in (project.cache, project.checkouts, self.folder / "forge"):
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.grounds / "forge", self.folder / "forge")
        self.forge.trick, self.forge.old, self.forge.files, self.forge.config = None, False, False, {}
        self.forge.log.clear()

    @property
    def pin(self) -> str:
        return self.project.upstreams["alpha"]["versions"]["v1"]["commit"]

    def repin(self, commit: str) -> None:
        self.project.upstreams["alpha"]["versions"]["v1"]["commit"] = commit
        self.project.save()

    def untag(self) -> None:
        del self.project.upstreams["alpha"]["versions"]["v1"]["tag"]
        self.project.save()

    def script(self, text: str) -> None:
        """A program for the server to run instead of `git pack-objects` (its words are the script's)."""
        path = self.folder / "pack-objects"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        self.forge.config["uploadpack.packObjectsHook"] = str(path)

    def cached(self) -> Path:
        return self.project.cache / "git/alpha.git"

    def user_config(self, text: str) -> None:
        path = self.folder / "user-config"
        path.write_text(text)
        self.project.env["GIT_CONFIG_GLOBAL"] = str(path)


@pytest.fixture(scope="session")
def grounds(template, tmp_path_factory) -> tuple[Path, str]:
    """forge/alpha, bare, with an evil branch beside the genuine ones; evil, where that comes from; and the evil commit."""
    folder = tmp_path_factory.mktemp("grounds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        git(folder, "clone", "-q", "--bare", str(template[0] / "up/alpha"), "forge/alpha")
        evil = make_upstream(folder / "evil", [("v1", EVIL)])["v1"]
        git(folder / "forge/alpha", "fetch", "-q", str(folder / "evil"), "main:refs/heads/evil")
    return folder, evil


@pytest.fixture
def case(project, certificate, expected, grounds, tmp_path):
    for name, there in (("evil", "evil"), ("forge", "elsewhere")):
        shutil.copytree(grounds[0] / name, tmp_path / there)
    forge, other = Forge(tmp_path / "forge", certificate), Forge(tmp_path / "elsewhere", certificate)
    project.upstreams["alpha"]["git"] = f"{forge.url}/alpha"
    project.save()
    project.env.update(GIT_SSL_CAINFO=str(certificate), NO_PROXY="*", no_proxy="*")
    made = Case(
        project, forge, other, tmp_path, expected, tmp_path / "forge/alpha", grounds[1], tmp_path / "canary", grounds[0]
    )
    made.fresh()
    yield made
    forge.close()
    other.close()


def verb_words(verb: str, source: str) -> tuple[str, ...]:
    """port tries the attacked version as the one to go to, from another version that is in the cache."""
    words = ("port", "alpha", "--version", "v2", "--onto", "v1") if verb == "port" else (verb, "alpha")
    return (*words, "--source", source)


def judge(case: Case, tally, row: str, verb: str, words: tuple[str, ...], outcomes: tuple[str, ...], kind: str = "git"):
    """Run a verb, look at everything that may not be, and count how it ended."""
    before = content(case.project.checkout()) if case.project.checkout().exists() else None
    try:
        result = case.project.run(*words, code=None)
        outcome = "completed" if result.code == 0 else "refused"
        assert result.code in (0, 2, 3, 5, 6), result.text
        assert outcome in outcomes, f"{row}: {words} {outcome}\n{result.text}"
        assert "\x1b" not in result.text
        assert "TLS" not in result.text or row == UNVOUCHED, "the server of this test is broken"
        assert outcome == "completed" or result.err.startswith("error: ")
        found = content(case.project.checkout()) if case.project.checkout().exists() else None
        if verb == "apply" and outcome == "completed":
            assert found == case.expected[kind]
            assert git(case.project.checkout(), "fsck", "--strict", "--no-dangling") == ""
            if kind == "git":
                assert git(case.project.checkout(), "rev-parse", "upstream/v1") == case.pin
        else:
            assert found == before
        assert case.other.log == [], "another host was asked"
        assert not case.canary.exists(), "a program of somebody else was run"
        if row not in POISONS:
            cache_is_clean(case)
    except BaseException:
        tally.count(PART, row, "lost")
        raise
    tally.count(PART, row, outcome)
    return result


def cache_is_clean(case: Case) -> None:
    """Only our pins, each of them the id that it is named after, and no object of the attacker's."""
    repository = case.cached()
    if not repository.exists():
        return
    pins = {case.pin, case.project.ids["v1"], case.project.ids["v2"]}
    for line in git(repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines():
        name, commit = line.split()
        assert name in {f"refs/pins/{pin}" for pin in pins} or name.startswith(("refs/pins/sdist-", "refs/onto/")), line
        if name.removeprefix("refs/pins/") in pins:
            assert commit == name.removeprefix("refs/pins/")
    objects = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    if case.pin != case.evil:
        assert case.evil not in objects
    assert not (repository / "FETCH_HEAD").exists()
    assert list((case.project.cache / "tmp").glob("*")) == []


# --- what servers do -------------------------------------------------------------------------------------------------

ATTACKS: dict[str, tuple] = {}  # words -> (what is done to the case, how it may end, where the sources may be)


def attack(words: str, *outcomes: str, local: bool = False, quick: bool = True):
    def add(action):
        ATTACKS[words] = (action, outcomes, ("https", "path") if local else ("https",), quick)
        return action

    return add


def without_the_pin(case: Case) -> None:
    """The repository is another one, with the evil commit under every name."""
    shutil.rmtree(case.repository)
    git(case.folder, "clone", "-q", "--bare", str(case.folder / "evil"), str(case.repository))


@attack("commit not there", "refused", local=True)
def _(case):
    without_the_pin(case)


@attack("a branch that bears the id", "refused", local=True)
def _(case):
    without_the_pin(case)
    (case.repository / "packed-refs").write_text(
        f"{case.evil} refs/heads/{case.pin}\n{case.evil} refs/tags/{case.pin}\n"
    )


@attack("the id is a blob's", "refused", local=True, quick=False)
def _(case):
    case.repin(git(case.repository, "rev-parse", "v1:src/old.py"))


@attack("the id is a tree's", "refused", local=True, quick=False)
def _(case):
    case.repin(git(case.repository, "rev-parse", "v1^{tree}"))


@attack("the id is an annotated tag's", "refused", local=True, quick=False)
def _(case):
    git(case.repository, "tag", "-a", "-m", "x", "signed", "v1")
    case.repin(git(case.repository, "rev-parse", "signed"))


def old_server(case: Case) -> None:
    """A server that gives tips only, so that the tag has to do. In the repository nothing but the tag leads there."""
    case.forge.old = True
    for name in git(case.repository, "for-each-ref", "--format=%(refname)", "refs/heads").split():
        git(case.repository, "update-ref", "-d", name)
    git(case.repository, "update-ref", "refs/heads/main", git(case.repository, "rev-parse", "v2"))


@attack("an old server, with the right tag", "completed", quick=False)
def _(case):
    old_server(case)


@attack("an old server, with the right annotated tag", "completed", quick=False)
def _(case):
    old_server(case)
    git(case.repository, "tag", "-f", "-a", "-m", "x", "v1", case.pin)


@attack("moved tag", "refused")
def _(case):
    old_server(case)
    git(case.repository, "tag", "-f", "v1", case.evil)
    git(case.repository, "update-ref", "-d", "refs/heads/evil")


@attack("annotated tag that points elsewhere", "refused", quick=False)
def _(case):
    old_server(case)
    git(case.repository, "tag", "-f", "-a", "-m", case.pin, "v1", case.evil)


@attack("a tag of a file", "refused", quick=False)
def _(case):
    old_server(case)
    git(case.repository, "tag", "-f", "v1", "v2:src/old.py")


@attack("no tag, and no branch has the commit", "refused", quick=False)
def _(case):
    without_the_pin(case)
    case.forge.old = True
    case.untag()


@attack("no tag, hostile branches, one of which has the commit", "completed")
def _(case):
    case.forge.old = True
    case.untag()
    names = ["HEAD", "refs/pins/x", f"refs/pins/{case.pin}", case.pin, "-x", "--upload-pack=x", "era", "a;touch", "v1"]
    rows = [f"{case.evil} refs/heads/{name}" for name in names] + [
        f"{git(case.repository, 'rev-parse', 'v2')} refs/heads/main"
    ]
    (case.repository / "packed-refs").write_text("\n".join(rows) + "\n")
    shutil.rmtree(case.repository / "refs")
    (case.repository / "refs/heads").mkdir(parents=True)


@attack("extra refs, thousands of them, links, a HEAD to nowhere", "completed", local=True)
def _(case):
    rows = [f"{case.evil} refs/heads/b{number:05}" for number in range(3000)]
    rows += [f"{case.evil} refs/pins/{case.pin}", f"{case.evil} refs/pins/sdist-{case.project.ids['sha256']}"]
    rows += [
        f"{case.evil} refs/replace/{case.pin}",
        f"{case.evil} refs/tags/{case.pin}",
        f"{case.evil} refs/remotes/-x/y",
    ]
    with open(case.repository / "packed-refs", "a") as out:
        out.write("\n".join(rows) + "\n")
    for link in ("refs/heads/link", "refs/pins/link"):
        git(case.repository, "symbolic-ref", link, "refs/heads/evil")
    (case.repository / "HEAD").write_text("ref: refs/heads/nowhere\n")


@attack("extra objects in the pack", "completed")
def _(case):
    case.script(f'(cat; ) | (sed "1i {case.evil}") | "$@"')


@attack("a pack of another commit", "refused")
def _(case):
    case.script(
        f"cat > /dev/null; cd {case.repository}; git rev-list --objects {case.evil} | git pack-objects --stdout -q"
    )


@attack("a corrupted pack", "refused")
def _(case):
    flip = "import sys; d = bytearray(sys.stdin.buffer.read()); d[len(d) // 2] ^= 255; sys.stdout.buffer.write(d)"
    case.script(f'"$@" | {PYTHON} -S -c {shlex.quote(flip)}')


@attack("a pack with another file under the file's name", "refused")
def _(case):
    swap = f"""
import subprocess, sys
names = subprocess.run(["git", "rev-list", "--objects", "--no-walk", "{case.pin}"], capture_output=True).stdout
good = subprocess.run(["git", "rev-parse", "{case.pin}:src/old.py"], capture_output=True).stdout.strip()
bad = subprocess.run(["git", "rev-parse", "{case.evil}:src/old.py"], capture_output=True).stdout.strip()
sys.stdout.buffer.write(subprocess.run(["git", "pack-objects", "--stdout", "-q"], input=names.replace(good, bad), capture_output=True).stdout)
"""
    case.script(f"cat > /dev/null; cd {case.repository}; {PYTHON} -S -c {shlex.quote(swap)}")


@attack("a thin pack, on objects that we do not have", "refused", quick=False)
def _(case):
    case.script(f'sed "1i --not\\n{case.evil}\\n--not" | "$@" --thin')


@attack("a pack that ends early", "refused", quick=False)
def _(case):
    case.script('"$@" | head -c 300')


@attack("an endless pack", "refused")
def _(case):
    case.project.engine.sources.MAX_DOWNLOAD = 4 << 20
    endless = """
import os, struct, sys, zlib
out = sys.stdout.buffer
out.write(b"PACK" + struct.pack(">II", 2, 4_000_000_000))
while True:
    data = os.urandom(16383)
    out.write(bytes([0xB0 | (len(data) & 15), 0x80 | (len(data) >> 4 & 127), len(data) >> 11]) + zlib.compress(data, 0))
"""
    case.script(f"cat > /dev/null; exec {PYTHON} -S -c {shlex.quote(endless)}")


def raw_tree(repository: Path, rows: list[tuple[str, bytes, str]]) -> str:
    body = b"".join(f"{mode} ".encode() + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in rows)
    made = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"],
        cwd=repository,
        input=body,
        capture_output=True,
    )
    return made.stdout.decode().strip()


def pin_tree(case: Case, rows: list[tuple[str, bytes, str]]) -> None:
    """Even a pinned commit is refused when its tree has names that would reach out of the checkout."""
    commit = git(case.repository, "commit-tree", "-m", "x", raw_tree(case.repository, rows))
    git(case.repository, "update-ref", "refs/heads/odd", commit)
    case.repin(commit)


def add_hostile_tree(words: str, name: bytes, deep: bool) -> None:
    @attack(f"a tree with {words}", "refused", local=True, quick=words == "../up")
    def _(case):
        blob = git(case.repository, "rev-parse", "v1:README.md")
        inner = raw_tree(case.repository, [("100644", b"config", blob)])
        pin_tree(case, [("40000", name, inner) if deep else ("100644", name, blob)])


for words, name, deep in (
    ("../up", b"..", True),
    (".git/config", b".git", True),
    (".GIT/config", b".GIT", True),
    ("git~1/config", b"git~1", True),
    ("an absolute path", b"/etc/x", False),
    ("a slash in a name", b"a/b", False),
    ("an empty name", b"", True),
    ("the name .", b".", True),
):
    add_hostile_tree(words, name, deep)


@attack("a tree with one name twice", "refused", quick=False)
def _(case):
    good, bad = (git(case.repository, "rev-parse", f"{commit}:src/old.py") for commit in (case.pin, case.evil))
    pin_tree(case, [("100644", b"core.py", good), ("100644", b"core.py", bad)])


@attack("a .gitmodules that is a link", "refused", quick=False)
def _(case):
    pin_tree(case, [("120000", b".gitmodules", git(case.repository, "rev-parse", "v1:README.md"))])


def redirect(words: str, where, *outcomes: str, status: int = 302, quick: bool = True) -> None:
    """`where(case)` is the Location for the repository; /moved/alpha is where the forge really has it."""

    @attack(words, *outcomes, quick=quick)
    def _(case):
        target = where(case)

        def trick(handler) -> bool:
            if handler.path.startswith("/alpha/"):
                return handler.answer(status, Location=target + handler.path.removeprefix("/alpha"))
            return False

        (case.folder / "forge/moved").mkdir()
        case.repository.rename(case.folder / "forge/moved/alpha")
        case.forge.trick = trick


redirect("redirect to another host", lambda case: f"https://localhost:{case.forge.port}/moved/alpha", "refused")
redirect("redirect to another port", lambda case: f"{case.other.url}/alpha", "refused", quick=False)
redirect(
    "redirect that stays (301) to another port",
    lambda case: f"{case.other.url}/alpha",
    "refused",
    status=301,
    quick=False,
)
redirect("redirect (307) to another port", lambda case: f"{case.other.url}/alpha", "refused", status=307, quick=False)
redirect("redirect (308) to another port", lambda case: f"{case.other.url}/alpha", "refused", status=308, quick=False)
redirect("redirect to plain http", lambda case: f"http://127.0.0.1:{case.forge.port}/moved/alpha", "refused")
redirect("redirect without a scheme", lambda case: f"//127.0.0.1:{case.other.port}/alpha", "refused", quick=False)
redirect(
    "redirect that disguises the host",
    lambda case: f"https://127.0.0.1:{case.forge.port}@localhost:{case.other.port}/alpha",
    "refused",
)
redirect(
    "redirect with a backslash",
    lambda case: f"https://localhost:{case.other.port}\\@127.0.0.1:{case.forge.port}/x",
    "refused",
    quick=False,
)
redirect("redirect to a file", lambda case: f"file://{case.folder}/elsewhere/alpha", "refused", quick=False)
redirect("redirect to a program", lambda case: f"ext::sh -c touch% {case.canary} ", "refused", quick=False)
redirect("redirect to an option", lambda case: "--upload-pack=x", "refused", quick=False)
redirect("redirect to no URL", lambda case: "https://[::1/alpha", "refused", quick=False)
redirect(
    "redirect to the other service",
    lambda case: "/moved/alpha/info/refs?service=git-receive-pack&x=",
    "refused",
    quick=False,
)
redirect("redirect in a circle", lambda case: f"{case.forge.url}/alpha", "refused", quick=False)
redirect("redirect within the host", lambda case: f"{case.forge.url}/moved/alpha", "completed")
redirect("redirect (301) within the host, relative", lambda case: "/moved/alpha", "completed", status=301, quick=False)
redirect(
    "redirect within the host, with a name",
    lambda case: f"https://x:y@127.0.0.1:{case.forge.port}/moved/alpha",
    "refused",
    quick=False,
)


@attack("redirect of the second request", "refused", quick=False)
def _(case):
    case.forge.trick = lambda handler: (
        handler.command == "POST" and handler.answer(307, Location=case.other.url + handler.path)
    )


@attack("a server that asks for a password", "refused")
def _(case):
    case.forge.trick = lambda handler: handler.answer(401, WWW_Authenticate='Basic realm="give it to me"')


@attack("a server with words for the terminal", "refused", quick=False)
def _(case):
    line = b"ERR \x1b]0;owned\x07\x1b[2J not our place"
    body = b"001e# service=git-upload-pack\n0000" + f"{len(line) + 4:04x}".encode() + line
    case.forge.trick = lambda handler: handler.answer(
        200, body, Content_Type="application/x-git-upload-pack-advertisement"
    )


@attack("words for the terminal beside a pack", "refused", quick=False)
def _(case):
    case.script("cat > /dev/null; printf '\\033]0;owned\\007\\033[2J\\rfatal: \\033[31mred\\n' >&2; exit 1")


@attack("an answer that never ends", "refused", quick=False)
def _(case):
    case.project.engine.sources.STALL = 1.0

    def trick(handler) -> bool:
        handler.answer(200, None, Content_Type="application/x-git-upload-pack-advertisement")
        while True:
            handler.wfile.write(b"001e# service=git-upload-pack\n" * 100)

    case.forge.trick = trick


@attack("a server that says nothing of git", "refused", quick=False)
def _(case):
    case.forge.trick = lambda handler: handler.answer(200, b"<html>hello</html>", Content_Type="text/html")


@attack("a server of plain files that names another host", "refused", quick=False)
def _(case):
    git(case.repository, "update-server-info")
    (case.repository / "objects/info/http-alternates").write_text(f"{case.other.url}/alpha/objects\n")
    for pack in case.repository.glob("objects/pack/*"):
        pack.unlink()
    (case.repository / "objects/info/packs").write_text("")
    case.forge.files = True


@attack("packs, bundles and promisors elsewhere, which the user allows", "completed")
def _(case):
    blob = git(case.repository, "rev-parse", "v1:src/old.py")
    case.forge.config.update(
        {
            "uploadpack.blobPackfileUri": f"{blob} {'0' * 40} {case.other.url}/x.pack",
            "uploadpack.advertiseBundleURIs": "true",
            "bundle.version": "1",
            "bundle.mode": "all",
            "bundle.x.uri": f"{case.other.url}/x.bundle",
            "promisor.advertise": "true",
            "remote.x.url": f"{case.other.url}/alpha",
            "remote.x.promisor": "true",
            "uploadpack.allowFilter": "true",
        }
    )
    case.user_config(
        "[fetch]\n\turiProtocols = https,http\n[transfer]\n\tbundleURI = true\n[promisor]\n\tacceptFromServer = all\n"
    )


@attack("git's settings of the user: hooks, filters, refs to prune, submodules", "completed", quick=False)
def _(case):
    hooks = case.folder / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-checkout", "post-index-change", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {case.canary}\n")
        (hooks / name).chmod(0o755)
    case.user_config(
        f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = touch {case.canary}\n[fetch]\n\tprune = true\n\tpruneTags = true\n"
        "\trecurseSubmodules = true\n[submodule]\n\trecurse = true\n[http]\n\tfollowRedirects = true\n"
    )


def quick_or_each(rows: dict[str, tuple]) -> list[list[str]]:
    """The long form has a test for each row, the short form one for all rows that are quick."""
    return [[words] for words in rows] if LONG else [[words for words, row in rows.items() if row[-1]]]


def one_or_all(value: list[str]) -> str:
    return value[0].replace(" ", "-") if LONG else "short"


VERBS = ("apply", "fetch", "port") if LONG else ("apply",)
BOTH = (False, True) if LONG else (False,)


@pytest.mark.parametrize("chosen", quick_or_each(ATTACKS), ids=one_or_all)
def test_servers(case, tally, chosen):
    """attack x verb x cache x source."""
    for words in chosen:
        for verb, warm, place in itertools.product(VERBS, BOTH, ATTACKS[words][2] if LONG else ("https",)):
            case.fresh()
            one_server(case, tally, words, verb, warm, place)


def one_server(case: Case, tally, words: str, verb: str, warm: bool, place: str) -> None:
    action, outcomes, _, _ = ATTACKS[words]
    genuine = str(case.project.up / "alpha")
    if verb == "port":
        case.project.run("fetch", "alpha", "--version", "v2", "--source", genuine)
    pin = case.pin
    if warm:
        case.project.run("fetch", "alpha", "--source", genuine)
    action(case)
    unasked = warm and case.pin == pin and place == "https"  # the cache has it, so nobody is asked
    source = str(case.repository) if place == "path" else "git"
    result = judge(case, tally, words, verb, verb_words(verb, source), ("completed",) if unasked else outcomes)
    assert bool(case.forge.log) == (place == "https" and not unasked)
    if "within the host" in words and outcomes == ("completed",) and not unasked:
        assert "has moved within this host, to /moved/alpha" in result.text
    if words.startswith("redirect to") and not unasked and ("host" in words or "port" in words or "http" in words):
        assert "sends on to" in result.err and "insteadOf" in result.err


# --- URLs ------------------------------------------------------------------------------------------------------------

URLS = {
    "http://127.0.0.1/alpha": 2,
    "git://127.0.0.1/alpha": 2,
    "ext::sh -c touch% canary": 2,
    "ftp://127.0.0.1/alpha": 2,
    "--upload-pack=touch canary": 2,
    "ssh://-oProxyCommand=touch%20canary/alpha": 2,
    "ssh://user@-oProxyCommand=touch%20canary/alpha": 6,
    "ssh://[-oProxyCommand=x]/alpha": 6,
    "ssh://%2doProxyCommand=x/alpha": 6,
    "https://-x/alpha": 2,
    "file://-x/alpha": 2,
    "file:///nowhere/alpha": 6,
}


def test_urls_in_upstreams_json(project, tally, tmp_path):
    """ssh is a script that tells how it was called: no word but git's own options may begin with a dash."""
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word" >> {tmp_path}/called; done\nexit 1\n')
    script.chmod(0o755)
    project.env.update(GIT_SSH=str(script), GIT_SSH_VARIANT="ssh")
    for url, code in URLS.items() if LONG else list(URLS.items())[:7]:
        project.upstreams["beta"]["git"] = url
        project.save()
        project.run("fetch", "beta", code=code)
        tally.count(PART, "URLs that are none, or hide an option", "refused")
    called = (tmp_path / "called").read_text().split("\n") if (tmp_path / "called").exists() else []
    assert not [word for word in called if word.startswith("-o") and word != "-o"], called
    assert not (tmp_path / "canary").exists() and not Path("canary").exists()


def test_the_users_own_rules_for_urls_and_certificates_hold(case, tally):
    """url.insteadOf to another host is the user's word, and so is following redirects of one host."""
    case.project.upstreams["alpha"]["git"] = "https://example.invalid/alpha"
    case.project.save()
    case.user_config(f'[url "{case.forge.url}/"]\n\tinsteadOf = https://example.invalid/\n')
    judge(case, tally, "the user's url.insteadOf", "fetch", verb_words("fetch", "git"), ("completed",))
    del case.project.env["GIT_SSL_CAINFO"]
    shutil.rmtree(case.project.cache)
    judge(case, tally, UNVOUCHED, "fetch", verb_words("fetch", "git"), ("refused",))


def test_port_onto_names_of_a_hostile_server(case, tally):
    """A revision that is not pinned is read only, and stays under the name that the user gave."""
    git(case.repository, "tag", "file", "v1:src/old.py")
    git(case.repository, "branch", "x/y", "v2")
    git(case.repository, "tag", "x", "v2")
    case.project.run("fetch", "alpha", "--source", str(case.project.up / "alpha"))
    for onto, outcome in (("file", 6), ("x", 4), ("x/y", 4), ("nothing", 6), (case.project.ids["v2"], 4)):
        case.project.run("port", "alpha", "--onto", onto, code=outcome)
        cache_is_clean(case)
        tally.count(PART, "port onto what is not pinned", "refused" if outcome == 6 else "completed")
    case.project.run("port", "alpha", "--onto", "x/y", "--offline", code=4)


# --- the source package ----------------------------------------------------------------------------------------------

INDEX: dict[str, tuple] = {}


def index(words: str, *outcomes: str, quick: bool = False):
    def add(action):
        INDEX[words] = (action, outcomes, quick)
        return action

    return add


class Index:
    """A package index on loopback: pages by hand, so that they can lie."""

    def __init__(self, case: Case, forge: Forge):
        self.case, self.forge = case, forge
        self.page = forge.root / "simple/alpha/index.html"
        self.package = forge.root / "files/alpha-1.0.tar.gz"
        self.page.parent.mkdir(parents=True)
        self.package.parent.mkdir()
        shutil.copy(case.project.index / "alpha-1.0.tar.gz", self.package)
        self.offer("/files/alpha-1.0.tar.gz")

    def offer(self, *links: str) -> None:
        self.page.write_text(
            "<html>" + "".join(f'<a href="{link}">{link.rpartition("/")[2].partition("#")[0]}</a>' for link in links)
        )

    def spoil(self, keep_size: bool = False) -> str:
        """An altered archive under the right name; its sha256."""
        whole = self.package.read_bytes()
        if keep_size:
            self.package.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
            assert self.package.stat().st_size == len(whole)
        else:
            make_archive(self.package, {**EVIL, **SDIST_ONLY}, "alpha-1.0")
        return hashlib.sha256(self.package.read_bytes()).hexdigest()


@index("an index as it should be", "completed")
def _(index):
    index.offer(f"/files/alpha-1.0.tar.gz#sha256={index.case.project.ids['sha256']}")


@index("altered archive with the right name", "refused", quick=True)
def _(index):
    index.spoil()


@index("altered archive with the right name and size", "refused")
def _(index):
    index.spoil(keep_size=True)


@index("altered archive that the index vouches for", "refused")
def _(index):
    index.offer(f"/files/alpha-1.0.tar.gz#sha256={index.spoil()}")


@index("altered archive, the index lists the right hash", "refused")
def _(index):
    index.spoil()
    index.offer(f"/files/alpha-1.0.tar.gz#sha256={index.case.project.ids['sha256']}")


@index("right archive, the index lists a wrong hash", "completed", "refused")
def _(index):
    index.offer(f"/files/alpha-1.0.tar.gz#sha256={'0' * 64}")


@index("an archive that is cut short", "refused")
def _(index):
    index.package.write_bytes(index.package.read_bytes()[:-20])


@index("another version only", "refused")
def _(index):
    index.package.rename(index.package.with_name("alpha-1.1.tar.gz"))
    index.offer("/files/alpha-1.1.tar.gz")


@index("a wheel only", "refused")
def _(index):
    index.package.rename(index.package.with_name("alpha-1.0-py3-none-any.whl"))
    index.offer("/files/alpha-1.0-py3-none-any.whl")


@index("a name that climbs", "refused")
def _(index):
    index.spoil()
    index.offer("/files/..%2f..%2f..%2f..%2fevil/alpha-1.0.tar.gz", "/files/alpha-1.0.tar.gz")


def send_on(index: Index, to: str) -> None:
    index.forge.trick = lambda handler: (
        handler.path.startswith("/files") and handler.answer(302, Location=to + handler.path)
    )


@index("the index sends on to other servers, right bytes", "completed")
def _(index):
    send_on(index, index.case.extra.url)


@index("the index sends on to other servers, altered bytes", "refused")
def _(index):
    shutil.copytree(index.forge.root / "files", index.case.extra.root / "files", dirs_exist_ok=True)
    make_archive(index.case.extra.root / "files/alpha-1.0.tar.gz", {**EVIL, **SDIST_ONLY}, "alpha-1.0")
    send_on(index, index.case.extra.url)


@index("the index asks for a password", "refused")
def _(index):
    index.forge.trick = lambda handler: handler.answer(401, WWW_Authenticate='Basic realm="give it to me"')


@index("an archive without end", "refused")
def _(index):
    index.case.project.engine.sources.MAX_DOWNLOAD = 2 << 20

    def trick(handler) -> bool:
        if not handler.path.startswith("/files"):
            return False
        handler.answer(200, None, Content_Type="application/octet-stream")
        while True:
            handler.wfile.write(os.urandom(1 << 16))

    index.forge.trick = trick


@pytest.mark.parametrize("chosen", quick_or_each(INDEX), ids=one_or_all)
def test_package_indexes(case, tally, chosen):
    for words in chosen:
        for verb, warm in itertools.product(VERBS, BOTH):
            case.fresh()
            one_index(case, tally, words, verb, warm)


def one_index(case: Case, tally, words: str, verb: str, warm: bool) -> None:
    action, outcomes, _ = INDEX[words]
    if verb == "port":
        case.project.run("fetch", "alpha", "--version", "v2", "--source", str(case.project.up / "alpha"))
    if warm:
        case.project.run("fetch", "alpha", "--source", str(case.project.index / "alpha-1.0.tar.gz"))
    for folder in ("index-server", "mirror"):
        shutil.rmtree(case.folder / folder, ignore_errors=True)
    shutil.copytree(case.project.index, case.folder / "mirror/files")
    place, case.extra = (
        Forge(case.folder / "index-server", None, files=True),
        Forge(case.folder / "mirror", None, files=True),
    )
    try:
        case.project.env.update(PIP_INDEX_URL=f"{place.url}/simple/", PIP_NO_CACHE_DIR="1")
        del case.project.env["PIP_NO_INDEX"], case.project.env["PIP_FIND_LINKS"]
        action(Index(case, place))
        judge(case, tally, words, verb, verb_words(verb, "pypi"), ("completed",) if warm else outcomes, kind="pypi")
        assert bool(place.log) != warm, "the index was asked although the cache has the package, or not at all"
    finally:
        place.close()
        case.extra.close()


@pytest.mark.parametrize(
    "spoil", ["altered, right size", "altered", "cut short", "another file", "a folder of files"][: None if LONG else 1]
)
@pytest.mark.parametrize("verb", ["fetch", "apply", "port"] if LONG else ["fetch"])
def test_archives_as_a_path(case, tally, spoil, verb):
    path = case.folder / "alpha-1.0.tar.gz"
    whole = (case.project.index / path.name).read_bytes()
    if spoil == "altered":
        make_archive(path, {**EVIL, **SDIST_ONLY}, "alpha-1.0")
    elif spoil == "altered, right size":
        path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    elif spoil == "cut short":
        path.write_bytes(whole[:-20])
    elif spoil == "another file":
        path.symlink_to("/dev/null")
    else:
        path.mkdir()
        (path / "setup.py").write_text("")
    case.project.run("fetch", "alpha", "--version", "v2", "--source", str(case.project.up / "alpha"))
    judge(
        case, tally, "an altered archive as --source PATH", verb, verb_words(verb, str(path)), ("refused",), kind="pypi"
    )
    assert not list((case.project.cache).glob("archives/*/*"))


# --- the cache -------------------------------------------------------------------------------------------------------

POISONS: dict[str, tuple] = {}  # words -> (what is done, the kinds of source, whether the short form has it)


def poison(words: str, kinds: tuple[str, ...] = ("git", "pypi"), quick: bool = True):
    def add(action):
        POISONS[words] = (action, kinds, quick)
        return action

    return add


def loose(repository: Path, oid: str) -> Path:
    return repository / "objects" / oid[:2] / oid[2:]


def overwrite_object(repository: Path, oid: str, other: str) -> None:
    """The bytes of one object under the name of another one, as a well-formed file."""
    kind = git(repository, "cat-file", "-t", other)
    body = subprocess.run(["git", "cat-file", kind, other], cwd=repository, capture_output=True, check=True).stdout
    path = loose(repository, oid)
    assert path.exists()
    path.chmod(0o644)
    path.write_bytes(zlib.compress(f"{kind} {len(body)}\0".encode() + body))


def pin_in_cache(case: Case, kind: str) -> str:
    return f"refs/pins/{case.pin}" if kind == "git" else f"refs/pins/sdist-{case.project.ids['sha256']}"


def bring_evil(case: Case, kind: str) -> str:
    """The evil commit in the cache, with the message that the genuine one has."""
    git(case.cached(), "fetch", "-q", str(case.folder / "evil"), "main")
    (case.cached() / "FETCH_HEAD").unlink()
    message = git(case.cached(), "log", "-1", "--format=%B", pin_in_cache(case, kind))
    return git(case.cached(), "commit-tree", "-m", message, f"{case.evil}^{{tree}}")


@poison("pin moved to another commit")
def _(case, kind):
    bring_evil(case, kind)
    git(case.cached(), "update-ref", pin_in_cache(case, kind), case.evil)


@poison("pin of a commit with the right message and another tree", kinds=("pypi", "git"))
def _(case, kind):
    git(case.cached(), "update-ref", pin_in_cache(case, kind), bring_evil(case, kind))


@poison("pin that is a link to another ref", quick=False)
def _(case, kind):
    git(case.cached(), "update-ref", "refs/heads/evil", bring_evil(case, kind))
    git(case.cached(), "symbolic-ref", pin_in_cache(case, kind), "refs/heads/evil")


def altered_object(words: str, path: str, quick: bool) -> None:
    @poison(f"altered object: {words}", quick=quick)
    def _(case, kind):
        evil = bring_evil(case, kind)
        oid = git(case.cached(), "rev-parse", pin_in_cache(case, kind) + path)
        overwrite_object(case.cached(), oid, git(case.cached(), "rev-parse", evil + path))


altered_object("the commit", "", False)
altered_object("the tree", "^{tree}", False)
altered_object("a folder's tree", ":src", True)
altered_object("a file", ":src/old.py", True)


@poison("a tree that tells of another mode", quick=False)
def _(case, kind):
    oid = git(case.cached(), "rev-parse", pin_in_cache(case, kind) + "^{tree}")
    rows = git(case.cached(), "ls-tree", oid).replace("100644 blob", "100755 blob")
    overwrite_object(case.cached(), oid, git(case.cached(), "mktree", data=rows + "\n"))


@poison("a damaged pack", quick=False)
def _(case, kind):
    git(case.cached(), "repack", "-adq")
    for path in case.cached().glob("objects/pack/*.pack"):
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)


@poison("altered archive", kinds=("pypi",))
def _(case, kind):
    make_archive(next((case.project.cache / "archives").glob("*/*")), {**EVIL, **SDIST_ONLY}, "alpha-1.0")


@poison("archive replaced by a link to an altered one", kinds=("pypi",), quick=False)
def _(case, kind):
    path = next((case.project.cache / "archives").glob("*/*"))
    make_archive(case.folder / "evil.tar.gz", {**EVIL, **SDIST_ONLY}, "alpha-1.0")
    path.unlink()
    path.symlink_to(case.folder / "evil.tar.gz")


@poison("archive gone", kinds=("pypi",), quick=False)
def _(case, kind):
    shutil.rmtree(case.project.cache / "archives")
    git(case.cached(), "update-ref", pin_in_cache(case, kind), bring_evil(case, kind))


@poison("hostile configuration and hooks")
def _(case, kind):
    touch = f"touch {case.canary}"
    with open(case.cached() / "config", "a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {touch}\n\thooksPath = {case.cached()}/hooks\n\tpager = {touch}\n\teditor = {touch}\n"
            f"\tsshCommand = {touch}\n\tgitProxy = {touch}\n\talternateRefsCommand = {touch}\n\tautocrlf = true\n"
            f'[filter "x"]\n\tclean = {touch}\n\tsmudge = {touch}\n\tprocess = {touch}\n[diff]\n\texternal = {touch}\n'
            f'[gpg]\n\tprogram = {touch}\n[uploadpack]\n\tpackObjectsHook = {touch}\n[url "{case.other.url}/"]\n'
            f"\tinsteadOf = {case.forge.url}/\n[http]\n\tsslVerify = false\n\tproxy = {case.other.url}\n[credential]\n\thelper = !{touch}\n"
            f'[remote "x"]\n\turl = ext::{touch}\n\tpromisor = true\n[alias]\n\trev-parse = !{touch}\n\tls-tree = !{touch}\n'
        )
    (case.cached() / "hooks").mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "pre-auto-gc", "post-checkout", "proc-receive"):
        (case.cached() / "hooks" / name).write_text(f"#!/bin/sh\n{touch}\n")
        (case.cached() / "hooks" / name).chmod(0o755)
    (case.cached() / "info").mkdir(exist_ok=True)
    (case.cached() / "info/attributes").write_text("* filter=x text eol=crlf ident\n")


@poison("grafts, replaced objects, alternates, a shallow file")
def _(case, kind):
    evil = bring_evil(case, kind)
    pin = git(case.cached(), "rev-parse", pin_in_cache(case, kind))
    git(case.cached(), "replace", pin, evil)
    git(case.cached(), "replace", f"{pin}:src/old.py", f"{evil}:src/old.py")
    (case.cached() / "info").mkdir(exist_ok=True)
    (case.cached() / "info/grafts").write_text(f"{pin} {case.evil}\n")
    (case.cached() / "objects/info").mkdir(exist_ok=True)
    (case.cached() / "objects/info/alternates").write_text(f"{case.folder}/evil/.git/objects\n")
    (case.cached() / "shallow").write_text(f"{pin}\n{case.evil}\n")


@poison("links for folders", quick=False)
def _(case, kind):
    for path in (case.cached() / "objects", case.cached(), case.project.cache):
        there = case.folder / f"there-{path.name}"
        path.rename(there)
        path.symlink_to(there)


@poison("a cache of another user", quick=False)
def _(case, kind):
    if os.geteuid() == 0:
        for path in [case.project.cache, *case.project.cache.rglob("*")]:
            os.chown(path, 65534, 65534, follow_symlinks=False)


@poison("a repository of another format", quick=False)
def _(case, kind):
    git(case.cached(), "config", "core.repositoryFormatVersion", "1")
    git(case.cached(), "config", "extensions.objectFormat", "sha256")


@pytest.mark.parametrize("chosen", quick_or_each(POISONS), ids=one_or_all)
def test_poisoned_caches(case, tally, chosen):
    for words in chosen:
        kinds = POISONS[words][1]
        for kind, verb, offline in itertools.product(
            kinds if LONG else kinds[:1], VERBS, (False, True) if LONG else (True,)
        ):
            case.fresh()
            one_poison(case, tally, words, kind, verb, offline)


def one_poison(case: Case, tally, words: str, kind: str, verb: str, offline: bool) -> None:
    """After a refusal, `fetch` mends the cache, and apply gives the pinned bytes."""
    package = case.project.index / "alpha-1.0.tar.gz"
    if verb == "port":
        case.project.run("fetch", "alpha", "--version", "v2", "--source", str(case.project.up / "alpha"))
    case.project.run("fetch", "alpha", "--source", str(package if kind == "pypi" else case.project.up / "alpha"))
    POISONS[words][0](case, kind)
    options = ("--offline",) if offline else ()
    judge(case, tally, words, verb, (*verb_words(verb, kind), *options), ("completed", "refused"), kind)
    if LONG and verb == "apply" and words != "links for folders":
        case.project.run("fetch", "alpha", "--source", str(package) if kind == "pypi" else "git")
        shutil.rmtree(case.project.checkout(), ignore_errors=True)
        judge(case, tally, words, "apply", (*verb_words("apply", kind), "--offline"), ("completed",), kind)
    for path in case.folder.glob("there-*"):
        shutil.rmtree(path)


# --- a clone whose own objects are altered ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["^{tree}", "", ":src", ":src/old.py"][: None if LONG else 1])
@pytest.mark.parametrize("verb", ["apply", "fetch", "port"] if LONG else ["apply"])
def test_altered_objects_of_a_given_clone(case, clone, tally, path, verb):
    """HEAD bears the right id, and one object behind it other bytes: the clone is no source, and it is not written to."""
    git(clone, "fetch", "-q", str(case.folder / "evil"), "main")
    for pack in clone.glob(".git/objects/pack/*.pack"):
        shutil.move(pack, case.folder / "pack")
        with open(case.folder / "pack", "rb") as data:
            subprocess.run(["git", "unpack-objects", "-q"], cwd=clone, stdin=data, check=True)
    oid, evil = (git(clone, "rev-parse", commit + path) for commit in (case.pin, case.evil))
    overwrite_object(clone / ".git", oid, evil)
    before = content(clone)
    row = "a clone with altered objects"
    result = case.project.run(*verb_words(verb, "git"), "--checkout", str(clone), code=None)
    found = content(clone)
    whole = found == case.expected["git"] if verb == "apply" and result.code == 0 else found == before
    cache_is_clean(case)
    tally.count(PART, row, ("completed" if result.code == 0 else "refused") if whole else "lost")
    assert whole and result.code in (0, 3, 5, 6), result.text
