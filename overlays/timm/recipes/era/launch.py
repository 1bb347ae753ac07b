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
"""python launch.py EXPERIMENT [flags of train.py]: the paper's runs for image classification, one after the other.

Finished runs are skipped and unfinished ones resumed from their last checkpoint, so the same command again goes on. The
flags come after those of the run and win. From the environment:

  GPUS, DATA_DIR     4, and ../data from the checkout (ImageNet: ../data/imagenet), as in the paper's commands
  OUTPUT             folder of the runs: output/era in the checkout
  SEED               one or several: "42 43 44"
  H0                 one or several in nats, in place of the experiment's: "0.3 0.6 0.9"
  AUG                1 or 0: with or without augmentation, where the paper does not say
  NUM_CLASSES        adds --num-classes; the paper's commands leave ResNet-50 its 1,000 outputs, also on CIFAR-10
  EPOCHS             end after so many epochs; the schedule stays as it is
  DOWNLOAD           0: CIFAR-10 must be there already
  PYTHON             of the environment that trains: python3
  DRY_RUN=1          print the commands and stop
  CHECK_ONLY=1       say what is missing and stop
"""

import contextlib
import fcntl
import math
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Callable, Iterator, Optional

import preflight
import results
import runs

CHECKOUT = Path(__file__).resolve().parent.parent.parent
EPOCH_BEGINS = re.compile(r"Train: (\d+) \[")
SECONDS_TO_END, SECONDS_TO_KILL = 60, 10  # asked to, and by force


class Refused(Exception):
    """Ends the launch with its message."""


class Stopped(KeyboardInterrupt):
    """A signal asked to end."""

    def __init__(self, number: int):
        self.number = number


