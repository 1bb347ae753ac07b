# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Accuracy, entropy and calibration of a classifier's predictions."""

import numpy
from scipy import special

ECE_BINS = 15


def calibration_error(confidences: numpy.ndarray, right: numpy.ndarray) -> float:
    """Expected calibration error (Guo et al. 2017) over ECE_BINS bins of equal width, (0, 1/15], (1/15, 2/15] ...

    confidences: (images,) in (0, 1]; right: (images,) bool.
    """
    bins = numpy.digitize(confidences, numpy.arange(1, ECE_BINS) / ECE_BINS, right=True)
    return sum(
        inside.mean() * abs(right[inside].mean() - confidences[inside].mean())
        for inside in (bins == number for number in numpy.unique(bins))
    )


def measures(logits: numpy.ndarray, ranking: numpy.ndarray, targets: numpy.ndarray) -> dict[str, float]:
    """The measures of one model on all images, in fp64; entropies and NLL in nats.

    logits: (images, classes), the input of the model's softmax. ranking: the same shape, the logits before ERA, which
    have no ties; the largest is the predicted class. targets: (images,) int.
    """
    logarithms = special.log_softmax(logits.astype(numpy.float64), axis=1)
    index, chosen = numpy.arange(len(targets)), ranking.argmax(axis=1)
    probabilities = numpy.exp(logarithms)
    confidences, right = probabilities[index, chosen], chosen == targets
    entropies = special.entr(probabilities).sum(axis=1)
    values = {
        "top-1, %": 100 * right.mean(),
        "smallest entropy, nats": entropies.min(),
        "mean entropy, nats": entropies.mean(),
        "mean confidence, %": 100 * confidences.mean(),
        "ECE, %": 100 * calibration_error(confidences, right),
        "NLL, nats": -logarithms[index, targets].mean(),
    }
    return {label: float(value) for label, value in values.items()}
