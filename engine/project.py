"""What this project says: the upstreams and their versions (upstreams.json), and its patches and overlay files."""

from __future__ import annotations

import dataclasses
import json
import re
import stat
from pathlib import Path

from engine.common import SOURCE, USAGE, WRONG_BASE, Stop, count
from engine.git import MODES, Content, sha256, unmarked_mode
from engine.patches import Patch, PatchReader, check_path, meet, under

ROOT = Path(__file__).resolve().parent.parent  # the folder of apply.py
FORMAT = 1  # part of every digest: raise it when the same patches would make different commits
FIELDS = ("What", "Why", "Paper", "Upstream-Status", "Drop-When")
PLACEHOLDER = "FILL-IN"  # the header test rejects it
JUNK_PATTERNS = ("__pycache__/", "*.py[cod]", "*.egg-info/", ".DS_Store", ".era-new-*")
JUNK = re.compile(r"(^|/)(__pycache__|[^/]*\.egg-info|\.DS_Store)(/|$)|\.py[cod]$|(^|/)\.era-new-[^/]*$")


@dataclasses.dataclass(frozen=True)
class Sdist:
    project: str
    version: str
    sha256: str
    lacks: tuple[str, ...]  # folders (ending in /) and files of the commit that the package does not have
    adds: tuple[str, ...]  # what the packaging put in; left out when unpacking


@dataclasses.dataclass(frozen=True)
class Version:
    label: str
    commit: str
    tag: str | None
    sdist: Sdist | None
    patches: int  # how many there must be, so that a missing one is seen


@dataclasses.dataclass(frozen=True)
class Upstream:
    name: str
    url: str
    license: str
    default: str
    overlay_files: int
    on_request: bool  # a verb without names leaves it out while it has no checkout
    versions: dict[str, Version]

    def version(self, label: str) -> Version:
        if label not in self.versions:
            raise Stop(USAGE, f"{self.name} has no version {label!r}", f"known versions: {', '.join(self.versions)}")
        return self.versions[label]


def shown(value: object) -> str:
    return type(value).__name__ if isinstance(value, (dict, list)) else json.dumps(value)[:60]


# No white space, control, quote or comment character: each checkout's git configuration gets it as it is.
URL = r"(https|ssh|file)://[^\s\-\"#;\\\x00-\x1f\x7f-\x9f\ud800-\udfff][^\s\"#;\\\x00-\x1f\x7f-\x9f\ud800-\udfff]*"


def check_fields(where: str, value: object, required: dict[str, type], optional: dict[str, type] | None = None) -> dict:
    allowed = {**required, **(optional or {})}
    if not isinstance(value, dict):
        raise Stop(USAGE, f"{where}: expected an object, found {type(value).__name__}")
    unknown = [key for key in value if key not in allowed]
    missing = [key for key in required if key not in value]
    if unknown or missing:
        problem = f"unknown key {unknown[0]!r}" if unknown else f"the key {missing[0]!r} is missing"
        raise Stop(USAGE, f"{where}: {problem}", f"expected keys: {', '.join(allowed)}")
    for key, item in value.items():
        if allowed[key] is int and (type(item) is not int or item < 0):
            raise Stop(USAGE, f"{where}.{key}: expected a number of files, found {shown(item)}")
        if allowed[key] is bool and type(item) is not bool:
            raise Stop(USAGE, f"{where}.{key}: expected true or false, found {shown(item)}")
        if not isinstance(item, allowed[key]) or item in ("", {}):
            raise Stop(USAGE, f"{where}.{key}: expected a non-empty {allowed[key].__name__}, found {shown(item)}")
    return value


def check_pattern(where: str, value: str, pattern: str, meaning: str) -> str:
    if not re.fullmatch(pattern, value):
        raise Stop(USAGE, f"{where}: expected {meaning}, found {value!r}")
    return value


def check_ref(where: str, value: str, pattern: str, meaning: str) -> str:
    """A word that git takes for a part of a ref's name, too: `git check-ref-format` has these rules."""
    check_pattern(where, value, pattern, meaning)
    if any(
        part.startswith(".") or part.endswith((".", ".lock")) or not part or ".." in part for part in value.split("/")
    ):
        raise Stop(
            USAGE, f"{where}: expected {meaning}, found {value!r}, which git does not allow as the name of a tag"
        )
    return value


def reject_duplicates(pairs: list[tuple[str, object]]) -> dict:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Stop(USAGE, f"upstreams.json: the key {twice!r} stands twice in one object")
    return seen


