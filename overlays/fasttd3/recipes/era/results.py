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
"""python results.py [FOLDER ...]: tables of the runs in the folders of launch.py (default: output/era of the checkout).

The return of the last evaluation, mean and standard deviation over the finished runs of a task and agent; of the runs of the
experiment `time`, which are in the folder's time/, the time of a step and its ratio to FastTD3's.
"""

import csv
import re
import statistics
import sys
import zipfile
from pathlib import Path
from typing import Dict, List, Optional

from runs import CURVES, EXPERIMENTS

LOG = "log.txt"
TIME_FOLDER = "time"  # of the runs that are compared by their time
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent / "output/era"
LOG_INTERVAL = 100  # steps between two rows of train.csv, train.py's
TOTAL = re.compile(r"\btotal_timesteps=(\d+)")  # of the settings that train.py prints at its start
# In the order of the tables.
AGENTS = list(
    dict.fromkeys(
        agent.name for name in ("time", *EXPERIMENTS) for agent in EXPERIMENTS[name].agents
    )
)
RUN_NAME = re.compile(rf"(.+-v\d+)-({'|'.join(AGENTS)})-seed\d+")


def rows(folder: Path) -> List[Dict[str, str]]:
    """Of the run's train.csv. A line cut short is left out."""
    if not (folder / CURVES).is_file():
        return []
    with (folder / CURVES).open(newline="") as stream:
        return [row for row in csv.DictReader(stream) if None not in row.values()]


def steps_done(folder: Path) -> int:
    found = rows(folder)
    return int(found[-1]["global_step"]) if found else 0


def total_steps(folder: Path) -> Optional[int]:
    """What the run was started for; None before it was."""
    found = (
        TOTAL.findall((folder / LOG).read_text(errors="replace"))
        if (folder / LOG).is_file()
        else []
    )
    return int(found[-1]) if found else None


def is_finished(folder: Path) -> bool:
    """Whether the final model is whole and train.csv reaches the last step that train.py logs."""
    total = total_steps(folder)
    if total is None or not any(map(zipfile.is_zipfile, folder.glob("models/*_final.pt"))):
        return False
    return steps_done(folder) >= (total - 1) // LOG_INTERVAL * LOG_INTERVAL


def last_return(folder: Path) -> Optional[float]:
    evaluations = [row["eval_avg_return"] for row in rows(folder) if row["eval_avg_return"]]
    return float(evaluations[-1]) if evaluations else None


def milliseconds_per_step(folder: Path) -> Optional[float]:
    """After the first row of train.csv, before which the networks are compiled."""
    found = rows(folder)
    if len(found) < 2:
        return None
    steps, seconds = (
        [float(row[name]) for row in (found[0], found[-1])] for name in ("global_step", "seconds")
    )
    return 1000 * (seconds[1] - seconds[0]) / (steps[1] - steps[0])


def groups(folders: List[Path]) -> Dict[str, Dict[str, List[Path]]]:
    """The runs' folders by task and agent."""
    found: Dict[str, Dict[str, List[Path]]] = {}
    for folder in folders:
        match = RUN_NAME.fullmatch(folder.name)
        if match:
            found.setdefault(match[1], {}).setdefault(match[2], []).append(folder)
    return {
        task: {agent: found[task][agent] for agent in sorted(found[task], key=AGENTS.index)}
        for task in sorted(found)
    }


def return_lines(folders: List[Path]) -> List[str]:
    lines = [f"{'task':<28}{'agent':<26}{'seeds':>6}{'steps':>9}{'return':>10}{'std':>9}"]
    unfinished = []
    for task, agents in groups(folders).items():
        for agent, members in agents.items():
            finished = [folder for folder in members if is_finished(folder)]
            unfinished += [folder for folder in members if folder not in finished]
            returns = [value for value in map(last_return, finished) if value is not None]
            if returns:
                steps = "/".join(map(str, sorted({total_steps(folder) for folder in finished})))
                spread = f"{statistics.stdev(returns):.2f}" if len(returns) > 1 else "-"
                lines.append(
                    f"{task:<28}{agent:<26}{len(returns):>6}{steps:>9}{statistics.fmean(returns):>10.2f}{spread:>9}"
                )
            else:
                lines.append(f"{task:<28}{agent:<26}{'-':>6}")
    if unfinished:
        done = ", ".join(
            f"{folder.name} ({steps_done(folder)} of {total_steps(folder) or '?'} steps)"
            for folder in unfinished
        )
        lines.append(f"Not finished and left out: {done}")
    return lines


def time_lines(folders: List[Path]) -> List[str]:
    """Means over the seeds; the ratio is to the task's FastTD3."""
    lines = [f"{'task':<28}{'agent':<26}{'seeds':>6}{'ms/step':>10}{'ratio':>8}"]
    for task, agents in groups(folders).items():
        first = None
        for agent, members in agents.items():
            times = [
                time
                for folder in members
                if is_finished(folder) and (time := milliseconds_per_step(folder))
            ]
            if not times:
                lines.append(f"{task:<28}{agent:<26}{'-':>6}")
                continue
            mean = statistics.fmean(times)
            first = mean if agent == "fasttd3" else first
            lines.append(
                f"{task:<28}{agent:<26}{len(times):>6}{mean:>10.2f}"
                + (f"{mean / first:>8.3f}" if first else f"{'-':>8}")
            )
    return lines


def run_folders(folder: Path) -> List[Path]:
    return sorted(file.parent for file in folder.glob(f"*/{LOG}"))


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    given = [Path(name) for name in sys.argv[1:]] or [DEFAULT_FOLDER]
    found = [run for folder in given for run in run_folders(folder)]
    timed = [run for folder in given for run in run_folders(folder / TIME_FOLDER)]
    if not found and not timed:
        print(
            f"error: no run (no {LOG}) in {', '.join(map(str, given))}. Name the folder that the runs were given as OUTPUT.",
            file=sys.stderr,
        )
        return 1
    tables = ([return_lines(found)] if found else []) + ([time_lines(timed)] if timed else [])
    print("\n\n".join("\n".join(lines) for lines in tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
