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

The return of the last evaluation, mean and standard deviation over the finished runs of each task
and agent. For the experiment `time`, in time/ of the folder: the time of a step and its ratio to
FastTD3's.
"""

import csv
import re
import statistics
import sys
import zipfile
from pathlib import Path

from runs import CURVES, EXPERIMENTS

LOG = "log.txt"
LOG_INTERVAL = 100  # steps between two rows of train.csv; fixed in train.py
TOTAL = re.compile(r"\btotal_timesteps=(\d+)")  # in the settings that train.py prints at its start
# In the order of the tables.
EVERY_AGENT = [agent for name in ("time", *EXPERIMENTS) for agent in EXPERIMENTS[name].agents]
AGENTS = list(dict.fromkeys(agent.name for agent in EVERY_AGENT))
RUN_NAME = re.compile(rf"(.+-v\d+)-({'|'.join(AGENTS)})-seed\d+")


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of train.csv. A line cut short is left out."""
    if not (folder / CURVES).is_file():
        return []
    with (folder / CURVES).open(newline="") as stream:
        return [row for row in csv.DictReader(stream) if None not in row.values()]


def steps_done(folder: Path) -> int:
    found = rows(folder)
    return int(found[-1]["global_step"]) if found else 0


def total_steps(folder: Path) -> int | None:
    """The steps for which the run was started; None if it was not."""
    log = folder / LOG
    found = TOTAL.findall(log.read_text(errors="replace")) if log.is_file() else []
    return int(found[-1]) if found else None


def is_finished(folder: Path) -> bool:
    """Whether the final model is whole and train.csv reaches the last step that train.py logs."""
    total = total_steps(folder)
    if total is None or not any(map(zipfile.is_zipfile, folder.glob("models/*_final.pt"))):
        return False
    return steps_done(folder) >= (total - 1) // LOG_INTERVAL * LOG_INTERVAL


def last_return(folder: Path) -> float | None:
    evaluations = [row["eval_avg_return"] for row in rows(folder) if row["eval_avg_return"]]
    return float(evaluations[-1]) if evaluations else None


def milliseconds_per_step(folder: Path) -> float | None:
    """From the first row of train.csv, before which the networks are compiled, to the last."""
    found = rows(folder)
    if len(found) < 2:
        return None
    steps, seconds = (float(found[-1][name]) - float(found[0][name]) for name in ("global_step", "seconds"))
    return 1000 * seconds / steps


def groups(folders: list[Path]) -> dict[str, dict[str, list[Path]]]:
    """The folders by task and agent."""
    found = {}
    for folder in folders:
        match = RUN_NAME.fullmatch(folder.name)
        if match:
            found.setdefault(match[1], {}).setdefault(match[2], []).append(folder)
    return {
        task: {agent: found[task][agent] for agent in sorted(found[task], key=AGENTS.index)} for task in sorted(found)
    }


def return_lines(folders: list[Path]) -> list[str]:
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
                mean = f"{statistics.fmean(returns):>10.2f}"
                lines.append(f"{task:<28}{agent:<26}{len(returns):>6}{steps:>9}{mean}{spread:>9}")
            else:
                lines.append(f"{task:<28}{agent:<26}{'-':>6}")
    if unfinished:
        done = ", ".join(
            f"{folder.name} ({steps_done(folder)} of {total_steps(folder) or '?'} steps)" for folder in unfinished
        )
        lines.append(f"Not finished and left out: {done}")
    return lines


def time_lines(folders: list[Path]) -> list[str]:
    """Means over the seeds; the ratio is to the task's FastTD3."""
    lines = [f"{'task':<28}{'agent':<26}{'seeds':>6}{'ms/step':>10}{'ratio':>8}"]
    for task, agents in groups(folders).items():
        first = None
        for agent, members in agents.items():
            finished = filter(is_finished, members)
            times = [time for time in map(milliseconds_per_step, finished) if time]
            if not times:
                lines.append(f"{task:<28}{agent:<26}{'-':>6}")
                continue
            mean = statistics.fmean(times)
            first = mean if agent == "fasttd3" else first
            ratio = f"{mean / first:.3f}" if first else "-"
            lines.append(f"{task:<28}{agent:<26}{len(times):>6}{mean:>10.2f}{ratio:>8}")
    return lines


if __name__ == "__main__":
    from launching import print_tables  # here, because readers of results do not need it

    sys.exit(print_tables(__doc__, LOG, return_lines, time_lines))
