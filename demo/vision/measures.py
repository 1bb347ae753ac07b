"""Accuracy, entropy and calibration of a classifier's predictions."""

import numpy
from scipy import special

ECE_BINS = 15


def log_probabilities(logits: numpy.ndarray) -> numpy.ndarray:
    """(images, classes) logits of any type -> log-probabilities in fp64, the same shape."""
    return special.log_softmax(logits.astype(numpy.float64), axis=1)


def reliability(confidences: numpy.ndarray, right: numpy.ndarray) -> list[dict]:
    """The images in ECE_BINS bins by their confidence, (0, 1/15], (1/15, 2/15] ...; empty bins are left out.

    confidences: (images,) in (0, 1]; right: (images,) bool. Each bin has its share of the images, and their mean
    confidence and accuracy.
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
    """Expected calibration error (Guo et al. 2017): mean of |accuracy - confidence|, weighted by the bins' shares."""
    return sum(one["share"] * abs(one["accuracy"] - one["confidence"]) for one in bins)


def measures(logits: numpy.ndarray, ranking: numpy.ndarray, targets: numpy.ndarray) -> dict[str, float]:
    """The measures of one model on all images; entropies and NLL in nats.

    logits: (images, classes), the input of the model's softmax. ranking: the same shape, the logits before ERA, which
    have no ties; the largest is the predicted class. targets: (images,) int.
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
