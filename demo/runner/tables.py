"""Numbers of several seeds as files, a printed table and a comparison in words."""

import csv
import statistics
from collections.abc import Callable
from pathlib import Path

from demo.runner.progress import print_end
from demo.runner.results import write_json
from demo.runner.training import LOG_FILE

Column = dict[str, list[float | None]]  # measure: its values in the order of the seeds, None where there is none


def write_csv(file: Path, rows: list[dict]) -> None:
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def end(report, results: list, findings: list[str], out: Path, picture: str, curves: str) -> None:
    """The end of a demo: its picture, files and table. report: its module; picture, curves: names of files."""
    report.picture(results, out / picture)
    write_csv(out / "runs.csv", report.rows(results))
    write_json(out / "summary.json", report.summary(results, findings))
    print_end(
        report.table(results),
        findings,
        picture=out / picture,
        numbers=f"{out}/{{summary.json,runs.csv}}, {out}/*/{curves}",
        logs=f"{out}/*/{LOG_FILE}",
    )


def table(columns: dict[str, Column], digits: Callable[[str], int], note: str) -> str:
    """A line per measure, a column per name. digits: how many decimals a measure has."""
    labels = list(next(iter(columns.values())))
    lines = [["", *labels]]
    for name, column in columns.items():
        lines.append([name, *(_mean_and_range(column[label], digits(label)) for label in labels)])
    widths = [max(map(len, line)) for line in lines]
    text = ["  ".join([f"{label:<{widths[0]}}", *map(str.rjust, cells, widths[1:])]) for label, *cells in zip(*lines)]
    seeds = len(next(iter(columns.values()))[labels[0]])
    meaning = f"Mean (smallest to largest) over {seeds} seeds." if seeds > 1 else "One seed."
    return "\n".join([*text, f"{meaning} {note}"])


def _mean_and_range(values: list[float | None], digits: int) -> str:
    if None in values:
        return "-"
    mean = f"{statistics.mean(values):z.{digits}f}"  # z: no -0
    return mean if len(values) == 1 else f"{mean} ({min(values):z.{digits}f} to {max(values):z.{digits}f})"


def interval(differences: list[float]) -> tuple[float, float]:
    """95 % interval of the mean of paired differences, by Student's t."""
    from scipy import stats

    half = stats.t.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    return statistics.mean(differences) - half, statistics.mean(differences) + half


def compared(differences: list[float], number: str, unit: str, effect: str) -> str:
    """The mean of paired differences, and whether it can be told from the spread over two or more seeds.

    number: a format, such as "+.2f"; unit: after the mean; effect: the noun for what is looked for.
    """
    low, high = interval(differences)
    each = ", ".join(f"{difference:{number}}" for difference in differences)
    text = (
        f"{statistics.mean(differences):{number}}{unit} on average "
        f"({each} by seed; 95 % interval {low:{number}} to {high:{number}})"
    )
    if low <= 0 <= high:
        return f"{text}: no {effect} can be told from the spread over {len(differences)} seeds."
    return f"{text}: more than the spread over {len(differences)} seeds explains, in this one setting."
