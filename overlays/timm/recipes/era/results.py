# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""python results.py [FOLDER ...]: a table of the runs in the folders of launch.py (default: output/era of the checkout).

Reads the summary.csv of each run. The runs of cifar10-time, which are in the folder's time/, have a table of their own: the
time of a training step, from their log.txt.
"""

import csv
import math
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Optional

SUMMARY, LOG = "summary.csv", "log.txt"
TIME_FOLDER = "time"  # of the runs that are compared by their time
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent / "output/era"
IMAGENET_VALIDATION_IMAGES = 50_000
Z95 = 1.96  # the normal distribution's; ImageNet's intervals in the paper's table are Z95 sqrt(p (1 - p) / 50,000)

# One line of train.py's log, the running means of the epoch in brackets.
STEP = re.compile(r"Train: (\d+) \[.*?Time: [\d.]+s, +[\d.]+/s +\(([\d.]+)s, +([\d.]+)/s\)")

Rows = dict[int, dict[str, str]]


def read_summary(file: Path) -> tuple[list[str], Rows]:
    """Columns and the row of each epoch. train.py appends to the file that it finds, after a resumption with one more
    header, and repeats an epoch whose checkpoint was not written: the later row counts. A line cut short is left out."""
    if not file.is_file():
        return [], {}
    with file.open(newline="") as stream:
        columns, *lines = list(csv.reader(stream)) or [[]]
    rows = {
        int(line[0]): dict(zip(columns, line))
        for line in lines
        if len(line) == len(columns) and line[0].isdecimal()
    }
    return columns, dict(sorted(rows.items()))


def tidy_summary(file: Path) -> None:
    """One header and one row per epoch."""
    columns, rows = read_summary(file)
    if not columns:
        return
    beside = file.with_name(f"{file.name}.new")
    with beside.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows.values())
    os.replace(beside, file)


def epochs_done(folder: Path) -> int:
    return max(read_summary(folder / SUMMARY)[1], default=-1) + 1


def speeds(log: Path) -> dict[int, tuple[float, float]]:
    """(seconds of a training step, images per second), the means over each epoch by the last line of the log on it."""
    lines = STEP.findall(log.read_text(errors="replace")) if log.is_file() else []
    return {int(epoch): (float(seconds), float(rate)) for epoch, seconds, rate in lines}


def time_lines(folders: list[Path]) -> list[str]:
    """The time of a training step in each folder, and its ratio to that of the first. An epoch's images are the same in
    all, so the ratio is that of the images per second, which the log has with more digits. The first epoch, in which
    cuDNN chooses its kernels, is left out where there are more."""
    lines, first = [f"{'run':<44}{'epochs':>7}{'s/step':>9}{'images/s':>10}{'time':>8}"], None
    for folder in folders:
        found = speeds(folder / LOG)
        counted = [speed for epoch, speed in sorted(found.items()) if epoch > 0 or len(found) == 1]
        if not counted:
            lines.append(f"{folder.name:<44}{'-':>7}")
            continue
        seconds = statistics.fmean(speed[0] for speed in counted)
        rate = statistics.harmonic_mean([speed[1] for speed in counted])
        first = first or rate
        lines.append(
            f"{folder.name:<44}{len(counted):>7}{seconds:>9.3f}{rate:>10.1f}{first / rate:>8.3f}"
        )
    return lines


def accuracy_lines(folders: list[Path], epochs: Optional[int] = None) -> list[str]:
    """A line per run: accuracies after `epochs` epochs (default: after all that it has), the best top-1 of these epochs
    and the smallest predictive entropy in validation; then the mean over seeds, where there are several. Runs with a
    number of classes in their name are on a data set of their own, so they have no interval of ImageNet's."""
    lines, groups = (
        [f"{'run':<44}{'epochs':>7}{'top-1':>7}{'top-5':>14}{'best':>15}{'min H':>9}"],
        {},
    )
    for folder in folders:
        rows = {
            epoch: row
            for epoch, row in read_summary(folder / SUMMARY)[1].items()
            if epochs is None or epoch < epochs
        }
        last = rows[max(rows)] if rows else {}
        if "eval_top5" not in last:  # no epoch yet, or not validated by train.py
            lines.append(f"{folder.name:<44}{'-':>7}")
            continue
        top1, top5 = float(last["eval_top1"]), float(last["eval_top5"])
        groups.setdefault(folder.name.rpartition("-seed")[0], {})[folder.name] = (
            max(rows),
            top1,
            top5,
        )
        is_imagenet = folder.name.startswith("imagenet") and "classes" not in folder.name
        margins = [_binomial_margin(value) if is_imagenet else None for value in (top1, top5)]
        best = max(float(row["eval_top1"]) for row in rows.values())
        entropy = f"{float(last['eval_entropy_min']):.4f}" if "eval_entropy_min" in last else "-"
        lines.append(
            f"{folder.name:<44}{max(rows) + 1:>7}{_with_margin(top1, margins[0])}{_with_margin(top5, margins[1])}{best:>8.2f}{entropy:>9}"
        )
    for group, runs in groups.items():
        lasts, top1s, top5s = zip(*runs.values())
        if len(runs) > 1 and len(set(lasts)) == 1:
            cells = (
                _with_margin(
                    statistics.fmean(values),
                    Z95 * statistics.stdev(values) / math.sqrt(len(values)),
                )
                for values in (top1s, top5s)
            )
            lines.append(f"{f'{group}, {len(runs)} seeds':<44}{lasts[0] + 1:>7}{''.join(cells)}")
    return lines


def _binomial_margin(percent: float) -> float:
    share = percent / 100
    return 100 * Z95 * math.sqrt(share * (1 - share) / IMAGENET_VALIDATION_IMAGES)


def _with_margin(value: float, margin: Optional[float]) -> str:
    return f"{value:>7.2f}" + (f" ± {margin:.2f}" if margin is not None else " " * 7)


def run_folders(folders: list[Path]) -> list[Path]:
    return sorted(file.parent for folder in folders for file in folder.glob(f"*/{SUMMARY}"))


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    given = [Path(name) for name in sys.argv[1:]] or [DEFAULT_FOLDER]
    found, timed = run_folders(given), run_folders([folder / TIME_FOLDER for folder in given])
    if not found and not timed:
        print(
            f"error: no run (no {SUMMARY}) in {', '.join(map(str, given))}. Name the folder that the runs were given as OUTPUT.",
            file=sys.stderr,
        )
        return 1
    tables = [accuracy_lines(found)] if found else []
    tables += (
        [time_lines(sorted(timed, key=lambda folder: "-era" in folder.name))] if timed else []
    )  # the baseline first
    print("\n\n".join("\n".join(lines) for lines in tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
