"""Label smoothing, confidence penalty, focal loss and ERA on digits: settings, the rule, tables and picture.

The protocol is docs/rivals/vision.md; vision_run.py trains and evaluates one run. A row is a line of a run's
measures.csv with its method, setting and seed, as `read` gives it. An arm is a method and a variant of its evaluation;
of ERA's, the `off` ones are the same weights without the activation.
"""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rivals import markdown

TASK, MEASURES, EPOCHS = "digits", "measures.csv", 40
VALUES = {
    "baseline": (0.0025, 0.005, 0.01, 0.02, 0.04),  # learning rate; that of all others is the middle one
    "label_smoothing": (0.01, 0.03, 0.1, 0.2, 0.3),
    "confidence_penalty": (0.01, 0.03, 0.1, 0.3, 1.0),
    "focal": (1.0, 1.5, 2.0, 3.0, 5.0),  # gamma; below 1 its gradient is nan where a probability rounds to 1
    "era": (0.0, 0.15, 0.3, 0.6, 0.9),  # H0 in nats
}
# method: label of a setting: flags of vision_run
METHODS = {
    method: {f"{value:g}": ("--method", method, "--setting", f"{value:g}") for value in values}
    for method, values in VALUES.items()
}
VARIANTS = {method: ("plain", "scaled") for method in METHODS}
VARIANTS["era"] += ("off", "off_scaled")
ARMS = [(method, variant) for method, variants in VARIANTS.items() for variant in variants]
REFERENCE = ("baseline", "scaled")
HELD_OUT, TEST, SHIFTED = "heldout", "test", "shifted"
# name of a shifted set: class of torch_uncertainty.transforms.corruption and severity
SHIFTS = {
    f"{kind}-{severity}": (kind, severity)
    for kind in ("GaussianNoise", "DefocusBlur", "Snow", "Pixelate")
    for severity in (1, 2)
}
COLUMNS = {"top1": ("top-1, %", 2), "ece": ("ECE, %", 2), "nll": ("NLL, nats", 3)}  # and decimals

Arm = tuple[str, str]


def read(folder: Path) -> list[dict]:
    """The rows of a finished run. Raises OSError or KeyError where the folder holds none."""
    run = json.loads((folder / "run.json").read_text())
    known = {name: run[name] for name in ("method", "setting", "seed")}
    with (folder / MEASURES).open(newline="") as stream:
        return [
            {**known, **{name: text if name in ("variant", "set") else float(text) for name, text in row.items()}}
            for row in csv.DictReader(stream)
        ]


def values(rows: list[dict], arm: Arm, setting: str, images: str, measure: str, seeds: Sequence[int]) -> list[float]:
    """One per seed, in their order; SHIFTED is the mean over the shifted sets. Raises KeyError if a run is missing."""
    sets = SHIFTS if images == SHIFTED else (images,)
    found = {
        (row["seed"], row["set"]): row[measure]
        for row in rows
        if (row["method"], row["variant"], row["setting"]) == (*arm, setting)
    }
    return [mean(found[seed, name] for name in sets) for seed in seeds]


def held_out_nll(rows: list[dict], arm: Arm, setting: str, seeds: Sequence[int]) -> float:
    """Mean over the seeds in nats; inf where it is not a number, so that a collapse is not chosen."""
    found = mean(values(rows, arm, setting, HELD_OUT, "nll", seeds))
    return math.inf if math.isnan(found) else found


def choose(rows: list[dict], seeds: Sequence[int]) -> dict[Arm, str]:
    """Each arm's setting by the rule: the smallest mean NLL on the held-out images over the tuning seeds."""
    return {arm: min(METHODS[arm[0]], key=lambda setting: held_out_nll(rows, arm, setting, seeds)) for arm in ARMS}


def _name(arm: Arm) -> str:
    return ", ".join(arm).replace("_", " ").replace("era", "ERA")


def tuning_table(rows: list[dict], chosen: dict[Arm, str], seeds: Sequence[int]) -> str:
    """Markdown: of every arm, the held-out NLL of its five settings; the chosen one is bold."""
    lines = [["arm", *(f"setting {number}" for number in range(1, 6))]]
    for arm in ARMS:
        cells = [f"{setting}: {held_out_nll(rows, arm, setting, seeds):.4f}" for setting in METHODS[arm[0]]]
        bold = [f"**{cell}**" if cell.startswith(f"{chosen[arm]}:") else cell for cell in cells]
        lines.append([_name(arm), *bold])
    return markdown.table(lines)


