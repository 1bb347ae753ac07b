"""Where upstream comes from, and that nothing unverified is ever used."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import socket
import tarfile
import threading
import zlib

import pytest
from kit import FIRST, SDIST_ONLY, content, git, make_archive, make_upstream


def unreachable(project, name: str = "alpha") -> None:
    project.upstreams[name]["git"] = f"file://{project.up}/nowhere"
    project.save()


def test_unreachable_repository_ends_in_the_source_package(project):
    unreachable(project)
    result = project.run("apply", "alpha")
    assert "cannot be reached" in result.out and "it lacks extra/" in result.out
    expected = {path for path in FIRST if not path.startswith("extra/")} | {"src/era.py", "tools/go.sh"}
    assert set(content(project.checkout())) == expected
    assert git(project.checkout(), "log", "-1", "--format=%s", "upstream/v1") == "alpha 1.0, source package"
    assert project.run("status", "alpha", "--json").json["alpha"]["source"] == "pypi"
    assert git(project.checkout(), "fsck", "--strict", check=False) == ""
    # Once it is applied, a repository that can be reached again changes nothing by itself.
    project.upstreams["alpha"]["git"] = f"file://{project.up}/alpha"
    project.save()
    assert "nothing to do" in project.run("apply", "alpha").out
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    project.run("apply", "alpha", "--offline")
    assert project.run("status", "alpha", "--json").json["alpha"]["source"] == "pypi"
    # When asked for, it does.
    project.run("apply", "alpha", "--source", "git")
    assert (project.checkout() / "extra/recipe.py").exists()
    assert project.run("status", "alpha", "--json").json["alpha"]["source"] == "git"
    project.run("apply", "alpha", "--source", "pypi", "--offline")
    assert not (project.checkout() / "extra").exists()


def test_source_package_commit_is_the_same_everywhere(project, tmp_path):
    project.run("apply", "alpha", "--source", "pypi")
    first = git(project.checkout(), "rev-parse", "era")
    project.cache = tmp_path / "another cache"
    project.run(
        "apply", "alpha", "--source", str(project.index / "alpha-1.0.tar.gz"), "--checkouts", str(tmp_path / "b")
    )
    assert git(tmp_path / "b/alpha", "rev-parse", "era") == first


def test_source_git_is_an_error_when_unreachable(project):
    unreachable(project)
    error = project.run("apply", "alpha", "--source", "git", code=6).err
    assert "cannot be reached" in error and "nothing was changed" in error
    assert not project.checkout().exists()


def test_no_source_package_is_an_error_too(project):
    unreachable(project, "beta")
    assert "cannot be reached" in project.run("apply", "beta", code=6).err
    assert "no source package" in project.run("apply", "beta", "--source", "pypi", code=6).err


def test_all_or_none_of_those_named_when_one_source_fails(project):
    unreachable(project, "beta")
    error = project.run("apply", "alpha", "beta", code=6).err
    assert "nothing was changed" in error and "left out" not in error
    assert not project.checkout("alpha").exists() and not project.checkout("beta").exists()


def test_the_index_offers_other_bytes(project):
    unreachable(project)
    make_archive(project.index / "alpha-1.0.tar.gz", {**FIRST, **SDIST_ONLY, "evil.py": ""}, "alpha-1.0")
    error = project.run("apply", "alpha", code=3).err
    assert "other bytes than the pinned sha256" in error
    assert not project.checkout().exists()


def test_nothing_on_the_index(project):
    unreachable(project)
    (project.index / "alpha-1.0.tar.gz").unlink()
    assert "cannot be fetched" in project.run("apply", "alpha", code=6).err


def test_a_python_without_pip(project):
    found = project.engine.sources.pip_failed(
        project.engine.project.Sdist("alpha", "1.0", "0" * 64, (), ()), "/x/python: No module named pip\n"
    )
    assert found.code == 6 and "ensurepip" in str(found)


def test_moved_tag_and_missing_commit(project, monkeypatch):
    module = project.engine.sources
    real = module.fetch_ref

    def refuses_ids(git_, url, wanted, into, depth=True):
        return "remote error: not our ref" if wanted == project.ids["v1"] else real(git_, url, wanted, into, depth)

    monkeypatch.setattr(module, "fetch_ref", refuses_ids)
    project.run("apply", "alpha")  # by its tag
    shutil.rmtree(project.cache)
    shutil.rmtree(project.checkout())
    git(project.up / "alpha", "tag", "-f", "v1", "v2")
    error = project.run("apply", "alpha", code=3).err
    assert "the tag was moved" in error and project.ids["v2"] in error
    assert not project.checkout().exists()


def test_ids_refused_and_no_tag(project, monkeypatch):
    module = project.engine.sources
    real = module.fetch_ref

    def refuses_ids(git_, url, wanted, into, depth=True):
        return "remote error: not our ref" if not wanted.startswith("refs/") else real(git_, url, wanted, into, depth)

    monkeypatch.setattr(module, "fetch_ref", refuses_ids)
    project.run("apply", "beta")
    assert project.state("beta") == "applied"


def test_a_commit_that_the_repository_does_not_have(project):
    project.upstreams["beta"]["versions"]["b1"]["commit"] = "1" * 40
    project.save()
    assert "does not hold the pinned commit" in project.run("apply", "beta", code=6).err


def test_local_repository_and_local_package(project, tmp_path):
    unreachable(project)
    project.run("apply", "alpha", "--source", str(project.up / "alpha"))
    assert project.state() == "applied"
    other = tmp_path / "other.tar.gz"
    make_archive(other, {**FIRST, "x.py": ""}, "alpha-1.0")
    error = project.run("fetch", "alpha", "--source", str(other), code=3).err
    assert project.ids["sha256"] in error and "sha256" in error
    assert "no such file" in project.run("fetch", "alpha", "--source", str(tmp_path / "gone"), code=6).err
    whole = (project.index / "alpha-1.0.tar.gz").read_bytes()
    other.write_bytes(whole[: len(whole) // 2])
    assert "truncated" in project.run("fetch", "alpha", "--source", str(other), code=3).err
    project.run("apply", "beta", "--source", str(project.up / "alpha"), code=6)


def test_an_altered_file_in_the_cache_is_fetched_anew(project):
    project.run("fetch", "alpha", "--source", "pypi")
    archive = next((project.cache / "archives").glob("*/*.tar.gz"))
    archive.write_bytes(archive.read_bytes()[:100])
    shutil.rmtree(project.cache / "git")
    out = project.run("apply", "alpha", "--source", "pypi").out
    assert "altered or cut short" in out and project.state() == "applied"


def test_a_damaged_cache_repository_is_refused_and_repaired_by_fetch(project):
    project.run("fetch", "alpha")
    repository = project.cache / "git/alpha.git"
    for path in [*repository.glob("objects/pack/*.pack"), *repository.glob("objects/[0-9a-f][0-9a-f]/*")]:
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    result = project.run("apply", "alpha", code=None)
    assert result.code in (3, 5) and not project.checkout().exists() and "fetch" in result.err
    assert "thrown away" in project.run("fetch", "alpha").out
    project.run("apply", "alpha")
    assert project.state() == "applied"


@pytest.mark.parametrize("source", ["git", "pypi"])
def test_a_pin_in_the_cache_is_not_believed(project, tmp_path, source):
    """Another commit under the pin's name: what is not the pinned id, or not what the archive unpacks to, is not used."""
    project.run("fetch", "alpha", "--source", source)
    repository = project.cache / "git/alpha.git"
    (pin,) = git(repository, "for-each-ref", "--format=%(refname)").split()
    evil = make_upstream(tmp_path / "evil", [("v1", {**FIRST, "README.md": "evil\n"})])["v1"]
    git(repository, "fetch", "-q", str(tmp_path / "evil"), f"+main:{pin}")
    project.run("apply", "alpha", "--source", source)
    assert (project.checkout() / "README.md").read_text() == FIRST["README.md"]
    assert git(repository, "rev-parse", pin) != evil


