"""Training runs in processes of their own, side by side: started, followed and, whatever happens, ended."""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from tqdm import tqdm

from demo.runner.environment import ROOT
from demo.runner.errors import DemoError
from demo.runner.processes import end_of, follow, process_group

sys.path.append(str(ROOT / "recipes"))  # the files that all recipes share
import run_json  # noqa: E402

LOG_FILE = "log.txt"
POLL_SECONDS = 0.5
PACKAGES = ("torch", "numpy", "transformers", "tensordict", "ray", "TransferQueue", "torchvision", "pillow")
PACKAGES += ("scikit-learn", "gymnasium", "mujoco", "stable-baselines3")
FORM = "{desc} {bar} {percentage:3.0f} % {remaining} left{postfix}"


@dataclass(frozen=True)
class Training:
    """One training run.

    label: its name in messages.
    folder: where the process runs and writes.
    command, environment: of the process.
    rows: each item is the rows that the process wrote since the previous one.
    length, unit: how many rows a complete run writes, and what they are called.
    show: the numbers of a row, for the progress.
    record: for its run.json, see `begin`.
    on_rows: called with the new rows, about twice a second, if there are any.
    complete: called after the process has succeeded.
    """

    label: str
    folder: Path
    command: list[str]
    environment: dict[str, str]
    rows: Iterator[list[dict]]
    length: int
    unit: str
    show: Callable[[dict], str]
    record: dict
    on_rows: Callable[[list[dict]], None] = lambda rows: None
    complete: Callable[[], None] = lambda: None


def empty(folder: Path) -> Path:
    """The folder, without what was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def begin(host: str, task: str, agent: str, seed: int, total_steps: int, checkout: Path) -> dict:
    """The record of a run that starts now. host: the upstream in the checkout."""
    code = run_json.code(ROOT, checkout)
    return run_json.begin(host, task, seed, total_steps, PACKAGES, agent=agent, command=sys.orig_argv[1:], **code)


def reused(folder: Path, label: str, fresh: bool) -> bool:
    """Whether the folder has a finished run, which then serves; says so."""
    record = run_json.read(folder)
    if fresh or not record.get("finished"):
        return False
    commit, day = (record["commit"] or "unknown")[:7], record["ended"][:10]
    changes = " with changes" if record["modified"] else ""
    print(f"{label}: reused, trained on {day} at commit {commit}{changes}", flush=True)
    return True


def train(trainings: Iterable[Training], fresh: bool = False) -> None:
    """Runs those that are not finished, side by side. One that fails ends the others; those that have finished stay."""
    waiting = [training for training in trainings if not reused(training.folder, training.label, fresh)]
    with contextlib.ExitStack() as stack:
        width = max((len(training.label) for training in waiting), default=0)
        running = [
            stack.enter_context(contextlib.closing(_steps(training, position, width)))
            for position, training in enumerate(waiting)
        ]
        while running := [steps for steps in running if next(steps, None)]:
            time.sleep(POLL_SECONDS)


def progress(label: str, length: int, position: int = 0, form: str = FORM) -> tqdm:
    """A line that is rewritten on a terminal, and nothing elsewhere."""
    return tqdm(
        desc=label,
        total=length,
        position=position,
        bar_format=form,
        disable=None,
        leave=False,
        dynamic_ncols=True,
        file=sys.stdout,
    )


def _steps(training: Training, position: int, width: int) -> Iterator[bool]:
    """One training: each next() looks at it once and gives True, until it has ended. width: of its label."""
    folder = empty(training.folder)
    began, done, peak = time.monotonic(), 0, 0
    with (
        progress(f"{training.label:<{width}}", training.length, position) as bar,
        (folder / LOG_FILE).open("w") as log,
        process_group(training.command, training.environment, log, folder) as process,
    ):
        bar.set_postfix_str("starting")
        for rows in follow(process, training.rows):
            peak = max(peak, _memory())
            if rows:
                if not done:
                    bar.unpause()  # the start does not count for the time that is left
                done += len(rows)
                bar.set_postfix_str(training.show(rows[-1]), refresh=False)
                bar.update(len(rows))
                training.on_rows(rows)
                last = rows[-1]
            yield True
    if process.returncode != 0 or done != training.length:
        raise DemoError(_failure(training, process.returncode, done, folder / LOG_FILE))
    training.complete()
    seconds = time.monotonic() - began
    run_json.finish(folder, {**training.record, "seconds": round(seconds, 1), "peak_memory_bytes": peak})
    tqdm.write(f"{training.label}: {done} {training.unit} in {seconds:.0f} s, {training.show(last)}", file=sys.stdout)


def _failure(training: Training, code: int, done: int, log: Path) -> str:
    end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    rows = f"{done} of {training.length} {training.unit}"
    tail = end_of(log.read_text(errors="replace"))
    return f"the {training.label} run {end} after {rows}. The end of its log, {log}:\n{tail}"


def _memory() -> int:
    """Resident bytes of this process and its descendants; shared pages count once for each."""
    total, root = 0, psutil.Process()
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total
