"""The demo's table, picture and findings, computed from the runs."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from demo.runner import tables
from demo.vision import data, training
from demo.vision.measures import ECE_BINS, Predictions, log_probabilities, measures, reliability
from demo.vision.settings import ARMS, FLAGS, MODEL, Run

ROUNDING = 1e-6  # of an entropy that comes from fp32 logits, nats
TRAINING_TIME = "training, s"
BASELINE, ON, OFF = "baseline", "ERA", "ERA off at evaluation"


@dataclass(frozen=True)
class Result:
    """A finished run. epochs: rows of its summary.csv; predictions: see evaluation; info: its run.json."""

    run: Run
    epochs: list[dict]
    predictions: Predictions
    info: dict

    @classmethod
    def read(cls, run: Run, out: Path, info: dict) -> "Result":
        from demo.vision import evaluation  # needs the patched timm

        folder = out / run.folder
        predictions = evaluation.predict(folder / training.CHECKPOINT_FILE, out / data.FOLDER)
        return cls(run, training.epochs(folder), predictions, info)

    def logits(self) -> dict:
        """The input of the softmax in each way of evaluating the checkpoint."""
        found = self.predictions
        return {BASELINE: found.raw} if found.era is None else {ON: found.era, OFF: found.raw}

    def measures(self) -> dict[str, dict[str, float]]:
        found = self.predictions
        return {name: measures(logits, found.raw, found.targets) for name, logits in self.logits().items()}

    def smallest_entropy(self) -> float:
        """In nats, over all training and validation images in all epochs and in the final evaluation."""
        found = [row[column] for row in self.epochs for column in ("train_entropy_min", "eval_entropy_min")]
        return min(*found, next(iter(self.measures().values()))["smallest entropy, nats"])


def rows(results: list[Result]) -> list[dict]:
    """One for each run and way of evaluating it."""
    return [
        {"model": name, "seed": result.run.seed, **found, TRAINING_TIME: result.info["seconds"]}
        for result in results
        for name, found in result.measures().items()
    ]


def columns(results: list[Result]) -> dict[str, tables.Column]:
    """model: measure: its values, in the order of the seeds."""
    found = rows(results)
    labels = [label for label in found[0] if label not in ("model", "seed")]
    return {
        name: {label: [row[label] for row in found if row["model"] == name] for label in labels}
        for name in (BASELINE, ON, OFF)
    }


def table(results: list[Result]) -> str:
    found = {
        name: {label: column[label] for label in column if label != TRAINING_TIME}
        for name, column in columns(results).items()
    }
    return tables.table(
        found,
        lambda label: 2 if label.endswith("%") else 4 if "smallest" in label else 3,
        "Both ERA columns are the same weights.",
    )


def findings(results: list[Result]) -> list[str]:
    """What these runs show, and what they do not."""
    era = [result for result in results if result.run.arm == "era"]
    baseline = [result for result in results if result.run.arm == "baseline"]
    found = columns(results)
    return [
        floor_sentence(era, baseline),
        accuracy_sentence(found),
        calibration_sentence(found, era[0].predictions.setting["max_probability"]),
        f"This is {len(era)} seed{'s'[: len(era) > 1]} of one tiny model ({MODEL}) on {data.COUNTS['train']} small "
        "images, with one setting of the optimizer. It does not show whether ERA raises the accuracy on CIFAR-10 or "
        f"ImageNet, nor on any larger model. Both arms train with label smoothing {FLAGS['smoothing']}, train.py's "
        "default, which by itself lowers the confidence.",
    ]


def floor_sentence(era: list[Result], baseline: list[Result]) -> str:
    setting = era[0].predictions.setting
    floor, smallest = setting["floor"], min(result.smallest_entropy() for result in era)
    below = [result.run.label for result in era if result.smallest_entropy() < floor - ROUNDING]
    if below:
        return (
            f"The floor of {floor:.4f} nats did NOT hold in {len(below)} of {len(era)} ERA runs ({'; '.join(below)}): "
            f"the smallest entropy was {smallest:.4f}. That must not happen; please report it."
        )
    without = min(result.smallest_entropy() for result in baseline)
    contrast = f"the baseline's went down to {without:.4f}"
    if without >= floor:
        contrast = f"but the baseline's was not below the floor either ({without:.4f}), so here nothing had to be held"
    return (
        f"With H0 = {setting['min_entropy']:g} the floor, {floor:.4f} nats, held in {len(era)} of {len(era)} ERA runs: "
        f"the smallest entropy of any training or validation image in any epoch was {smallest:.4f}; {contrast}."
    )


def accuracy_sentence(found: dict) -> str:
    differences = [after - before for before, after in zip(found[BASELINE]["top-1, %"], found[ON]["top-1, %"])]
    text = "Accuracy: ERA's top-1 minus the baseline's is "
    if len(differences) > 1:
        return text + tables.compared(differences, "+.2f", " points", "effect")
    return (
        f"{text}{differences[0]:+.2f} points with one seed, which says nothing about the spread over seeds: no effect "
        "can be told from chance."
    )


def calibration_sentence(found: dict, cap: float) -> str:
    def mean(name: str, label: str) -> float:
        return statistics.mean(found[name][label])

    def describe(name: str) -> str:
        gap = mean(name, "mean confidence, %") - mean(name, "top-1, %")
        side = "under" if gap < 0 else "over"
        ece, nll = mean(name, "ECE, %"), mean(name, "NLL, nats")
        return f"{ece:.1f} % / {nll:.3f} nats for {name} ({side}-confident by {abs(gap):.1f} points)"

    text = f"Calibration, ECE over {ECE_BINS} bins / NLL: {', '.join(map(describe, found))}."
    least = mean(ON, "top-1, %") - 100 * cap
    if least > 0:
        text += (
            f" With ERA no probability exceeds {cap:.3f}, so at its accuracy an ECE below {least:.1f} % is impossible."
        )
    return f"{text} The last two are the same weights, with the same top-1: ERA keeps the order of the classes."


def summary(results: list[Result], sentences: list[str]) -> dict:
    """The content of summary.json."""
    era = next(result for result in results if result.run.arm == "era")
    return {
        "epochs": era.run.epochs,
        "setting": era.predictions.setting,
        "flags": era.info["flags"],
        "script": era.info["script"],
        "runs": rows(results),
        "findings": sentences,
        "machine": era.info["machine"],
    }


FEWEST = 10  # images in a bin that is drawn
LIMIT = dict(color="#b02a2a", linewidth=1.2, linestyle="-.", zorder=6)
# The models differ in line style and marker, not in colour alone; dashes over a wider line show both where they agree.
STYLES = {
    BASELINE: dict(color="black", linestyle=(0, (4, 2)), linewidth=1.4, marker="s", markersize=4, zorder=4),
    ON: dict(color="#2b7bba", linewidth=2.6, marker="o", markersize=5, zorder=3),
    OFF: dict(color="#d9730d", linestyle=(0, (1, 1)), linewidth=2, marker="^", markersize=5, zorder=5),
}


def picture(results: list[Result], file: Path) -> None:
    """Entropy over the epochs, and confidence against accuracy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    setting = next(result.predictions.setting for result in results if result.run.arm == "era")
    figure, ((smallest, mean), (diagram, histogram)) = pyplot.subplots(2, 2, figsize=(9, 7), constrained_layout=True)
    draw_entropies(smallest, results, setting, "eval_entropy_min", "smallest entropy of a prediction")
    draw_entropies(mean, results, setting, "eval_entropy_mean", "mean entropy of the predictions")
    mean.legend(frameon=False)
    draw_confidences(diagram, histogram, results)
    for axis in (diagram, histogram):
        axis.axvline(
            setting["max_probability"], **LIMIT, label=f"ERA's largest probability, {setting['max_probability']:.3f}"
        )
        axis.set_xlabel("confidence")
        axis.set_xlim(0, 1.02)
    histogram.legend(*[found[-1:] for found in histogram.get_legend_handles_labels()], loc="upper left", frameon=False)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(10)
    handles = [line for line in diagram.get_lines() if line.get_label() in STYLES]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)  # over no curve
    lines = "one seed"
    if len(results) > 2:
        lines = f"upper row: thin each of {len(results) // 2} seeds, thick their mean; lower row: all seeds together"
    figure.suptitle(
        f"{MODEL}, {data.COUNTS['validation']} validation images ({lines})", fontsize=8, x=0.995, ha="right"
    )
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_entropies(axis, results: list[Result], setting: dict, column: str, title: str) -> None:
    for arm, name in ARMS.items():
        curves = [[row[column] for row in result.epochs] for result in results if result.run.arm == arm]
        style, epochs = STYLES[name], range(1, len(curves[0]) + 1)
        for curve in curves:
            axis.plot(epochs, curve, color=style["color"], linewidth=0.7, alpha=0.45)
        axis.plot(epochs, list(map(statistics.mean, zip(*curves))), **style)
    axis.axhline(setting["floor"], **LIMIT, label=f"ERA's floor, {setting['floor']:.4f}")
    axis.axhline(
        setting["min_entropy"], color="0.45", linewidth=1.2, linestyle=":", label=f"H0 = {setting['min_entropy']:g}"
    )
    axis.set_title(title)
    axis.set_xlabel("epoch")
    axis.set_ylabel("nats")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(min(0, setting["min_entropy"]), 2.4)  # ln 10 = 2.303 is the largest entropy