def alter_folder(repository, commit: str) -> None:
    """The folder src with other modes than its id says, as a well-formed object."""
    oid = git(repository, "rev-parse", f"{commit}:src")
    rows = (
        git(repository, "ls-tree", oid)
        .replace("100644", "100755")
        .replace(" blob ", " ")
        .replace("\t", " ")
        .splitlines()
    )
    body = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(blob) for mode, blob, name in map(str.split, rows))
    path = repository / "objects" / oid[:2] / oid[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"tree %d\0" % len(body) + body))


def test_altered_trees_are_refused(project):
    project.run("apply", "alpha")
    alter_folder(project.checkout() / ".git", "era")
    assert "damaged" in project.run("status", "alpha", code=1).out and project.state() == "wrong-base"
    shutil.rmtree(project.checkout())
    alter_folder(project.cache / "git/alpha.git", project.ids["v1"])
    error = project.run("apply", "alpha", code=3).err
    assert "damaged" in error and "the verb fetch" in error and not project.checkout().exists()


def test_nothing_that_a_server_names_stays_in_the_cache(project):
    git(project.up / "alpha", "tag", "-f", "-a", "-m", "x", "v2", "v1")
    project.upstreams["alpha"]["versions"]["v1"]["commit"] = git(
        project.up / "alpha", "rev-parse", "v2"
    )  # the tag's id
    project.save()
    assert "no commit" in project.run("fetch", "alpha", "--source", "git", code=6).err
    assert git(project.cache / "git/alpha.git", "for-each-ref") == ""


