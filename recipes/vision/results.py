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
"""python results.py [FOLDER ...]: tables of the runs in these folders (default: output/era).

The accuracies come from each run's summary.csv. The runs of cifar10-time, in time/ of the folder,
have a table of their own: the time of a training step, from log.txt.
"""

import csv
import math
import os
import re
import statistics
import sys
from pathlib import Path

SUMMARY, LOG = "summary.csv", "log.txt"
IMAGENET_VALIDATION_IMAGES = 50_000
# The normal distribution's. The paper's intervals for ImageNet are Z95 sqrt(p (1 - p) / 50,000).
Z95 = 1.96

# A line of train.py's log, with the running means of the epoch in brackets.
STEP = re.compile(r"Train: (\d+) \[.*?Time: [\d.]+s, +[\d.]+/s +\(([\d.]+)s, +([\d.]+)/s\)")

Rows = dict[int, dict[str, str]]


def read_summary(file: Path) -> tuple[list[str], Rows]:
    """Columns, and the row of each epoch.

    A resumed train.py appends another header, and repeats an epoch whose checkpoint was not
    written: the later row counts. A line cut short is left out.
    """
    if not file.is_file():
        return [], {}
    with file.open(newline="") as stream:
        columns, *lines = list(csv.reader(stream)) or [[]]
    rows = {
        int(line[0]): dict(zip(columns, line)) for line in lines if len(line) == len(columns) and line[0].isdecimal()
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
    """Of each epoch (seconds of a training step, images per second), means from its last line."""
    lines = STEP.findall(log.read_text(errors="replace")) if log.is_file() else []
    return {int(epoch): (float(seconds), float(rate)) for epoch, seconds, rate in lines}


def time_lines(folders: list[Path]) -> list[str]:
    """The time of a training step in each folder, and its ratio to the first baseline's.

    All train on the same images, so the ratio is that of images per second, which the log has with
    more digits. The first epoch, in which cuDNN chooses kernels, is left out if there are others.
    """
    lines, first = [f"{'run':<44}{'epochs':>7}{'s/step':>9}{'images/s':>10}{'time':>8}"], None
    for folder in sorted(folders, key=lambda folder: "-era" in folder.name):
        found = speeds(folder / LOG)
        counted = [speed for epoch, speed in sorted(found.items()) if epoch > 0 or len(found) == 1]
        if not counted:
            lines.append(f"{folder.name:<44}{'-':>7}")
            continue
        seconds = statistics.fmean(speed[0] for speed in counted)
        rate = statistics.harmonic_mean([speed[1] for speed in counted])
        first = first or rate
        lines.append(f"{folder.name:<44}{len(counted):>7}{seconds:>9.3f}{rate:>10.1f}{first / rate:>8.3f}")
    return lines


def accuracy_lines(folders: list[Path], epochs: float = math.inf) -> list[str]:
    """A line per run, then the mean over seeds.

    top-1 and top-5 are percentages after `epochs` epochs, or after all there are; `best` is the
    best top-1 so far, `min H` the smallest entropy of a prediction in validation (nats). Runs with
    a number of classes in their name use another data set, so ImageNet's interval is not theirs.
    """
    lines = [f"{'run':<44}{'epochs':>7}{'top-1':>7}{'top-5':>14}{'best':>15}{'min H':>9}"]
    groups = {}
    for folder in folders:
        summary = read_summary(folder / SUMMARY)[1]
        rows = {epoch: row for epoch, row in summary.items() if epoch < epochs}
        last = rows[max(rows)] if rows else {}
        if "eval_top5" not in last:  # no epoch yet, or not validated by train.py
            lines.append(f"{folder.name:<44}{'-':>7}")
            continue
        top1, top5 = float(last["eval_top1"]), float(last["eval_top5"])
        members = groups.setdefault(folder.name.rpartition("-seed")[0], {})
        members[folder.name] = (max(rows), top1, top5)
        is_imagenet = folder.name.startswith("imagenet") and "classes" not in folder.name
        cells = "".join(_with_margin(value, _binomial_margin(value) if is_imagenet else None) for value in (top1, top5))
        best = max(float(row["eval_top1"]) for row in rows.values())
        entropy = f"{float(last['eval_entropy_min']):.4f}" if "eval_entropy_min" in last else "-"
        lines.append(f"{folder.name:<44}{max(rows) + 1:>7}{cells}{best:>8.2f}{entropy:>9}")
    for group, members in groups.items():
        lasts, top1s, top5s = zip(*members.values())
        if len(members) > 1 and len(set(lasts)) == 1:
            cells = (
                _with_margin(
                    statistics.fmean(values),
                    Z95 * statistics.stdev(values) / math.sqrt(len(values)),
                )
                for values in (top1s, top5s)
            )
            title = f"{group}, {len(members)} seeds"
            lines.append(f"{title:<44}{lasts[0] + 1:>7}{''.join(cells)}")
    return lines


def _binomial_margin(percent: float) -> float:
    share = percent / 100
    return 100 * Z95 * math.sqrt(share * (1 - share) / IMAGENET_VALIDATION_IMAGES)


def _with_margin(value: float, margin: float | None) -> str:
    return f"{value:>7.2f}" + (f" ± {margin:.2f}" if margin is not None else " " * 7)


if __name__ == "__main__":
    from launching import print_tables  # here, because readers of results do not need it

    sys.exit(print_tables(__doc__, SUMMARY, accuracy_lines, time_lines))
