"""Supply chain: servers, packages, the cache and a clone's own objects may lie; what is used is what is pinned.

Every attack is tried with the verbs that reach a source. It ends in a clean refusal or in exactly the pinned bytes, and
in both cases nothing of it stays in the cache. What is done to a server or a cache is mostly a shell script in a table.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forge import Forge, make_certificate
from kit import FIRST, SDIST_ONLY, Project, content, git, make_archive, make_upstream
from tally import LONG

PART = "supply"
pytestmark = pytest.mark.slow
# No patch touches what differs here, so the ids in the patches cannot tell.
EVIL = {**FIRST, "src/old.py": "import evil\n", "README.md": "# evil\n", "evil.py": "evil = 1\n"}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def grounds(template, tmp_path_factory) -> Path:
    """forge/alpha, bare, with an evil branch beside the genuine ones; evil, where that comes from; what apply makes."""
    folder, (root, ids) = tmp_path_factory.mktemp("grounds"), template
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        git(folder, "clone", "-q", "--bare", str(root / "up/alpha"), "forge/alpha")
        make_upstream(folder / "evil", [("v1", EVIL)])
        git(folder / "forge/alpha", "fetch", "-q", str(folder / "evil"), "main:refs/heads/evil")
        git(folder, "clone", "-q", str(root / "up/alpha"), "expected")
        git(folder / "expected", "checkout", "-q", ids["v1"])
        git(folder / "expected", "apply", *map(str, sorted((root / "project/patches/alpha/v1").glob("*.patch"))))
    overlay = root / "project/overlays/alpha"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(overlay, folder / "expected", dirs_exist_ok=True, ignore=ignored)
    return folder


@dataclasses.dataclass
class Case:
    """One try: a project whose upstream alpha is on `forge`, and `other`, a server that must never be asked."""

    project: Project
    forge: Forge
    other: Forge
    folder: Path
    grounds: Path
    evil: str
    start: tuple = ()

    def fresh(self) -> None:
        """As in the beginning, for the next try: many of them share one project, which saves time."""
        project = self.project
        self.start = self.start or (json.dumps(project.upstreams), dict(project.env))
        project.upstreams, project.env = json.loads(self.start[0]), dict(self.start[1])
        project.save()
        for path in (project.cache, project.checkouts, *(self.folder / name for name in ("forge", "control"))):
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.grounds / "forge", self.folder / "forge")
        (self.folder / "control").mkdir()
        self.forge.trick, self.forge.old, self.forge.files, self.forge.config = None, False, False, {}
        self.forge.log.clear()

    @property
    def repository(self) -> Path:
        return self.folder / "forge/alpha"

    @property
    def cached(self) -> Path:
        return self.project.cache / "git/alpha.git"

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def pin(self) -> str:
        return self.project.upstreams["alpha"]["versions"]["v1"]["commit"]

    def expected(self, kind: str) -> dict:
        found = content(self.grounds / "expected")
        return {path: item for path, item in found.items() if kind == "git" or not path.startswith("extra/")}

    def shell(self, script: str, folder: Path, **more: object) -> None:
        """Run a script on a server's repository or the cache; files in $CONTROL are orders to the forge."""
        names = {"FOLDER": self.folder, "CONTROL": self.folder / "control", "CANARY": self.canary, "PIN": self.pin}
        names |= {"EVIL": self.evil, "OTHER": self.other.url, "FORGE": self.forge.url, "PYTHON": sys.executable}
        names |= {"FLIP": FLIP, "ENDLESS": ENDLESS, "SAID": SAID, **more}
        user = {
            f"GIT_{who}_{what}": "user@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        env = {**os.environ, **user, **{key: str(value) for key, value in names.items()}}
        done = subprocess.run(["bash", "-ec", SHELL + script], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        control = self.folder / "control"
        version = self.project.upstreams["alpha"]["versions"]["v1"]
        self.forge.old = (control / "old").exists()
        self.forge.files = (control / "files").exists()
        if (control / "untag").exists():
            del version["tag"]
        if (control / "pin").exists():
            version["commit"] = (control / "pin").read_text().strip()
        if (control / "pack-objects").exists():
            self.forge.config["uploadpack.packObjectsHook"] = str(control / "pack-objects")
        if (control / "server").exists():
            rows = (control / "server").read_text().splitlines()
            self.forge.config.update(dict(row.split("=", 1) for row in rows))
        if (control / "user").exists():
            self.project.env["GIT_CONFIG_GLOBAL"] = str(control / "user")
        self.project.save()


@pytest.fixture
def case(project, certificate, grounds, tmp_path, monkeypatch):
    for name, there in (("evil", "evil"), ("forge", "elsewhere")):
        shutil.copytree(grounds / name, tmp_path / there)
    forge, other = Forge(tmp_path / "forge", certificate), Forge(tmp_path / "elsewhere", certificate)
    project.upstreams["alpha"]["git"] = f"{forge.url}/alpha"
    project.save()
    project.env.update(GIT_SSL_CAINFO=str(certificate), NO_PROXY="*", no_proxy="*")
    made = Case(project, forge, other, tmp_path, grounds, git(grounds / "evil", "rev-parse", "HEAD"))
    made.fresh()
    # Limits that a test can wait for.
    monkeypatch.setattr(sys.modules["engine.source.download"], "MAX_DOWNLOAD", 4 << 20)
    monkeypatch.setattr(sys.modules["engine.source.git"], "SILENCE", 2.0 if LONG else 20.0)
    yield made
    forge.close()
    other.close()


def words_of(verb: str, source: str) -> tuple[str, ...]:
    """port tries the attacked version as the one to go to, from another version that is in the cache."""
    words = ("port", "alpha", "--version", "v2", "--onto", "v1") if verb == "port" else (verb, "alpha")
    return (*words, "--source", source)


def judge(case: Case, tally, row: str, words: tuple[str, ...], outcomes: tuple[str, ...], kind: str = "git"):
    """Run a verb, look at everything that must not be, and count how it ended."""
    project, checkout = case.project, case.project.checkout()
    before = content(checkout) if checkout.exists() else None
    try:
        result = project.run(*words, code=None)
        outcome = "completed" if result.code == 0 else "refused"
        assert result.code in (0, 2, 3, 5, 6), result.text
        assert outcome in outcomes, f"{row}: {words} {outcome}\n{result.text}"
        assert "\x1b" not in result.text
        assert "TLS" not in result.text, "the server of this test is broken"
        assert outcome == "completed" or result.err.startswith("error: ")
        found = content(checkout) if checkout.exists() else None
        if words[0] == "apply" and outcome == "completed":
            assert found == case.expected(kind)
            assert git(checkout, "fsck", "--strict", "--no-dangling") == ""
            assert kind != "git" or git(checkout, "rev-parse", "upstream/v1") == case.pin
        else:
            assert found == before
        assert case.other.log == [], "another host was asked"
        assert not case.canary.exists(), "somebody else's program was run"
        if row not in POISONS:
            check_cache(case)
    except BaseException:
        tally.count(PART, row, "lost")
        raise
    tally.count(PART, row, outcome)
    return result


def check_cache(case: Case) -> None:
    """Only our pins, each of them the id that it is named after, and no object of the attacker's."""
    if not case.cached.exists():
        return
    pins = {f"refs/pins/{pin}" for pin in (case.pin, case.project.ids["v1"], case.project.ids["v2"])}
    for line in git(case.cached, "for-each-ref", "--format=%(refname) %(objectname)").splitlines():
        name, commit = line.split()
        assert name in pins or name.startswith(("refs/pins/sdist-", "refs/onto/")), line
        assert name not in pins or commit == name.removeprefix("refs/pins/"), line
    objects = git(case.cached, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert case.pin == case.evil or case.evil not in objects
    assert not (case.cached / "FETCH_HEAD").exists()
    assert list((case.project.cache / "tmp").glob("*")) == []


# --- what servers do -------------------------------------------------------------------------------------------------

SHELL = r"""
other() { cd "$FOLDER"; rm -rf forge/alpha; git clone -q --bare evil forge/alpha; cd forge/alpha; }
old() { git for-each-ref --format='delete %(refname)' refs/heads | git update-ref --stdin
        git update-ref refs/heads/main v2^0; touch $CONTROL/old; }
hook() { { echo '#!/bin/sh'; cat; } > $CONTROL/pack-objects; chmod +x $CONTROL/pack-objects; }
pin_tree() { git mktree --missing > /dev/null < /dev/null; TREE=$(git hash-object -t tree -w --stdin --literally)
             COMMIT=$(git commit-tree -m x $TREE); git update-ref refs/heads/odd $COMMIT; echo $COMMIT > $CONTROL/pin; }
entry() { printf "$1\0"; git rev-parse "$2" | xxd -r -p; }
"""
ENDLESS = """
import os, struct, sys, zlib
out = sys.stdout.buffer
out.write(b"PACK" + struct.pack(">II", 2, 4_000_000_000))
while True:
    data = os.urandom(16383)
    out.write(bytes([0xB0 | (len(data) & 15), 0x80 | (len(data) >> 4 & 127), len(data) >> 11]) + zlib.compress(data, 0))
"""
FLIP = "import sys; d = bytearray(sys.stdin.buffer.read()); d[len(d) // 2] ^= 255; sys.stdout.buffer.write(d)"
SAID = "\x1b]0;owned\x07\x1b[2J\rfatal: \x1b[31mred\n"
# words -> (how it may end, script on the server's repository). A server that is "old" gives tips only, not any id.
ATTACKS = {
    "commit not there": ("refused", "other"),
    "a branch that bears the id": (
        "refused", 'other; printf "$EVIL refs/heads/$PIN\\n$EVIL refs/tags/$PIN\\n" > packed-refs'),
    "the id is a tree's": ("refused", "git rev-parse v1^{tree} > $CONTROL/pin"),
    "the id is an annotated tag's": ("refused", "git tag -a -m x signed v1; git rev-parse signed > $CONTROL/pin"),
    "an old server with the right tag": ("completed", "old"),
    "moved tag": ("refused", "old; git tag -f v1 $EVIL; git update-ref -d refs/heads/evil"),
    "annotated tag that points elsewhere": ("refused", "old; git tag -f -a -m $PIN v1 $EVIL"),
    "a tag of a file": ("refused", "old; git tag -f v1 v2:src/old.py"),
    "no tag, and no branch has the commit": ("refused", "other; touch $CONTROL/old $CONTROL/untag"),
    "no tag, hostile branches, one has the commit": (
        "completed",
        "V2=$(git rev-parse v2); rm -r refs; mkdir -p refs/heads; "
        "for name in HEAD refs/pins/$PIN $PIN -x --upload-pack=x era 'a;touch' v1; do "
        "echo $EVIL refs/heads/$name; done > packed-refs; echo $V2 refs/heads/main >> packed-refs; "
        "touch $CONTROL/old $CONTROL/untag"),
    "thousands of extra refs, links, a HEAD to nowhere": (
        "completed",
        'for n in $(seq 10000 12000); do echo "$EVIL refs/heads/b$n"; done >> packed-refs; '
        "for name in pins replace tags; do echo $EVIL refs/$name/$PIN >> packed-refs; done; "
        "git symbolic-ref refs/pins/link refs/heads/evil; echo 'ref: refs/heads/nowhere' > HEAD"),
    "extra objects in the pack": ("completed", "echo '(cat;) | (sed \"1i '$EVIL'\") | \"$@\"' | hook"),
    "a pack of another commit": (
        "refused",
        'echo "cat > /dev/null; cd $PWD; git rev-list --objects $EVIL | git pack-objects --stdout -q" | hook'),
    "a corrupted pack": ("refused", 'printf %s "$FLIP" > $CONTROL/p; echo "\\"\\$@\\" | $PYTHON -S $CONTROL/p" | hook'),
    "an endless pack": (
        "refused", 'printf %s "$ENDLESS" > $CONTROL/p; echo "cat > /dev/null; exec $PYTHON -S $CONTROL/p" | hook'),
    "a tree with ../up": ("refused", "entry '40000 ..' v1^{tree} | pin_tree"),
    "a tree with .git": ("refused", "entry '40000 .git' v1^{tree} | pin_tree"),
    "a tree with one name twice": (
        "refused", "{ entry '100644 core.py' v1:src/old.py; entry '100644 core.py' $EVIL:src/old.py; } | pin_tree"),
    "words for the terminal beside a pack": (
        "refused", 'printf %s "$SAID" > $CONTROL/s; echo "cat > /dev/null; cat $CONTROL/s >&2; exit 1" | hook'),
    "a server of plain files that names another host": (
        "refused",
        "git update-server-info; echo $OTHER/alpha/objects > objects/info/http-alternates; rm -f objects/pack/*; "
        "echo > objects/info/packs; touch $CONTROL/files"),
    "packs, bundles, promisors elsewhere, which the user allows": (
        "completed",
        "printf 'uploadpack.blobPackfileUri=%s %040d %s\\nuploadpack.advertiseBundleURIs=true\\nbundle.version=1\\n"
        "bundle.mode=all\\nbundle.x.uri=%s\\npromisor.advertise=true\\nremote.x.url=%s\\nremote.x.promisor=true\\n"
        "uploadpack.allowFilter=true\\n' $(git rev-parse v1:src/old.py) 0 $OTHER/x.pack $OTHER/x.bundle $OTHER/alpha "
        "> $CONTROL/server; printf '[fetch]\\n\\turiProtocols = https,http\\n[transfer]\\n\\tbundleURI = true\\n"
        "[promisor]\\n\\tacceptFromServer = all\\n' > $CONTROL/user"),
    "the user's git has hooks, prunes, and recurses": (
        "completed",
        "mkdir $CONTROL/hooks; for name in reference-transaction post-checkout post-index-change; do "
        "printf '#!/bin/sh\\ntouch %s\\n' $CANARY > $CONTROL/hooks/$name; chmod +x $CONTROL/hooks/$name; done; "
        "printf '[core]\\n\\thooksPath = %s\\n[fetch]\\n\\tprune = true\\n\\tpruneTags = true\\n"
        "\\trecurseSubmodules = true\\n[http]\\n\\tfollowRedirects = true\\n' $CONTROL/hooks > $CONTROL/user"),
}  # fmt: skip
QUICK = ("commit not there", "moved tag", "a pack of another commit", "extra objects in the pack", "an endless pack")


def several(rows: dict, quick: tuple[str, ...]):
    """The long form has a test for each row, the short form one for a few."""
    chosen = [[words] for words in rows] if LONG else [list(quick)]
    return pytest.mark.parametrize(
        "chosen", chosen, ids=lambda chosen: chosen[0].replace(" ", "-") if LONG else "short"
    )


def tries(verbs=("apply", "fetch", "port")) -> list[tuple[str, bool]]:
    """(verb, whether the cache has the source already)."""
    return [*((verb, False) for verb in verbs), ("apply", True)] if LONG else [("apply", False)]


@several(ATTACKS, QUICK)
def test_servers(case, tally, chosen):
    for words in chosen:
        for verb, warm in tries():
            case.fresh()
            genuine = prepare_cache(case, verb, warm)
            outcome, script = ATTACKS[words]
            pin = case.pin
            case.shell(script, case.repository)
            unasked = warm and case.pin == pin  # the cache has it
            judge(case, tally, words, words_of(verb, "git"), ("completed",) if unasked else (outcome,))
            assert bool(case.forge.log) != unasked
            assert genuine.exists()


def prepare_cache(case: Case, verb: str, warm: bool) -> Path:
    genuine = case.project.up / "alpha"
    if verb == "port":
        case.project.run("fetch", "alpha", "--version", "v2", "--source", str(genuine))
    if warm:
        case.project.run("fetch", "alpha", "--source", str(genuine))
    return genuine


# Where a server sends on to: Location, and whether that is followed. /moved/alpha is where the forge really has it.
REDIRECTS = {
    "to another host": ("https://localhost:{port}/moved/alpha", "refused", 302),
    "to another port": ("{other}/alpha", "refused", 302),
    "to another port (301)": ("{other}/alpha", "refused", 301),
    "to another port (307)": ("{other}/alpha", "refused", 307),
    "to plain http": ("http://127.0.0.1:{port}/moved/alpha", "refused", 302),
    "without a scheme": ("//127.0.0.1:{other_port}/alpha", "refused", 302),
    "that disguises the host": ("https://127.0.0.1:{port}@localhost:{other_port}/alpha", "refused", 302),
    "with a backslash": ("https://localhost:{other_port}\\@127.0.0.1:{port}/x", "refused", 302),
    "to a file": ("file://{folder}/elsewhere/alpha", "refused", 302),
    "to a program": ("ext::sh -c touch% {canary} ", "refused", 302),
    "to an option": ("--upload-pack=x", "refused", 302),
    "to no URL": ("https://[::1/alpha", "refused", 302),
    "in a circle": ("{forge}/alpha", "refused", 302),
    "within the host, with a name": ("https://x:y@127.0.0.1:{port}/moved/alpha", "refused", 302),
    "within the host": ("{forge}/moved/alpha", "completed", 302),
    "within the host, relative (301)": ("/moved/alpha", "completed", 301),
}


@several(REDIRECTS, ("to another host", "that disguises the host", "within the host"))
def test_redirects(case, tally, chosen):
    for words in chosen:
        for verb, warm in tries(("apply", "port")):
            case.fresh()
            prepare_cache(case, verb, warm)
            location, outcome, status = REDIRECTS[words]
            names = {"forge": case.forge.url, "port": case.forge.port, "folder": case.folder, "canary": case.canary}
            target = location.format(**names, other=case.other.url, other_port=case.other.port)

            def trick(handler, status=status, target=target) -> bool:
                if not handler.path.startswith("/alpha/"):
                    return False
                return handler.answer(status, Location=target + handler.path.removeprefix("/alpha"))

            (case.folder / "forge/moved").mkdir()
            case.repository.rename(case.folder / "forge/moved/alpha")
            case.forge.trick = trick
            expected = ("completed",) if warm else (outcome,)
            result = judge(case, tally, f"redirect {words}", words_of(verb, "git"), expected)
            if outcome == "completed" and not warm:
                assert "it has moved within this host, to /moved/alpha" in result.text
            if words in ("to another host", "to another port", "to plain http") and not warm:
                assert "redirects to" in result.err and "insteadOf" in result.err


def never_ends(handler) -> bool:
    handler.answer(200, None, Content_Type="application/x-git-upload-pack-advertisement")
    while True:
        handler.wfile.write(b"001e# service=git-upload-pack\n" * 100)


def speaks_to_the_terminal(handler) -> bool:
    line = b"ERR \x1b]0;owned\x07\x1b[2J not our place"
    body = b"001e# service=git-upload-pack\n0000" + f"{len(line) + 4:04x}".encode() + line
    return handler.answer(200, body, Content_Type="application/x-git-upload-pack-advertisement")


ANSWERS = {
    "asks for a password": lambda handler: handler.answer(401, WWW_Authenticate='Basic realm="give it to me"'),
    "answers without end": never_ends,
    "speaks to the terminal": speaks_to_the_terminal,
    "says nothing of git": lambda handler: handler.answer(200, b"<html>hello</html>", Content_Type="text/html"),
}


@several(ANSWERS, ("asks for a password",))
def test_answers(case, tally, chosen):
    for words in chosen:
        case.fresh()
        case.forge.trick = ANSWERS[words]
        judge(case, tally, f"a server that {words}", words_of("apply", "git"), ("refused",))


# --- URLs ------------------------------------------------------------------------------------------------------------

URLS = {
    "http://127.0.0.1/alpha": 2,
    "git://127.0.0.1/alpha": 2,
    "ext::sh -c touch% canary": 2,
    "--upload-pack=touch canary": 2,
    "ssh://-oProxyCommand=touch%20canary/alpha": 2,
    "ssh://user@-oProxyCommand=touch%20canary/alpha": 6,
    "ssh://[-oProxyCommand=x]/alpha": 6,
    "ssh://%2doProxyCommand=x/alpha": 6,
    "https://-x/alpha": 2,
    "file:///nowhere/alpha": 6,
}


def test_urls_in_upstreams_json(project, tally, tmp_path):
    """ssh is a script that tells how it was called: no word but git's own options may begin with a dash."""
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word" >> {tmp_path}/called; done\nexit 1\n')
    script.chmod(0o755)
    project.env.update(GIT_SSH=str(script), GIT_SSH_VARIANT="ssh")
    for url, code in URLS.items():
        project.upstreams["beta"]["git"] = url
        project.save()
        project.run("fetch", "beta", code=code)
        tally.count(PART, "URLs that are none, or hide an option", "refused")
    called = (tmp_path / "called").read_text().split("\n") if (tmp_path / "called").exists() else []
    assert not [word for word in called if word.startswith("-o") and word != "-o"], called
    assert not (tmp_path / "canary").exists() and not Path("canary").exists()


# --- the source package ----------------------------------------------------------------------------------------------

SPOIL = "cp $FOLDER/evil.tar.gz files/alpha-1.0.tar.gz"
OFFER = """offer() { echo "<html><a href='$1'>${2:-alpha-1.0.tar.gz}</a></html>" > simple/alpha/index.html; }; """
# words -> (how it may end, script in the index's folder). ${HASH} is the pinned sha256.
INDEX = {
    "an index as it should be": ("completed", 'offer "/files/alpha-1.0.tar.gz#sha256=$HASH"'),
    "altered archive with the right name": ("refused", SPOIL),
    "altered archive that the index vouches for": (
        "refused", SPOIL + '; offer "/files/alpha-1.0.tar.gz#sha256=$(sha256sum < $FOLDER/evil.tar.gz | cut -c1-64)"'),
    "altered archive, the index lists the right hash": (
        "refused", SPOIL + '; offer "/files/alpha-1.0.tar.gz#sha256=$HASH"'),
    "an archive that is cut short": ("refused", "truncate -s -20 files/alpha-1.0.tar.gz"),
    "another version only": (
        "refused", "mv files/alpha-1.0.tar.gz files/alpha-1.1.tar.gz; offer /files/alpha-1.1.tar.gz alpha-1.1.tar.gz"),
    "a name that climbs": ("refused", SPOIL + '; offer "/files/..%2f..%2f..%2fevil/alpha-1.0.tar.gz"'),
    "an archive without end": ("refused", "truncate -s 100M files/alpha-1.0.tar.gz"),
}  # fmt: skip


@several(INDEX, ("altered archive with the right name",))
def test_package_indexes(case, tally, chosen):
    make_archive(case.folder / "evil.tar.gz", {**EVIL, **SDIST_ONLY}, "alpha-1.0")
    for words in chosen:
        for verb, warm in tries():
            case.fresh()
            one_index(case, tally, words, verb, warm)


def one_index(case: Case, tally, words: str, verb: str, warm: bool) -> None:
    prepare_cache(case, verb, False)
    if warm:
        case.project.run("fetch", "alpha", "--source", str(case.project.index / "alpha-1.0.tar.gz"))
    root = case.folder / "index-server"
    shutil.rmtree(root, ignore_errors=True)
    (root / "simple/alpha").mkdir(parents=True)
    shutil.copytree(case.project.index, root / "files")
    outcome, script = INDEX[words]
    case.shell(f"{OFFER}offer /files/alpha-1.0.tar.gz; {script}", root, HASH=case.project.ids["sha256"])
    place = Forge(root, None, files=True)
    try:
        case.project.env.update(PIP_INDEX_URL=f"{place.url}/simple/", PIP_NO_CACHE_DIR="1")
        del case.project.env["PIP_NO_INDEX"], case.project.env["PIP_FIND_LINKS"]
        judge(case, tally, words, words_of(verb, "pypi"), ("completed",) if warm else (outcome,), kind="pypi")
        assert bool(place.log) != warm, "the index was asked although the cache has the package, or not at all"
    finally:
        place.close()


# --- the cache -------------------------------------------------------------------------------------------------------

BRING = r"""
git fetch -q $FOLDER/evil main; rm FETCH_HEAD; PINNED=$(git rev-parse $REF)
for pack in objects/pack/*.pack; do test -e $pack || continue
    mv $pack $CONTROL/pack; rm -f ${pack%.pack}.*; git unpack-objects -q < $CONTROL/pack; done
disguised() { git commit-tree -m "$(git log -1 --format=%B $REF)" $EVIL^{tree}; }
place() { echo objects/${1:0:2}/${1:2}; }
swap() { chmod u+w $(place $1); cat $(place $2) > $(place $1); }
alter() { swap $(git rev-parse $REF$1) $(git rev-parse $EVIL$1); }
"""
HOSTILE = r"""
cat >> config << END
[core]
 fsmonitor = touch $CANARY
 hooksPath = $PWD/hooks
 pager = touch $CANARY
 sshCommand = touch $CANARY
 alternateRefsCommand = touch $CANARY
 autocrlf = true
[filter "x"]
 clean = touch $CANARY
 smudge = touch $CANARY
[diff]
 external = touch $CANARY
[uploadpack]
 packObjectsHook = touch $CANARY
[url "$OTHER/"]
 insteadOf = $FORGE/
[http]
 sslVerify = false
 proxy = $OTHER
[credential]
 helper = !touch $CANARY
[remote "x"]
 url = ext::touch $CANARY
 promisor = true
[alias]
 rev-parse = !touch $CANARY
END
mkdir -p hooks info; for name in reference-transaction post-index-change pre-auto-gc post-checkout; do
printf '#!/bin/sh\ntouch %s\n' $CANARY > hooks/$name; chmod +x hooks/$name; done
echo '* filter=x text eol=crlf ident' > info/attributes
"""
# words -> script in the cache's repository; $REF is the pin there
POISONS = {
    "pin moved to another commit": "git update-ref $REF $EVIL",
    "pin of a commit with the right message and another tree": "git update-ref $REF $(disguised)",
    "pin that is a link to another ref": "git update-ref refs/heads/x $(disguised); git symbolic-ref $REF refs/heads/x",
    "altered object: the commit": "alter ''",
    "altered object: the tree": "alter '^{tree}'",
    "altered object: a folder's tree": "alter :src",
    "altered object: a file": "alter :src/old.py",
    "a damaged pack": "git repack -adq; pack=$(ls objects/pack/*.pack); chmod u+w $pack; "
    "printf '\\377\\377\\377' | dd of=$pack bs=1 seek=$(($(stat -c %s $pack) / 2)) conv=notrunc status=none",
    "altered archive": "for file in ../../archives/*/*; do cp $FOLDER/evil.tar.gz $file; done",
    "archive gone": "rm -r ../../archives; git update-ref $REF $(disguised)",
    "hostile configuration and hooks": HOSTILE,
    "grafts, replaced objects, alternates, a shallow file": "mkdir -p info objects/info; git replace $PINNED $EVIL; "
    "git replace $PINNED:src/old.py $EVIL:src/old.py; echo $PINNED $EVIL > info/grafts; "
    "echo $FOLDER/evil/.git/objects > objects/info/alternates; printf '%s\\n' $PINNED $EVIL > shallow",
    "a repository of another format": "git config core.repositoryFormatVersion 1; "
    "git config extensions.objectFormat sha256",
}


@several(POISONS, ("pin moved to another commit", "altered object: a file", "hostile configuration and hooks"))
def test_poisoned_caches(case, tally, chosen):
    make_archive(case.folder / "evil.tar.gz", {**EVIL, **SDIST_ONLY}, "alpha-1.0")
    for words in chosen:
        for kind in ("git", "pypi") if LONG else ("git",):
            if not (kind == "git" and "archive" in words):
                for verb in ("apply", "port") if LONG else ("apply",):
                    case.fresh()
                    one_poison(case, tally, words, kind, verb)


def one_poison(case: Case, tally, words: str, kind: str, verb: str) -> None:
    """After a refusal, `fetch` mends the cache, and apply gives the pinned bytes."""
    package = str(case.project.index / "alpha-1.0.tar.gz")
    genuine = prepare_cache(case, verb, False)
    case.project.run("fetch", "alpha", "--source", package if kind == "pypi" else str(genuine))
    ref = f"refs/pins/{case.pin}" if kind == "git" else f"refs/pins/sdist-{case.project.ids['sha256']}"
    case.shell(BRING + POISONS[words], case.cached, REF=ref)
    judge(case, tally, words, (*words_of(verb, kind), "--offline"), ("completed", "refused"), kind)
    if verb == "apply":
        case.project.run("fetch", "alpha", "--source", package if kind == "pypi" else "git")
        shutil.rmtree(case.project.checkout(), ignore_errors=True)
        judge(case, tally, words, (*words_of("apply", kind), "--offline"), ("completed",), kind)


# --- a clone whose own objects are altered ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["^{tree}", "", ":src", ":src/old.py"] if LONG else [":src/old.py"])
def test_altered_objects_of_a_given_clone(case, clone, tally, path):
    """HEAD bears the right id, and one object behind it other bytes: the clone is no source, and is not written to."""
    case.shell(BRING + f"alter '{path}'", clone / ".git", REF=case.pin)
    before = content(clone)
    result = case.project.run(*words_of("apply", "git"), "--checkout", str(clone), code=None)
    whole = content(clone) == (case.expected("git") if result.code == 0 else before)
    check_cache(case)
    tally.count(PART, "a clone with altered objects", ("lost", "completed" if result.code == 0 else "refused")[whole])
    assert whole and result.code in (0, 3, 5, 6), result.text
