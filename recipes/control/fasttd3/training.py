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
"""How one run is trained, and what it leaves in its folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import grid
import run_json
import runs

import results

MODELS = "models"
PACKAGES = ("torch", "tensordict", "torchrl", "gymnasium", "mujoco", "numpy", "ray")
# Flags of train.py that change nothing in what is trained.
HARMLESS = (
    *("--device_rank", "--project", "--use_wandb", "--no_use_wandb"),
    *("--render_interval", "--save_interval"),
)
# Without wandb nobody would see the videos that train.py renders.
WITHOUT_WANDB = ("--no_use_wandb", "--render_interval", "0")


def humanoid_bench(checkout: Path) -> Path:
    """The folder into which apply.py puts it."""
    return checkout.parent / "humanoid-bench"


def variables(checkout: Path) -> dict[str, str]:
    """Environment variables to set."""
    bench = humanoid_bench(checkout)
    path = [str(bench) if bench.is_dir() else "", os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TQDM_MININTERVAL": "10",  # seconds; the bar goes into log.txt
    }


def newest_checkpoint(folder: Path) -> Path | None:
    numbered = {
        int(file.stem.rpartition("_")[2]): file for file in folder.glob(f"{MODELS}/*_[0-9]*.pt") if is_zipfile(file)
    }
    return numbered[max(numbered)] if numbered else None


@dataclass(frozen=True)
class FastTD3(grid.Trainer):
    checkout: Path
    python: str
    wandb: bool
    resume: bool
    added: tuple[str, ...] = ()

    def words(self, run: runs.Run, folder: Path) -> list[str]:
        script, *flags = run.command
        checkpoint = newest_checkpoint(folder) if self.resume else None
        resume = ["--checkpoint_path", str(checkpoint.relative_to(folder))] if checkpoint else []
        wandb = [] if self.wandb else WITHOUT_WANDB
        return [self.python, str(self.checkout / script), *wandb, *resume, *flags]

    def variables(self) -> dict[str, str]:
        return variables(self.checkout)

    def about(self, run: runs.Run) -> dict[str, Any]:
        is_as_paper = run_json.is_as_paper(self.added, HARMLESS)
        code = run_json.code(self.checkout, humanoid_bench(self.checkout))
        return {"agent": run.agent, "added": list(self.added), "as_paper": is_as_paper, **code}

    def record(self, run: runs.Run) -> dict[str, Any]:
        seed = int(run.name.rpartition("-seed")[2])
        known = {**self.about(run), **run_json.described_by(self.python, PACKAGES)}
        return run_json.begin("fasttd3", run.task, seed, None, (), command=list(run.command), **known)

    def leftovers(self, folder: Path) -> list[Path]:
        paths = [folder / name for name in (MODELS, runs.CURVES, run_json.FILE, grid.LOG)]
        return [path for path in paths if path.exists()]

    def resumes(self, folder: Path) -> bool:
        return self.resume and newest_checkpoint(folder) is not None

    def is_finished(self, folder: Path) -> bool:
        return results.is_finished(folder)

    def steps(self, folder: Path) -> tuple[int, int | None]:
        return results.steps_done(folder), results.total_steps(folder)

    def last_return(self, folder: Path) -> float | None:
        return results.last_return(folder)
