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
"""A run of PPO_continuous_main.py that writes train.csv and run.json, and resumes.

train.csv has a row per evaluation. When an episode starts the simulator holds nothing of the past
but its random state, so a checkpoint made there lets the run go on to the bit. One is made each
minute, and when a signal asks to end.
"""

import argparse
import codecs
import csv
import fcntl
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import era_ppo
import numpy as np
import run_json
import torch
from fast import Fast
from normalization import RunningMeanStd

PACKAGES = ("torch", "gymnasium", "mujoco", "numpy")
CHECKPOINT, LOCK = "checkpoint.pt", ".training"
SECONDS_BETWEEN_CHECKPOINTS = 60
# What changes in training, beside the agent: main()'s variables, as far as its flags make them.
CHANGING = ("replay_buffer", "state_norm", "reward_norm", "reward_scaling", "evaluate_rewards")
AGENT = ("actor", "critic", "optimizer_actor", "optimizer_critic")
ENVIRONMENTS = ("env", "env_evaluate")
COLUMNS = (
    *("global_step", "eval_avg_return", "seconds", "cpu_seconds"),
    # nats, over the states of the newest batch; clipped is the share of its actions at a bound
    *("entropy_per_dim", "min_entropy_per_dim"),
    *("mean_log_std", "std_log_std", "min_log_std", "clipped"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--csv_path",
        type=Path,
        help="write the run to this file, with run.json and a checkpoint beside it, and resume it; "
        "a folder holds one run",
    )
    parser.add_argument("--fast", action="store_true", help="the same numbers in less time")
    era_ppo.add_arguments(parser)


def refuse(message: str) -> None:
    print(f"error: {message} Nothing was changed.", file=sys.stderr)
    sys.exit(2)


class TrainingRun:
    """
    Args:
        args: the flags, and the environment's dimensions.
        variables: those of main().
    """

    def __init__(self, args: argparse.Namespace, variables: dict):
        self.args, self.variables = args, variables
        self.agent, self.buffer = variables["agent"], variables["replay_buffer"]
        os.makedirs("data_train", exist_ok=True)  # upstream saves its rewards there
        if args.fast:
            self.agent.fast = Fast(self.agent, args)
        self.stopped_by = None
        if args.csv_path is None:
            return
        self.folder = args.csv_path.resolve().parent
        self.record = run_json.begin("ppo", args.env, args.seed, args.max_train_steps, PACKAGES)
        try:
            self.take_folder()
        except OSError as problem:
            refuse(f"--csv_path {args.csv_path}: {problem.strerror}: {problem.filename}.")
        self.rows, self.cpu_before = [], 0.0
        self.began = self.saved = time.time()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)

    def take_folder(self) -> None:
        """Ends the process if the folder holds another run, or this one finished."""
        path = self.args.csv_path
        if path.is_dir():
            refuse(f"--csv_path {path} is a folder. Name a file in a folder of the run's own.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = (self.folder / LOCK).open("w")  # as long as this process lives
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refuse(f"another process trains in {self.folder}. Name a file in another folder.")
        before = run_json.read(self.folder)
        if before and before.get("command") != self.record["command"]:
            then, now = (
                shlex.join(map(str, record["command"])) for record in (before, self.record)
            )
            refuse(
                f"{self.folder} holds another run. Then: {then}; now: {now}. Give the same flags "
                "to resume it, or name a file in another folder."
            )
        if before.get("finished") is True:
            print(f"{self.folder} holds this run, finished")
            sys.exit()

    def stop(self, number: int, frame: object) -> None:
        self.stopped_by = number

    def cpu_seconds(self) -> float:
        return round(self.cpu_before + time.process_time(), 1)

    def begin_episode(self, total_steps: int) -> int:
        """Resumes the run when it has just started; saves it from time to time.

        Returns:
            The steps that are done.
        """
        if self.args.csv_path is None:
            return total_steps
        if total_steps == 0:
            if (self.folder / CHECKPOINT).exists():
                total_steps = self.resume()
            run_json.start(self.folder, self.record)
        if self.stopped_by or time.time() - self.saved > SECONDS_BETWEEN_CHECKPOINTS:
            self.save(total_steps)
        if self.stopped_by:
            print(f"stopped at step {total_steps}; the same command goes on from there")
            sys.exit(128 + self.stopped_by)
        return total_steps

    def evaluated(self, total_steps: int, evaluate_reward: float) -> None:
        """Adds a row for upstream's evaluation."""
        if self.args.csv_path is None:
            return
        count = min(total_steps, self.args.batch_size)
        with torch.no_grad():
            states = torch.tensor(self.buffer.s[:count], dtype=torch.float)
            policy = self.agent.actor.get_dist(states)
            entropy, log_std = policy.entropy().mean(1), policy.stddev.log()
        clipped = np.abs(self.buffer.a[:count]) >= self.args.max_action
        numbers = (
            *(evaluate_reward, time.time() - self.began, self.cpu_seconds()),
            *(entropy.mean(), entropy.min()),
            *(log_std.mean(), log_std.std(unbiased=False), log_std.min(), clipped.mean()),
        )
        self.rows.append([total_steps, *(f"{float(number):.6g}" for number in numbers)])
        new = self.args.csv_path.with_suffix(".new")
        with new.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *self.rows])
        os.replace(new, self.args.csv_path)

    def finish(self) -> None:
        if self.args.csv_path is None:
            return
        run_json.finish(self.folder, self.record, self.cpu_seconds())
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def save(self, total_steps: int) -> None:
        checkpoint = {
            "total_steps": total_steps,
            "rows": self.rows,
            "seconds": time.time() - self.began,
            "cpu_seconds": self.cpu_seconds(),
            "started": self.record["started"],
            "agent": {name: getattr(self.agent, name).state_dict() for name in AGENT},
            "variables": {
                name: self.variables[name] for name in CHANGING if name in self.variables
            },
            "torch": torch.get_rng_state(),
            "environments": {
                name: self.variables[name].unwrapped.np_random.bit_generator.state
                for name in ENVIRONMENTS
            },
        }
        new = self.folder / f"{CHECKPOINT}.new"
        torch.save(checkpoint, new)
        os.replace(new, self.folder / CHECKPOINT)
        self.saved = time.time()

    def loadable(self) -> list:
        """What a checkpoint holds beside tensors and plain values: NumPy's arrays, and upstream's
        classes that hold them. The functions are those that pickle calls for an array, a number
        and bytes.
        """
        array, number = np.zeros(1), np.float64()
        classes = {type(self.variables[name]) for name in CHANGING if name in self.variables}
        return [
            *(classes - {list}),
            RunningMeanStd,
            *(np.ndarray, np.dtype, *(type(np.dtype(name)) for name in ("f4", "f8", "i8", "?"))),
            *(array.__reduce__()[0], number.__reduce__()[0], codecs.encode),
        ]

    def resume(self) -> int:
        file = self.folder / CHECKPOINT
        try:
            with torch.serialization.safe_globals(self.loadable()):
                checkpoint = torch.load(file, weights_only=True)
        except Exception as problem:  # of many kinds, by where the file is damaged
            code = re.search(r"GLOBAL (\S+)", str(problem))
            what = (
                f"holds {code[1]}, which is no part of a run and could run code"
                if code
                else f"cannot be read ({type(problem).__name__})"
            )
            refuse(f"{file} {what}. Remove it, and the run starts over.")
        for name, state in checkpoint["agent"].items():
            getattr(self.agent, name).load_state_dict(state)
        for name, value in checkpoint["variables"].items():
            if isinstance(value, list):
                self.variables[name][:] = value
            else:
                vars(self.variables[name]).update(vars(value))
        for name, state in checkpoint["environments"].items():
            self.variables[name].unwrapped.np_random.bit_generator.state = state
        torch.set_rng_state(checkpoint["torch"])
        self.rows, self.cpu_before = checkpoint["rows"], checkpoint["cpu_seconds"]
        self.began = time.time() - checkpoint["seconds"]
        self.record["started"] = checkpoint["started"]
        return checkpoint["total_steps"]
