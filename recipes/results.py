# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m recipes.results [FOLDER...]: a table of the runs of vision and control in these folders.

The ends of the finished runs, as recipes/curves.py takes them, and classifiers' last epoch: mean and sample standard
deviation over the seeds. A run that is not finished, or not whole, is named. Without a FOLDER, in those where the
recipes write by default. `make report` compares them with the paper's.
"""

import statistics
import sys
from pathlib import Path

from recipes import PROJECT, curves, launch_options, run_json, whole
from recipes.launch_options import LaunchOptions

CHECKOUTS = LaunchOptions.from_environment(launch_options.RESULTS).checkouts
FOLDERS = (PROJECT / "results/control", CHECKOUTS / "timm/output/era", CHECKOUTS / "fasttd3/output/era")
# Columns of summary.csv and train.csv, and what the table calls them. Entropies are in nats.
COLUMNS = {
    "eval_top1": "top-1",
    "eval_top5": "top-5",
    "eval_entropy_min": "min H",
    "eval_avg_return": "return",
    "entropy_per_dim": "entropy per dimension",
}
END_OF = {"train.csv": curves.at_end, "summary.csv": lambda epochs: epochs[max(epochs)]}


def ends(run: Path) -> dict[str, float]:
    """What a whole run has reached in each of COLUMNS, by its title: a classifier in its last epoch, as the paper."""
    file = next(run / name for name in END_OF if (run / name).is_file())
    columns = curves.read(file)
    return {title: END_OF[file.name](columns[name]) for name, title in COLUMNS.items() if columns.get(name)}


def lines(output: Path) -> list[str]:
    groups, unfinished = {}, []
    for file in sorted([*output.glob(f"*/{run_json.FILE}"), *output.glob(f"*/*/{run_json.FILE}")]):
        run, record = file.parent, run_json.read(file.parent)
        name = f"{run.relative_to(output)}"
        reason = whole.incomplete_because(run)
        if not reason:
            groups.setdefault(name.rpartition("-seed")[0], []).append(ends(run))
        elif not run.name.startswith(run_json.SET_ASIDE):
            unfinished.append(f"not whole: {name}: {reason}" if record.get("finished") else f"not finished: {name}")
    table = []
    for group, runs in groups.items():
        cells = []
        for title in runs[0]:
            values = [run[title] for run in runs if title in run]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{title} {statistics.fmean(values):.2f}{spread}")
        table.append(f"{group:<44} {len(runs):>2} seeds  {',  '.join(cells)}")
    return table + unfinished


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]] or FOLDERS
    if missing := [folder for folder in given if sys.argv[1:] and not folder.is_dir()]:
        sys.exit(f"error: {missing[0]} is not a folder")
    table = [line for output in given for line in lines(output)]
    print("\n".join(table) or f"no run (no {run_json.FILE}) in {', '.join(map(str, given))}")
