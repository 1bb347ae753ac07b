"""drift: every patch on every release since the pin, from git and from a package index on the loopback."""

from __future__ import annotations

import base64
import contextlib
import http.server
import io
import json
import os
import shutil
import tarfile
import threading

import pytest
from kit import FIRST, SDIST_ONLY, content, git, git_state, make_archive, make_patch, make_upstream, replace_in
from packaging.version import Version
from test_port import branch

SECRET = "s3cret:word"
CANARY = "import pathlib; pathlib.Path({path!r}).touch()\n"


class Server:
    """A package index: pages by path, and what it was asked with."""

    def __init__(self):
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append((self.path, self.headers["Authorization"], self.headers["Host"]))
                code, headers, body = server.pages.get(self.path, (404, {}, b""))
                self.send_response(code)
                for key, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def put(self, folder, name: str, files: dict[str, str], top: str, digest: str | None = None) -> str:
        """A package among the files; the line of the index's page for it."""
        sha256 = make_archive(folder / name, files, top)
        return self.link(name, (folder / name).read_bytes(), sha256 if digest is None else digest)

    def link(self, name: str, data: bytes, digest: str) -> str:
        self.pages[f"/files/{name}"] = (200, {}, data)
        return f'<a href="../../files/{name}{f"#sha256={digest}" if digest else ""}">{name}</a>'

    def page(self, *links: str, project: str = "alpha"):
        text = "<!DOCTYPE html><html><body>" + "<br>\n".join(links) + "</body></html>"
        self.pages[f"/simple/{project}/"] = (200, {"Content-Type": "text/html; charset=utf-8"}, text.encode())


@pytest.fixture
def server(project, monkeypatch):
    made = Server()
    address = f"http://me:{SECRET.replace(':', '%3A')}@127.0.0.1:{made.port}/simple"
    monkeypatch.setattr(project.engine.index, "pip_says", lambda *words: f"global.index-url='{address}'\n")
    yield made
    with contextlib.suppress(OSError):
        made.stop()


def drift(project, name: str, code: int, *more: str) -> dict:
    return project.run("drift", name, "--json", *more, code=code).json["upstreams"][name]


def results(found: dict) -> dict[str, list[str]]:
    return {row["release"]: [item["result"] for item in row["patches"]] for row in found["releases"]}


def tagged(project, tag: str, edit) -> None:
    branch(project, f"for-{tag}", edit)
    git(project.up / "alpha", "tag", tag, f"for-{tag}")


def only_git(project) -> None:
    """The pinned version of alpha without its source package."""
    del project.upstreams["alpha"]["versions"]["v1"]["sdist"]
    project.save()


def test_the_order_of_releases_is_that_of_pep_440(project):
    number = project.engine.drift.number
    labels = [
        "0.2",
        "0.2.0.post1",
        "0.2.0.post2",
        "0.9",
        "0.9.1",
        "0.10",
        "1.0",
        "1.0.post0",
        "1.0.15",
        "1.0.9",
        "1.0.31",
        "2",
        "11.0",
    ]
    assert sorted(labels, key=number) == sorted(labels, key=Version)
    assert number("v1.0.0") == number("1") != number("1.0.post0")
    for label in (
        "1.0rc1",
        "v0.3.0.rc0",
        "0.8.2dev0",
        "1.0a1",
        "1.0-tv",
        "main",
        "v",
        "",
        "1..0",
        "1.0+cpu",
        "9" * 5000,
    ):
        assert number(label) is None, label


