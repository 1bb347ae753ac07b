"""The demo's table and picture, from the curves that train.py wrote."""

from pathlib import Path

import pandas

from demo.control.settings import CURVES_FILE, DIMENSIONS, ENTROPY_ARMS, FLAGS, NAMES, TARGET_ENTROPY, TASK, Run
from demo.runner import tables

ROUNDING = 1e-4  # of an entropy summed in fp32 and written with six digits, nats
LAST = 3  # evaluations, whose mean is the return at the end
DECIMALS = {"first": 0, f"last {LAST}": 0, "all": 0, "H min": 2, "H end": 2, "margin": 4, "sigma": 4, "delta": 2}
LEGEND = f"""\
Return of the first evaluation, the last {LAST}, and all. H: the policy's entropy,
smallest and in the last tenth; margin: the Gaussian's entropy minus its target,
H0 + delta, smallest; sigma: smallest. Entropies in nats over {DIMENSIONS} dimensions."""
STYLES = {
    "FastTD3": dict(color="black", linestyle=(0, (4, 2)), linewidth=1.6, marker="s", markersize=4, zorder=4),
    "FastTD3 no delay": dict(color="#8e4fae", linestyle=(0, (2, 1)), linewidth=1.8, marker="D", markersize=4, zorder=4),
    "ERA": dict(color="#2b7bba", linestyle="-", linewidth=2.4, marker="o", markersize=5, zorder=3),
    "ERA+delta": dict(color="#d9730d", linestyle=(0, (5, 1, 1, 1)), linewidth=2, marker="^", markersize=5, zorder=5),
}


def read(runs: list[Run], out: Path) -> pandas.DataFrame:
    """The rows of all runs' curves, each with its run's name and seed."""
    found = []
    for run in runs:
        curves = pandas.read_csv(out / run.folder / CURVES_FILE, float_precision="round_trip")
        found.append(curves.assign(name=NAMES[run.arm], seed=run.seed))
    return pandas.concat(found, ignore_index=True)


def measures(curves: pandas.DataFrame) -> pandas.Series:
    """Of one run. NaN for what the agent does not have."""
    returns, entropies = curves["eval_avg_return"].dropna(), curves["policy_entropy"].dropna()
    margins = curves["gaussian_entropy"] - curves["target_entropy"] - curves["delta"]
    values = [
        *(returns.iloc[0], returns.tail(LAST).mean(), returns.mean()),
        *(entropies.min(), entropies.tail(max(1, len(entropies) // 10)).mean()),
        *(margins.min(), curves["min_std"].min(), curves["delta"].iloc[-1]),
    ]
    return pandas.Series(values, DECIMALS)


def held(runs: pandas.DataFrame) -> str:
    """What the guarantee gave."""
    margins = runs["margin"].dropna()
    return (
        f"The Gaussian's entropy was never below its target, H0 + delta, in {(margins >= -ROUNDING).sum()} of "
        f"{len(margins)} ERA runs (smallest difference {margins.min():.0e} nats; {ROUNDING:.0e} is rounding)."
    )


def end(runs: list[Run], out: Path) -> None:
    """The end of the demo: its table, picture and runs.csv."""
    curves = read(runs, out)
    table = curves.groupby(["name", "seed"], sort=False).apply(measures, include_groups=False).reset_index()
    table.to_csv(out / "runs.csv", index=False)
    draw(curves, out / "curves.png")
    shown = f"{tables.rows_and_means(table, DECIMALS)}\n{LEGEND}"
    tables.print_end(shown, held(table), out / "curves.png", out / "runs.csv")


def draw(curves: pandas.DataFrame, file: Path) -> None:
    """Return and entropies over the steps of the environments."""
    figure, (returns, entropies) = tables.panels(
        f"return of {FLAGS['num_eval_envs']} evaluation episodes, without noise",
        f"entropy in nats, {DIMENSIONS} action dimensions together",
        height=4.4,
    )
    tables.draw(returns, curves, "global_step", "eval_avg_return", STYLES)
    returns.legend(frameon=False)
    h0 = DIMENSIONS * TARGET_ENTROPY
    entropies.axhline(h0, color="#b02a2a", linewidth=4, alpha=0.4, zorder=1, label="H0")
    for name in (NAMES[arm] for arm in ENTROPY_ARMS):
        style = {key: value for key, value in STYLES[name].items() if not key.startswith("marker")}
        tables.draw(entropies, curves, "global_step", "policy_entropy", {name: style | {"linestyle": "-"}})
        tables.draw(entropies, curves, "global_step", "gaussian_entropy", {name: style | {"linestyle": ":"}})
    low, high = entropies.get_ylim()
    entropies.set_ylim(low - 0.25 * (high - low), high)  # room for the legend
    lines = [line for line in entropies.get_lines() if not line.get_label().startswith("_")]
    names = [f"{name}: {of}" for name in ("ERA", "ERA+delta") for of in ("the policy", "its Gaussian")]
    entropies.legend(lines, [f"H0 = {h0:g}", *names], frameon=False, fontsize=8, loc="lower left", ncols=2)
    for axis in (returns, entropies):
        axis.set_xlabel(f"steps of {FLAGS['num_envs']} environments")
    seeds = curves["seed"].unique()
    tables.save(figure, file, f"{TASK}, FastTD3's train.py on a CPU, seed {', '.join(map(str, seeds))}")
