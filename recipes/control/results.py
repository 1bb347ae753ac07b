"""python results.py [FOLDER ...]: a table of the runs in these folders (default: results/control).

The return of the last evaluation, mean and standard deviation over the finished seeds of each task and agent, and the
policy's entropy per dimension then, in nats.
"""

import csv
import re
import statistics
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(PROJECT / "recipes"))  # the files that all recipes share
import run_json  # noqa: E402

CURVES = "train.csv"
OUTPUT = PROJECT / "results/control"
RUN_NAME = re.compile(r"(.+)-seed(\d+)")


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of train.csv. A line cut short is left out."""
    try:
        text = (folder / CURVES).read_text()
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [row for row in csv.DictReader(whole) if None not in row.values() and row.get("global_step", "").isdigit()]


def steps_done(folder: Path) -> int:
    found = rows(folder)
    return int(found[-1]["global_step"]) if found else 0


def is_finished(folder: Path) -> bool:
    """Whether run.json says so and train.csv reaches its steps."""
    known = run_json.read(folder)
    return known.get("finished") is True and steps_done(folder) >= known.get("total_steps", 0)


def last(folder: Path, column: str) -> float | None:
    """The last value of a column of train.csv."""
    values = [row[column] for row in rows(folder) if row.get(column)]
    return float(values[-1]) if values else None


def last_return(folder: Path) -> float | None:
    return last(folder, "eval_avg_return")


def groups(folders: list[Path]) -> dict[str, list[Path]]:
    """The folders by `<task>-<agent>`, in the order given."""
    found = {}
    for folder in folders:
        match = RUN_NAME.fullmatch(folder.name)
        if match:
            found.setdefault(match[1], []).append(folder)
    return found


def return_lines(folders: list[Path]) -> list[str]:
    lines = [f"{'task-agent':<44}{'seeds':>6}{'steps':>9}{'return':>10}{'std':>9}{'entropy':>9}"]
    unfinished = []
    for name, members in groups(folders).items():
        finished = [folder for folder in members if is_finished(folder)]
        unfinished += [folder for folder in members if folder not in finished]
        returns = [value for value in map(last_return, finished) if value is not None]
        if not returns:
            lines.append(f"{name:<44}{'-':>6}")
            continue
        steps = "/".join(sorted({str(run_json.read(folder)["total_steps"]) for folder in finished}))
        spread = f"{statistics.stdev(returns):.2f}" if len(returns) > 1 else "-"
        entropies = [value for folder in finished if (value := last(folder, "entropy_per_dim")) is not None]
        entropy = f"{statistics.fmean(entropies):.3f}" if entropies else "-"
        lines.append(f"{name:<44}{len(returns):>6}{steps:>9}{statistics.fmean(returns):>10.2f}{spread:>9}{entropy:>9}")
    if unfinished:
        done = ", ".join(
            f"{folder.name} ({steps_done(folder)} of {run_json.read(folder).get('total_steps', '?')} steps)"
            for folder in unfinished
        )
        lines.append(f"Not finished and left out: {done}")
    return lines


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    given = [Path(name) for name in sys.argv[1:]] or [OUTPUT]
    tables = {}  # by the folder in OUTPUT: those of Host.apart have runs of the same names
    for folder in given:
        for run in sorted(file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{run_json.FILE}")):
            if RUN_NAME.fullmatch(run.name):
                tables.setdefault(str(run.parent.relative_to(folder)), []).append(run)
    if not tables:
        print(
            f"error: no run (no {run_json.FILE}) in {', '.join(map(str, given))}. Name the folder that was the runs' "
            "OUTPUT.",
            file=sys.stderr,
        )
        return 1
    print(
        "\n\n".join(
            "\n".join([*([] if name == "." else [f"{name}:"]), *return_lines(runs)])
            for name, runs in sorted(tables.items())
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