def read_sdist(where: str, value: dict) -> Sdist:
    check_fields(where, value, {"project": str, "version": str, "sha256": str, "lacks": list}, {"adds": list})
    check_pattern(f"{where}.project", value["project"], r"[A-Za-z0-9][A-Za-z0-9._-]*", "a project name")
    check_pattern(f"{where}.version", value["version"], r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", "a version")
    check_pattern(f"{where}.sha256", value["sha256"], r"[0-9a-f]{64}", "64 hex digits in lower case")
    for key in ("lacks", "adds"):
        for item in value.get(key, []):
            if not isinstance(item, str):
                raise Stop(USAGE, f"{where}.{key}: expected paths, found {shown(item)}")
            check_path(item.rstrip("/"), f"{where}.{key}")
    return Sdist(
        value["project"], value["version"], value["sha256"], tuple(value["lacks"]), tuple(value.get("adds", ()))
    )


def read_version(where: str, label: str, value: dict) -> Version:
    check_ref(where, label, r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", "a version label")
    check_fields(where, value, {"commit": str, "patches": int}, {"tag": str, "sdist": dict})
    check_pattern(f"{where}.commit", value["commit"], r"[0-9a-f]{40}", "40 hex digits in lower case")
    if "tag" in value:
        check_ref(f"{where}.tag", value["tag"], r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,199}", "a tag name")
    sdist = read_sdist(f"{where}.sdist", value["sdist"]) if "sdist" in value else None
    return Version(label, value["commit"], value.get("tag"), sdist, value["patches"])


def read_upstreams() -> dict[str, Upstream]:
    path = ROOT / "upstreams.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicates)
    except OSError as error:
        raise Stop(
            USAGE, f"cannot read {path}: {error.strerror}", "apply.py must stand beside upstreams.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Stop(USAGE, f"{path} is not valid JSON: {error}") from None
    if not isinstance(data, dict) or not data:
        raise Stop(USAGE, f"{path}: expected an object with one key per upstream")
    found = {}
    for name, value in data.items():
        where = f"upstreams.json: {name}"
        check_pattern(where, name, r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", "a name of letters, digits, _ and -")
        required = {"git": str, "license": str, "default": str, "overlay_files": int, "versions": dict}
        check_fields(where, value, required, {"on_request": bool})
        check_pattern(f"{where}.git", value["git"], URL, "an https, ssh or file URL")
        versions = {
            label: read_version(f"{where}.versions.{label}", label, item) for label, item in value["versions"].items()
        }
        if value["default"] not in versions:
            raise Stop(USAGE, f"{where}.default: {value['default']!r} is not among versions: {', '.join(versions)}")
        found[name] = Upstream(
            name,
            value["git"],
            value["license"],
            value["default"],
            value["overlay_files"],
            value.get("on_request", False),
            versions,
        )
    if len({name.lower() for name in found}) < len(found):
        raise Stop(USAGE, f"{path}: two names differ only by case, so some file systems have one folder for both")
    if all(up.on_request for up in found.values()):
        raise Stop(USAGE, f"{path}: expected at least one upstream without on_request, for verbs without names")
    return found


@dataclasses.dataclass
class Overlay:
    """What this project adds to one version of one upstream."""

    patches: list[Patch]
    files: dict[str, Content]
    inputs: dict[str, str]  # sha256 of each file read, by its path in the project

    def digest(self, base: str) -> str:
        modes = {path: mode for path, (mode, _) in self.files.items()}
        text = json.dumps([FORMAT, base, sorted(self.inputs.items()), sorted(modes.items())])
        return sha256(text.encode())


def patch_folder(name: str, label: str) -> Path:
    return ROOT / "patches" / name / label


def overlay_folder(name: str) -> Path:
    return ROOT / "overlays" / name


def patch_names(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if name.endswith(".patch") and not JUNK.search(name)]


def check_complete(up: Upstream, label: str, patches: int, files: int) -> None:
    """A patch or overlay file too few or too many: only the numbers in upstreams.json can tell."""
    where, top = f"patches/{up.name}/{label}", f"overlays/{up.name}"
    for what, place, found, expected, key in (
        ("patch", where, patches, up.version(label).patches, "patches"),
        ("file", top, files, up.overlay_files, "overlay_files"),
    ):
        if found == expected:
            continue
        few = found < expected
        raise Stop(
            USAGE,
            f"{place} holds {count(found, what, 'es' if what == 'patch' else 's')}, upstreams.json expects {expected}",
            f"{'if one is missing' if few else 'if one is there by mistake'}: `git status {place}` in this project tells, and "
            + (f"`git checkout -- {place}` brings it back" if few else "remove it"),
            f'if you {"removed" if few else "added"} it on purpose: write "{key}": {found} for {up.name} {label} into upstreams.json',
            "(the verb export keeps the numbers right by itself). Nothing was changed",
        )


def count_project(up: Upstream, label: str) -> None:
    """The check of the numbers alone, for where the contents are not needed."""
    check_complete(up, label, len(patch_names(patch_folder(up.name, label))), len(read_overlay_files(up.name)))


TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def replace_number(text: str, place: tuple[str, ...], number: int) -> str:
    """The JSON text with one number replaced, and every other byte as it was."""
    above: list[str | None] = []  # the keys of the objects and lists that are open
    key, last = None, ""
    for token in TOKEN.finditer(text):
        word = token.group()
        if word in ("{", "["):
            above.append(key)
            key = None
        elif word in ("}", "]"):
            key = above.pop()
        elif word == ",":
            key = None
        elif word == ":":
            key = json.loads(last)
        elif key is not None and (*above[1:], key) == place:
            return text[: token.start()] + str(number) + text[token.end() :]
        last = word
    raise Stop(USAGE, f"upstreams.json: {'.'.join(place)} is missing")


def with_numbers(text: str, up: Upstream, label: str, patches: int, files: int) -> str:
    text = replace_number(text, (up.name, "overlay_files"), files)
    return replace_number(text, (up.name, "versions", label, "patches"), patches)


def read_overlay(up: Upstream, label: str, complete: bool = True) -> Overlay:
    """`complete`: refuse where a file is missing or too many; without it, whoever asks compares digests."""
    name = up.name
    folder = patch_folder(name, label)
    inputs: dict[str, str] = {}
    patches = []
    for number, file in enumerate(patch_names(folder), 1):
        if not re.fullmatch(r"[0-9]{4}-[A-Za-z0-9._-]+\.patch", file) or int(file[:4]) != number:
            raise Stop(
                USAGE,
                f"{folder / file}: expected a patch named {number:04d}-what.patch",
                "patches are numbered from 0001 without a gap; is one missing? `git status` in this project tells;",
                "nothing was changed",
            )
        raw = (folder / file).read_bytes()
        inputs[f"patches/{name}/{label}/{file}"] = sha256(raw)
        patches.append(PatchReader(file, raw).read())
    files = read_overlay_files(name)
    for path, (_, content) in files.items():
        inputs[f"overlays/{name}/{path}"] = sha256(content)
    if complete:
        check_complete(up, label, len(patches), len(files))
    return Overlay(patches, files, inputs)


def keeps_exec_bits() -> bool:
    """Not on Windows drives, nor from an archive unpacked without modes: there all files of this project have the bit, or none has."""
    program, data = (bool((ROOT / name).stat().st_mode & stat.S_IXUSR) for name in ("apply.py", "upstreams.json"))
    return program and not data


def read_overlay_files(name: str) -> dict[str, Content]:
    top = overlay_folder(name)
    marked = keeps_exec_bits()
    files: dict[str, Content] = {}
    for path in sorted(top.rglob("*")) if top.is_dir() else []:
        relative = path.relative_to(top).as_posix()
        if JUNK.search(relative):
            continue
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode):
            continue
        if not stat.S_ISREG(info.st_mode):
            raise Stop(USAGE, f"{path} is not a plain file", "overlays hold plain files only; nothing was changed")
        check_path(relative, f"overlays/{name}")
        content = path.read_bytes()
        files[relative] = (MODES[bool(info.st_mode & stat.S_IXUSR)] if marked else unmarked_mode(content), content)
    listed = top.with_suffix(".list")
    for line in listed.read_text().splitlines() if listed.is_file() else []:
        path, arrow, source = line.partition(" <- ")
        if arrow:
            files[path] = (MODES[0], (ROOT / source).read_bytes())
    return files


def project_files(name: str, label: str) -> dict[str, Content]:
    """Patches and overlay files as they are now, by their paths in the project, unread."""
    found = {}
    folder = patch_folder(name, label)
    for file in patch_names(folder):
        found[f"patches/{name}/{label}/{file}"] = (MODES[0], (folder / file).read_bytes())
    for path, item in read_overlay_files(name).items():
        found[f"overlays/{name}/{path}"] = item
    return found


def check_no_overwrite(name: str, files: dict, base: dict) -> None:
    """New files must be new, also where a filesystem does not tell A from a, or one form of é from the other."""
    seen: dict[str, tuple[str, bool]] = {}
    for path in base:
        meet(seen, path)
    for path in files:
        clash = meet(seen, path)
        if clash:
            raise Stop(
                WRONG_BASE,
                f"overlays/{name}/{path} would overwrite {clash}",
                "an overlay holds new files only; change an upstream file with a patch. Nothing was changed",
            )


def select_patches(overlay: Overlay, lacks: tuple[str, ...]) -> tuple[list[Patch], list[str]]:
    """The patches for a source, and the names of those that only concern what the source lacks."""
    chosen, skipped = [], []
    for patch in overlay.patches:
        lacking = [diff.path for diff in patch.diffs if under(diff.path, lacks)]
        if not lacking:
            chosen.append(patch)
        elif len(lacking) == len(patch.diffs):
            skipped.append(patch.file)
        else:
            raise Stop(
                SOURCE,
                f"{patch.file} changes {lacking[0]}, which the source package lacks, together with files that it has",
                "use the git repository (--source git), or split the patch",
            )
    return chosen, skipped
