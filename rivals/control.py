"""Tables of the arms of PPO and SAC on HalfCheetah-v4, from records/control-ppo and records/alpha.

Means over the last WINDOW evaluations of each seed for PPO, over the last third of them for SAC.
"""

from statistics import mean

from ledger.statistics import welch
from rivals import markdown, records

WINDOW = 10
ARMS = {
    "ppo": "upstream's parameter, from 1, with the entropy bonus (PPO)",
    "ppo_era": "ERA, H0 = -0.3 (PPO-ERA)",
    "ppo_era_0.3": "ERA, H0 = +0.3",
    "ppo_constant": "the constant that has -0.3",
    "ppo_parameter": "upstream's parameter, from that constant, without bonus",
    "ppo_head": "ERA's layer without ERA, from that constant",
}
TARGETS = {
    "ppo_era_-2.0": "-2.0 (0.03)",
    "ppo_era": "-0.3 (0.18), the paper's",
    "ppo_era_0.3": "+0.3 (0.33)",
    "ppo_era_1.0": "+1.0 (0.66)",
    "ppo": "none: PPO, from 1.4 (1) on",
}
ALPHA = {"sac": "SAC, alpha from 1", "sac-alpha_0.01": "SAC, alpha from 0.01", "sac_era": "SAC-ERA, delta = 0"}
ALPHA_TARGET = -0.5  # nats per dimension, of all three


def curves(group: str, agent: str) -> list[list[dict]]:
    """The rows of train.csv of each recorded seed."""
    folders = sorted((records.PROJECT / "records" / group).glob(f"HalfCheetah-v4-{agent}-seed*"))
    return [records.read(folder / "train.csv") for folder in folders]


def column(rows: list[dict], name: str) -> list[float]:
    return [row[name] for row in rows]


def joined(values: list[float], form: str) -> str:
    return ", ".join(format(value, form) for value in values)


def ends(runs: list[list[dict]], name: str) -> list[float]:
    return [mean(column(rows[-WINDOW:], name)) for rows in runs]


def ppo_table(first: str, arms: dict[str, str]) -> str:
    """A line per arm that has runs. first: the heading of what distinguishes them."""
    heading = [first, "return, each seed", "mean", "PPO-ERA minus it", "entropy per dimension", "actions at a bound"]
    lines, era = [heading], ends(curves("control-ppo", "ppo_era"), "eval_avg_return")
    for agent, label in arms.items():
        runs = curves("control-ppo", agent)
        if not runs:
            continue
        returns = ends(runs, "eval_avg_return")
        difference, half = welch(era, returns)
        compared = "-"
        if agent != "ppo_era" and half is not None:
            compared = markdown.interval_cell(difference, difference - half, difference + half, 0)
        entropies, clipped = (ends(runs, name) for name in ("entropy_per_dim", "clipped"))
        cells = [joined(returns, ",.0f"), f"{mean(returns):,.0f}", compared]
        lines.append([label, *cells, joined(entropies, ".2f"), joined(clipped, ".0%").replace("%", " %")])
    return markdown.table(lines)


def alpha_table() -> str:
    lines = [
        [
            "",
            "mean over the buffer's states",
            "over the newest states",
            "farthest from the target (buffer; newest)",
            "smallest of any state",
            "return, last 3 evaluations",
        ]
    ]
    for agent, label in ALPHA.items():
        runs = curves("alpha", agent)
        thirds = [[row for row in rows if row["global_step"] > rows[-1]["global_step"] * 2 / 3] for rows in runs]
        cells, farthest = [], []
        for name in ("buffer_entropy_per_dim", "entropy_per_dim"):
            values = [column(rows, name) for rows in thirds]
            cells.append(joined(list(map(mean, values)), ".2f"))
            farthest.append(max(abs(value - ALPHA_TARGET) for seed in values for value in seed))
        smallest = [min(column(rows, "min_entropy_per_dim")) for rows in thirds]
        returns = [mean(column(rows[-3:], "eval_avg_return")) for rows in runs]
        cells += ["; ".join(f"{value:.2f}" for value in farthest), joined(smallest, ".1f"), joined(returns, ",.0f")]
        lines.append([label, *cells])
    return markdown.table(lines)