def test_every_result_in_the_order_of_the_releases(project, tmp_path):
    only_git(project)
    tagged(project, "v1.0.post1", replace_in("README.md", "alpha", "gamma"))
    tagged(project, "v1.9", replace_in("src/core.py", "line 1 of", "zero\nzero\nline 1 of"))
    tagged(project, "v1.10", replace_in("src/core.py", "line 20 of", "line twenty of"))
    tagged(project, "v1.11", replace_in("src/core.py", "line 20 of", "line 20, hooked, of"))
    tagged(project, "v0.9", replace_in("README.md", "alpha", "old"))
    tagged(project, "v3rc1", replace_in("README.md", "alpha", "candidate"))
    project.run("apply", "alpha")
    before, state = content(project.root), git_state(project.checkout())
    out = project.run("drift", "alpha", "--out", str(tmp_path / "out")).out
    written = json.loads((tmp_path / "out/drift.json").read_text())
    found = written["upstreams"]["alpha"]
    assert list(results(found).items()) == [
        ("v1", ["clean", "clean"]),
        ("v1.0.post1", ["clean", "clean"]),
        ("v1.9", ["offset", "offset"]),
        ("v1.10", ["conflict", "clean"]),
        ("v1.11", ["already upstream", "clean"]),
        ("v2", ["offset", "target gone"]),
    ]
    conflict = found["releases"][3]
    assert conflict["result"] == "conflict" and conflict["commit"] == git(project.up / "alpha", "rev-parse", "v1.10")
    (file,) = conflict["patches"][0]["files"]
    assert (file["path"], file["result"], file["hunks"]) == ("src/core.py", "conflict", [1])
    assert file["detail"][0] == "src/core.py: hunk 1 conflicts at line 20"
    assert content(project.root) == before and git_state(project.checkout()) == state
    page = (tmp_path / "out/drift.md").read_text()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert table[0] == ["release", "from", "commit, sha256", "date", "0001", "0002", "files"]
    assert table[5] == ["v1.10", "git", conflict["commit"][:12], conflict["date"], "conflict", "clean", "clean"]
    assert "- 0001 `src/core.py`, hunk 1: v1.10\n" in page and "`expected at line 20: 'line 20 of the core'`" in page
    assert "- 0002 `src/util.py`, gone: v2\n" in page and f"Written on {written['date']}" in page
    assert page in out


def test_the_shape_of_the_json(project):
    only_git(project)
    found = project.run("drift", "--json").json
    assert set(found) == {"date", "upstreams"} and set(found["upstreams"]) == {"alpha", "beta"}
    for name, upstream in found["upstreams"].items():
        assert set(upstream) == {"version", "commit", "patches", "files", "problems", "releases"}
        assert upstream["problems"] == [] and upstream["releases"]
        for row in upstream["releases"]:
            assert set(row) == {"release", "source", "date", "commit", "sha256", "result", "problem", "patches"}
            assert [patch["patch"] for patch in row["patches"]] == upstream["patches"]
            assert {key for patch in row["patches"] for file in patch["files"] for key in file} == {
                "path",
                "result",
                "hunks",
                "detail",
            }
            assert row["date"] == git(project.up / name, "show", "-s", "--format=%cs", row["commit"])


def test_a_pin_that_is_no_release_is_tried_on_the_head_of_the_default_branch(project):
    up = project.up / "beta"
    replace_in("main.py", "print(3)", "print(3)\nprint(4)")(up)
    git(up, "commit", "-q", "-a", "-m", "later")
    git(up, "tag", "v9")
    (row,) = drift(project, "beta", 0)["releases"]
    assert (row["release"], row["commit"], row["result"]) == ("main", git(up, "rev-parse", "HEAD"), "clean")
    assert project.run("drift", "beta", "--offline", "--json").json["upstreams"]["beta"]["releases"] == [row]


