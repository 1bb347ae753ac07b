# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.drift [NAME ...]: ERA on every later release of its upstreams, and docs/engine/drift.md.

`hosts` is the newest release of each framework of README, which the tests should have run with. For the others
`apply.py port` tries the patches of each pinned version on the releases up to the next pinned one. What merges is
started on this CPU, and so is the plug-in on the release as it is; results/drift has their output. With NAMEs, their
parts of the page are only printed. Exits 1 if something that was started fails or a framework has a newer release than
its page names, 6 if a release could not be had.
"""

import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from recipes.pages import filled, table
from tools.drift import probes
from tools.drift.probes import FAILS, NOT_TRIED, STARTS, TRAINS
from tools.hosts import HOSTS

ROOT = Path(__file__).resolve().parents[2]
PAGE, WORK = ROOT / "docs/engine/drift.md", ROOT / "results/drift"
TESTS = [ROOT / "tests" / folder for folder in ("llm", "vision", "control")]  # whose files probes use
UNREAD = "the release"
MERGE = ("clean", "offset", "landed")
NAMES = ("hosts", "verl", "timm", "fasttd3")


# The frameworks of README


def tested(host: str) -> Version:
    """The newest release that the tests ran with: the highest that requirements/ pins."""
    pin = re.compile(rf"(?:^|,){host}(?:\[\w+\])?==([\w.]+)", re.MULTILINE)
    pinned = [version for file in ROOT.glob("requirements/*.txt") for version in pin.findall(file.read_text())]
    return Version(HOSTS[host].tested or max(pinned, key=Version))


def newest(host: str) -> Version:
    """The newest release, for whichever Python: pip hides those that are not for the one that it is asked for."""
    if HOSTS[host].git:
        refs = run("git", "ls-remote", "--tags", "--refs", HOSTS[host].git)
        return max(map(Version, re.findall(r"/v([\d.]+)$", refs, re.MULTILINE)))
    all_pythons = ("--ignore-requires-python", "--python-version", "3.13")  # this one chooses compiled wheels
    said = run(sys.executable, "-m", "pip", "index", "versions", host, *all_pythons)
    return Version(re.search(r"\((\S+)\)", said)[1])


# Releases, and their trees


def run(*command: object, folder: Path = ROOT) -> str:
    """What the command prints. Raises CalledProcessError if it fails."""
    return subprocess.run([*map(str, command)], cwd=folder, check=True, capture_output=True, text=True).stdout


def number(tag: str) -> Version | None:
    """The version of a release's tag; None for other tags."""
    try:
        version = Version(tag)
    except InvalidVersion:
        return None
    return None if version.is_prerelease or version.local else version


def releases(pinned: dict, label: str, tags: list[str]) -> list[str]:
    """Tags from a pinned version on, below the next. A pin without a tag gives itself, and main if it is the last."""
    if "tag" not in pinned[label]:
        return [label, "main"] if label == list(pinned)[-1] else [label]
    first = number(label)
    end = min((number(later) for later in pinned if number(later) > first), default=None)
    versions = {tag: version for tag in tags if (version := number(tag))}
    return sorted((tag for tag, v in versions.items() if first <= v and (end is None or v < end)), key=versions.get)


def merged(checkout: Path, label: str, release: str, commit: str, patches: list[Path]) -> None:
    """Turn a checkout of the pinned version into the release with these patches and the overlay's new files."""
    git = ["git", "-c", "user.name=drift", "-c", "user.email=drift@localhost"]
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{tree}}"], cwd=checkout, capture_output=True).returncode:
        run(*git, "fetch", "--quiet", "--depth=1", "origin", release, folder=checkout)
    clean(checkout, commit)
    for patch in patches:
        run(*git, "am", "--3way", "--keep-cr", "--quiet", patch, folder=checkout)
    added = run(*git, "diff", "--name-only", "--diff-filter=A", f"upstream/{label}", "era", folder=checkout)
    # verl's recipe/ is a submodule since v0.7.1: our files in it are left out.
    there = {*run(*git, "ls-tree", "-r", "--name-only", commit, folder=checkout).splitlines()}
    fit = [path for path in added.splitlines() if not any(str(parent) in there for parent in Path(path).parents)]
    run(*git, "checkout", "era", "--", *fit, folder=checkout)


