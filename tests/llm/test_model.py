# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes.llm.model with huggingface_hub's real client and a hub of this machine: folders, damages, a cut download."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recipes.llm import model

NAME = "Qwen2.5-Math-7B"
FILES = {
    "config.json": json.dumps({"max_position_embeddings": 4096, "vocab_size": 152064}).encode(),
    "tokenizer.json": b"{}",
    "model-00001-of-00001.safetensors": b"weights" * 1000,
}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def git_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """The addresses of the hub that the client asks for one revision of a model."""

    def do_HEAD(self):  # noqa: N802  the base class's name
        self.do_GET()

    def do_GET(self):  # noqa: N802
        if model.REVISIONS[NAME] not in self.path:
            self.send_error(404)
            return
        name, headers = self.path.rpartition("/")[2], {}
        if "/resolve/" in self.path:
            content = FILES[name]
            headers = {"X-Repo-Commit": model.REVISIONS[NAME], "ETag": f'"{git_id(content)}"'}
        else:
            siblings = [
                {"rfilename": name, "size": len(content), "blobId": git_id(content)}
                | (
                    {"lfs": {"size": len(content), "sha256": sha256(content), "pointerSize": 1}}
                    if len(content) > 1000
                    else {}
                )
                for name, content in FILES.items()
            ]
            content = json.dumps({"id": f"Qwen/{NAME}", "sha": model.REVISIONS[NAME], "siblings": siblings}).encode()
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def make(hub, project_root, tmp_path):
    """make(NAME ...): exit code and output of the command, with the folder `models`; endpoint: the hub's address."""

    def run(*names, endpoint=hub):
        variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path), "PATH": ""}
        command = [sys.executable, "-m", "recipes.llm.model", *names, "--out", str(tmp_path / "models")]
        result = subprocess.run(command, cwd=project_root, env=variables, capture_output=True, text=True)
        assert "Traceback" not in result.stderr
        return result.returncode, result.stdout + result.stderr

    return run


def test_the_folder_that_is_trained_has_links_and_32768_positions(make, tmp_path):
    code, said = make(NAME)
    folder, original = tmp_path / "models" / NAME, tmp_path / "models" / f"{NAME}-original"
    assert code == 0 and f"made {folder}, with 32768 positions" in said
    assert {path.name: path.read_bytes() for path in original.iterdir() if path.is_file()} == FILES
    assert {path.name for path in folder.iterdir()} == FILES.keys()
    assert json.loads((folder / "config.json").read_text()) == {"max_position_embeddings": 32768, "vocab_size": 152064}
    for name in FILES.keys() - {"config.json"}:
        assert (folder / name).readlink() == Path("..", original.name, name)
        assert (folder / name).read_bytes() == FILES[name]
    (original / "tokenizer.json").unlink()
    assert make(NAME) == (0, f"{NAME}: {folder} is there\n"), "nothing is asked for again"


def test_a_users_own_folder_is_left_alone_and_saves_the_download(make, tmp_path):
    own = tmp_path / "models" / NAME
    own.mkdir(parents=True)
    for name, content in FILES.items():
        (own / name).write_bytes(content)
    code, said = make(NAME)
    assert code == 1 and f"{own} is there, with 4096 positions, and was not changed" in said
    assert (own / "config.json").read_bytes() == FILES["config.json"]
    own.rename(own.with_name(f"{NAME}-original"))
    own.with_name(f"{NAME}-original").chmod(0o555)
    assert make(NAME)[0] == 0 and (own / "config.json").is_file()


@pytest.mark.parametrize("damage", [b"", b"Weights" * 1000])
def test_damaged_file_is_named_and_no_folder_is_made(make, tmp_path, damage):
    assert make(NAME)[0] == 0
    (tmp_path / "models" / NAME).rename(tmp_path / "aside")
    file = tmp_path / "models" / f"{NAME}-original" / "model-00001-of-00001.safetensors"
    file.write_bytes(damage)
    code, said = make(NAME)
    assert code == 1 and f"{file} is not the file of revision {model.REVISIONS[NAME]}. Delete it" in said
    assert not (tmp_path / "models" / NAME).exists()
    file.unlink()
    assert make(NAME)[0] == 0 and file.read_bytes() == FILES[file.name]


def test_without_the_hub_it_says_so(make, tmp_path):
    code, said = make(NAME, endpoint="http://127.0.0.1:9")
    assert code == 1 and said.startswith(f"{NAME}: error: ") and not (tmp_path / "models" / NAME).exists()
    assert make("Qwen2.5-Math-72B")[0] == 2