def draw_confidences(diagram, histogram, results: list[Result]) -> None:
    import numpy

    diagram.plot([0, 1], [0, 1], color="0.75", linewidth=1)
    diagram.annotate(
        "perfectly calibrated",
        (0.3, 0.3),
        xytext=(8, -2),
        textcoords="offset points",
        color="0.5",
        fontsize=9,
        va="top",
    )
    for name, style in STYLES.items():
        confidences, right = [], []
        for result in results:
            if name in result.logits():
                chosen = result.predictions.raw.argmax(axis=1)
                confidences.append(numpy.exp(log_probabilities(result.logits()[name]).max(axis=1)))
                right.append(chosen == result.predictions.targets)
        confidences, right = numpy.concatenate(confidences), numpy.concatenate(right)
        bins = [one for one in reliability(confidences, right) if one["share"] * len(right) >= FEWEST]
        diagram.plot([one["confidence"] for one in bins], [one["accuracy"] for one in bins], label=name, **style)
        shares = numpy.histogram(confidences, ECE_BINS, (0, 1))[0] / len(confidences)
        line = {key: value for key, value in style.items() if not key.startswith("marker")}
        histogram.stairs(shares, numpy.linspace(0, 1, ECE_BINS + 1), label=name, **line)
    diagram.set_title(f"accuracy over confidence ({ECE_BINS} bins; {FEWEST} images or more)")
    diagram.set_ylabel("accuracy")
    diagram.set_ylim(0, 1.03)
    histogram.set_title("how confident the predictions are")
    histogram.set_ylabel("share of the predictions")
    histogram.set_ylim(0, 1)
