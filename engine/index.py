"""The package index, asked directly: which source packages a project has, and their bytes.

pip runs a package's own build code to read its metadata, so it is let near pinned packages only. What is not pinned comes
from here: the index's list of files (PEP 503 or PEP 691), and an archive with the sha256 that this list names. The index
is the one that pip is told to use. It is not named in any message, for its address may hold a password.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import html.parser
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from engine.common import SOURCE, WRONG_BASE, Stop
from engine.git import sha256

SILENCE, PATIENCE = 30.0, 600.0  # seconds without a byte, and in all, after which a download is given up
MAX_PAGE = 64 << 20
MAX_ARCHIVE = 256 << 20
JSON = "application/vnd.pypi.simple.v1+json"
ADVICE = "`python -m pip config list` shows the index that pip, and so apply.py, is told to use"


@dataclasses.dataclass(frozen=True)
class Package:
    version: str
    url: str
    sha256: str  # "" where the index names none
    date: str | None  # of its upload, where the index tells


class Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects to where nobody can listen in, and nowhere else."""

    def redirect_request(self, request, response, code, message, headers, url):
        check_address(url)
        return super().redirect_request(request, response, code, message, headers, url)


def check_address(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise Stop(SOURCE, "the package index is, or leads to, something that is no address", ADVICE) from None
    loopback = parts.hostname in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]+){3}", parts.hostname or "")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback) or not parts.hostname:
        raise Stop(
            SOURCE,
            f"the package index is, or leads to, an address of the kind {parts.scheme}:",
            "expected https",
            ADVICE,
        )


class Index:
    """An index; its name and password are sent to the very host that they were given for, and to no other."""

    def __init__(self, url: str, certificates: str | None):
        check_address(url)
        self.base, self.secret = without_secret(url.rstrip("/") + "/")
        context = ssl.create_default_context(cafile=certificates)
        self.opener = urllib.request.build_opener(Redirects, urllib.request.HTTPSHandler(context=context))

    def read(self, url: str, what: str, limit: int) -> tuple[str, str, bytes]:
        """(address in the end, content type, content)"""
        check_address(url)
        request = urllib.request.Request(
            url, headers={"Accept": f"{JSON}, text/html;q=0.5, */*;q=0.1", "User-Agent": "era-overlays"}
        )
        if self.secret and host(url) == host(self.base):
            request.add_unredirected_header("Authorization", self.secret)
        content, end = bytearray(), time.monotonic() + PATIENCE
        try:
            with self.opener.open(request, timeout=SILENCE) as response:
                expected = response.length
                while len(content) <= limit and len(content) != expected and (chunk := response.read1(1 << 16)):
                    content += chunk
                    if time.monotonic() > end:
                        raise TimeoutError
                found = response.url, response.headers.get_content_type(), bytes(content)
        except urllib.error.HTTPError as error:
            raise Stop(SOURCE, f"the package index has no {what}: it answers {error.code}", ADVICE) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise Stop(SOURCE, f"{what} cannot be had from the package index: {reason}", ADVICE) from None
        if len(content) > limit:
            raise Stop(
                WRONG_BASE, f"{what}: the package index sends more than {limit >> 20} MiB", "nothing of it was used"
            )
        if expected is not None and len(content) < expected:
            raise Stop(
                SOURCE, f"{what} cannot be had from the package index: it breaks off after {len(content)} bytes", ADVICE
            )
        return found

    def packages(self, project: str) -> list[Package]:
        """The source packages of a project; what was withdrawn (yanked) is left out."""
        what = f"list of {project}'s packages"
        place, kind, content = self.read(f"{self.base}{normal(project)}/", what, MAX_PAGE)
        found = []
        try:
            for name, url, digest, date, yanked in (
                json_files(json.loads(content)) if kind == JSON else html_files(content.decode("utf-8"))
            ):
                stem, _, version = name.removesuffix(".tar.gz").rpartition("-")
                if not yanked and name.endswith(".tar.gz") and normal(stem) == normal(project):
                    address, _ = without_secret(urllib.parse.urldefrag(urllib.parse.urljoin(place, url)).url)
                    found.append(
                        Package(version, address, digest if re.fullmatch(r"[0-9a-f]{64}", digest) else "", date)
                    )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Stop(SOURCE, f"the package index sends no {what} that can be read", ADVICE) from None
        return found

    def archive(self, package: Package, what: str) -> bytes:
        _, _, content = self.read(package.url, what, MAX_ARCHIVE)
        if sha256(content) != package.sha256:
            raise Stop(
                WRONG_BASE,
                f"{what}: the sha256 is {sha256(content)}, expected {package.sha256}, as the package index itself says",
                "nothing of it was used",
            )
        return content


def normal(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def host(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def without_secret(url: str) -> tuple[str, str]:
    """An address without its name and password, and these as a header's value."""
    parts = urllib.parse.urlsplit(url)
    given, at, place = parts.netloc.rpartition("@")
    secret = "Basic " + base64.b64encode(urllib.parse.unquote(given).encode()).decode() if at else ""
    return parts._replace(netloc=place).geturl(), secret


def json_files(page: dict):
    for file in page["files"]:
        day = re.match(r"\d{4}-\d\d-\d\d", file.get("upload-time") or "")
        yield file["filename"], file["url"], file["hashes"].get("sha256", ""), day and day[0], bool(file.get("yanked"))


class Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attributes))


def html_files(page: str):
    links = Links()
    links.feed(page)
    for link in links.found:
        url, _, fragment = (link.get("href") or "").partition("#")
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
        digest = urllib.parse.parse_qs(fragment).get("sha256", [""])[0]
        yield name, url, digest, None, "data-yanked" in link


def pip_says(*words: str) -> str:
    # COLUMNS: pip would break an address at a hyphen. Not shown with --verbose: the settings may hold a password.
    env = {**os.environ, "COLUMNS": "1000", "PIP_NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env
    )
    if done.returncode:
        lacking = "No module named pip" in done.stderr
        problem = "this Python has no pip" if lacking else "pip cannot read its own settings"
        raise Stop(SOURCE, f"which package index to ask is not known: {problem}", ADVICE)
    return done.stdout


def find_index() -> Index:
    """The index that pip would use: from its environment, its files, or its own default."""
    found = {}
    for key, value in re.findall(r"^(\S+?)=('.*'|\".*\")$", pip_says("config", "list"), re.M):
        found[key] = ast.literal_eval(value)

    def setting(name: str) -> str | None:
        places = (f":env:.{name}", f"download.{name}", f"global.{name}")  # the first one counts, as with pip
        return next((found[place] for place in places if found.get(place)), None)

    if (setting("no-index") or "").lower() in ("1", "true", "yes", "on"):
        raise Stop(SOURCE, "pip is told to use no package index (no-index)", ADVICE)
    url = setting("index-url")
    if not url:
        known = re.search(r"--index-url <url>.*?\(default:? (\S+?)\)", pip_says("download", "--help"), re.S)
        if not known:
            raise Stop(
                SOURCE, "which package index to ask is not known: pip does not tell its default", "set PIP_INDEX_URL"
            )
        url = known[1]
    try:
        return Index(url, setting("cert"))
    except OSError:
        raise Stop(SOURCE, "the certificates that pip is told to use cannot be read", ADVICE) from None
