"""python -m demo [--task chain] [--seed 1] [--steps 150]: GRPO and ERA from the same start, with verl's own trainer."""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()  # before the imports below, which a user's PYTHONPATH could supply

import argparse
import json
import shutil
import sys
from pathlib import Path

from demo.llm import chain
from demo.llm.config import ANSWERS, ARMS, Settings
from demo.runner.progress import Line, clock
from demo.runner.start import check, exit_code, only_one, stop_on_signals, whole_number

PICTURE_FILE = "entropy.png"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--task", default="chain", choices=chain.TASKS, help="docs/llm/demo.md describes them")
    parser.add_argument("--seed", default=1, type=whole_number(0), help="of the warm-up, the data and the sampling")
    parser.add_argument("--steps", default=150, type=whole_number(1), help="training steps of each of the two runs")
    parser.add_argument("--checkout", default="checkouts/verl", type=Path, help="verl with the ERA overlay")
    parser.add_argument("--out", default="results/demo", type=Path, help="folder of the results")
    parser.add_argument("--fresh", action="store_true", help="train again even where finished runs could be reused")
    return parser.parse_args(arguments)


def warm_up(settings: Settings, out: Path, key: dict, redo: bool) -> Path:
    """The folder of the model that both runs start from."""
    from demo.llm import run, warmup

    folder = out / f"warmup-{settings.task}-seed{settings.seed}"
    line = Line("warm-up")
    info = None if redo else run.finished(folder, key)
    if info is None:
        new = run.fresh(run.beside(folder))
        text = "update {}: {:.0%} of the sampled answers right (until {:.0%})".format
        accuracy = warmup.write_model(
            new,
            chain.TASKS[settings.task],
            settings.seed,
            lambda update, accuracy: line.show(text(update, accuracy, warmup.TARGET_ACCURACY), update // 5),
        )
        info = run.finish(new, key, accuracy=accuracy, seconds=line.seconds())
        run.replace(folder, new)
        line.show(f"{accuracy:.0%} of the sampled answers right, {info['seconds']:.0f} s", last=True)
    else:
        line.show(f"{info['accuracy']:.0%} of the sampled answers right, reused from {folder}", last=True)
    return folder


def train(settings: Settings, arm: str, checkout: Path, start: Path, folder: Path, key: dict, redo: bool) -> dict:
    from demo.llm import run

    line = Line(arm.upper())
    info = None if redo else run.finished(folder, key)
    if info is not None:
        line.show(f"{settings.steps} steps, reused from {folder}", last=True)
        return info
    difference = run.difference(folder, key)
    if difference:
        line.show(
            f"the run in {folder} differs in {difference}: training again, and keeping it until the new one is finished",
            last=True,
        )
    first_step = None

    def on_poll(row: dict | None) -> None:
        nonlocal first_step
        if row is None:
            if first_step is None:
                line.show(f"starting Ray and verl, {line.seconds():.0f} s (half a minute is usual)")
            return
        first_step = first_step or line.seconds()
        done = row["step"]
        left = (line.seconds() - first_step) / max(done - 1, 1) * (settings.steps - done)
        line.show(
            f"step {done}/{settings.steps}  {clock(left)} left  reward {row['reward']:.2f}  "
            f"entropy {row['response_entropy']:.2f}  distinct {row['distinct_right']:.1f} of {ANSWERS}",
            done,
            last=done == settings.steps,
        )

    if not line.in_place:
        line.show("starting Ray and verl (half a minute is usual)", last=True)
    return run.train(settings, arm, checkout, start, folder, key, on_poll)


def demo(arguments: argparse.Namespace) -> None:
    settings = Settings(arguments.task, arguments.seed, arguments.steps)
    check(arguments.checkout, arguments.out)
    from demo.llm import report, run, warmup

    print(
        f'A two-layer language model learns the task "{settings.task}" with verl\'s PPO trainer on this CPU, seed '
        f"{settings.seed}:\nonce as GRPO, once with ERA (omega_low {settings.omega_low}, k {ARMS['era']:g}), {settings.steps} steps "
        f"each. Logs and results: {arguments.out}\nBelow, entropy is the response entropy in nats, distinct the number of "
        "distinct right answers per prompt.",
        flush=True,
    )
    with only_one(arguments.out):
        run.sweep()
        key = run.key(arguments.checkout)
        start = warm_up(settings, arguments.out, key, arguments.fresh)
        folder = arguments.out / settings.name
        folder.mkdir(exist_ok=True)
        warmup.write_data(folder, settings.task, settings.seed)
        arms = {}
        for arm in ARMS:
            info = train(settings, arm, arguments.checkout, start, folder / arm, key, arguments.fresh)
            arms[arm] = report.Arm.read(folder / arm, info)
        findings = report.findings(settings, **arms)
        report.picture(settings, arms, folder / PICTURE_FILE)
        shutil.copyfile(folder / PICTURE_FILE, arguments.out / PICTURE_FILE)
        (folder / "summary.json").write_text(json.dumps(report.record(settings, arms, findings), indent=2) + "\n")
    print(f"\n{report.table(arms)}\n")
    print("\n".join(findings))
    print(
        f"\npicture  {arguments.out / PICTURE_FILE}\nnumbers  {folder}/summary.json, {folder}/{{grpo,era}}/"
        f"{{steps,validation}}.csv\nlogs     {folder}/{{grpo,era}}/log.txt"
    )


def main() -> int:
    stop_on_signals()
    return exit_code(demo, parse())


if __name__ == "__main__":
    sys.exit(main())
