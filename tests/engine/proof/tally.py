"""The proof's counts: what was tried, how it ended, and what was lost. One line of JSON per count, one file per process.

python tests/engine/proof/tally.py FOLDER    adds the files up and prints the table (writes FOLDER/proof.md and proof.json)
"""

from __future__ import annotations

import collections
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

PARTS = {
    "faults": "Faults at system calls",
    "meanwhile": "Somebody else at work meanwhile",
    "inputs": "Hostile and mutated inputs",
    "sequences": "Random sequences of verbs against a model",
    "supply": "Supply chain",
    "places": "Portability",
}
OUTCOMES = ("completed", "refused", "lost")  # lost: anything that the proof says must not be; a test fails then too


class Tally:
    """`part` is a key of PARTS, `row` a line of its table in words."""

    def __init__(self, folder: Path | None):
        self.path = folder / f"counts-{os.getpid()}.jsonl" if folder else None

    def count(self, part: str, row: str, outcome: str, number: int = 1) -> None:
        assert part in PARTS and outcome in OUTCOMES
        self.write({"part": part, "row": row, outcome: number})

    def seconds(self, part: str, seconds: float) -> None:
        self.write({"part": part, "seconds": seconds})

    def write(self, line: dict) -> None:
        if self.path:
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")


def add_up(folder: Path) -> dict:
    """Part -> {"seconds": s, "rows": row -> outcome -> number}."""
    found = {part: {"seconds": 0.0, "rows": collections.defaultdict(collections.Counter)} for part in PARTS}
    for path in sorted(folder.glob("counts-*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            part = found[line["part"]]
            part["seconds"] += line.get("seconds", 0.0)
            for outcome in OUTCOMES:
                if outcome in line:
                    part["rows"][line["row"]][outcome] += line[outcome]
    return {part: item for part, item in found.items() if item["rows"]}


def table(found: dict) -> str:
    lines = []
    for part, item in found.items():
        lines += [
            f"### {PARTS[part]}",
            "",
            "| case | tried | completed | refused | lost |",
            "|---|---:|---:|---:|---:|",
        ]
        total = collections.Counter()
        for row, counts in sorted(item["rows"].items()):
            lines.append(row_of(row, counts))
            total.update(counts)
        lines += [row_of("**all**", total), "", f"{item['seconds']:.0f} s of tests.", ""]
    return "\n".join(lines)


def row_of(name: str, counts: collections.Counter) -> str:
    cells = [sum(counts.values()), *(counts[outcome] for outcome in OUTCOMES)]
    return f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def circumstances() -> dict[str, str]:
    git = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()[2]
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "git": git,
        "system": f"{platform.system()} {platform.release()}",
        "cores": str(os.cpu_count()),
    }


def main(folder: Path) -> None:
    found, where = add_up(folder), circumstances()
    text = "{date}, Python {python}, git {git}, {system}, {cores} cores.\n\n".format(**where) + table(found)
    (folder / "proof.md").write_text(text, encoding="utf-8")
    (folder / "proof.json").write_text(
        json.dumps({**where, "parts": found}, indent=1, sort_keys=True), encoding="utf-8"
    )
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
