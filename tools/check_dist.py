# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What a release holds, checked: python -m tools.check_dist FOLDER, which has one wheel and one source package.

It prints a line for each file that is missing or unexpected and each field that is wrong, and then exits with 1. With
--final it also refuses a version whose date CHANGELOG.md leaves open.
"""

import argparse
import email
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from era import __version__
from recipes import PROJECT
from tools.hosts import HOSTS
from tools.try_wheel import EXTRAS, PYTHONS

NAME = f"era_overlays-{__version__}"
RECORDS = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE", "licenses/NOTICE")
# Beside era/: what the wheel is built from, and what a reader of the source package needs. No test: the tests need a
# clone, with the patches, overlays and recipes.
SOURCES = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "NOTICE", "README.md", "docs/library.md")
SOURCES += ("pyproject.toml", "setup.py")
MADE = ("PKG-INFO", "setup.cfg")  # by setuptools, as is era_overlays.egg-info/


def package() -> set[str]:
    """The files of era/ that git tracks and a user needs."""
    listing = subprocess.run(["git", "ls-files", "era"], cwd=PROJECT, capture_output=True, text=True, check=True)
    return {name for name in listing.stdout.splitlines() if not name.endswith("ruff.toml")}


def differences(what: str, holds: set[str], expected: set[str]) -> list[str]:
    lacks = [f"{what} lacks {name}" for name in sorted(expected - holds)]
    return lacks + [f"{what} has {name}, which nobody needs" for name in sorted(holds - expected)]


def wrong_fields(metadata: str) -> list[str]:
    """What is wrong with the fields and the readme, as PyPI would show it."""
    fields = email.message_from_string(metadata)
    pythons = [name.split(" :: ")[-1] for name in fields.get_all("Classifier", []) if "Python :: 3." in name]
    expected = {
        "Version": (fields["Version"], __version__),
        "License-Expression": (fields["License-Expression"], "Apache-2.0"),
        "Requires-Python": (fields["Requires-Python"], f">={PYTHONS[0]}"),
        "the Pythons of the classifiers": (pythons, list(PYTHONS)),
        "the extras": (fields.get_all("Provides-Extra"), [extra for extra in EXTRAS if extra]),
        "the readme's type": (fields["Description-Content-Type"], "text/markdown"),
    }
    problems = [f"{what}: {found}, expected {wanted}" for what, (found, wanted) in expected.items() if found != wanted]
    readme = fields.get_payload()
    for module in sorted(module for host in HOSTS.values() for module in host.modules[:1]):
        if module not in readme:
            problems.append(f"the readme does not say how {module} is switched on")
    for what, pattern in {
        "a link that PyPI cannot follow": r"\]\((?!https?:)",
        "a formula, which PyPI shows as text": r"\$",
        "a clone, which a reader on PyPI has not": r"\bclone\b|install '?\.",
    }.items():
        problems += [f"the readme has {what}: {line}" for line in readme.splitlines() if re.search(pattern, line)]
    return problems


def problems(folder: Path) -> list[str]:
    """What is wrong with the wheel and the source package in the folder, a line each."""
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        expected = package() | {f"{NAME}.dist-info/{name}" for name in RECORDS}
        found = differences("the wheel", set(archive.namelist()), expected)
        found += wrong_fields(archive.read(f"{NAME}.dist-info/METADATA").decode())
    with tarfile.open(source) as archive:
        holds = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    holds = {name for name in holds if not name.startswith("era_overlays.egg-info/")}
    return found + differences("the source package", holds, package() | {*SOURCES, *MADE})


def version_problems(final: bool) -> list[str]:
    """Where another version stands than in era/__init__.py."""
    heading = re.search(r"^## (.*)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    found = []
    if heading.split(" - ")[0] != __version__:
        found.append(f"CHANGELOG.md begins with {heading}, era is {__version__}")
    if final and not re.fullmatch(r"\S+ - \d{4}-\d\d-\d\d", heading):
        found.append(f"CHANGELOG.md: the heading {heading} has no date: ## {__version__} - YYYY-MM-DD")
    if f"\nversion: {__version__}\n" not in (PROJECT / "CITATION.cff").read_text():
        found.append(f"CITATION.cff has another version than {__version__}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.check_dist", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--final", action="store_true", help="also ask for the date of the version")
    arguments = parser.parse_args()
    found = problems(arguments.folder) + version_problems(arguments.final)
    print("\n".join(found) or f"{NAME}: OK")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
