"""python -m rivals.records [OUTPUT]: writes what finished runs measured to records/rivals/, as one set of tables.

runs.csv has a row per run, with its machine, times and commit; samples.csv (llm) and measures.csv (vision) what was
measured at its end, curves.csv (llm) its training, means over WINDOW steps. Runs already there stay, unless OUTPUT has
them too.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import mean, median

from demo.runner.tables import write_csv
from rivals import llm, vision

PROJECT = Path(__file__).resolve().parent.parent
RECORDS = PROJECT / "records/rivals"
KNOWN = ("task", "method", "setting", "seed")
WINDOW = 5  # steps of a row of curves.csv: short enough for what the pages say of the way to a collapse
LAST = 10  # steps at the end of the training
CURVES = ("reward", "response_entropy", "low_fraction", "scaled_token_fraction")


def about(run: dict) -> dict:
    """Of run.json."""
    hardware = run["hardware"]
    return {
        **{name: run[name] for name in (*KNOWN, "started", "ended", "commit")},
        "cpu": f"{hardware['cpu']}, {hardware['cores']} cores",
        "versions": " ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }


def llm_rows(folder: Path, run: dict) -> dict[str, list[dict]]:
    known, found = {name: run[name] for name in KNOWN}, llm.read(folder)
    curves, last = found["curves"], found["curves"][-LAST:]
    ends = {
        "reward": mean(row["reward"] for row in last),
        "response_entropy": mean(row["response_entropy"] for row in last),
        "lowest_entropy": min(row["response_entropy"] for row in curves),
        "step_seconds": median(row["seconds"] for row in curves),
    }
    windows = [curves[i : i + WINDOW] for i in range(0, len(curves), WINDOW)]
    means = [{name: mean(row[name] for row in window) for name in CURVES} for window in windows]
    return {
        "runs": [{**about(run), **ends}],
        "samples": [{**known, **row} for row in found["samples"]],
        "curves": [{**known, "step": int(window[-1]["global_step"]), **row} for window, row in zip(windows, means)],
    }


def vision_rows(folder: Path, run: dict) -> dict[str, list[dict]]:
    return {"runs": [about(run)], "measures": [{**row, "task": vision.TASK} for row in vision.read(folder)]}


# host in run.json: folder in RECORDS, and the rows of a run
HOSTS = {"verl": ("llm", llm_rows), "rivals-vision": ("vision", vision_rows)}


def typed(name: str, text: str) -> str | int | float:
    """Settings are labels, even where they look like numbers."""
    if name in ("seed", "step"):
        return int(text)
    if name in ("setting", "commit"):
        return text
    try:
        return float(text)
    except ValueError:
        return text


def read(file: Path) -> list[dict]:
    if not file.is_file():
        return []
    with file.open(newline="") as stream:
        return [{name: typed(name, text) for name, text in row.items()} for row in csv.DictReader(stream)]


def key(row: dict) -> tuple:
    return row["task"], row["method"], row["setting"], row["seed"]


def rounded(row: dict) -> dict:
    """Five digits, which is more than a comparison of seeds can use."""
    return {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()}


def collect(output: Path, records: Path) -> int:
    """The number of finished runs in `output`."""
    tables, found = {}, 0
    for file in sorted(output.glob("*/run.json")):
        run = json.loads(file.read_text())
        if not run.get("finished") or run.get("host") not in HOSTS:
            continue
        domain, rows_of = HOSTS[run["host"]]
        for table, rows in rows_of(file.parent, run).items():
            tables.setdefault(records / domain / f"{table}.csv", []).extend(rows)
        found += 1
    for file, rows in tables.items():
        new = {key(row) for row in rows}
        kept = [row for row in read(file) if key(row) not in new]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_csv(file, [rounded(row) for row in sorted([*kept, *rows], key=key)])
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else PROJECT / "results/rivals"
    if not folder.is_dir():
        sys.exit(f"error: {folder} is not there. It is the OUTPUT of rivals.launch. Nothing was changed.")
    print(f"{collect(folder, RECORDS)} finished runs of {folder} are in {RECORDS}.")
