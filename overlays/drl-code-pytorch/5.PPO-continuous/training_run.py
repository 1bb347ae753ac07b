# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A run of PPO_continuous_main.py that writes train.csv and run.json, and resumes.

train.csv has a row per evaluation. When an episode starts, the simulator holds nothing of the past
but its random state. A checkpoint written then, once a minute, lets the run resume to the bit.
"""

import argparse
import contextlib
import csv
import os
import sys
import time
from pathlib import Path
from typing import Any

import eapo
import era_ppo
import numpy as np
import run_json
import torch
from fast import Fast

PACKAGES = ("torch", "gymnasium", "mujoco", "numpy")
CHECKPOINT = "checkpoint.pt"
SECONDS_BETWEEN_CHECKPOINTS = 60
# main()'s variables that change in training, beside the agent; flags decide which of them exist.
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
    eapo.add_arguments(parser)


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
        if self.agent.eapo is not None:
            scaling = variables.get("reward_norm") or variables.get("reward_scaling")
            self.agent.eapo.scaling = scaling
        if args.fast:
            self.agent.fast = Fast(self.agent, args)
        if args.csv_path is None:
            return

        self.folder = args.csv_path.resolve().parent
        self.folder.mkdir(parents=True, exist_ok=True)

        # The folder may hold this run, to be resumed or finished; another one is left alone.
        self.record = run_json.begin(
            "ppo",
            args.env,
            args.seed,
            args.max_train_steps,
            PACKAGES,
            evaluate_freq=int(args.evaluate_freq),
        )
        before = run_json.read(self.folder)
        if before and before.get("command") != self.record["command"]:
            sys.exit(
                f"error: {self.folder} holds another run, {before.get('command')}. Give its flags "
                "to resume it, or name a file in another folder."
            )
        if before.get("finished") is True:
            try:
                self.rows_until(args.max_train_steps)
            except ValueError as reason:
                sys.exit(
                    f"error: {self.folder} says that it holds this run, finished, but {reason}. "
                    "Move it away to train the run again."
                )
            print(f"{self.folder} holds this run, finished")
            sys.exit()

        self.cpu_before = 0.0
        self.began = self.saved = time.monotonic()

    def cpu_seconds(self) -> float:
        return round(self.cpu_before + time.process_time(), 1)

    def begin_episode(self, total_steps: int) -> int:
        """Resumes the run when it has just started; saves it once a minute.

        Returns:
            The steps that are done.
        """
        if self.args.csv_path is None:
            return total_steps
        if total_steps == 0:
            try:
                if (self.folder / CHECKPOINT).exists():
                    total_steps = self.resume()
                self.keep_rows(total_steps)
            except Exception as error:  # of whatever is in the two files
                ours = isinstance(error, ValueError)
                reason = error if ours else f"{CHECKPOINT} is damaged, or holds more than data"
                sys.exit(
                    f"error: {self.folder}: {reason} ({type(error).__name__}). To start this run "
                    f"over, move {CHECKPOINT} away."
                )
            run_json.start(self.folder, self.record)
        if time.monotonic() - self.saved > SECONDS_BETWEEN_CHECKPOINTS:
            self.save(total_steps)
        return total_steps

    def rows_until(self, total_steps: int) -> list[str]:
        """The lines of train.csv up to this step. Raises a ValueError if one is missing or cut."""
        path, rows = self.args.csv_path, {}
        if path.exists():
            for line in path.read_text(errors="replace").splitlines(keepends=True):
                with contextlib.suppress(ValueError):
                    numbers = [float(cell) for cell in line.split(",")]
                    if len(numbers) == len(COLUMNS) and line.endswith("\n"):
                        rows[numbers[0]] = line
        every = int(self.args.evaluate_freq)
        steps = range(every, total_steps + 1, every)
        if lost := [step for step in steps if step not in rows]:
            raise ValueError(f"{path.name} lacks the row of step {lost[0]}")
        return [rows[step] for step in steps]

    def keep_rows(self, total_steps: int) -> None:
        """Drops the rows after this step, which will be written again, and rows that are cut."""
        kept = self.rows_until(total_steps)
        new = self.args.csv_path.with_suffix(".new")
        new.write_text(",".join(COLUMNS) + "\n" + "".join(kept))
        os.replace(new, self.args.csv_path)

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
            *(evaluate_reward, time.monotonic() - self.began, self.cpu_seconds()),
            *(entropy.mean(), entropy.min()),
            *(log_std.mean(), log_std.std(unbiased=False), log_std.min(), clipped.mean()),
        )
        with self.args.csv_path.open("a", newline="") as file:
            row = [total_steps, *(f"{float(number):.6g}" for number in numbers)]
            csv.writer(file, lineterminator="\n").writerow(row)

    def finish(self) -> None:
        if self.args.csv_path is None:
            return
        run_json.finish(self.folder, self.record, self.cpu_seconds())
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def save(self, total_steps: int) -> None:
        checkpoint = {
            "total_steps": total_steps,
            "seconds": time.monotonic() - self.began,
            "cpu_seconds": self.cpu_seconds(),
            "started": self.record["started"],
            "agent": {name: getattr(self.agent, name).state_dict() for name in AGENT},
            "variables": {
                name: plain(self.variables[name]) for name in CHANGING if name in self.variables
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
        self.saved = time.monotonic()

    def resume(self) -> int:
        checkpoint = torch.load(self.folder / CHECKPOINT, weights_only=True)
        for name, state in checkpoint["agent"].items():
            getattr(self.agent, name).load_state_dict(state)
        for name, value in checkpoint["variables"].items():
            if isinstance(value, list):
                self.variables[name][:] = value
            else:
                restore(self.variables[name], value)
        for name, state in checkpoint["environments"].items():
            self.variables[name].unwrapped.np_random.bit_generator.state = state
        torch.set_rng_state(checkpoint["torch"])
        self.cpu_before = checkpoint["cpu_seconds"]
        self.began = time.monotonic() - checkpoint["seconds"]
        self.record["started"] = checkpoint["started"]
        return checkpoint["total_steps"]


def plain(value: Any) -> Any:
    """A value of CHANGING as tensors, numbers, lists and dictionaries, which are data alone."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.tensor(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if type(value).__module__ in ("normalization", "replaybuffer"):
        value = vars(value)
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def restore(thing: Any, members: dict[str, Any]) -> None:
    """Sets the attributes of one of upstream's objects to what `plain` has made of them."""
    for name, value in members.items():
        now = getattr(thing, name)
        if isinstance(value, dict):
            restore(now, value)
        else:
            setattr(thing, name, np.asarray(value) if isinstance(now, np.ndarray) else value)