def table(rows: list[dict], chosen: dict[Arm, str], seeds: Sequence[int]) -> str:
    """Markdown: of every arm, mean (smallest to largest) over the fresh seeds."""
    heads = [f"{images}: {label}" for images in (TEST, SHIFTED) for label, _ in COLUMNS.values()]
    lines = [["arm", "setting", "temperature", *heads]]
    for arm, setting in chosen.items():
        line = [_name(arm), setting, f"{mean(values(rows, arm, setting, TEST, 'temperature', seeds)):.2f}"]
        for images in (TEST, SHIFTED):
            for measure, (_, digits) in COLUMNS.items():
                found = values(rows, arm, setting, images, measure, seeds)
                line.append(markdown.spread(found, digits))
        lines.append(line)
    return markdown.table(lines)


def _difference(
    rows: list[dict], chosen: dict[Arm, str], arm: Arm, other: Arm, images: str, measure: str, seeds: Sequence[int]
) -> str:
    """A cell: mean and 95 % interval of the paired differences; bold where 0 is outside."""
    pair = [values(rows, one, chosen[one], images, measure, seeds) for one in (arm, other)]
    found = [value - against for value, against in zip(*pair)]
    return markdown.difference(found, COLUMNS[measure][1])


def differences_table(rows: list[dict], chosen: dict[Arm, str], seeds: Sequence[int]) -> str:
    """Markdown: mean and 95 % interval of each arm's paired differences to REFERENCE; bold where 0 is outside."""
    heads = [f"{images}: {label}" for images in (TEST, SHIFTED) for label, _ in COLUMNS.values()]
    lines = [["arm minus " + _name(REFERENCE), *heads]]
    for arm in ARMS:
        if arm == REFERENCE:
            continue
        cells = [
            _difference(rows, chosen, arm, REFERENCE, images, measure, seeds)
            for images in (TEST, SHIFTED)
            for measure in COLUMNS
        ]
        lines.append([_name(arm), *cells])
    return markdown.table(lines)


def best_arms(rows: list[dict], chosen: dict[Arm, str], seeds: Sequence[int]) -> dict[str, Arm]:
    """Each method's arm with the smallest held-out NLL over the tuning seeds."""
    return {
        method: min(
            ((method, variant) for variant in variants),
            key=lambda arm: held_out_nll(rows, arm, chosen[arm], seeds),
        )
        for method, variants in VARIANTS.items()
    }


def best_table(rows: list[dict], chosen: dict[Arm, str], best: dict[str, Arm], seeds: Sequence[int]) -> str:
    """Markdown: of ERA's best arm minus each other method's, the paired differences in NLL; bold as above."""
    lines = [[f"{_name(best['era'])} minus", f"{TEST}: NLL, nats", f"{SHIFTED}: NLL, nats"]]
    for method, arm in best.items():
        if method == "era":
            continue
        cells = [_difference(rows, chosen, best["era"], arm, images, "nll", seeds) for images in (TEST, SHIFTED)]
        lines.append([_name(arm), *cells])
    return markdown.table(lines)


def picture(rows: list[dict], chosen: dict[Arm, str], seeds: Sequence[int], file: Path) -> None:
    """Every fresh seed as a dot and each arm's mean as a bar, for the test images above and the shifted ones below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(COLUMNS), figsize=(11, 8), sharey=True, constrained_layout=True)
    heights = [-number for number in range(len(ARMS))]
    for images, line in zip((TEST, SHIFTED), axes):
        for (measure, (label, _)), axis in zip(COLUMNS.items(), line):
            for arm, height in zip(ARMS, heights):
                found = values(rows, arm, chosen[arm], images, measure, seeds)
                color = "#2b7bba" if arm[0] == "era" else "black"
                axis.plot(found, [height] * len(found), "o", color=color, markersize=4, alpha=0.5)
                axis.plot(mean(found), height, "|", color=color, markersize=16, markeredgewidth=2)
            reference = values(rows, REFERENCE, chosen[REFERENCE], images, measure, seeds)
            axis.axvline(mean(reference), color="0.7", linewidth=1, zorder=0)
            axis.set_xlabel(f"{label}, {images}")
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_yticks(heights, [f"{_name(arm)} ({chosen[arm]})" for arm in ARMS])
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
