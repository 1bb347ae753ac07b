"""python -m demo.llm [--verl 0.4.1] [--task chain] [--seed 2] [--steps 150]: GRPO and ERA in verl's own trainer."""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()  # before the imports below, which a user's PYTHONPATH could supply

import argparse
import shutil
import sys
from pathlib import Path

from demo.llm import chain
from demo.llm.checks import check, need_plain_path
from demo.llm.config import ANSWERS, ARMS, Settings
from demo.llm.versions import VERSIONS
from demo.runner import results
from demo.runner.command import exit_code, only_one, whole_number
from demo.runner.progress import Line, clock, print_end

PICTURE_FILE = "entropy.png"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.llm", description=__doc__)
    parser.add_argument("--verl", default="0.4.1", choices=VERSIONS, help="patched v0.4.1, or 0.9.1 with era.verl")
    parser.add_argument("--task", default="chain", choices=chain.TASKS, help="docs/llm/demo.md describes them")
    parser.add_argument("--seed", default=Settings.seed, type=whole_number(0), help="of warm-up, data and sampling")
    parser.add_argument("--steps", default=150, type=whole_number(1), help="training steps of each of the two runs")
    parser.add_argument("--checkout", type=Path, help="verl: v0.4.1 with the ERA overlay, or the source of 0.9.1")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--check", action="store_true", help="check these and the path of this project, and stop")
    parser.add_argument("--fresh", action="store_true", help="train again even where finished runs could be reused")
    given = parser.parse_args(arguments)
    given.checkout = given.checkout or Path(VERSIONS[given.verl].checkout)
    given.out = given.out or Path(VERSIONS[given.verl].out)
    return given


def warm_up(settings: Settings, out: Path, key: dict, fresh: bool) -> Path:
    """The folder of the model that both runs start from."""
    from demo.llm import warmup

    folder = out / f"warmup-{settings.task}-seed{settings.seed}"
    line = Line("warm-up")
    info = None if fresh else results.finished(folder, key)
    if info is not None:
        line.show(f"{info['accuracy']:.0%} of the sampled answers right, reused from {folder}", last=True)
        return folder

    def on_check(update: int, accuracy: float) -> None:
        until = f"until {warmup.TARGET_ACCURACY:.0%} (usually half a minute)"
        line.show(f"update {update}: {accuracy:.0%} of sampled answers right, {until}", update // 5)

    new = results.empty(results.unfinished(folder))
    accuracy = warmup.write_model(new, chain.TASKS[settings.task], settings.seed, on_check)
    seconds = line.seconds()
    results.finish(new, key, accuracy=accuracy, seconds=seconds)
    results.replace(folder)
    line.show(f"{accuracy:.0%} of the sampled answers right, {seconds:.0f} s", last=True)
    return folder


def train(settings: Settings, arm: str, checkout: Path, start: Path, folder: Path, key: dict, fresh: bool) -> dict:
    """Trains one arm, unless its finished run can be reused. Returns its run.json."""
    from demo.llm import training

    line = Line(arm.upper())
    if not fresh and (info := results.reusable(folder, key, training.UPSTREAM, line, "", f"{settings.steps} steps")):
        return info
    first_step = None
    usual = VERSIONS[settings.verl].start

    def on_rows(rows: list[dict]) -> None:
        nonlocal first_step
        if not rows and first_step is None:
            line.show(f"starting Ray and verl, {line.seconds():.0f} s ({usual} is usual)")
        for row in rows:
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
        line.show(f"starting Ray and verl ({usual} is usual)", last=True)
    training.train_arm(settings, arm, checkout, start, folder, key, on_rows)
    return results.finished(folder, key)


def demo(arguments: argparse.Namespace) -> None:
    if arguments.check:
        return need_plain_path(f"{environment.ROOT}/.venv/cpu/bin/python")
    settings = Settings(arguments.task, arguments.seed, arguments.steps, arguments.verl)
    check(arguments.checkout, arguments.out, settings.verl)
    from demo.llm import report, training, warmup
    from demo.llm.ray_folder import sweep

    print(
        f'A two-layer language model learns the task "{settings.task}" with the trainer of verl {settings.verl} on '
        f"this CPU, seed {settings.seed}:\nonce as GRPO, once with ERA (omega_low {settings.omega_low}, "
        f"k {ARMS['era']:g}), {settings.steps} steps each. Logs and results: {arguments.out}\n"
        "Below, entropy is the response entropy in nats, distinct the number of distinct right answers per prompt.",
        flush=True,
    )
    with only_one(arguments.out):
        sweep()
        key = training.key(arguments.checkout, settings.verl)
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
        results.write_json(folder / "summary.json", report.summary(settings, arms, findings))
    print_end(
        report.table(arms),
        findings,
        picture=arguments.out / PICTURE_FILE,
        numbers=f"{folder}/summary.json, {folder}/{{grpo,era}}/{{steps,validation}}.csv",
        logs=f"{folder}/{{grpo,era}}/log.txt",
    )


if __name__ == "__main__":
    sys.exit(exit_code(demo, parse()))
