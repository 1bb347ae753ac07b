"""Hostile servers for the proof, on loopback only: git over https, and a package index."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


def make_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 and localhost with its key, in one file."""
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost"
    command = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return both


class Handler(BaseHTTPRequestHandler):
    """Logs every request, lets the forge's trick answer first, and hands the rest to git or the folder."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        forge = self.server.forge
        forge.log.append(f"{self.command} {self.path}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            if forge.trick is None or not forge.trick(self):
                forge.serve(self)

    do_POST = do_HEAD = do_GET

    def answer(self, status: int, body: bytes | None = b"", **headers: str) -> bool:
        """A whole answer; without a body its beginning, for more to be written until the client hangs up."""
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.close_connection = body is None
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body or b"")
        return True

    def log_message(self, *_) -> None:
        pass


class Forge:
    """A server for the bare repositories in `root`, or for the files there (`files`)."""

    def __init__(self, root: Path, certificate: Path | None, files: bool = False):
        self.root, self.files = root, files
        self.log: list[str] = []
        self.trick = None  # a function of the handler that answers itself (true) or does not
        self.old = False  # protocol version 0, which gives tips only, not any id
        self.config: dict[str, str] = {}  # of the git behind the server
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.forge = self
        self.server.handle_error = lambda *_: None  # clients hang up here all the time
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def serve(self, handler: Handler) -> None:
        (self.serve_file if self.files else self.serve_git)(handler)

    def serve_file(self, handler: Handler) -> None:
        path = self.root / unquote(handler.path.partition("?")[0]).strip("/")
        if path.is_dir():
            path = path / "index.html"
        if path.is_file():
            kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
            handler.answer(200, path.read_bytes(), Content_Type=kind)
        else:
            handler.answer(404)

    def serve_git(self, handler: Handler) -> None:
        path, _, query = handler.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "REQUEST_METHOD": handler.command,
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": handler.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(handler.body)),
            "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": "" if self.old else handler.headers.get("Git-Protocol", ""),
        }
        # upload-pack reads settings that run programs from trusted places only, so they come as on a command line.
        settings = {"safe.directory": "*", **self.config}
        env["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (key, value) in enumerate(settings.items()):
            env.update({f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value})
        process = subprocess.Popen(
            ["git", "http-backend"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        try:
            process.stdin.write(handler.body)
            process.stdin.close()
            status, headers = "200", []
            for line in iter(process.stdout.readline, b""):
                if not line.strip():
                    break
                key, _, value = line.decode().strip().partition(": ")
                if key == "Status":
                    status = value.split()[0]
                else:
                    headers.append((key, value))
            handler.send_response(int(status))
            for key, value in headers:
                handler.send_header(key, value)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for chunk in iter(lambda: process.stdout.read1(1 << 16), b""):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            handler.wfile.write(b"0\r\n\r\n")
        finally:
            process.kill()
            process.wait()
