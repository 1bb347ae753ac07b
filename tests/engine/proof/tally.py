"""The proof's counts: what was tried, how it ended, what was lost. One line of JSON per count, one file per process.

python tests/engine/proof/tally.py FOLDER    adds the files up, prints the tables, writes FOLDER/proof.md and proof.json
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

LONG = os.environ.get("ERA_PROOF") == "long"
PARTS = {
    "faults": "Faults at system calls",
    "meanwhile": "Somebody else meanwhile",
    "inputs": "Hostile and mutated inputs",
    "sequences": "Random sequences of verbs against a model",
    "supply": "Supply chain",
    "places": "Portability",
}
# window: a save exactly between the last look at a file and its rename, which SECURITY.md says is lost.
# lost: anything that must not happen; a test fails then too.
OUTCOMES = ("completed", "refused", "window", "lost")


class Tally:
    """`part` is a key of PARTS, `row` a line of its table in words."""

    def __init__(self, folder: Path | None):
        self.path = folder / f"counts-{os.getpid()}.jsonl" if folder else None

    def count(self, part: str, row: str, outcome: str, number: int = 1) -> None:
        assert part in PARTS and outcome in OUTCOMES
        self.write({"part": part, "row": row, outcome: number})

    def seconds(self, part: str, seconds: float) -> None:
        self.write({"part": part, "seconds": seconds})

    @contextlib.contextmanager
    def counted(self, part: str, row: str, outcome: str = "completed"):
        """Counts what happens within as `outcome`, or as lost when it fails."""
        try:
            yield
        except Exception:
            self.count(part, row, "lost")
            raise
        self.count(part, row, outcome)

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


def tables(found: dict) -> str:
    """One table per part, in Markdown, and one of all parts."""
    sums = {}
    lines = []
    for part, item in found.items():
        sums[PARTS[part]] = sum(item["rows"].values(), collections.Counter())
        rows = {**dict(sorted(item["rows"].items())), "**all**": sums[PARTS[part]]}
        lines += [f"### {PARTS[part]}", "", *table(rows), "", f"{item['seconds']:.0f} s of tests.", ""]
    if sums:
        sums["**all**"] = sum(sums.values(), collections.Counter())
    return "\n".join(["### All parts", "", *table(sums), "", *lines])


def table(rows: dict[str, collections.Counter]) -> list[str]:
    outcomes = [outcome for outcome in OUTCOMES if outcome != "window" or any(row[outcome] for row in rows.values())]
    lines = [f"| case | tried | {' | '.join(outcomes)} |", "|---|---:|" + "---:|" * len(outcomes)]
    for name, counts in rows.items():
        cells = [counts.total(), *(counts[outcome] for outcome in outcomes)]
        lines.append(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return lines


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
    text = "{date}, Python {python}, git {git}, {system}, {cores} cores.\n\n".format(**where) + tables(found)
    (folder / "proof.md").write_text(text, encoding="utf-8")
    (folder / "proof.json").write_text(json.dumps({**where, "parts": found}, indent=1, sort_keys=True))
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
