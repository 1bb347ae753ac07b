# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Where upstream comes from: its repository, its source package or a path. Nothing unverified is ever used."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shutil
import tarfile

import pytest
from kit import FIRST, SDIST_ONLY, commit, content, git, make_archive, make_patch, make_upstream, replace_in

PACKAGE = "alpha-1.0.tar.gz"


def package(project) -> str:
    """The source package as a file: pip, which takes seconds, is asked only where it is what is tested."""
    return str(project.index / PACKAGE)


def source_of(project) -> str:
    return project.run("status", "alpha", "--json").json["alpha"]["source"]


# --- the repository ---


def test_a_commit_that_the_repository_does_not_have(project):
    """A commit is asked for by its id, so a tag that was moved is as good as none."""
    project.upstreams["beta"]["versions"]["b1"].update(commit="1" * 40, tag="only")
    project.save()
    assert f"does not hold the pinned commit {'1' * 40}" in project.run("apply", "beta", code=6).err
    assert not project.checkout("beta").exists()
    assert git(project.cache / "git/beta.git", "for-each-ref") == ""


def test_url_instead_of(project, monkeypatch, tmp_path):
    project.upstreams["alpha"]["git"] = "https://example.invalid/alpha"
    project.save()
    config = tmp_path / ".gitconfig"  # the home of the tests: git before 2.32 knows no other place
    config.write_text(f'[url "{project.up}/"]\n\tinsteadOf = https://example.invalid/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    project.run("fetch", "alpha", "--source", "git")


# --- a part of a commit ---


def take_part(project, *paths: str) -> dict:
    """Pin these paths of alpha's first version as a part of it, under the id that the refusal of another one names."""
    pin = {"commit": "1" * 40, "part": {"of": project.ids["v1"], "paths": paths}}
    project.upstreams["alpha"]["versions"]["v1"] = pin
    project.save()
    refused = project.run("fetch", "alpha", code=6).err
    assert f"not {'1' * 40}" in refused and git(project.cache / "git/alpha.git", "for-each-ref") == ""
    pin["commit"] = re.search("are the commit ([0-9a-f]{40})", refused)[1]
    project.save()
    return pin


def test_a_part_of_a_commit_is_fetched_without_the_rest(project):
    """The large file of another folder is not even read at the source, where it is damaged."""
    pin = take_part(project, "src", "README.md")
    other = git(project.up / "alpha", "rev-parse", f"{project.ids['v1']}:run.sh")
    damaged = project.up / "alpha/.git/objects" / other[:2] / other[2:]
    damaged.unlink()
    shutil.rmtree(project.cache)
    project.run("apply", "alpha")
    assert project.state() == "applied"
    parts = {path for path in FIRST if path.startswith("src/") or path == "README.md"}
    assert {*content(project.checkout())} == parts | {"src/era.py", "tools/go.sh"}
    log = git(project.checkout(), "log", "-1", "--format=%H %s", "upstream/v1")
    assert log == f"{pin['commit']} A part of the commit {project.ids['v1']}"
    assert git(project.checkout(), "fsck", "--strict", "--no-dangling", check=False) == ""
    project.run("revert", "alpha", "--offline")


def test_a_path_that_the_commit_lacks(project):
    pin = {"commit": "1" * 40, "part": {"of": project.ids["v1"], "paths": ["src", "sr"]}}
    project.upstreams["alpha"]["versions"]["v1"] = pin
    project.save()
    assert "has no plain sr" in project.run("fetch", "alpha", code=3).err


# --- the source package ---


def test_the_source_package_stands_in_and_stays(project):
    project.source("alpha", "nowhere")
    error = project.run("apply", "alpha", "--source", "git", code=6).err
    assert "cannot be reached" in error and not project.checkout().exists()
    result = project.run("apply", "alpha")
    assert "cannot be reached" in result.out and "package lacks extra/: there is no recipe" in result.out
    expected = {path for path in FIRST if not path.startswith("extra/")} | {"src/era.py", "tools/go.sh"}
    checkout = project.checkout()
    assert set(content(checkout)) == expected and source_of(project) == "pypi"
    assert git(checkout, "log", "-1", "--format=%s", "upstream/v1") == "alpha 1.0, source package"
    assert git(checkout, "fsck", "--strict", "--no-dangling", check=False) == ""
    # A repository that can be reached again changes nothing by itself.
    project.source("alpha", "alpha")
    assert "nothing to do" in project.run("apply", "alpha").out
    project.set_era("ERA = 2\n")
    project.run("apply", "alpha", "--offline")
    assert source_of(project) == "pypi"
    # When asked for, it does.
    project.run("apply", "alpha", "--source", "git")
    assert (checkout / "extra/recipe.py").exists() and source_of(project) == "git"
    project.run("apply", "alpha", "--source", "pypi", "--offline")
    assert not (checkout / "extra").exists()


def test_an_index_that_offers_other_bytes_or_nothing(project):
    project.source("alpha", "nowhere")
    make_archive(project.index / PACKAGE, {**FIRST, **SDIST_ONLY, "evil.py": ""}, "alpha-1.0")
    assert "other bytes than the pinned sha256" in project.run("apply", "alpha", code=3).err
    (project.index / PACKAGE).unlink()
    assert "cannot be fetched" in project.run("apply", "alpha", code=6).err and not project.checkout().exists()
    assert "no source package" in project.run("apply", "beta", "--source", "pypi", code=6).err


def hook_recipe(project, edit) -> None:
    text, _ = make_patch(project.up / "alpha", project.ids["v1"], edit, "Hook the recipe")
    project.add({"patches/alpha/v1/0003-Hook-the-recipe.patch": text})
    commit(project.root, "Hook the recipe")


def test_a_patch_for_what_the_package_lacks_is_skipped_and_kept(project):
    hook_recipe(project, replace_in("extra/recipe.py", "1", "2"))
    out = project.run("apply", "alpha", "--source", package(project)).out
    assert "without 0003-Hook-the-recipe.patch" in out and "lacks extra/: there is no recipe" in out
    assert project.state() == "applied"
    project.run("export", "alpha", "--check")
    (project.checkout() / "README.md").write_text("more\n")
    project.run("export", "alpha")
    series = (project.root / "patches/alpha/v1/series").read_text()
    assert "Hook-the-recipe.patch" in series and len(series.split()) == 4
    full = project.root / "full"
    project.run("apply", "alpha", "--checkouts", str(full), "--source", "git")
    assert (full / "alpha/extra/recipe.py").read_text() == "recipe = 2\n"
    assert (full / "alpha/README.md").read_text() == "more\n"


def test_a_patch_that_mixes_lacking_and_present_files(project):
    hook_recipe(project, lambda up: [replace_in(path, " ", "  ")(up) for path in ("extra/recipe.py", "README.md")])
    error = project.run("apply", "alpha", "--source", package(project), code=4).err
    assert "0003-Hook-the-recipe.patch" in error and not project.checkout().exists()


# --- a path ---


def test_a_local_repository_and_a_local_package(project, tmp_path):
    project.source("alpha", "nowhere")
    project.run("apply", "alpha", "--source", str(project.up / "alpha"))
    assert project.state() == "applied"
    other, whole = tmp_path / "other.tar.gz", (project.index / PACKAGE).read_bytes()
    make_archive(other, {**FIRST, "x.py": ""}, "alpha-1.0")
    error = project.run("fetch", "alpha", "--source", str(other), code=3).err
    assert project.ids["sha256"] in error and hashlib.sha256(other.read_bytes()).hexdigest() in error
    other.write_bytes(whole[: len(whole) // 2])
    assert "expected" in project.run("fetch", "alpha", "--source", str(other), code=3).err
    assert "no such file" in project.run("fetch", "alpha", "--source", str(tmp_path / "gone"), code=6).err
    project.run("fetch", "beta", "--source", str(project.up / "alpha"), code=6)


# --- the cache ---


def test_an_altered_archive_in_the_cache_is_fetched_again(project, tmp_path):
    """And the commit of a package is the same everywhere."""
    project.run("apply", "alpha", "--source", package(project))
    archive = next((project.cache / "archives").glob("*/*.tar.gz"))
    archive.write_bytes(archive.read_bytes()[:100])
    project.run("apply", "alpha", "--source", "pypi", "--checkouts", str(tmp_path / "b"))
    assert git(tmp_path / "b/alpha", "rev-parse", "era") == git(project.checkout(), "rev-parse", "era")


def test_damaged_cache_is_refused_and_repaired_by_fetch(project):
    (project.cache / "git/alpha.git/objects").mkdir(parents=True)  # of a killed run
    project.run("fetch", "alpha")
    repository = project.cache / "git/alpha.git"
    for path in [*repository.glob("objects/pack/*.pack"), *repository.glob("objects/[0-9a-f][0-9a-f]/*")]:
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    result = project.run("apply", "alpha", code=None)
    assert result.code == 3 and not project.checkout().exists() and "apply.py fetch alpha" in result.err
    assert "thrown away" in project.run("fetch", "alpha").out
    project.run("apply", "alpha")
    assert project.state() == "applied"


@pytest.mark.parametrize("source", ["git", "pypi"])
def test_a_pin_in_the_cache_is_not_believed(project, tmp_path, source):
    """Another commit under the pin's name: not the pinned id, or not what the archive unpacks to."""
    project.run("fetch", "alpha", "--source", source if source == "git" else package(project))
    repository = project.cache / "git/alpha.git"
    (pin,) = git(repository, "for-each-ref", "--format=%(refname)").split()
    evil = make_upstream(tmp_path / "evil", {"v1": {**FIRST, "README.md": "evil\n"}})["v1"]
    git(repository, "fetch", "-q", str(tmp_path / "evil"), f"+main:{pin}")
    project.run("apply", "alpha", "--source", source)
    assert (project.checkout() / "README.md").read_text() == FIRST["README.md"]
    assert git(repository, "rev-parse", pin) != evil


# --- archives with the right sha256, which somebody pinned without looking ---


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, kind == tarfile.REGTYPE
    return made


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/passwd"),
        member("p-1/../../up.py"),
        member("p-1/a/.GIT/hooks/x"),
        member("p-1/link", tarfile.SYMTYPE, "/etc"),
        member("p-1/hard", tarfile.LNKTYPE, "p-1/a.py"),
        member("p-1/device", tarfile.CHRTYPE),
        member("p-1/new\nline"),
        b"",
        b"no archive",
        gzip.compress(b"x" * 2000, mtime=0),
    ],
    ids=lambda bad: repr(bad[:9]) if isinstance(bad, bytes) else repr(bad.name),
)
def test_hostile_archives_are_refused(project, tmp_path, bad):
    path = tmp_path / "bad.tar.gz"
    if isinstance(bad, bytes):
        path.write_bytes(bad)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for made in (member("p-1/a.py"), bad):
                archive.addfile(made, io.BytesIO(b"x") if made.isreg() else None)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    project.upstreams["alpha"]["versions"]["v1"]["sdist"]["sha256"] = digest
    project.save()
    said = "cannot be unpacked" if isinstance(bad, bytes) else f"{bad.name!r} is not a plain file"
    assert said in project.run("fetch", "alpha", "--source", str(path), code=3).err
