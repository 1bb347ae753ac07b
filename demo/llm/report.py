"""The demo's table and picture, from the curves of the two runs."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas

from demo.llm import config, curves
from demo.runner import tables
from demo.runner.training import run_json

LAST = 10  # steps that a "last" value is averaged over
PICTURE_FILE = "entropy.png"
# Dashes on top of a wider line: where the curves coincide both are seen.
STYLES = {
    "GRPO": dict(color="black", linestyle=(0, (4, 3)), linewidth=1.2, markersize=3, zorder=4),
    "ERA": dict(color="#4a90d0", linewidth=3, markersize=7, zorder=3),
}


@dataclass(frozen=True)
class Arm:
    """One finished run. steps, validations: see curves; record: its run.json."""

    steps: pandas.DataFrame
    validations: pandas.DataFrame
    record: dict

    @classmethod
    def read(cls, folder: Path) -> "Arm":
        tables = (curves.read(folder / file) for file in (curves.STEPS_FILE, curves.VALIDATION_FILE))
        return cls(*tables, run_json.read(folder))

    def last(self, column: str) -> float:
        return self.steps[column].tail(LAST).mean()


def measures(arm: Arm) -> dict[str, tuple[float, int]]:
    """Each with the number of decimals that are shown."""
    window, half_way, end = (
        min(LAST, len(arm.steps)),
        arm.validations.iloc[len(arm.validations) // 2],
        arm.validations.iloc[-1],
    )
    return {
        "response entropy, first step": (arm.steps["response_entropy"].iloc[0], 3),
        f"response entropy, last {window} steps": (arm.last("response_entropy"), 3),
        f"reward, last {window} steps": (arm.last("reward"), 2),
        "reward, all steps": (arm.steps["reward"].mean(), 2),
        f"distinct right answers of {config.ANSWERS}, last {window} steps": (arm.last("distinct_right"), 2),
        f"distinct right answers of {config.VALIDATION_ANSWERS}, validation at the end": (end["distinct_right"], 2),
        "pass@1, validation half-way": (half_way["pass_at_1"], 2),
        "pass@1, validation at the end": (end["pass_at_1"], 2),
        f"pass@{config.VALIDATION_ANSWERS}, validation at the end": (end[f"pass_at_{config.VALIDATION_ANSWERS}"], 2),
        "share of tokens scaled by ERA, all steps": (arm.steps["scaled_token_fraction"].mean(), 3),
        "seconds": (arm.record["seconds"], 0),
        "peak memory, GB": (arm.record["peak_memory_bytes"] / 1e9, 2),
    }


def table(arms: dict[str, Arm]) -> str:
    shown = {
        name: {label: f"{value:.{decimals}f}" for label, (value, decimals) in measures(arm).items()}
        for name, arm in arms.items()
    }
    return pandas.DataFrame(shown).to_string(col_space=7)


def held(omega_low: float, arms: dict[str, Arm]) -> str:
    """What became of the bound."""
    ends = {name: arm.last("response_entropy") for name, arm in arms.items()}
    era = arms["ERA"].steps
    acted = era[era["scaled_token_fraction"] > 0]["step"]
    first = f"ERA first changed an update at step {acted.iloc[0]}" if len(acted) else "ERA changed no update"
    each = ", ".join(f"{name} {end:.3f} ({'below' if end < omega_low else 'not below'})" for name, end in ends.items())
    return f"Response entropy at the end, beside omega_low = {omega_low}: {each}. {first}."


def end(settings: config.Settings, folder: Path, out: Path) -> None:
    """The end of the demo: its table, picture and runs.csv."""
    arms = {arm.upper(): Arm.read(folder / arm) for arm in config.ARMS}
    values = [
        {"run": name, **{label: value for label, (value, _) in measures(arm).items()}} for name, arm in arms.items()
    ]
    curves.write(folder / "runs.csv", pandas.DataFrame(values))
    draw(settings, arms, folder / PICTURE_FILE)
    shutil.copyfile(folder / PICTURE_FILE, out / PICTURE_FILE)
    tables.print_end(table(arms), held(settings.omega_low, arms), out / PICTURE_FILE, folder / "runs.csv")


def draw(settings: config.Settings, arms: dict[str, Arm], file: Path) -> None:
    """Three panels over the steps. The arms differ in line style and weight, not in colour alone."""
    columns = ("response_entropy", "reward", "distinct_right")
    figure, axes = tables.panels(
        "response entropy (nats)", "mean reward", f"distinct right answers of {config.ANSWERS}", height=3.1
    )
    smooth = settings.steps > LAST  # the mean of fewer steps is a flat line
    for axis, column in zip(axes, columns):
        for name, arm in arms.items():
            curve, style = arm.steps.set_index("step")[column], STYLES[name]
            if smooth:
                axis.plot(curve, color=style["color"], linewidth=0.5, alpha=0.35)
                curve = curve.rolling(LAST + 1, center=True, min_periods=1).mean()
            axis.plot(curve, label=name, marker=None if smooth else "o", **style)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylim(0, 1.1 * max(arm.steps[column].max() for arm in arms.values()) or 1)
    bound = rf"$\omega_\mathrm{{low}}$ = {settings.omega_low}"
    axes[0].axhline(settings.omega_low, color="0.5", linestyle=":", linewidth=1.2, label=bound)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)  # over no curve
    lines = f"thin: each step; thick: mean over {LAST // 2} steps to either side" if smooth else "each step"
    tables.save(figure, file, f"task {settings.task}, seed {settings.seed} ({lines})")
