"""What this project holds: upstreams and their versions (upstreams.json), patches with their series, overlay files."""

from __future__ import annotations

import dataclasses
import json
import re
import stat
from pathlib import Path

from engine.errors import SOURCE, USAGE, WRONG_BASE, Stop
from engine.files import JUNK, check_path, is_listed, parents, sha256
from engine.git import MODES, Content, unmarked_mode
from engine.patches import NAME, Patch, read_patch

ROOT = Path(__file__).resolve().parent.parent  # the folder of apply.py
FORMAT = 2  # part of every digest: raise it when the same patches would make different commits
FIELDS = ("What", "Why", "Paper", "Upstream-Status", "Drop-When")  # of a patch's header
PLACEHOLDER = "FILL-IN"  # of a field that export could not fill; a test refuses it


@dataclasses.dataclass(frozen=True)
class Sdist:
    project: str
    version: str
    sha256: str
    lacks: tuple[str, ...]  # folders (ending in /) and files of the commit that the package does not have
    adds: tuple[str, ...]  # what packaging put in; left out when unpacking


@dataclasses.dataclass(frozen=True)
class Version:
    label: str
    commit: str
    tag: str | None
    sdist: Sdist | None


@dataclasses.dataclass(frozen=True)
class Upstream:
    name: str
    url: str
    license: str
    default: str
    on_request: bool  # a verb without names leaves it out while it has no checkout
    versions: dict[str, Version]

    def version(self, label: str) -> Version:
        if label not in self.versions:
            known = ", ".join(self.versions)
            raise Stop(USAGE, f"{self.name} has no version {label!r}", f"known versions: {known}")
        return self.versions[label]


# --- upstreams.json ---