def is_on(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def refuse_if_any(problems: list[str]) -> None:
    if problems:
        raise Refused(
            "This run cannot start; nothing was changed:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )


def read_settings(name: str, experiment: runs.Experiment) -> runs.Settings:
    """From the environment. An empty variable is one that is not given."""
    problems, values = [], {}

    def read(variable: str, key: str, parse: Callable[[str], object], expected: str) -> None:
        text = os.environ.get(variable, "").strip()
        if not text:
            return
        try:
            values[key] = parse(text)
        except ValueError:
            problems.append(f"{variable}={text}: {expected} expected.")

    def positive(text: str) -> int:
        if int(text) < 1:
            raise ValueError
        return int(text)

    def seed(text: str) -> int:
        if not 0 <= int(text) < 2**32:  # numpy's range
            raise ValueError
        return int(text)

    def several(kind: Callable[[str], object]) -> Callable[[str], tuple]:
        return lambda text: tuple(dict.fromkeys(map(kind, text.split())))

    def boolean(text: str) -> bool:
        if text not in ("0", "1"):
            raise ValueError
        return text == "1"

    def finite(text: str) -> float:
        if not math.isfinite(float(text)):
            raise ValueError
        return float(text)

    read("GPUS", "gpus", positive, "a number of GPUs")
    read("SEED", "seeds", several(seed), "one or several integers from 0 to 2**32 - 1")
    read("H0", "min_entropies", several(finite), "one or several numbers (nats)")
    read("AUG", "aug", boolean, "0 or 1")
    read("NUM_CLASSES", "num_classes", positive, "a number of classes")
    read("EPOCHS", "epochs", positive, "a number of epochs")
    if "min_entropies" in values and not any(variant.is_era for variant in experiment.variants):
        problems.append(f"H0={os.environ['H0']}: {name} is a run without ERA. {name}-era has it.")
    if "aug" in values and not experiment.free_aug:
        problems.append(
            f"AUG={os.environ['AUG']}: {name} is {'with' if experiment.aug else 'without'} augmentation in the paper. Leave AUG out."
        )
    refuse_if_any(problems)
    data_dir = os.environ.get("DATA_DIR")
    return runs.Settings(**values, data_dir=os.path.abspath(data_dir) if data_dir else None)


def output_folder(experiment: runs.Experiment) -> Path:
    output = (
        Path(os.path.abspath(os.environ["OUTPUT"]))
        if os.environ.get("OUTPUT")
        else CHECKOUT / "output/era"
    )
    return output / results.TIME_FOLDER if experiment.compares_time else output


def train_command(run: runs.Run, folder: Path) -> list[str]:
    resume = (
        ["--resume", str(folder / preflight.CHECKPOINT)]
        if (folder / preflight.CHECKPOINT).exists()
        else []
    )
    return [*run.command, "--output", str(folder.parent), "--experiment", folder.name, *resume]


def scripts_folder(python: str) -> str:
    """Where the environment's torchrun is; beside its Python where that cannot be asked yet."""
    answer = preflight.ask_python(python)
    return answer and answer["scripts"] or os.path.dirname(shutil.which(python) or python)


def print_commands(
    all_runs: list[runs.Run], folders: list[Path], wanted: list[int], python: str
) -> None:
    scripts = scripts_folder(python)
    for run, folder, epochs in zip(all_runs, folders, wanted):
        if results.epochs_done(folder) >= epochs:
            print(f"# {run.name} is finished")
            continue
        path = f'PATH={shlex.quote(scripts)}:"$PATH" ' if scripts else ""
        stop = (
            f"  # is stopped after {epochs} epochs"
            if epochs < preflight.flags_of(run.command).epochs
            else ""
        )
        print(
            f"cd {shlex.quote(str(CHECKOUT))} && {path}PET_STANDALONE=1 {shlex.join(train_command(run, folder))}{stop}"
        )
    infeasible = [
        problem
        for run in all_runs
        for problem in preflight.era_problems(preflight.flags_of(run.command))
    ]
    for problem in dict.fromkeys(preflight.checkout_problems(CHECKOUT) + infeasible):
        print(f"note: {problem}", file=sys.stderr)


def download_cifar10(folder: Path, python: str) -> None:
    """In one process, before torchrun's, which would all write the same archive at once."""
    print(f"downloading CIFAR-10 into {folder} ...", flush=True)
    code = (
        "import sys; from torchvision.datasets import CIFAR10; CIFAR10(sys.argv[1], download=True)"
    )
    answer = subprocess.run([python, "-c", code, folder], capture_output=True, text=True)
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Refused(
            f"CIFAR-10 could not be downloaded into {folder}: {reason}. Without network on this machine, put torchvision's "
            f"{preflight.CIFAR10_FOLDER} there from another one, or set DATA_DIR. No run was started."
        )


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[int]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"{folder}: another launch is training this run. Wait for it, or end it (after a kill -9 its torchrun goes on alone)."
            ) from None
        yield lock.fileno()


def closes(pipe: IO, seconds: float) -> bool:
    """Whether all who can write to the pipe end in time; what they write is dropped."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0] and not os.read(pipe.fileno(), 1 << 16):
            return True
    return False


def writers(pipe: IO) -> list[int]:
    """Process numbers of those who have the pipe open, but for this process (Linux)."""
    name, found = f"pipe:[{os.fstat(pipe.fileno()).st_ino}]", set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if any(os.readlink(entry) == name for entry in (folder / "fd").iterdir()):
                found.add(int(folder.name))
    return sorted(found - {os.getpid()})


def kill(pipe: IO) -> bool:
    """Whether all who can write to the pipe end by force; more than once, for those that are just being started."""
    for _ in range(SECONDS_TO_KILL):
        for number in writers(pipe):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if closes(pipe, 1):
            return True
    return False


def end(process: subprocess.Popen) -> None:
    """distributed_train.sh would leave its torchrun behind. torchrun ends its workers, after 30 s by force; these have
    sessions of their own, so if it is stuck itself they are found by the output that they share with it."""
    os.killpg(process.pid, signal.SIGTERM)
    if closes(process.stdout, SECONDS_TO_END) or kill(process.stdout):
        process.wait()
    else:
        left = ", ".join(map(str, writers(process.stdout)))
        print(
            f"warning: kill -9 does not end the processes {left}, which may hold a GPU. See to them before you go on.",
            file=sys.stderr,
        )


def train(run: runs.Run, folder: Path, epochs: int, python: str) -> None:
    """Until `epochs` are in the run's summary. All that is printed goes into its log.txt too."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / results.SUMMARY
    path = f"{scripts_folder(python)}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PET_STANDALONE": "1",
    }  # a free port: runs can share a node
    with only_one(folder) as lock, (folder / results.LOG).open("a") as log:
        results.tidy_summary(summary)
        command = train_command(run, folder)
        (folder / preflight.COMMAND).write_text(shlex.join(run.command) + "\n")
        # torchrun keeps the lock: if this process is killed alone, that one goes on.
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors='replace', start_new_session=True, pass_fds=[lock],
        )  # fmt: skip
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                log.write(line)
                log.flush()
                begun = EPOCH_BEGINS.match(line)
                if (
                    begun and int(begun[1]) >= epochs
                ):  # so the checkpoint of the epoch before is written
                    break
            else:
                process.wait()
        finally:
            if process.poll() is None:
                end(process)
            results.tidy_summary(summary)
    done = results.epochs_done(folder)
    if done < epochs:
        raise Refused(
            f"{run.name} ended with exit code {process.returncode} after {done} of {epochs} epochs. What it printed is in "
            f"{folder / results.LOG}. The same command again {'goes on from its last checkpoint' if done else 'begins it anew'}, and "
            f"skips finished runs."
        )