def test_a_half_made_cache_repository_is_not_trusted(project):
    (project.cache / "git/alpha.git/objects").mkdir(parents=True)
    project.run("apply", "alpha")
    assert project.state() == "applied"


def test_url_instead_of_works(project, tmp_path):
    project.upstreams["alpha"]["git"] = "https://example.invalid/alpha"
    project.save()
    config = tmp_path / ".gitconfig"  # the home of the tests: git before 2.32 knows no other place
    config.write_text(f'[url "{project.up}/"]\n\tinsteadOf = https://example.invalid/\n')
    project.env["GIT_CONFIG_GLOBAL"] = str(config)
    project.run("apply", "alpha", "--source", "git")
    assert project.state() == "applied"
    config.unlink()
    if git(tmp_path, "--version").split()[2] < "2.31":
        return  # it does not know the next way to say it
    project.env.update(
        GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_COUNT="1", GIT_CONFIG_VALUE_0="https://example.invalid/"
    )
    project.env["GIT_CONFIG_KEY_0"] = f"url.{project.up}/.insteadOf"
    shutil.rmtree(project.cache)
    project.run("fetch", "alpha", "--source", "git")


def test_a_stalled_server_is_given_up(project, monkeypatch):
    """A server that accepts and then says nothing."""
    server = socket.create_server(("127.0.0.1", 0))
    held = []
    threading.Thread(target=lambda: held.append(server.accept()), daemon=True).start()
    monkeypatch.setattr(project.engine.sources, "STALL", 1.0)
    project.upstreams["beta"]["git"] = f"https://127.0.0.1:{server.getsockname()[1]}/beta"
    project.save()
    assert "stalled" in project.run("fetch", "beta", code=6).err
    server.close()


