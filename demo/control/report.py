"""The demo's table, picture and findings, computed from the curves that train.py wrote."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from demo.control.settings import (
    ARMS,
    ENTROPY_ARMS,
    ERA,
    FLAGS,
    LEARNED,
    LOG_INTERVAL,
    NAMES,
    NO_DELAY,
    TASK,
    TD3,
    Run,
    noise_entropy,
)
from demo.control.training import Row
from demo.runner import tables

ROUNDING = 1e-4  # of an entropy summed in fp32 and written with six digits, nats
LAST = 3  # evaluations, whose mean is the return at the end
FIRST_RETURN, LAST_RETURN = "return, first evaluation", f"return, last {LAST} evaluations"
SMALLEST, END = "policy entropy, smallest", "policy entropy, last tenth"
GUARANTEE, DELTA = "Gaussian - target, smallest", "delta, last"
DIGITS = {
    FIRST_RETURN: 0,
    LAST_RETURN: 0,
    "return, all evaluations": 0,
    "sigma, smallest": 4,
    GUARANTEE: 4,
}  # others: 2
COMPARED = ((NO_DELAY, TD3), (ERA, TD3), (LEARNED, TD3), (ERA, NO_DELAY), (LEARNED, NO_DELAY))  # in their returns


@dataclass(frozen=True)
class Result:
    """A finished run. curves: rows of train.py's file; info: its run.json."""

    run: Run
    curves: list[Row]
    info: dict

    def column(self, name: str) -> list[float]:
        """Without the rows that lack it."""
        return [row[name] for row in self.curves if row[name] is not None]

    def measures(self) -> dict[str, float | None]:
        """None for what the agent does not have."""
        returns, entropies = self.column("eval_avg_return"), self.column("policy_entropy")
        found = {
            FIRST_RETURN: returns[0],
            LAST_RETURN: statistics.mean(returns[-LAST:]),
            "return, all evaluations": statistics.mean(returns),
        }
        if not entropies:
            return found | dict.fromkeys([SMALLEST, END, GUARANTEE, "sigma, smallest", DELTA])
        return found | {
            SMALLEST: min(entropies),
            END: statistics.mean(entropies[-max(1, len(entropies) // 10) :]),
            GUARANTEE: min(row["gaussian_entropy"] - row["target_entropy"] - row["delta"] for row in self.curves),
            "sigma, smallest": min(self.column("min_std")),
            DELTA: self.curves[-1]["delta"],
        }


def rows(results: list[Result]) -> list[dict]:
    """One for each run."""
    return [{"agent": NAMES[result.run.arm], "seed": result.run.seed, **result.measures()} for result in results]


def columns(results: list[Result]) -> dict[str, tables.Column]:
    """arm: measure: its values, in the order of the seeds."""
    found = {arm: [result.measures() for result in results if result.run.arm == arm] for arm in ARMS}
    return {arm: {label: [one[label] for one in measures] for label in measures[0]} for arm, measures in found.items()}


def table(results: list[Result]) -> str:
    return tables.table(
        {NAMES[arm]: column for arm, column in columns(results).items()},
        lambda label: DIGITS.get(label, 2),
        f"Entropies, target and delta in nats, all {dimensions(results)} action dimensions together.",
    )


def target(results: list[Result]) -> float:
    """H0 in nats, over all action dimensions."""
    return next(result.curves[0]["target_entropy"] for result in results if result.run.arm == ERA)


def dimensions(results: list[Result]) -> int:
    return round(target(results) / FLAGS["era_target_entropy"])


def findings(results: list[Result]) -> list[str]:
    """What these runs show, and what they do not."""
    found = columns(results)
    seeds = len(found[TD3][FIRST_RETURN])
    return [
        guarantee_sentence(results),
        bounded_sentence(found[ERA], target(results)),
        learned_sentence(found[LEARNED], target(results)),
        f"FastTD3's policy is deterministic and has no entropy. It explores with noise of its own, "
        f"{noise_entropy():.2f} nats on average and alike in all states; both ERA agents add the same noise to their "
        "samples, and it is not counted in their entropies.",
        f"The returns are compared as the mean of the last {LAST} evaluations. Both ERA agents update their policy "
        f"with every update of the critic, as in the paper, FastTD3 with every second one; {NAMES[NO_DELAY]} updates "
        "it with every one too, and is FastTD3 otherwise.",
        *returns_sentences(found),
        f"This is {seeds} seed{'s'[: seeds > 1]} of one easy task for a few minutes, with small networks and one "
        "setting. It does not show which agent is better on HumanoidBench or after longer training. All entropies are "
        f"means over batches of {FLAGS['batch_size']} stored states, every {LOG_INTERVAL} steps: single states are not "
        "shown.",
    ]


def guarantee_sentence(results: list[Result]) -> str:
    margins = {result.run.label: result.measures()[GUARANTEE] for result in results if result.run.arm in ENTROPY_ARMS}
    broken = [label for label, margin in margins.items() if margin < -ROUNDING]
    if broken:
        return (
            f"The Gaussian's entropy was BELOW its target, H0 + delta, in {len(broken)} of {len(margins)} ERA runs "
            f"({'; '.join(broken)}), by up to {-min(margins.values()):.4f} nats. That must not happen; please report "
            "it."
        )
    return (
        f"The guarantee held in {len(margins)} of {len(margins)} ERA runs: the Gaussian's entropy was never below its "
        f"target, H0 + delta (smallest difference {min(margins.values()):.1e} nats, rounding included)."
    )


def bounded_sentence(found: dict, target: float) -> str:
    smallest, end = min(found[SMALLEST]), statistics.mean(found[END])
    text = (
        "With delta = 0 the guarantee is for the Gaussian before its truncation to [-1, 1]. The policy's own entropy, "
        f"against H0 = {target:g},"
    )
    if smallest >= target - ROUNDING:
        return f"{text} was not below it here either (smallest {smallest:.2f}): no action was near its bounds."
    return (
        f"{text} went down to {smallest:.2f} nats and was {end:.2f} at the end, {target - end:.2f} below: near the "
        "bounds truncation takes entropy."
    )


def learned_sentence(found: dict, target: float) -> str:
    end, delta = statistics.mean(found[END]), statistics.mean(found[DELTA])
    return (
        f"The learned delta, {delta:.2f} nats at the end, brings the policy's entropy to {end:.2f} "
        f"({end - target:+.2f} from H0). It starts at 0 and follows the policy, so the entropy swings around H0 "
        f"(smallest {min(found[SMALLEST]):.2f}): H0 is held on average, not at every step."
    )


def returns_sentences(found: dict) -> list[str]:
    """One for each pair of agents, or a single one if there is only one seed."""
    differences = {
        f"{NAMES[arm]} minus {NAMES[other]}": [
            after - before for before, after in zip(found[other][LAST_RETURN], found[arm][LAST_RETURN])
        ]
        for arm, other in COMPARED
    }
    if len(found[TD3][LAST_RETURN]) == 1:
        each = ", ".join(f"{pair} {difference:+.0f}" for pair, [difference] in differences.items())
        return [f"Return: {each}. One seed says nothing about the spread over seeds."]
    return [
        f"Return: {pair} {tables.compared(by_seed, '+.0f', '', 'difference')}" for pair, by_seed in differences.items()
    ]


def summary(results: list[Result], sentences: list[str]) -> dict:
    """The content of summary.json."""
    return {
        "task": TASK,
        "fasttd3": results[0].run.version,
        "steps": results[0].run.steps,
        "flags": {result.run.arm: result.info["flags"] for result in results},
        "runs": rows(results),
        "seconds": {result.run.label: result.info["seconds"] for result in results},
        "findings": sentences,
        "machine": results[0].info["machine"],
    }


# The agents differ in line style and marker, not in colour alone.
STYLES = {
    TD3: dict(color="black", linestyle=(0, (4, 2)), linewidth=1.6, marker="s", markersize=4, zorder=4),
    NO_DELAY: dict(color="#8e4fae", linestyle=(0, (2, 1)), linewidth=1.8, marker="D", markersize=4, zorder=4),
    ERA: dict(color="#2b7bba", linestyle="-", linewidth=2.4, marker="o", markersize=5, zorder=3),
    LEARNED: dict(color="#d9730d", linestyle=(0, (5, 1, 1, 1)), linewidth=2, marker="^", markersize=5, zorder=5),
}


def picture(results: list[Result], file: Path) -> None:
    """Return and entropies over the steps of the environments."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (returns, entropies) = pyplot.subplots(1, 2, figsize=(11, 4.6), sharex=True, constrained_layout=True)
    for arm, style in STYLES.items():
        draw(returns, results, arm, "eval_avg_return", style | {"label": NAMES[arm]})
    returns.set_title(f"return of {FLAGS['num_eval_envs']} evaluation episodes, without noise")
    returns.set_ylabel("return")
    returns.legend(frameon=False)
    draw_entropies(entropies, results)
    for axis in (returns, entropies):
        axis.set_xlabel("steps of the environments")
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(10)
    seeds = sorted({result.run.seed for result in results})
    several = f"thin: seeds {', '.join(map(str, seeds))}; thick: their mean" if len(seeds) > 1 else f"seed {seeds[0]}"
    title = f"{TASK}, {results[0].run.host}'s train.py on a CPU ({several})"
    figure.suptitle(title, fontsize=9, x=0.995, ha="right")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_entropies(axis, results: list[Result]) -> None:
    name = f"H0 = {target(results):g}"
    limit = axis.axhline(target(results), color="#b02a2a", linewidth=4, alpha=0.4, zorder=1, label=name)
    for arm in ENTROPY_ARMS:
        style = {key: value for key, value in STYLES[arm].items() if not key.startswith("marker")}
        policy = style | {"linestyle": "-", "label": f"{NAMES[arm]}: the policy (truncated)"}
        gaussian = style | {"linestyle": ":", "linewidth": 1.6, "label": f"{NAMES[arm]}: its Gaussian"}
        draw(axis, results, arm, "policy_entropy", policy)
        draw(axis, results, arm, "gaussian_entropy", gaussian)
    axis.set_title(f"entropy, {dimensions(results)} action dimensions together")
    axis.set_ylabel("nats")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.35 * (high - low), high)  # room for the text
    text = (
        "FastTD3's policy is deterministic: it has no entropy.\n"
        f"Its noise has {noise_entropy():.1f} nats on average, alike in all states."
    )
    axis.text(0.02, 0.02, text, transform=axis.transAxes, fontsize=8, color="0.3")
    lines = [limit, *(line for line in axis.get_lines() if ": " in line.get_label())]
    axis.legend(handles=lines, frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.1), ncols=2)


def draw(axis, results: list[Result], arm: str, column: str, style: dict) -> None:
    """Each seed thin, their mean thick."""
    chosen = [result for result in results if result.run.arm == arm]
    frames = [row["frame"] for row in chosen[0].curves if row[column] is not None]
    curves = [result.column(column) for result in chosen]
    thin = {"color": style["color"], "linewidth": 0.7, "alpha": 0.45}
    for curve in curves:
        axis.plot(frames, curve, linestyle=":" if style["linestyle"] == ":" else "-", **thin)
    axis.plot(frames, list(map(statistics.mean, zip(*curves))), **style)