def test_packages_fill_in_where_git_has_no_tag(project, server, tmp_path):
    canary = tmp_path / "ran"
    hostile = CANARY.format(path=str(canary))
    packed = {path: text for path, text in FIRST.items() if not path.startswith("extra/")}
    build = {**SDIST_ONLY, "setup.py": hostile, "backend.py": hostile + SDIST_ONLY["backend.py"]}
    core = FIRST["src/core.py"]
    text, _ = make_patch(
        project.up / "alpha", project.ids["v1"], replace_in("extra/recipe.py", "1", "2"), "Hook the recipe"
    )
    (project.root / "patches/alpha/v1/0003-hook-the-recipe.patch").write_text(text)
    conflict = core.replace("line 40 of", "line forty of")
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w:gz") as archive:
        for name, kind, link in (
            ("alpha-3.3/a.py", tarfile.REGTYPE, ""),
            ("alpha-3.3/out", tarfile.SYMTYPE, "/etc/passwd"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            archive.addfile(member)
    (tmp_path / "evil.tar.gz").write_bytes(evil.getvalue())
    evil_digest = project.engine.sources.sha256_file(tmp_path / "evil.tar.gz")
    files = tmp_path / "files"
    server.page(
        server.put(files, "alpha-0.5.tar.gz", packed, "alpha-0.5"),
        server.put(files, "alpha-1.0.tar.gz", packed, "alpha-1.0"),
        server.put(files, "alpha-3.10.tar.gz", {**packed, **build, "src/core.py": conflict}, "alpha-3.10"),
        server.put(files, "alpha-3.9.tar.gz", {**packed, **build}, "alpha-3.9"),
        server.put(files, "alpha-3.0rc1.tar.gz", packed, "alpha-3.0rc1"),
        server.put(files, "alpha-3.1.tar.gz", packed, "alpha-3.1", digest="0" * 64),
        server.put(files, "alpha-3.2.tar.gz", packed, "alpha-3.2", digest=""),
        server.link("alpha-3.3.tar.gz", evil.getvalue(), evil_digest),
        server.put(files, "alpha-3.4.tar.gz", packed, "alpha-3.4").replace("<a ", '<a data-yanked="broken" '),
        server.put(files, "other-9.0.tar.gz", packed, "other-9.0"),
        '<a href="../../files/alpha-9.0-py3-none-any.whl#sha256=00">alpha-9.0-py3-none-any.whl</a>',
        '<a href="../../files/alpha-9.1.tar.gz">',
    )
    del server.pages["/files/alpha-1.0.tar.gz"]  # git has that release: it is not asked for
    out = tmp_path / "out"
    found = drift(project, "alpha", 3, "--out", str(out))
    assert results(found) == {
        "v1": ["clean", "clean", "clean"],
        "v2": ["offset", "target gone", "clean"],
        "3.1": [],
        "3.2": [],
        "3.3": [],
        "3.9": ["clean", "clean", "not in the package"],
        "3.10": ["clean", "conflict", "not in the package"],
        "9.1": [],
    }
    rows = {row["release"]: row for row in found["releases"]}
    assert [row["source"] for row in found["releases"]] == ["git"] * 2 + ["pypi"] * 6
    assert "the sha256 is" in rows["3.1"]["problem"] and "0" * 64 in rows["3.1"]["problem"]
    assert "names no sha256" in rows["3.2"]["problem"] and "names no sha256" in rows["9.1"]["problem"]
    assert "is a link" in rows["3.3"]["problem"] and str(tmp_path) not in rows["3.3"]["problem"]
    assert (
        rows["3.9"]["result"] == "not in the package"
        and rows["3.9"]["sha256"] in server.pages["/simple/alpha/"][2].decode()
    )
    asked = [path.rpartition("/")[2] for path, _, _ in server.asked]
    assert sorted(asked) == ["", "alpha-3.1.tar.gz", "alpha-3.10.tar.gz", "alpha-3.3.tar.gz", "alpha-3.9.tar.gz"]
    assert {secret for _, secret, _ in server.asked} == {"Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()}
    assert not canary.exists()
    page = (out / "drift.md").read_text()
    assert "| no file" in page and "- 3.1 was not read: " in page
    cached = [path.read_bytes() for folder in (project.cache / "index", out) for path in folder.iterdir()]
    assert not any(word in text for text in cached for word in (b"s3cret", base64.b64encode(f"me:{SECRET}".encode())))
    # Once more without the index: what was read and verified is in the cache.
    server.stop()
    again = drift(project, "alpha", 3, "--offline")
    assert {row["release"]: row for row in again["releases"] if not row["problem"]} == {
        k: r for k, r in rows.items() if not r["problem"]
    }
    assert "is not in the cache" in next(row["problem"] for row in again["releases"] if row["release"] == "3.1")


def test_the_index_is_down(project, server):
    server.stop()
    result = project.run("drift", "-v", code=6)
    assert "Not looked at: list of alpha's packages cannot be had from the package index: " in result.out
    assert "| v2 " in result.out and "## beta" in result.out and "| main " in result.out
    assert "s3cret" not in result.text


def test_git_is_down(project, server, tmp_path):
    project.run("fetch", "alpha")
    shutil.move(project.up / "alpha", project.up / "away")
    server.page(server.put(tmp_path / "files", "alpha-2.0.tar.gz", {**FIRST, **SDIST_ONLY}, "alpha-2.0"))
    found = drift(project, "alpha", 6)
    assert results(found) == {"2.0": ["clean", "clean"]} and "cannot be reached" in found["problems"][0]
    shutil.move(project.up / "beta", project.up / "gone")
    assert drift(project, "beta", 6)["releases"] == []


def test_a_pinned_release_that_is_another_one_there(project, server, tmp_path):
    server.page(server.put(tmp_path / "files", "alpha-1.0.tar.gz", {"a.py": "another\n"}, "alpha-1.0"))
    (row,) = drift(project, "alpha", 3, "--source", "pypi")["releases"]
    assert "expected the pinned " + project.ids["sha256"] in row["problem"] and len(server.asked) == 1
    project.run("fetch", "alpha")
    git(project.up / "alpha", "tag", "-f", "v1", "v2")
    rows = drift(project, "alpha", 3, "--source", "git")["releases"]
    assert "expected the pinned " + project.ids["v1"] in rows[0]["problem"] and rows[1]["result"] == "target gone"


def test_an_index_that_answers_in_json(project, server, tmp_path):
    server.put(tmp_path / "files", "alpha-3.0.tar.gz", {**FIRST, **SDIST_ONLY}, "alpha-3.0")
    digest = project.engine.sources.sha256_file(tmp_path / "files/alpha-3.0.tar.gz")
    file = {"filename": "alpha-3.0.tar.gz", "url": "/files/alpha-3.0.tar.gz", "hashes": {"sha256": digest}}
    page = {
        "files": [
            {**file, "upload-time": "2026-02-03T04:05:06Z"},
            {**file, "filename": "alpha-4.0.tar.gz", "yanked": True},
        ]
    }
    kind = {"Content-Type": project.engine.index.JSON}
    server.pages["/simple/alpha/"] = (200, kind, json.dumps(page).encode())
    (row,) = drift(project, "alpha", 0, "--source", "pypi")["releases"]
    assert (row["release"], row["sha256"], row["date"], row["result"]) == ("3.0", digest, "2026-02-03", "clean")
    index = project.engine.index.Index(f"http://127.0.0.1:{server.port}/simple", None)
    for nonsense in (b"", b"[]", b'{"files": [1]}', b'{"files": [{}]}', b"[" * 100_000, b"\xff"):
        server.pages["/simple/alpha/"] = (200, kind, nonsense)
        with pytest.raises(project.engine.common.Stop, match="that can be read") as stop:
            index.packages("alpha")
        assert stop.value.code == 6


def test_where_the_index_may_lead(project, server):
    """Never to plain http elsewhere, nor to a file; and the password goes to its own host alone."""
    digest = "1" * 64
    server.page(
        f'<a href="http://example.invalid/alpha-3.0.tar.gz#sha256={digest}">',
        f'<a href="file:///etc/alpha-3.1.tar.gz#sha256={digest}">',
        f'<a href="http://localhost:{server.port}/files/alpha-3.2.tar.gz#sha256={digest}">',
        f'<a href="/files/alpha-3.3.tar.gz#sha256={digest}">',
        f'<a href="/files/alpha-3.4.tar.gz#sha256={digest}">',
    )
    server.pages["/files/alpha-3.3.tar.gz"] = (302, {"Location": "http://example.invalid/x"}, b"")
    server.pages["/files/alpha-3.4.tar.gz"] = (302, {"Location": f"http://localhost:{server.port}/elsewhere"}, b"")
    rows = drift(project, "alpha", 6, "--source", "pypi")["releases"]
    for row, kind in zip(rows, ("http", "file")):
        assert row["problem"] == f"the package index is, or leads to, an address of the kind {kind}:"
    assert (
        "answers 404" in rows[2]["problem"]
        and "kind http" in rows[3]["problem"]
        and "answers 404" in rows[4]["problem"]
    )
    sent = {path: secret for path, secret, where in server.asked if where.startswith("localhost")}
    assert sent == {"/files/alpha-3.2.tar.gz": None, "/elsewhere": None}
    for address in (
        "http://example.invalid/simple",
        "ftp://example.invalid",
        "file:///srv/simple",
        "simple",
        "http://[::1",
    ):
        with pytest.raises(project.engine.common.Stop) as stop:
            project.engine.index.Index(address, None)
        assert stop.value.code == 6


def test_a_download_that_breaks_off_or_has_no_end(project, server, monkeypatch):
    page = b"<a href='../../files/alpha-3.0.tar.gz#sha256=" + b"1" * 64 + b"'>"
    server.pages["/simple/alpha/"] = (200, {"Content-Length": str(len(page) + 1)}, page)
    assert "breaks off" in drift(project, "alpha", 6, "--source", "pypi")["problems"][0]
    server.pages["/simple/alpha/"] = (200, {}, page)
    server.pages["/files/alpha-3.0.tar.gz"] = (200, {}, b"x" * 4096)
    monkeypatch.setattr(project.engine.index, "MAX_ARCHIVE", 1024)
    (row,) = drift(project, "alpha", 3, "--source", "pypi")["releases"]
    assert "sends more than" in row["problem"]


def test_pip_tells_the_index(project, monkeypatch, tmp_path):
    """The real pip: its environment, its files, its default."""
    index = project.engine.index
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://name:pass-word@files.invalid/simple\n")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = index.find_index()
    assert found.base == "https://files.invalid/simple/"
    assert found.secret == "Basic " + base64.b64encode(b"name:pass-word").decode()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    found = index.find_index()
    assert found.base.startswith("https://") and found.secret == ""


def test_which_of_pips_settings_counts(project, monkeypatch):
    index = project.engine.index
    lines = [
        "download.index-url='https://b.invalid'",
        "global.index-url='https://c.invalid'",
        ":env:.index-url='https://a.invalid'",
    ]
    monkeypatch.setattr(index, "pip_says", lambda *words: "\n".join(lines) + "\n")
    assert index.find_index().base == "https://a.invalid/"
    lines.pop()
    assert index.find_index().base == "https://b.invalid/"
    lines.append("global.no-index='true'")
    assert "no package index (no-index)" in drift(project, "alpha", 6, "--source", "pypi")["problems"][0]
    lines[-1] = "global.cert='/no/such/file'"
    with pytest.raises(project.engine.common.Stop, match="certificates"):
        index.find_index()


def test_words_that_drift_does_not_take(project, tmp_path):
    archive = str(project.index / "alpha-1.0.tar.gz")
    assert "looks for releases in a repository" in project.run("drift", "alpha", "--source", archive, code=2).err
    project.run("drift", "alpha", "--out", "", code=2)
    project.run("apply", "alpha", "--out", str(tmp_path), code=2)
    commits = make_upstream(tmp_path / "mirror", [("v0", {"a.py": "1\n"})])
    assert (
        commits
        and "does not hold the pinned commit"
        in drift(project, "alpha", 6, "--source", str(tmp_path / "mirror"))["problems"][0]
    )
    assert set(results(drift(project, "alpha", 0, "--source", str(project.up / "alpha")))) == {"v1", "v2"}