def test_hooks_of_a_source_repository_are_not_run(project, tmp_path):
    for hooks in (project.up / "alpha/.git/hooks", tmp_path / "hooks"):
        hooks.mkdir(exist_ok=True)
        for name in ("reference-transaction", "post-checkout", "post-index-change", "post-commit", "pre-commit"):
            (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
            (hooks / name).chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\thooksPath = {tmp_path}/hooks\n")
    project.env["GIT_CONFIG_GLOBAL"] = str(config)
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    assert not (tmp_path / "ran").exists()


def test_a_patch_for_what_the_package_lacks_is_skipped_and_kept(project):
    from kit import make_patch, replace_in

    text, _ = make_patch(
        project.up / "alpha", project.ids["v1"], replace_in("extra/recipe.py", "1", "2"), "Hook the recipe"
    )
    folder = project.root / "patches/alpha/v1"
    (folder / "0002-hook-core-and-util.patch").rename(folder / "0003-hook-core-and-util.patch")
    (folder / "0002-hook-the-recipe.patch").write_text(text)
    out = project.run("apply", "alpha", "--source", "pypi").out
    assert "skipped" in out and "0002-hook-the-recipe.patch" in out
    assert project.state() == "applied"
    project.run("export", "alpha", "--check")
    (project.checkout() / "README.md").write_text("more\n")
    project.run("export", "alpha")
    assert sorted(path.name[:8] for path in folder.iterdir()) == ["0001-hoo", "0002-hoo", "0003-hoo", "0004-des"]
    project.run("apply", "alpha", "--checkouts", str(project.root / "full"), "--source", "git")
    assert (project.root / "full/alpha/extra/recipe.py").read_text() == "recipe = 2\n"


def test_a_patch_that_mixes_lacking_and_present_files_is_an_error(project):
    from kit import make_patch, replace_in

    def both(work):
        replace_in("extra/recipe.py", "1", "2")(work)
        replace_in("README.md", "alpha", "beta")(work)

    text, _ = make_patch(project.up / "alpha", project.ids["v1"], both, "Mix")
    (project.root / "patches/alpha/v1/0003-mix.patch").write_text(text)
    error = project.run("apply", "alpha", "--source", "pypi", code=6).err
    assert "0003-mix.patch" in error and "--source git" in error and not project.checkout().exists()


# --- hostile archives ------------------------------------------------------------------------------------------------


def member(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return made, data


def pack(path, members) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for made, data in members:
            archive.addfile(made, io.BytesIO(data) if made.isreg() else None)


GOOD = member("p-1/a.py")


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/passwd"),
        member("p-1/../../up.py"),
        member("../p-1/up.py"),
        member("p-1/./a.py"),
        member("p-1//b.py"),
        member("p-1/.git/config"),
        member("p-1/.GIT/config"),
        member("p-1/a/.git/hooks/x"),
        member("p-1/git~1/x"),
        member("p-1/link", kind=tarfile.SYMTYPE, link="/etc"),
        member("p-1/link", kind=tarfile.SYMTYPE, link="a.py"),
        member("p-1/hard", kind=tarfile.LNKTYPE, link="p-1/a.py"),
        member("p-1/pipe", kind=tarfile.FIFOTYPE),
        member("p-1/dev", kind=tarfile.CHRTYPE),
        member("p-1/a.py"),
        member("p-1/A.py"),
        member("p-1/a.py/b"),
        member("q-1/b.py"),
        member("top-level"),
        member("p-1/new\nline"),
        member('p-1/quo"te'),
        member("p-1/back\\slash"),
    ],
    ids=lambda item: repr(item[0].name),
)
def test_hostile_archives_are_refused(project, tmp_path, bad):
    path = tmp_path / "bad.tar.gz"
    pack(path, [GOOD, bad])
    with pytest.raises(project.engine.common.Stop) as stop:
        project.engine.sources.unpack(path)
    assert stop.value.code == 3


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", gzip.compress(b"no tar", mtime=0), gzip.compress(b"x" * 2000, mtime=0)],
    ids=[
        "empty",
        "text",
        "gzip of a text",
        "gzip of 2,000 bytes",
    ],  # compressed bytes as names differ from process to process
)
def test_files_that_are_no_archives(project, tmp_path, data):
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(data)
    with pytest.raises(project.engine.common.Stop):
        project.engine.sources.unpack(path)


def test_archives_cut_anywhere(project, tmp_path):
    whole = (project.index / "alpha-1.0.tar.gz").read_bytes()
    sdist = project.engine.project.read_upstreams()["alpha"].versions["v1"].sdist
    path = tmp_path / "cut.tar.gz"
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:size])
        with pytest.raises(project.engine.common.Stop):
            project.engine.sources.check_archive(path, sdist)
        try:
            files = project.engine.sources.unpack(path)
        except project.engine.common.Stop:
            continue
        assert set(files) <= {*FIRST, *SDIST_ONLY}  # the hash would have stopped it before
    assert hashlib.sha256(whole).hexdigest() == sdist.sha256


def test_an_archive_that_grows_without_end(project, tmp_path, monkeypatch):
    monkeypatch.setattr(project.engine.sources, "MAX_UNPACKED", 1000)
    path = tmp_path / "bomb.tar.gz"
    pack(path, [GOOD, member("p-1/big", b"\0" * 5000)])
    with pytest.raises(project.engine.common.Stop, match="unpacked size"):
        project.engine.sources.unpack(path)
