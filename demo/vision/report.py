"""The demo's table and picture, from what the runs wrote."""

from pathlib import Path

import numpy
import pandas

from demo.runner import tables
from demo.vision.data import COUNTS
from demo.vision.measures import ECE_BINS, log_probabilities, measures, reliability
from demo.vision.settings import BASELINE, EPOCHS_FILE, LOGITS_FILE, MODEL, OFF, ON, Run

ROUNDING = 1e-6  # of an entropy that comes from fp32 logits, nats
SMALLEST = "smallest entropy, nats"
# The measures on the screen, with their decimals.
SHOWN = {
    "top-1, %": ("top-1", 2),
    SMALLEST: ("H min", 4),
    "mean entropy, nats": ("H mean", 3),
    "mean confidence, %": ("conf.", 2),
    "ECE, %": ("ECE", 2),
    "NLL, nats": ("NLL", 3),
}
LEGEND = """\
top-1, mean confidence and calibration error (ECE) in %; H, the entropy of the
predictions, smallest and mean, and NLL in nats. Both ERA blocks are the same
weights."""
FEWEST = 10  # images in a bin that is drawn
LIMIT = dict(color="#b02a2a", linewidth=1.2, linestyle="-.", zorder=6)
# The models differ in line style and marker, not in colour alone; dashes over a wider line show both where they agree.
STYLES = {
    BASELINE: dict(color="black", linestyle=(0, (4, 2)), linewidth=1.4, marker="s", markersize=4, zorder=4),
    ON: dict(color="#2b7bba", linewidth=2.6, marker="o", markersize=5, zorder=3),
    OFF: dict(color="#d9730d", linestyle=(0, (1, 1)), linewidth=2, marker="^", markersize=5, zorder=5),
}


def models(runs: list[Run], out: Path) -> list[tuple]:
    """Name, seed, input of the softmax, logits before ERA, and targets, of each run and way of evaluating it."""
    found = []
    for run in runs:
        with numpy.load(out / run.folder / LOGITS_FILE) as logits:
            raw, era, targets = (logits[name] for name in ("raw", "era", "targets"))
        ways = {BASELINE: raw} if run.min_entropy is None else {ON: era, OFF: raw}
        found += [(name, run.seed, way, raw, targets) for name, way in ways.items()]
    return sorted(found, key=lambda model: list(STYLES).index(model[0]))


def held(epochs: pandas.DataFrame, floor: float) -> str:
    """What became of the floor. epochs: the rows of all runs."""
    columns = [SMALLEST, f"train {SMALLEST}"]
    smallest = epochs.groupby(["name", "seed"])[columns].min().min(axis=1)
    era = smallest[ON]
    return (
        f"The floor, {floor:.4f} nats, held in {(era >= floor - ROUNDING).sum()} of {len(era)} ERA runs: the smallest "
        f"entropy of any training or validation image in any epoch was {era.min():.4f}, without ERA "
        f"{smallest[BASELINE].min():.4f}."
    )


def end(runs: list[Run], era, out: Path) -> None:
    """The end of the demo: its table, picture and runs.csv. era: the activation of the ERA runs."""
    evaluated = models(runs, out)
    table = pandas.DataFrame({"name": name, "seed": seed, **measures(*logits)} for name, seed, *logits in evaluated)
    table.to_csv(out / "runs.csv", index=False)
    epochs = pandas.concat(
        pandas.read_csv(out / run.folder / EPOCHS_FILE, float_precision="round_trip").assign(
            name=BASELINE if run.min_entropy is None else ON, seed=run.seed
        )
        for run in runs
    )
    draw(epochs, evaluated, era, out / "entropy.png")
    short = table.rename(columns={label: name for label, (name, _) in SHOWN.items()})
    shown = tables.rows_and_means(short, dict(SHOWN.values()))
    tables.print_end(f"{shown}\n{LEGEND}", held(epochs, era.floor), out / "entropy.png", out / "runs.csv")


def draw(epochs: pandas.DataFrame, evaluated: list[tuple], era, file: Path) -> None:
    """Entropy over the epochs, and accuracy over confidence."""
    figure, (smallest, diagram) = tables.panels(
        "smallest entropy of a validation image, nats",
        f"accuracy over confidence ({ECE_BINS} bins; {FEWEST} images or more)",
        height=4.2,
    )
    tables.draw(smallest, epochs, "epoch", SMALLEST, {name: STYLES[name] for name in (BASELINE, ON)})
    smallest.axhline(era.floor, **LIMIT, label=f"ERA's floor, {era.floor:.4f}")
    smallest.axhline(era.min_entropy, color="0.45", linestyle=":", label=f"H0 = {era.min_entropy:g}")
    smallest.set_ylim(min(0, era.min_entropy), 2.4)  # ln 10 = 2.303 is the largest entropy
    smallest.set_xlabel("epoch")
    smallest.xaxis.get_major_locator().set_params(integer=True)
    smallest.legend(frameon=False)
    diagram.plot([0, 1], [0, 1], color="0.75", linewidth=1, label="perfectly calibrated")
    for model, style in STYLES.items():
        logits = [(way, raw, targets) for name, _, way, raw, targets in evaluated if name == model]
        way, raw, targets = map(numpy.concatenate, zip(*logits))
        right = raw.argmax(axis=1) == targets
        bins = reliability(numpy.exp(log_probabilities(way).max(axis=1)), right)
        bins = [one for one in bins if one["share"] * len(right) >= FEWEST]
        diagram.plot([one["confidence"] for one in bins], [one["accuracy"] for one in bins], label=model, **style)
    diagram.axvline(era.max_probability, **LIMIT, label=f"ERA's largest probability, {era.max_probability:.3f}")
    diagram.set_xlabel("confidence")
    diagram.set_xlim(0, 1.02)
    diagram.set_ylim(0, 1.03)
    diagram.legend(frameon=False, fontsize=9)
    seeds = ", ".join(map(str, epochs["seed"].unique()))
    tables.save(figure, file, f"{MODEL}, {COUNTS['validation']} validation images, seed {seeds}")
