# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Entropy Regularizing Activation (ERA) for classifiers: logits whose softmax has a minimum entropy.

Paper, Eq. discrete_era, with n = D classes, p = softmax(z), kappa = ln(tau) / tau and C = exp(H0 - 1):

    h_i  = kappa + (C - n kappa) (1 - p_i) / (n - 1)        entropies of "tau-divided" probabilities; their sum is C
    z'_i = ln q_i,  q_i in (0, 1 / tau] with -q_i ln q_i = h_i

The maximum with 0 in the equation never acts where H0 is feasible. softmax(z') has an entropy of at least H0. Its true
smallest entropy, `floor`, belongs to a one-hot p and is higher: .98 nats for 10 classes and H0 = .6. All entropies are
in nats. This file needs torch and the standard library alone.

Why one-hot p: with the exact inverse and Z = sum(q) the entropy is C / Z + ln Z, which falls as Z grows towards C; q is
convex in h, so Z is largest at a corner of the simplex of p. The paper's approximation breaks both steps a little. A search
with it found exceptions, ties of very many classes with less entropy, only where n and tau are both huge: n = 1e6 from
tau = 2e11 on, n = 1e9 from tau = 2e7 on. The largest probability needs only that q grows with h: it is always the one-hot p's.
"""

import contextlib
import math
import numbers
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Tuple

import torch
import torch.nn as nn

__all__ = [
    "EntropyRegularizingActivation",
    "attach_era",
    "calibrate_min_entropy",
    "find_era",
    "raw_logits",
]

INVERSES = ("approx", "exact")

# Newton steps of the exact inverse, whose start is within 1.3e-3 of ln q: after 1 and 2 the relative error is at most
# 3e-8 and 3e-16 plus rounding.
_NEWTON_STEPS = {torch.float32: 1, torch.float64: 2}

# torch has no public name for it; without it only torch.func's transforms of this activation would fail.
_in_func_transform = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


class EntropyRegularizingActivation(nn.Module):
    """Maps logits z to logits z' = g(z) whose softmax has an entropy of at least `floor` > `min_entropy`.

    It has no parameters and no buffers. z' is a strictly increasing function of softmax(z), so the order of the classes
    stays, up to rounding: classes whose probabilities are tiny may tie. Rank on z (see `raw_logits`).

    Args:
        num_classes: n, the size of the last dimension of the logits; at least 2.
        min_entropy: H0 of the paper in nats, strictly between 1 + ln(kappa) and 1 + ln(n kappa), kappa = ln(tau) / tau.
        tau: the paper's tau, at least e.
        inverse: 'approx' is the paper's closed form -1 - sqrt(2 u) - 3/4 u, u = -1 - ln(h), for ln q. 'exact' solves
            -q ln q = h to the precision of the floating-point type.

    Attributes:
        floor: smallest entropy of softmax(z') over all z, in nats; approached by one-hot softmax(z).
        max_probability: largest entry of softmax(z') over all z, approached there too.

    Raises:
        ValueError: a value is not feasible; the message has the feasible range.
    """

    def __init__(
        self, num_classes: int, min_entropy: float, tau: float = 4.0, inverse: str = "approx"
    ):
        super().__init__()
        self.bypassed = False  # set by raw_logits()
        self._set(num_classes, min_entropy, tau, inverse)

    def _set(self, num_classes: int, min_entropy: float, tau: float, inverse: str) -> None:
        low, high = _feasible_min_entropy(num_classes, tau, inverse)
        _check_number("min_entropy", min_entropy)
        if not low < min_entropy < high:  # also false for nan
            raise ValueError(
                f"ERA: min_entropy={min_entropy} is not feasible for {num_classes} classes and tau={tau:g}: "
                f"it must lie strictly between {low:.4f} and {high:.4f} nats"
            )
        self.num_classes = num_classes
        self.min_entropy = float(min_entropy)
        self.tau = float(tau)
        self.inverse = inverse
        self.offset, self.slope = _line(num_classes, min_entropy, tau, inverse)

    @property
    def floor(self) -> float:
        return _one_hot_limit(self.num_classes, self.min_entropy, self.tau, self.inverse)[0]

    @property
    def max_probability(self) -> float:
        return _one_hot_limit(self.num_classes, self.min_entropy, self.tau, self.inverse)[1]

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Args: logits: (..., num_classes), any floating dtype. Returns: the same shape, in fp32 (fp64 for fp64), also
        under autocast, and at most -1. A logit of -inf has p = 0; one of +inf or nan makes its row nan, as softmax does."""
        if not torch.jit.is_tracing() and logits.shape[-1] != self.num_classes:
            raise ValueError(
                f"ERA: logits of shape (..., {self.num_classes}) expected, found {tuple(logits.shape)}"
            )
        probs = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        constants = self.slope, self.offset, self.inverse == "exact"
        # A trace keeps plain operations, which every exporter knows; so do torch.func's transforms, whose forward mode a
        # torch.autograd.Function would have to be taught.
        captured = torch.jit.is_tracing() or _in_func_transform()
        if captured or not probs.requires_grad:
            return _activate(probs, *constants)[0]
        return _Activate.apply(probs, *constants)

    def __prepare_scriptable__(
        self,
    ) -> NoReturn:  # torch.jit.script asks for it before it compiles anything
        raise TypeError(
            "ERA: torch.jit.script cannot compile a model with ERA, for its forward hook. Use torch.jit.trace, torch.compile or "
            "torch.export with strict=False. The model is as it was."
        )

    def __getstate__(
        self,
    ) -> Dict[str, Any]:  # a copy or pickle that is made within raw_logits() is not bypassed
        return {**self.__dict__, "bypassed": False}

    def extra_repr(self) -> str:
        return (
            f"num_classes={self.num_classes}, min_entropy={self.min_entropy:g}, tau={self.tau:g}, "
            f"inverse={self.inverse!r}, floor={self.floor:.4f}, max_probability={self.max_probability:.4f}"
        )


def calibrate_min_entropy(
    floor: float, num_classes: int, tau: float = 4.0, inverse: str = "approx"
) -> float:
    """The `min_entropy` (H0, nats) for which the activation's true smallest entropy is `floor`.

    Args:
        floor: wished smallest entropy in nats, strictly between 0 and ln(num_classes).
        num_classes, tau, inverse: as for `EntropyRegularizingActivation`.

    Raises:
        ValueError: a value is not feasible; the message has the feasible range.
    """
    low, high = _feasible_min_entropy(num_classes, tau, inverse)
    _check_number("floor", floor)
    if not 0.0 < floor < math.log(num_classes):
        raise ValueError(
            f"ERA: a smallest entropy (floor) of {floor} nats is not feasible for {num_classes} classes: "
            f"it must lie strictly between 0 and ln({num_classes}) = {math.log(num_classes):.4f}"
        )
    while (
        True
    ):  # the floor grows with H0, from 0 to ln n: halve the interval until it has no inner number
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if _one_hot_limit(num_classes, middle, tau, inverse)[0] < floor:
            low = middle
        else:
            high = middle


def attach_era(
    model: nn.Module, min_entropy: float, tau: float = 4.0, inverse: str = "approx"
) -> nn.Module:
    """Make ERA the output activation of a classifier, in training and evaluation.

    The activation becomes the parameter-free child `era`, which a forward hook of the model applies to its output: the
    keys of state_dict() stay, and copies, pickles, traces and compiled versions of the model have it. The number of
    classes is `model.num_classes`; after `reset_classifier` the next forward follows it. With 0 classes (features) the
    hook does nothing. Attaching again replaces the setting.

    Args:
        model: a timm model, not yet wrapped by DDP or torch.compile.
        min_entropy, tau, inverse: as for `EntropyRegularizingActivation`.

    Returns:
        `model`.

    Raises:
        ValueError: not feasible for the model's number of classes.
        TypeError: the model has no `num_classes` or is wrapped; its forward raises it where it returns anything but one
            tensor of logits (..., num_classes).
    """
    name = type(model).__name__
    if hasattr(model, "_orig_mod") or isinstance(getattr(model, "module", None), nn.Module):
        raise TypeError(
            f"ERA comes before torch.compile and DistributedDataParallel, but this {name} wraps a model. Nothing was attached."
        )
    if not isinstance(getattr(model, "num_classes", None), numbers.Integral):
        raise TypeError(
            f"ERA needs a classifier: a model with a whole number as num_classes; {name} is not one. Nothing was attached."
        )
    attached = find_era(model)
    if attached is not getattr(model, "era", None):
        raise TypeError(
            f"ERA is in a part of this {name} already, which was made from a model with ERA, and in a whole it would be a "
            f"second time. Make the {name} from a model without ERA. Nothing was attached."
        )
    model.era = EntropyRegularizingActivation(model.num_classes, min_entropy, tau, inverse)
    if attached is None:
        model.register_forward_hook(_apply_era)
    return model


def find_era(model: nn.Module) -> Optional[EntropyRegularizingActivation]:
    """The activation that `attach_era` put into a model, also through wrappers (DDP, EMA, torch.compile), or None."""
    return next(
        (module for module in model.modules() if isinstance(module, EntropyRegularizingActivation)),
        None,
    )


def carry_era(model: nn.Module, made: nn.Module) -> nn.Module:
    """`made`, a classifier that was made from the parts of `model` and has no hook of its own, with the ERA of `model`."""
    era = find_era(model)
    if era is not None:
        del model.era
        made.num_classes = era.num_classes
        attach_era(made, era.min_entropy, era.tau, era.inverse)
    return made


@contextlib.contextmanager
def raw_logits(model: nn.Module) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Within `with raw_logits(model) as activation:` the model returns its logits z before ERA, and activation(z) is
    the ERA model's output. Without ERA the model is as it was, and activation returns its argument. It holds for all
    threads that share the model."""
    era = find_era(model)
    if era is None:
        yield lambda logits: logits
        return
    outer, era.bypassed = era.bypassed, True
    try:
        yield era
    finally:
        era.bypassed = outer


def pop_era_kwargs(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Take era_min_entropy, era_tau and era_inverse out of create_model's kwargs: the arguments of attach_era, or {}."""
    era = {
        name: kwargs.pop(f"era_{name}")
        for name in ("min_entropy", "tau", "inverse")
        if f"era_{name}" in kwargs
    }
    if era and "min_entropy" not in era:
        raise ValueError(
            f"create_model: era_{' and era_'.join(era)} without era_min_entropy, which switches ERA on"
        )
    return era


def _apply_era(model: nn.Module, args: Tuple[Any, ...], output: Any) -> Any:
    era = getattr(model, "era", None)  # gone after carry_era()
    if era is None or model.num_classes == 0:
        return output
    if era.num_classes != model.num_classes:  # in place: raw_logits() has handed it out
        era._set(model.num_classes, era.min_entropy, era.tau, era.inverse)
    if era.bypassed:
        return output
    if (
        torch.jit.is_tracing()
    ):  # shapes are no plain numbers there, and tracers warn of comparing them
        return era(output)
    if not isinstance(output, torch.Tensor) or output.shape[-1] != model.num_classes:
        found = (
            f"a tensor of shape {tuple(output.shape)}"
            if isinstance(output, torch.Tensor)
            else f"a {type(output).__name__}"
        )
        raise TypeError(
            f"ERA needs a model that returns one tensor of logits (..., {model.num_classes}); {type(model).__name__} returned {found}"
        )
    return era(output)


def _feasible_min_entropy(num_classes: int, tau: float, inverse: str) -> Tuple[float, float]:
    """The open interval of feasible H0: h lies within (0, kappa] and increases with p."""
    if (
        isinstance(num_classes, bool)
        or not isinstance(num_classes, numbers.Integral)
        or num_classes < 2
    ):
        raise ValueError(f"ERA: num_classes={num_classes!r}: an integer of at least 2 is needed")
    _check_number("tau", tau)
    if not math.e <= tau < math.inf:
        raise ValueError(
            f"ERA: tau={tau} is not feasible: it must be finite and at least e = {math.e:.4f}"
        )
    if inverse not in INVERSES:
        raise ValueError(f"ERA: inverse={inverse!r}: expected 'approx' or 'exact'")
    kappa = math.log(tau) / tau
    return 1 + math.log(kappa), 1 + math.log(num_classes * kappa)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"ERA: {name}={value!r}: a number is needed")


def _line(num_classes: int, min_entropy: float, tau: float, inverse: str) -> Tuple[float, float]:
    """Offset and slope of x = e h = slope p + offset, which is Eq. discrete_era with sum(x) = exp(H0), and x = e kappa at p = 1.

    x is at most 1, where ln(x) is most accurate. With expm1 neither number loses its digits for H0 near a bound; for tau
    near e, where the lower bound is about 0, the offset could yet underflow in fp32.
    """
    low, high = _feasible_min_entropy(num_classes, tau, inverse)
    top = math.exp(low)  # e kappa
    offset = top * math.expm1(min_entropy - low) / (num_classes - 1)
    slope = -top * num_classes * math.expm1(min_entropy - high) / (num_classes - 1)
    return max(offset, 1e-30 * top), slope


def _one_hot_limit(
    num_classes: int, min_entropy: float, tau: float, inverse: str
) -> Tuple[float, float]:
    """Entropy and largest probability of softmax(z') for one-hot p: one class has p = 1, the others p = 0."""
    probs = torch.tensor([1.0, 0.0], dtype=torch.float64)
    offset, slope = _line(num_classes, min_entropy, tau, inverse)
    top, other = _activate(probs, slope, offset, inverse == "exact")[0].tolist()
    others = (num_classes - 1) * math.exp(other - top)  # relative to the top class
    return math.log1p(others) + (top - other) * others / (1 + others), 1 / (1 + others)


def _activate(
    probs: torch.Tensor, slope: float, offset: float, exact: bool
) -> Tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    """z' = ln q with -q ln q = h, where e h = slope p + offset, and a function that computes dz'/dp; all elementwise.

    With d = -1 - z' >= 0 and u = -1 - ln h the equation is d - ln(1 + d) = u, where nothing cancels near h = 1/e. At
    h = 1/e itself dz'/dp is infinite: u stays above a rounding error, so that gradients are finite for tau = e too.
    What is in place spares memory traffic; autograd needs nothing of what it overwrites.
    """
    x = (slope * probs).add_(offset)
    two_u = x.log().mul_(-2).clamp_(min=2 * torch.finfo(x.dtype).eps)
    root = two_u.sqrt()
    if not exact:  # the paper's approximation, d = sqrt(2 u) + 3/4 u
        return -1 - torch.add(
            root, two_u, alpha=3 / 8
        ), lambda: (root.reciprocal() + 0.75).mul_(slope).div_(x)
    # Start from d = u + ln(1 + d) with ln(1 + d) = root - root^2 / 6 + ... as the quotient (root + root^2 / 120) / (1 + 7 root / 40).
    d = (torch.add(root, two_u, alpha=1 / 120) / (7 / 40 * root).add_(1)).add_(two_u, alpha=0.5)
    for _ in range(_NEWTON_STEPS[x.dtype]):
        log = d.log1p().add_(two_u, alpha=0.5)
        one_plus_d = (log / d).add_(log)  # (u + ln(1 + d)) (1 + 1 / d)
        d = one_plus_d - 1
    return -one_plus_d, lambda: (one_plus_d / d).mul_(slope).div_(x)


class _Activate(torch.autograd.Function):
    """_activate, keeping dz'/dp for the backward pass rather than every intermediate result."""

    @staticmethod
    def forward(ctx, probs: torch.Tensor, *constants) -> torch.Tensor:
        z, dz_dp = _activate(probs, *constants)
        ctx.save_for_backward(probs, dz_dp())
        ctx.constants = constants
        return z

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        probs, dz_dp = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True, as second-order optimizers have it
            dz_dp = _activate(probs, *ctx.constants)[1]()
        return grad * dz_dp, None, None, None
