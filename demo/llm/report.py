# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The demo's table and picture, from the curves of the two runs."""

from pathlib import Path

import pandas

from demo.llm import chain, config, curves
from demo.runner import tables
from demo.runner.training import run_json
from recipes import colors

LAST = 10  # steps that a "last" value is averaged over
# Dashes on top of a wider line: where the curves coincide both are seen.
STYLES = {
    "GRPO": dict(color=colors.BASELINE, linestyle=(0, (4, 3)), linewidth=1.2, zorder=4),
    "ERA": dict(color=colors.ERA, linewidth=3, zorder=3),
}


def measures(steps: pandas.DataFrame, validations: pandas.DataFrame, seconds: float) -> dict[str, tuple[float, int]]:
    """The measures of one run, each with its number of decimals. steps, validations: see curves."""
    prompts = f"{len(chain.VALIDATION_STARTS)} prompts"  # too few to compare runs by: the reward in training is of more
    last, half_way, end = steps.tail(LAST), validations.iloc[len(validations) // 2], validations.iloc[-1]
    return {
        "response entropy, first step": (steps["response_entropy"].iloc[0], 3),
        f"response entropy, last {len(last)} steps": (last["response_entropy"].mean(), 3),
        f"reward in training, last {len(last)} steps": (last["reward"].mean(), 2),
        "reward in training, all steps": (steps["reward"].mean(), 2),
        f"distinct right answers of {config.ANSWERS}, last {len(last)} steps": (last["distinct_right"].mean(), 2),
        f"distinct right answers of {config.VALIDATION_ANSWERS}, at the end, {prompts}": (end["distinct_right"], 2),
        f"share of right answers half-way, {prompts}": (half_way["pass_at_1"], 2),
        f"share of right answers at the end, {prompts}": (end["pass_at_1"], 2),
        f"prompts with one of them right at the end, {prompts}": (end[f"pass_at_{config.VALIDATION_ANSWERS}"], 2),
        "share of tokens scaled by ERA, all steps": (steps["scaled_token_fraction"].mean(), 3),
        "first step with tokens scaled by ERA": (steps.loc[steps["scaled_token_fraction"] > 0, "step"].min(), 0),
        "seconds": (seconds, 0),
    }


def held(omega_low: float, ends: dict[str, float], scaled: float) -> str:
    """Whether the bound held. ends: the response entropies at the end. scaled: the share of tokens that ERA scaled."""
    numbers = f"response entropy {ends['ERA']:.3f} at the end, GRPO {ends['GRPO']:.3f}"
    if not scaled > 0:
        return f"ERA scaled no token in this run, so nothing shows whether it holds omega_low = {omega_low}: {numbers}"
    return f"ERA {'held' if ends['ERA'] >= omega_low else 'did not hold'} omega_low = {omega_low}: {numbers}"


def end(settings: config.Settings, folder: Path) -> None:
    """The end of the demo: its table, picture and runs.csv."""
    steps, measured = {}, {}
    for arm in config.ARMS:
        name, run = arm.upper(), folder / arm
        steps[name] = curves.steps(run, settings.task)
        measured[name] = measures(steps[name], curves.validations(run, settings.task), run_json.read(run)["seconds"])
    numbers = {name: {label: value for label, (value, _) in of_arm.items()} for name, of_arm in measured.items()}
    pandas.DataFrame(numbers).T.to_csv(folder / "runs.csv", index_label="run")
    shown = {
        name: {label: f"{value:.{digits}f}" for label, (value, digits) in of_arm.items()}
        for name, of_arm in measured.items()
    }
    table = pandas.DataFrame(shown).replace("nan", "-").to_string(col_space=7)
    window = LAST + 1 if settings.steps > LAST else 1  # the mean of fewer steps is a flat line
    both = pandas.concat(of_arm.assign(name=name, seed=settings.seed) for name, of_arm in steps.items())
    note = f"task {settings.task}, seed {settings.seed}"
    tables.entropy_picture(both, STYLES, config.ANSWERS, settings.omega_low, window, note, folder / "entropy.png")
    ends = {name: of_arm["response_entropy"].tail(LAST).mean(skipna=False) for name, of_arm in steps.items()}
    line = held(settings.omega_low, ends, steps["ERA"]["scaled_token_fraction"].mean())
    tables.print_end(table, line, folder / "entropy.png", folder / "runs.csv")