def launch(name: str, added: list[str]) -> None:
    experiment = runs.EXPERIMENTS[name]
    settings = read_settings(name, experiment)
    experiment = runs.with_settings(experiment, settings)
    all_runs = runs.runs(experiment, settings, added)
    folders = [output_folder(experiment) / run.name for run in all_runs]
    python = os.environ.get("PYTHON") or "python3"
    download = os.environ.get("DOWNLOAD", "") != "0"
    refuse_if_any(preflight.flag_problems(added))
    wanted = [preflight.wanted_epochs(run, experiment) for run in all_runs]
    if settings.epochs and settings.epochs > max(wanted):
        longer = f'ARGS="--epochs {settings.epochs}", with an OUTPUT of its own'
        refuse_if_any(
            [
                f"EPOCHS={settings.epochs}: the schedule has {max(wanted)}. For a longer one: {longer}."
            ]
        )
    if is_on("DRY_RUN"):
        return print_commands(all_runs, folders, wanted, python)
    jobs = list(zip(all_runs, folders, wanted))
    refuse_if_any(
        preflight.find_problems(
            experiment.dataset,
            jobs,
            CHECKOUT,
            python,
            settings.gpus,
            download,
            is_on("ENVIRONMENT_TO_COME"),
        )
    )
    if is_on("CHECK_ONLY"):
        return
    left = [job for job in jobs if results.epochs_done(job[1]) < job[2]]
    for number, (run, folder, epochs) in enumerate(left, 1):
        flags = preflight.flags_of(run.command)
        if flags.dataset == "torch/cifar10" and not preflight.has_cifar10(
            CHECKOUT / flags.data_dir
        ):
            download_cifar10(CHECKOUT / flags.data_dir, python)
        resumed = (
            f", resumed after epoch {results.epochs_done(folder)}"
            if (folder / preflight.CHECKPOINT).exists()
            else ""
        )
        print(
            f"== {run.name} ({number} of {len(left)} to train): {epochs} epochs{resumed}, in {folder}",
            flush=True,
        )
        train(run, folder, epochs, python)
    lines = (
        results.time_lines(folders)
        if experiment.compares_time
        else results.accuracy_lines(folders, max(wanted))
    )
    print(f"\nRuns of {name} in {folders[0].parent}:\n" + "\n".join(lines))


def stop_on_signals() -> None:
    def stop(number: int, frame: Optional[object]) -> None:
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not cut the ending short
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, stop)


def main() -> int:
    name, *added = sys.argv[1:] or [""]
    if {"-h", "--help"} & {name, *added}:
        print(f"{__doc__}\nEXPERIMENT: {', '.join(runs.EXPERIMENTS)}")
        return 0
    if name not in runs.EXPERIMENTS:
        print(
            f"error: no experiment {name!r}. There are: {', '.join(runs.EXPERIMENTS)}. Nothing was changed.",
            file=sys.stderr,
        )
        return 2
    stop_on_signals()
    try:
        launch(name, added)
    except Stopped as stopped:
        print(
            f"\nstopped by {signal.Signals(stopped.number).name}. The same command again goes on from the last checkpoint.",
            file=sys.stderr,
        )
        return 128 + stopped.number
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
