"""python -m demo.llm [--verl 0.4.1] [--task chain] [--seed 2] [--steps 150]: GRPO and ERA in verl's own trainer."""

import argparse
import sys
import time
from pathlib import Path

from demo.llm import chain
from demo.llm.config import ARMS, Settings
from demo.llm.versions import VERSIONS, check, need_plain_path
from demo.runner.command import add_switches, exit_code, introduce, only_one, whole_number
from demo.runner.environment import ROOT


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.llm", description=__doc__)
    parser.add_argument("--verl", default="0.4.1", choices=VERSIONS, help="patched v0.4.1, or 0.9.1 with era.verl")
    parser.add_argument("--task", default="chain", choices=chain.TASKS, help="docs/demos.md describes them")
    parser.add_argument("--seed", default=Settings.seed, type=whole_number(0), help="of warm-up, data and sampling")
    parser.add_argument("--steps", default=Settings.steps, type=whole_number(1), help="of each of the two runs")
    parser.add_argument("--checkout", type=Path, help="verl: v0.4.1 with the ERA overlay, or the source of 0.9.1")
    parser.add_argument("--out", type=Path, help="folder of the results")
    add_switches(parser)
    given = parser.parse_args(arguments)
    given.checkout = given.checkout or Path(VERSIONS[given.verl].checkout)
    given.out = given.out or Path(VERSIONS[given.verl].out)
    return given


def warm_up(settings: Settings, checkout: Path, out: Path, fresh: bool = False) -> Path:
    """The folder of the model that both runs start from."""
    from demo.llm import warmup
    from demo.runner.training import begin, empty, progress, reused, run_json

    folder = out / f"warmup-{settings.task}-seed{settings.seed}"
    if reused(folder, "warm-up", fresh):
        return folder
    print(
        f"warm-up: until {warmup.TARGET_ACCURACY:.0%} of sampled answers are right (usually half a minute)", flush=True
    )
    record = begin("transformers", settings.task, "warm-up", settings.seed, warmup.MAX_UPDATES, checkout)
    began = time.monotonic()
    with progress("warm-up", warmup.MAX_UPDATES, form="{desc} {n_fmt} updates{postfix}") as bar:

        def on_check(update: int, accuracy: float) -> None:
            bar.set_postfix_str(f"{accuracy:.0%} right", refresh=False)
            bar.update(update - bar.n)

        accuracy = warmup.write_model(empty(folder), chain.TASKS[settings.task], settings.seed, on_check)
    seconds = time.monotonic() - began
    run_json.finish(folder, {**record, "accuracy": accuracy, "seconds": round(seconds, 1)})
    print(f"warm-up: {accuracy:.0%} right after {seconds:.0f} s", flush=True)
    return folder


def demo(arguments: argparse.Namespace) -> None:
    if arguments.check:
        return need_plain_path(f"{ROOT}/.venv/cpu/bin/python")
    settings = Settings(arguments.task, arguments.seed, arguments.steps, arguments.verl)
    check(arguments.checkout, settings.verl)
    from demo.llm import report, training, warmup

    out = arguments.out
    introduce(
        f'A two-layer language model learns the task "{settings.task}" with the trainer of verl {settings.verl} on '
        f"this CPU, seed {settings.seed}: {settings.steps} steps as GRPO, and as many with ERA (omega_low "
        f"{settings.omega_low}, k {ARMS['era']:g}). The start of Ray and verl usually takes "
        f"{VERSIONS[settings.verl].start}. Below, entropy is the response entropy in nats, distinct the number of "
        "distinct right answers to a prompt.",
        out,
    )
    with only_one(out):
        start = warm_up(settings, arguments.checkout, out, arguments.fresh)
        folder = out / settings.name
        folder.mkdir(exist_ok=True)
        warmup.write_data(folder, settings.task, settings.seed)
        for arm in ARMS:
            training.train_arm(settings, arm, arguments.checkout, start, folder / arm, fresh=arguments.fresh)
        report.end(settings, folder, out)


if __name__ == "__main__":
    sys.exit(exit_code(demo, parse()))