def clean(checkout: Path, commit: str) -> None:
    """Check out a commit, without any changes or files beside it."""
    run("git", "checkout", "--quiet", "--force", "--detach", commit, folder=checkout)
    run("git", "clean", "-ffdxq", folder=checkout)


# What is started


def probes_of(name: str, plugin: bool) -> list[probes.Probe]:
    """The probes of an upstream that need its patches, or those of the plug-in."""
    return [probe for probe in probes.PROBES if probe.upstream == name and plugin == (not probe.files)]


def start(chosen: list[probes.Probe], tree: Path, folder: Path) -> list[dict]:
    """Start these probes of one upstream in a tree, and return for each its `what`, `outcome` and `reason`."""
    if not chosen:
        return []
    folder.mkdir(parents=True)
    path = ":".join(map(str, (tree, ROOT, *TESTS)))
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, probes.__file__, tree, chosen[0].upstream, *(probe.what for probe in chosen)]
    outcomes = {probe.what: (FAILS, "the process ended before it") for probe in chosen}
    with open(folder / "log.txt", "w") as log:
        subprocess.run(command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log)
    for line in (folder / "outcomes.jsonl").read_text().splitlines():
        what, *outcomes[what] = json.loads(line)
    started = [{"what": what, "outcome": outcome, "reason": reason} for what, (outcome, reason) in outcomes.items()]
    for item in started:
        print(f"{tree}: {': '.join(filter(None, item.values()))}", flush=True)
    return started


def try_release(name: str, label: str, release: str, checkout: Path, logs: Path) -> dict:
    """Port the patches of a pinned version to a release and start what merges: a row of the page."""
    print(f"\n{name} {release}", flush=True)
    command = [sys.executable, "apply.py", "port", name, "--version", label, "--onto", release, "--json"]
    port = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if port.returncode not in (0, 4):
        reason = port.stderr.strip().rpartition("error: ")[2].partition("\n")[0]
        unread = {"what": UNREAD, "outcome": NOT_TRIED, "reason": reason}
        return {"release": release, "date": "?", "results": {}, "started": [unread]}
    ported = json.loads(port.stdout)[name]
    results = {item["patch"]: item["result"] for item in ported["patches"]}
    patches = [ROOT / "patches" / name / label / patch for patch, word in results.items() if word in MERGE]
    merged(checkout, label, release, ported["commit"], patches)
    date = run("git", "show", "-s", "--format=%cs", ported["commit"], folder=checkout).strip()
    started = start(probes_of(name, plugin=False), checkout, logs / "patched")
    clean(checkout, ported["commit"])
    started += start(probes_of(name, plugin=True), checkout, logs / "plug-in")
    return {"release": release, "date": date, "results": results, "started": started}


def try_upstream(name: str, upstream: dict) -> dict[str, list[dict]]:
    """The rows of each pinned version."""
    refs = run("git", "ls-remote", "--tags", "--refs", upstream["git"]).splitlines()
    tags, pinned = [ref.rpartition("/")[2] for ref in refs], upstream["versions"]
    rows = {}
    for label in pinned:
        checkouts = WORK / "checkouts" / label
        run(sys.executable, "apply.py", "apply", name, "--version", label, "--checkouts", checkouts)
        rows[label] = [
            try_release(name, label, release, checkouts / name, WORK / "logs" / name / label / release)
            for release in releases(pinned, label, tags)
        ]
    return rows


