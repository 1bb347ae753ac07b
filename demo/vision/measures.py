"""What the predictions of a classifier are worth: accuracy, entropy, calibration."""

from dataclasses import dataclass

import numpy
from scipy import special

ECE_BINS = 15


@dataclass(frozen=True)
class Predictions:
    """raw: (images, classes) logits before ERA, fp32; era: those after it, or None for a model trained without; targets:
    (images,) int; setting: ERA's, as the checkpoint has it, or None."""

    raw: numpy.ndarray
    era: numpy.ndarray | None
    targets: numpy.ndarray
    setting: dict | None


def log_probabilities(logits: numpy.ndarray) -> numpy.ndarray:
    """In fp64, whatever the logits are: (images, classes) -> the same shape."""
    return special.log_softmax(logits.astype(numpy.float64), axis=1)


def reliability(confidences: numpy.ndarray, right: numpy.ndarray) -> list[dict]:
    """The images by their confidence, in ECE_BINS bins (0, 1/15], (1/15, 2/15] ...; bins without images are left out.

    confidences: (images,) in (0, 1]; right: (images,) bool. Of each bin: share of the images, their mean confidence and
    accuracy.
    """
    bins = numpy.digitize(confidences, numpy.arange(1, ECE_BINS) / ECE_BINS, right=True)
    return [
        {
            "share": float(inside.mean()),
            "confidence": float(confidences[inside].mean()),
            "accuracy": float(right[inside].mean()),
        }
        for inside in (bins == number for number in numpy.unique(bins))
    ]


def calibration_error(bins: list[dict]) -> float:
    """Expected calibration error (Guo et al. 2017): the mean of |accuracy - confidence| over bins, weighed by their shares."""
    return sum(one["share"] * abs(one["accuracy"] - one["confidence"]) for one in bins)


def measures(logits: numpy.ndarray, ranking: numpy.ndarray, targets: numpy.ndarray) -> dict[str, float]:
    """Of one model on all images.

    logits: (images, classes), what the model's softmax is taken of. ranking: the same shape; its largest entry is the
    predicted class, the logits before ERA, which do not tie. targets: (images,) int.
    """
    logarithms, index, chosen = log_probabilities(logits), numpy.arange(len(targets)), ranking.argmax(axis=1)
    probabilities = numpy.exp(logarithms)
    confidences, right = probabilities[index, chosen], chosen == targets
    entropies = special.entr(probabilities).sum(axis=1)
    found = {
        "top-1, %": 100 * right.mean(),
        "smallest entropy, nats": entropies.min(),
        "mean entropy, nats": entropies.mean(),
        "mean confidence, %": 100 * confidences.mean(),
        "ECE, %": 100 * calibration_error(reliability(confidences, right)),
        "NLL, nats": -logarithms[index, targets].mean(),
    }
    return {label: float(value) for label, value in found.items()}
