# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Entropy Regularizing Activation (ERA): logits of classifiers whose softmax has a minimum entropy.

Paper, Eq. discrete_era, with n = D classes, p = softmax(z), kappa = ln(tau) / tau and
C = exp(H0 - 1):

    h_i  = kappa + (C - n kappa) (1 - p_i) / (n - 1)    entropies of "tau-divided" probabilities;
                                                        their sum is C
    z'_i = ln q_i,  q_i in (0, 1 / tau] with -q_i ln q_i = h_i

The maximum with 0 in the equation never applies where H0 is feasible. softmax(z') has an entropy of
at least H0. The smallest entropy it can actually have, `floor`, is reached at a one-hot p and is
higher: 0.98 nats for 10 classes and H0 = 0.6. All entropies are in nats. This file needs only torch
and the standard library.

Why at a one-hot p: with the exact inverse and Z = sum(q), the entropy is C / Z + ln Z, which falls
as Z grows towards C. Since q is convex in h, Z is largest at a corner of the simplex of p. The
paper's approximation breaks both steps slightly. With it, a search found exceptions (ties of very
many classes, with less entropy) only where n and tau are both huge: n = 1e6 from tau = 2e11 on,
n = 1e9 from tau = 2e7 on. The largest probability is always reached at a one-hot p, because q grows
with h.
"""

import math
import numbers
import warnings
from typing import Any, Callable, Dict, NoReturn, Tuple

import torch
import torch.nn as nn

__all__ = ["INVERSES", "SETTING", "EntropyRegularizingActivation", "calibrate_min_entropy"]

INVERSES = ("approx", "exact")
SETTING = ("min_entropy", "tau", "inverse")  # create_model's keywords have era_ before these

# Newton steps of the exact inverse. They start within 1.3e-3 of ln q; after 1 and 2 steps the
# relative error is at most 3e-8 and 3e-16, plus rounding.
_NEWTON_STEPS = {torch.float32: 1, torch.float64: 2}

# torch has no public name for this. Without it only torch.func's transforms would fail.
_in_func_transform = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
# torch 2.6, whose strict export of an autograd.Function with a dynamic batch ends in an assertion,
# cannot tell an export from a compilation.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


class EntropyRegularizingActivation(nn.Module):
    """Maps logits z to logits z' whose softmax has an entropy of at least `floor` > `min_entropy`.

    It has no parameters and no buffers. z' is a strictly increasing function of softmax(z), so the
    classes keep their order up to rounding: those with tiny probabilities may tie. To rank classes,
    use z (see `raw_logits`).

    Args:
        num_classes: n, the size of the last dimension of the logits; at least 2.
        min_entropy: the paper's H0 in nats, strictly between 1 + ln(kappa) and 1 + ln(n kappa),
            kappa = ln(tau) / tau.
        tau: the paper's tau, at least e.
        inverse: 'approx' is the paper's closed form for ln q, -1 - sqrt(2 u) - 3/4 u with
            u = -1 - ln(h). 'exact' solves -q ln q = h to the precision of the floating-point type.

    Attributes:
        floor: smallest entropy of softmax(z') over all z, in nats; approached as softmax(z)
            becomes one-hot.
        max_probability: largest entry of softmax(z') over all z, approached likewise.

    Raises:
        ValueError: a value is not feasible; the message gives the feasible range.
    """

    def __init__(
        self, num_classes: int, min_entropy: float, tau: float = 4.0, inverse: str = "approx"
    ):
        super().__init__()
        self.bypassed = False  # set by raw_logits()
        self._set(num_classes, min_entropy, tau, inverse)

    def _set(self, num_classes: int, min_entropy: float, tau: float, inverse: str) -> None:
        bounds = _feasible_min_entropy(num_classes, tau, inverse)
        _check_inside("min_entropy", min_entropy, bounds, f"{num_classes} classes and tau={tau:g}")
        self.num_classes = num_classes
        self.min_entropy = float(min_entropy)
        self.tau = float(tau)
        self.inverse = inverse
        self.offset, self.slope = _line(num_classes, min_entropy, tau, inverse)
        # A compiled forward comes here after reset_classifier(); TorchDynamo traces no float out of
        # a tensor, which the floor is.
        if not torch.compiler.is_compiling() and self.floor > 0.9 * math.log(num_classes):
            warnings.warn(
                f"ERA: with {num_classes} classes min_entropy={min_entropy:g} keeps predictions at "
                f"{self.floor:.3f} nats or more, of at most {math.log(num_classes):.3f}, and "
                f"probabilities at {self.max_probability:.2f} or less. For a lower floor take "
                "min_entropy=calibrate_min_entropy(floor, num_classes).",
                stacklevel=3,
            )

    @property
    def floor(self) -> float:
        return _one_hot_limit(self.num_classes, self.min_entropy, self.tau, self.inverse)[0]

    @property
    def max_probability(self) -> float:
        return _one_hot_limit(self.num_classes, self.min_entropy, self.tau, self.inverse)[1]

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply Eq. discrete_era along the last dimension.

        Args:
            logits: (..., num_classes), any floating dtype. A logit of -inf has p = 0; one of +inf
                or nan makes its row nan, as softmax does.

        Returns:
            z', the same shape, at most -1; fp32 (fp64 for fp64), also under autocast.

        Raises:
            ValueError: another shape, or logits that are not real floating-point numbers.
        """
        if not torch.jit.is_tracing() and logits.shape[-1:] != (self.num_classes,):
            raise ValueError(
                f"ERA: logits of shape (..., {self.num_classes}) expected, "
                f"found {tuple(logits.shape)}"
            )
        if not logits.is_floating_point():
            raise ValueError(f"ERA: floating-point logits expected, found {logits.dtype}")
        probs = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        constants = self.slope, self.offset, self.inverse == "exact"
        # A trace and an export record plain operations, which every exporter knows. torch.func's
        # transforms get them too: the autograd.Function below has no forward-mode derivative.
        captured = torch.jit.is_tracing() or _is_exporting() or _in_func_transform()
        if captured or not probs.requires_grad:
            return _activate(probs, *constants)[0]
        return _Activate.apply(probs, *constants)

    # torch.jit.script calls this before it compiles anything.
    def __prepare_scriptable__(self) -> NoReturn:
        raise TypeError(
            "ERA: torch.jit.script cannot compile the forward of a model with ERA. Use "
            "torch.jit.trace, torch.compile or torch.export. The model was not changed."
        )

    # In the metadata, which torch.save keeps and load_state_dict asks for nothing.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            setting = {name: getattr(self, name) for name in SETTING}
            destination._metadata[prefix[:-1]].update(setting)

    # A copy or pickle made inside raw_logits() is not bypassed.
    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "bypassed": False}

    def extra_repr(self) -> str:
        return (
            f"num_classes={self.num_classes}, min_entropy={self.min_entropy:g}, tau={self.tau:g}, "
            f"inverse={self.inverse!r}, floor={self.floor:.4f}, "
            f"max_probability={self.max_probability:.4f}"
        )


def calibrate_min_entropy(
    floor: float, num_classes: int, tau: float = 4.0, inverse: str = "approx"
) -> float:
    """The `min_entropy` (H0, nats) for which the activation's true smallest entropy is `floor`.

    Args:
        floor: the smallest entropy wanted, in nats, strictly between 0 and ln(num_classes).
        num_classes, tau, inverse: as for `EntropyRegularizingActivation`.

    Raises:
        ValueError: a value is not feasible; the message gives the feasible range.
    """
    low, high = _feasible_min_entropy(num_classes, tau, inverse)
    _check_inside("floor", floor, (0.0, math.log(num_classes)), f"{num_classes} classes")
    # The floor grows with H0, from 0 to ln n: halve the interval until no number is left inside.
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if _one_hot_limit(num_classes, middle, tau, inverse)[0] < floor:
            low = middle
        else:
            high = middle


def _feasible_min_entropy(num_classes: int, tau: float, inverse: str) -> Tuple[float, float]:
    """The open interval of feasible H0: h lies within (0, kappa] and increases with p."""
    if not isinstance(num_classes, numbers.Integral) or num_classes < 2:
        raise ValueError(f"ERA: num_classes={num_classes!r}: an integer of at least 2 is needed")
    if not (isinstance(tau, numbers.Real) and math.e <= tau < math.inf):
        raise ValueError(
            f"ERA: tau={tau!r} is not feasible: it must be finite and at least e = {math.e:.4f}"
        )
    if inverse not in INVERSES:
        raise ValueError(f"ERA: inverse={inverse!r}: expected 'approx' or 'exact'")
    kappa = math.log(tau) / tau
    return 1 + math.log(kappa), 1 + math.log(num_classes * kappa)


def _check_inside(name: str, value: float, bounds: Tuple[float, float], condition: str) -> None:
    """Raises ValueError unless value, in nats, is strictly between the bounds."""
    low, high = bounds
    try:
        inside = low < value < high and not isinstance(value, bool)  # also false for nan
    except TypeError:  # a text, or None
        inside = False
    if not inside:
        raise ValueError(
            f"ERA: {name}={value!r} is not feasible for {condition}: a number expected, strictly "
            f"between {low:.4f} and {high:.4f} nats"
        )


def _line(num_classes: int, min_entropy: float, tau: float, inverse: str) -> Tuple[float, float]:
    """Offset and slope of x = e h = slope p + offset.

    This is Eq. discrete_era with sum(x) = exp(H0) and x = e kappa at p = 1. x is at most 1, and
    ln(x) is most accurate near 1. expm1 keeps the digits of both numbers for H0 near a bound. The
    max keeps the offset from underflowing in fp32 for tau near e, where the lower bound is about 0.
    """
    low, high = _feasible_min_entropy(num_classes, tau, inverse)
    top = math.exp(low)  # e kappa
    offset = top * math.expm1(min_entropy - low) / (num_classes - 1)
    slope = -top * num_classes * math.expm1(min_entropy - high) / (num_classes - 1)
    return max(offset, 1e-30 * top), slope


def _one_hot_limit(
    num_classes: int, min_entropy: float, tau: float, inverse: str
) -> Tuple[float, float]:
    """Entropy and largest probability of softmax(z') where one class has p = 1, the others 0."""
    probs = torch.tensor([1.0, 0.0], dtype=torch.float64, device="cpu")  # not "meta"
    offset, slope = _line(num_classes, min_entropy, tau, inverse)
    top, other = _activate(probs, slope, offset, inverse == "exact")[0].tolist()
    others = (num_classes - 1) * math.exp(other - top)  # relative to the top class
    return math.log1p(others) + (top - other) * others / (1 + others), 1 / (1 + others)


def _activate(
    probs: torch.Tensor, slope: float, offset: float, exact: bool
) -> Tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    """z' = ln q with -q ln q = h, e h = slope p + offset, and a function that computes dz'/dp.

    With d = -1 - z' >= 0 and u = -1 - ln h the equation reads d - ln(1 + d) = u, in which nothing
    cancels near h = 1/e. At h = 1/e itself dz'/dp is infinite: u is kept above a rounding error, so
    that gradients are finite for tau = e too. In-place operations save memory traffic; they
    overwrite nothing that autograd needs.
    """
    x = (slope * probs).add_(offset)
    two_u = x.log().mul_(-2).clamp_(min=2 * torch.finfo(x.dtype).eps)
    root = two_u.sqrt()
    if not exact:  # the paper's approximation, d = sqrt(2 u) + 3/4 u
        z = -1 - torch.add(root, two_u, alpha=3 / 8)
        return z, lambda: (root.reciprocal() + 0.75).mul_(slope).div_(x)
    # Start from d = u + ln(1 + d), where ln(1 + d) = root - root^2 / 6 + ... is taken as the
    # quotient (root + root^2 / 120) / (1 + 7 root / 40).
    d = (torch.add(root, two_u, alpha=1 / 120) / (7 / 40 * root).add_(1)).add_(two_u, alpha=0.5)
    for _ in range(_NEWTON_STEPS[x.dtype]):
        log = d.log1p().add_(two_u, alpha=0.5)
        one_plus_d = (log / d).add_(log)  # (u + ln(1 + d)) (1 + 1 / d)
        d = one_plus_d - 1
    return -one_plus_d, lambda: (one_plus_d / d).mul_(slope).div_(x)


class _Activate(torch.autograd.Function):
    """_activate, which keeps dz'/dp for the backward pass instead of all intermediate results."""

    @staticmethod
    def forward(ctx, probs: torch.Tensor, *constants) -> torch.Tensor:
        z, dz_dp = _activate(probs, *constants)
        ctx.save_for_backward(probs, dz_dp())
        ctx.constants = constants
        return z

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        probs, dz_dp = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True, which second-order optimizers set
            dz_dp = _activate(probs, *ctx.constants)[1]()
        return grad * dz_dp, None, None, None