def examples(checkout: Path) -> str:
    """The table of verl's example scripts, those of the release that its checkout has."""
    python, source = ROOT / ".venv/verl-0.9-cpu/bin/python", ROOT / ".venv/verl-sources/verl-0.9.1"
    if not python.exists() or not source.exists():
        return f"Not tried: there is no {python} or no {source}."
    path = f"PYTHONPATH={source}:{ROOT}"
    return run("env", path, python, "-W", "ignore", "-m", "tools.drift.examples", checkout).strip()


# The page


def part(name: str, label: str, rows: list[dict]) -> str:
    """The table of a pinned version, in which releases in a row that fare alike share a line, and what failed or was
    not tried, each reason once with its releases."""
    patches = sorted(file.name for file in (ROOT / "patches" / name / label).glob("*.patch"))

    def cells(row: dict) -> list[str]:
        return [*(row["results"].get(patch, "") for patch in patches), in_words(row["started"])]

    lines, reasons = [], {}
    for of_all, alike in itertools.groupby(rows, cells):
        first, *others = alike
        ends = [first, *others[-1:]]
        lines.append([" to ".join(dict.fromkeys(row[name] for row in ends)) for name in ("release", "date")] + of_all)
    for row in rows:
        for item in row["started"]:
            if item["reason"]:
                verb = f"fails: `{item['reason']}`" if item["outcome"] == FAILS else f"was not tried: {item['reason']}"
                reasons.setdefault(f"{item['what']} {verb}", []).append(row["release"])
    heading = ["release", "date", *(patch[:4] for patch in patches), "started"]
    below = [f"- {', '.join(releases)}: {what}" for what, releases in reasons.items()]
    return "\n".join([table(heading, lines), *([""] if below else []), *below])


def in_words(started: list[dict]) -> str:
    """The outcomes in words, such as `trains: train.py; starts: validate.py`."""
    seen = {word: [item["what"] for item in started if item["outcome"] == word] for word in (FAILS, TRAINS, STARTS)}
    words = "; ".join(f"{word}: {', '.join(what)}" for word, what in seen.items() if what)
    return words or (NOT_TRIED if started else "")


def main() -> int:
    names, upstreams = sys.argv[1:] or NAMES, json.loads((ROOT / "upstreams.json").read_text())
    if not {*names} <= {*NAMES}:
        sys.exit(f"error: {' '.join(names)}: expected of {', '.join(NAMES)}\n\n{__doc__}")
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        found = {host: (tested(host), newest(host)) for host in HOSTS if "hosts" in names}
        rows = {name: try_upstream(name, upstreams[name]) for name in names if name in upstreams}
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(map(str, error.cmd))}\n{error.stderr}\n{PAGE} is as it was.")
    environment = f"Python {platform.python_version()}, torch {importlib.metadata.version('torch')}"
    tables = {"run": f"Written by `make drift` on {datetime.date.today()}, on a CPU ({environment})."}
    if found:
        lines = [(host, *map(str, versions)) for host, versions in found.items()]
        tables["hosts"] = table(("package", "tested with", "newest"), lines)
    tables |= {f"{name} {label}": part(name, label, of) for name in rows for label, of in rows[name].items()}
    if "verl" in names:
        tables["verl examples"] = examples(WORK / "checkouts" / list(upstreams["verl"]["versions"])[-1] / "verl")
    print("", *tables.values(), sep="\n\n")
    if not sys.argv[1:]:
        PAGE.write_text(filled(PAGE.read_text(), tables))
    items = [item for labels in rows.values() for of in labels.values() for row in of for item in row["started"]]
    newer = {host: versions for host, versions in found.items() if versions[1] > versions[0]}
    for host, (at, latest) in newer.items():
        print(f"fails: {host} {latest} is newer than {at}, which docs/{HOSTS[host].page} names")
    fails = newer or any(item["outcome"] == FAILS for item in items)
    return 1 if fails else 6 * any(item["what"] == UNREAD for item in items)


if __name__ == "__main__":
    sys.exit(main())
