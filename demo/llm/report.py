"""The demo's table, picture and findings, computed from the curves of the two runs."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from demo.llm import config, curves

# why each task exists, as the end of a sentence
CHOICE = {
    "chain": ", chosen because GRPO collapses on it and many answers are equally good",
    "chain-biased": ", in which the reward itself asks for low entropy",
    "chain-single": ", in which a single answer per prompt is rewarded",
    "chain-goal": ", in which from some starts hardly an answer is rewarded",
}
LAST = 10  # steps that a "last" value is averaged over


@dataclass(frozen=True)
class Arm:
    """One run: rows per step and per validation (see curves), and how long it took."""

    steps: list[dict]
    validations: list[dict]
    info: dict

    @classmethod
    def read(cls, folder: Path, info: dict) -> "Arm":
        return cls(curves.read_csv(folder / curves.STEPS_FILE), curves.read_csv(folder / curves.VALIDATION_FILE), info)

    @property
    def window(self) -> int:
        return min(LAST, len(self.steps))

    def around(self, column: str, step: int) -> float:
        """Mean of the column over the window of steps up to `step`; the first step stands for itself."""
        first = step if step == 1 else step - self.window + 1
        return curves.mean(row[column] for row in self.steps if first <= row["step"] <= step)

    def last(self, column: str) -> float:
        return self.around(column, self.steps[-1]["step"])

    def overall(self, column: str) -> float:
        return curves.mean(row[column] for row in self.steps)


def measures(arm: Arm) -> dict[str, float]:
    half_way, end, window = arm.validations[len(arm.validations) // 2], arm.validations[-1], arm.window
    return {
        "response entropy, first step": arm.steps[0]["response_entropy"],
        f"response entropy, last {window} steps": arm.last("response_entropy"),
        f"reward, last {window} steps": arm.last("reward"),
        "reward, all steps": arm.overall("reward"),
        f"distinct right answers of {config.ANSWERS}, last {window} steps": arm.last("distinct_right"),
        f"distinct right answers of {config.VALIDATION_ANSWERS}, validation at the end": end["distinct_right"],
        "pass@1, validation half-way": half_way["pass_at_1"],
        "pass@1, validation at the end": end["pass_at_1"],
        f"pass@{config.VALIDATION_ANSWERS}, validation at the end": end[f"pass_at_{config.VALIDATION_ANSWERS}"],
        "share of tokens scaled by ERA, all steps": arm.overall("scaled_token_fraction"),
        "seconds": arm.info["seconds"],
        "peak memory, GB": arm.info["peak_memory_bytes"] / 1e9,
    }


def table(arms: dict[str, Arm]) -> str:
    columns = {name: measures(arm) for name, arm in arms.items()}
    labels = list(next(iter(columns.values())))
    width = max(map(len, labels))
    lines = [" " * width + "".join(f"{name.upper():>9}" for name in columns)]
    for label in labels:
        digits = 0 if label == "seconds" else 3 if "entropy" in label or "share" in label else 2
        lines.append(f"{label:<{width}}" + "".join(f"{column[label]:>9.{digits}f}" for column in columns.values()))
    return "\n".join(lines)


def summary(settings: config.Settings, arms: dict[str, Arm], sentences: list[str]) -> dict:
    """The content of summary.json. It has the steps that docs/llm/demo.md lists."""
    marks = [step for step in (1, 50, 100, 150) if step <= settings.steps]
    return {
        "settings": settings.as_dict(),
        "omega_low": settings.omega_low,
        "arms": {
            name: {
                **measures(arm),
                "response entropy at step": {str(step): arm.around("response_entropy", step) for step in marks},
            }
            for name, arm in arms.items()
        },
        "findings": sentences,
        "machine": arms["era"].info["machine"],
    }


def findings(settings: config.Settings, grpo: Arm, era: Arm) -> list[str]:
    """What these two runs show, and what they do not."""
    low = settings.omega_low
    first_action = next((row["step"] for row in era.steps if row["scaled_token_fraction"] > 0), None)
    if first_action is None:
        usual = config.Settings.steps
        longer = f" yet: leave STEPS out for the usual {usual}" if settings.steps < usual else ""
        return [
            f"ERA never acted in these {settings.steps} steps: no response with a positive advantage had an entropy "
            f"below omega_low = {low}, and until one has, ERA is GRPO. So table and picture show nothing about "
            f"ERA{longer}.",
            f"Reward went from {grpo.steps[0]['reward']:.2f} to {grpo.last('reward'):.2f} in both runs.",
        ]
    start, ended, held = grpo.steps[0]["response_entropy"], grpo.last("response_entropy"), era.last("response_entropy")
    if ended >= low:
        entropy = (
            f"GRPO's response entropy went from {start:.2f} to {ended:.2f} nats and so did not fall below omega_low = "
            f"{low}: there was no collapse that ERA (now at {held:.2f}) could have prevented."
        )
    elif held >= low:
        entropy = (
            f"GRPO's response entropy fell from {start:.2f} to {ended:.2f} nats; ERA's was still at {held:.2f}, above "
            f"omega_low = {low}."
        )
    elif held > ended:
        entropy = (
            f"GRPO's response entropy fell from {start:.2f} to {ended:.2f} nats, ERA's to {held:.2f}: higher, but ERA "
            f"did not hold omega_low = {low} here (short by {low - held:.2f})."
        )
    else:
        entropy = (
            f"GRPO's response entropy fell from {start:.2f} to {ended:.2f} nats and ERA's to {held:.2f}: the effect "
            "does not appear in this run."
        )
    right = [arm.validations[-1]["distinct_right"] for arm in (grpo, era)]
    return [
        f"{entropy} ERA first changed an update at step {first_action}; the curves are equal up to step "
        f"{equal_steps(grpo, era)}.",
        f"At the end, of {config.VALIDATION_ANSWERS} answers to a prompt GRPO gave {right[0]:.1f} distinct right ones "
        f"and ERA {right[1]:.1f}. Reward over the last {grpo.window} steps: GRPO {grpo.last('reward'):.2f}, ERA "
        f"{era.last('reward'):.2f}; over all steps: {grpo.overall('reward'):.2f}, {era.overall('reward'):.2f}.",
        f"This is one seed of one small task{CHOICE[settings.task]}. It does not show that ERA raises the reward, nor "
        "what it does to a large model.",
    ]


def equal_steps(one: Arm, other: Arm) -> int:
    """The number of leading steps at which two runs drew the same answers, as far as reward and entropy tell."""
    columns = ("reward", "response_entropy", "distinct_right")
    pairs = zip(one.steps, other.steps)
    return sum(1 for _ in itertools.takewhile(lambda pair: all(pair[0][c] == pair[1][c] for c in columns), pairs))


def picture(settings: config.Settings, arms: dict[str, Arm], file: Path) -> None:
    """Three panels over the steps. The arms differ in line style and weight, not in colour alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "response_entropy": "response entropy (nats)",
        "reward": "mean reward",
        "distinct_right": f"distinct right answers of {config.ANSWERS}",
    }
    # Dashes on top of a wider line: where the curves coincide both are seen.
    styles = {
        "grpo": dict(color="black", linestyle=(0, (4, 3)), linewidth=1.2, markersize=3, zorder=4),
        "era": dict(color="#4a90d0", linewidth=3, markersize=7, zorder=3),
    }
    smooth = settings.steps > LAST  # the mean of fewer steps is a flat line
    figure, axes = pyplot.subplots(1, len(panels), figsize=(10, 3.1), constrained_layout=True)
    for axis, (column, title) in zip(axes, panels.items()):
        for name, arm in arms.items():
            steps = [row["step"] for row in arm.steps]
            values = [row[column] for row in arm.steps]
            if smooth:
                axis.plot(steps, values, color=styles[name]["color"], linewidth=0.5, alpha=0.35)
            else:
                axis.set_xticks(steps)
            line = running_mean(values, LAST) if smooth else values
            axis.plot(steps, line, label=name.upper(), marker=None if smooth else "o", **styles[name])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.margins(x=0.01 if smooth else 0.04)
        highest = max(row[column] for arm in arms.values() for row in arm.steps)
        axis.set_ylim(0, 1.1 * highest or 1)  # the usual margin is a share of the range, which may be 0
        axis.spines[["top", "right"]].set_visible(False)
    label = rf"$\omega_\mathrm{{low}}$ = {settings.omega_low}"
    axes[0].axhline(settings.omega_low, color="0.5", linestyle=":", linewidth=1.2, label=label)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )  # over no curve
    lines = f"thin: each step; thick: mean over {LAST // 2} steps to either side" if smooth else "each step"
    figure.suptitle(f"task {settings.task}, seed {settings.seed} ({lines})", fontsize=8, x=0.995, ha="right")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def running_mean(values: list[float], window: int) -> list[float]:
    """Mean of each value and those around it, up to half a window to either side."""
    half = window // 2
    return [curves.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