LABELS = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}"
REFS = r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,199}"
BAD_REF = re.compile(r"\.\.|//|/\.|\.lock(/|$)|[/.]$")  # refused by git although each character is allowed
# The pattern of a value, and how a message describes it.
SHAPES = {
    "name": (r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", "a name of letters, digits, _ and -"),
    "label": (LABELS, "a version label"),
    # The URL goes into each checkout's git configuration as it is: no white space, quote, comment, control character.
    "git": (
        r"(https|ssh|file)://[^\s\-\"#;\\\x00-\x1f\x7f-\x9f][^\s\"#;\\\x00-\x1f\x7f-\x9f]*",
        "an https, ssh or file URL",
    ),
    "license": (r".+", "a licence"),
    "default": (LABELS, "a version label"),
    "commit": (r"[0-9a-f]{40}", "40 hex digits in lower case"),
    "tag": (REFS, "a tag name"),
    "project": (r"[A-Za-z0-9][A-Za-z0-9._-]*", "a project name"),
    "version": (r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", "a version"),
    "sha256": (r"[0-9a-f]{64}", "64 hex digits in lower case"),
}
TYPES = {"versions": dict, "sdist": dict, "lacks": list, "adds": list, "on_request": bool}


def check(where: str, value: object, key: str) -> str:
    pattern, meaning = SHAPES[key]
    fine = isinstance(value, str) and re.fullmatch(pattern, value)
    if not fine or (pattern in (LABELS, REFS) and BAD_REF.search(value)):
        raise Stop(USAGE, f"{where}: expected {meaning}, found {json.dumps(value)[:80]}")
    return value


def read_object(where: str, value: object, required: str, optional: str = "") -> dict:
    """A JSON object with these keys, whose values have the right shapes or types."""
    allowed = f"{required} {optional}".split()
    if not isinstance(value, dict):
        raise Stop(USAGE, f"{where}: expected an object, found {json.dumps(value)[:80]}")
    unknown = [key for key in value if key not in allowed]
    missing = [key for key in required.split() if key not in value]
    if unknown or missing:
        problem = f"unknown key {unknown[0]!r}" if unknown else f"the key {missing[0]!r} is missing"
        raise Stop(USAGE, f"{where}: {problem}", f"expected keys: {', '.join(allowed)}")
    for key, item in value.items():
        if key in SHAPES:
            check(f"{where}.{key}", item, key)
        elif type(item) is not TYPES[key] or item == {}:
            problem = f"expected a non-empty {TYPES[key].__name__}, found {json.dumps(item)[:80]}"
            raise Stop(USAGE, f"{where}.{key}: {problem}")
        elif TYPES[key] is list:
            for path in item:
                check_path(str(path).rstrip("/"), f"{where}.{key}")
    return value


def read_version(where: str, label: str, value: object) -> Version:
    check(where, label, "label")
    found = read_object(where, value, "commit", "tag sdist")
    sdist = None
    if "sdist" in found:
        package = read_object(f"{where}.sdist", found["sdist"], "project version sha256 lacks", "adds")
        sdist = Sdist(**{**package, "lacks": tuple(package["lacks"]), "adds": tuple(package.get("adds", ()))})
    return Version(label, found["commit"], found.get("tag"), sdist)


def read_upstreams() -> dict[str, Upstream]:
    try:
        return parse_upstreams(ROOT / "upstreams.json")
    except Stop as stop:
        advice = (
            "`git diff upstreams.json` shows what was edited there, `git checkout -- upstreams.json` brings it back"
        )
        raise Stop(USAGE, *stop.lines, f"{advice}; nothing was changed") from None


def parse_upstreams(path: Path) -> dict[str, Upstream]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Stop(USAGE, f"cannot read {path}: {error.strerror}", "apply.py belongs beside upstreams.json") from None
    except (ValueError, RecursionError) as error:
        raise Stop(USAGE, f"{path} is not valid JSON: {error}") from None
    if not isinstance(data, dict) or not data:
        raise Stop(USAGE, f"{path}: expected an object with one key per upstream")
    found = {}
    for name, value in data.items():
        where = f"upstreams.json: {name}"
        check(where, name, "name")
        up = read_object(where, value, "git license default versions", "on_request")
        versions = {label: read_version(f"{where}.versions.{label}", label, v) for label, v in up["versions"].items()}
        if up["default"] not in versions:
            raise Stop(USAGE, f"{where}.default: {up['default']!r} is not among versions: {', '.join(versions)}")
        on_request = up.get("on_request", False)
        found[name] = Upstream(name, up["git"], up["license"], up["default"], on_request, versions)
    if all(up.on_request for up in found.values()):
        raise Stop(USAGE, f"{path}: expected an upstream without on_request, for verbs without names")
    return found


# --- patches and overlay files ---


@dataclasses.dataclass
class Overlay:
    """What this project adds to one version of one upstream."""

    patches: list[Patch]
    files: dict[str, Content]
    sources: dict[str, str]  # the project's file behind each overlay file
    inputs: dict[str, str]  # sha256 of each file that goes into the build, by its path in the project

    def digest(self, base: str) -> str:
        """A hash of everything that determines the commits of a checkout."""
        modes = {path: mode for path, (mode, _) in self.files.items()}
        text = json.dumps([FORMAT, base, [patch.file for patch in self.patches], self.inputs, modes], sort_keys=True)
        return sha256(text.encode())


def series_file(name: str, label: str) -> str:
    return f"patches/{name}/{label}/series"


def list_file(name: str) -> str:
    return f"overlays/{name}.list"


def read_list(file: str) -> list[str]:
    """The entries of a series or an overlay list: one a line, # starts a comment."""
    try:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        advice = f"`git checkout -- {file}` in this project brings it back; nothing was changed"
        raise Stop(USAGE, f"cannot read {ROOT / file}: {reason}", advice) from None
    entries = [line.split("#")[0].strip() for line in lines]
    found = [entry for entry in entries if entry]
    twice = next((entry for entry in found if found.count(entry) > 1), None)
    if twice:
        raise Stop(USAGE, f"{file} lists {twice} twice", "remove one of the two; nothing was changed")
    return found


def read_series(name: str, label: str) -> list[str]:
    file = series_file(name, label)
    series = read_list(file)
    for entry in series:
        if not NAME.fullmatch(entry):
            raise Stop(
                USAGE, f"{file}: expected a name such as 0001-what.patch, found {entry!r}", "nothing was changed"
            )
    return series


def compare_list(file: str, listed: set[str], present: set[str]) -> None:
    """A file that is missing or not listed is a mistake, and must not silently lead to a different overlay."""
    missing, unlisted = sorted(listed - present), sorted(present - listed)
    if missing:
        raise Stop(
            USAGE,
            f"{missing[0]} is listed in {file} but does not exist",
            f"`git checkout -- {missing[0]}` brings it back; if you removed it on purpose, remove its line too",
            "nothing was changed",
        )
    if unlisted:
        raise Stop(
            USAGE,
            f"{unlisted[0]} exists but is not listed in {file}",
            "add a line for it, or remove the file; nothing was changed",
        )


def read_overlay(up: Upstream, label: str) -> Overlay:
    name, folder = up.name, f"patches/{up.name}/{label}"
    series = read_series(name, label)
    present = {f"{folder}/{path.name}" for path in (ROOT / folder).glob("*.patch") if not JUNK.search(path.name)}
    compare_list(series_file(name, label), {f"{folder}/{file}" for file in series}, present)
    patches = [read_patch(file, (ROOT / folder / file).read_bytes()) for file in series]
    sources = read_sources(name)
    files = read_overlay_files(name, sources)
    inputs = {f"{folder}/{patch.file}": sha256(patch.raw) for patch in patches}
    inputs.update({sources[path]: sha256(content) for path, (_, content) in files.items()})
    inputs.update({file: sha256((ROOT / file).read_bytes()) for file in (series_file(name, label), list_file(name))})
    return Overlay(patches, files, sources, inputs)


def read_sources(name: str) -> dict[str, str]:
    """From the overlay list: path in the checkout to path in this project. `path` alone is a file of overlays/NAME/."""
    found = {}
    for entry in read_list(list_file(name)):
        path, _, source = (part.strip() for part in entry.partition("<-"))
        check_path(path, list_file(name))
        found[path] = check_path(source or f"overlays/{name}/{path}", list_file(name))
    return found


def read_overlay_files(name: str, sources: dict[str, str]) -> dict[str, Content]:
    top = ROOT / "overlays" / name
    inside = [path for path in top.rglob("*") if path.is_symlink() or not path.is_dir()]
    present = {path.relative_to(ROOT).as_posix() for path in inside}
    present = {path for path in present if not JUNK.search(path)}
    outside = {source for source in sources.values() if not source.startswith(f"overlays/{name}/")}
    compare_list(list_file(name), {*sources.values()}, present | {path for path in outside if (ROOT / path).is_file()})
    for source in sources.values():
        if not stat.S_ISREG((ROOT / source).lstat().st_mode):
            raise Stop(USAGE, f"{source} is not a plain file", "overlays hold plain files only; nothing was changed")
    return {path: read_file(source) for path, source in sources.items()}


def read_file(path: str) -> Content:
    """A file of this project, with its mode; patches and lists have no exec bit."""
    content = (ROOT / path).read_bytes()
    if path.endswith((".patch", "/series", ".list")):
        return MODES[0], content
    marked = (ROOT / path).stat().st_mode & stat.S_IXUSR
    return (MODES[bool(marked)] if keeps_exec_bits() else unmarked_mode(content)), content


def keeps_exec_bits() -> bool:
    """False on Windows drives, or after unpacking an archive without modes: all files have the bit, or none has."""
    program, data = (bool((ROOT / name).stat().st_mode & stat.S_IXUSR) for name in ("apply.py", "upstreams.json"))
    return program and not data


def check_no_overwrite(name: str, files: dict, base: dict) -> None:
    """Overlay files are new: none takes the place of an upstream file or folder."""
    folders = {folder for path in base for folder in parents(path)}
    for path in files:
        clash = next((place for place in (*parents(path), path) if place in base), path if path in folders else None)
        if clash:
            raise Stop(
                WRONG_BASE,
                f"overlays/{name}: {path} would overwrite upstream's {clash}",
                "an overlay holds new files only; change an upstream file with a patch. Nothing was changed",
            )


def select_patches(overlay: Overlay, lacks: tuple[str, ...]) -> tuple[list[Patch], list[str]]:
    """The patches for a source, and the names of those that only concern files which the source lacks."""
    chosen, skipped = [], []
    for patch in overlay.patches:
        lacking = [path for path in patch.ids if is_listed(path, lacks)]
        if not lacking:
            chosen.append(patch)
        elif len(lacking) == len(patch.ids):
            skipped.append(patch.file)
        else:
            raise Stop(
                SOURCE,
                f"{patch.file} changes {lacking[0]}, which the source package lacks, together with files that it has",
                "use the git repository (--source git), or split the patch",
            )
    return chosen, skipped
