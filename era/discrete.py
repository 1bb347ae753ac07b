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

import argparse
import contextlib
import functools
import math
import numbers
import os
import pickle
import re
import zipfile
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Tuple

import torch
import torch.nn as nn

__all__ = [
    "EntropyRegularizingActivation",
    "attach_era",
    "calibrate_min_entropy",
    "find_era",
    "raw_logits",
    "saved_setting",
]

INVERSES = ("approx", "exact")
SETTING = ("min_entropy", "tau", "inverse")  # create_model's keywords have era_ before these
# What `saved_setting` finds where a file does not say whether its model had ERA.
UNKNOWN: Dict[str, Any] = {}

# Newton steps of the exact inverse. They start within 1.3e-3 of ln q; after 1 and 2 steps the
# relative error is at most 3e-8 and 3e-16, plus rounding.
_NEWTON_STEPS = {torch.float32: 1, torch.float64: 2}

# torch has no public name for this. Without it only torch.func's transforms would fail.
_in_func_transform = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


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
        # A trace records plain operations, which every exporter knows. torch.func's transforms get
        # them too: the autograd.Function below has no forward-mode derivative.
        captured = torch.jit.is_tracing() or _in_func_transform()
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


def attach_era(
    model: nn.Module, min_entropy: float, tau: float = 4.0, inverse: str = "approx"
) -> nn.Module:
    """Make ERA the output activation of a classifier, in training and evaluation.

    The activation becomes the parameter-free child `era`, and the model's class a subclass of the
    same name, whose forward ends with it. So state_dict() keeps its keys, and every way to call the
    model has ERA, `model.forward(x)`, copies, pickles, traces (torch.fx, torch.export) and compiled
    versions included. The number of classes is `model.num_classes`; the first forward after
    `reset_classifier` picks up the new one. With 0 classes (features) ERA does nothing. Attaching
    again replaces the setting. The setting is also written into a timm model's `pretrained_cfg`,
    which timm's save_for_hf saves. A create_model that knows ERA reads it from there; timm's own
    create_model refuses such a file.

    Args:
        model: a classifier with a whole number as num_classes (as timm's have) that returns one
            tensor of logits (..., num_classes); not yet wrapped by DDP or torch.compile, nor made
            by torch.jit or torch.fx.
        min_entropy, tau, inverse: as for `EntropyRegularizingActivation`.

    Returns:
        `model`.

    Raises:
        ValueError: not feasible for the model's number of classes.
        TypeError: the model has no `num_classes`, is wrapped, has a part with ERA, or a forward of
            its own. Its forward raises TypeError where the output is not one tensor, and ValueError
            where the output's shape is not (..., num_classes).
    """
    name = type(model).__name__
    made = isinstance(model, (torch.jit.ScriptModule, torch.fx.GraphModule))
    if made or hasattr(model, "_orig_mod") or isinstance(getattr(model, "module", None), nn.Module):
        raise TypeError(
            "ERA comes before torch.compile, torch.jit, torch.fx and DistributedDataParallel, but "
            f"this {name} is what one of them made of a model. Nothing was attached."
        )
    if "forward" in vars(model):
        raise TypeError(
            f"Somebody set the attribute `forward` of this {name}, so a call would not reach ERA. "
            "Attach ERA before that. Nothing was attached."
        )
    if not isinstance(getattr(model, "num_classes", None), numbers.Integral):
        raise TypeError(
            "ERA needs a classifier: a model with a whole number as num_classes; "
            f"{name} is not one. Nothing was attached."
        )
    attached = find_era(model)
    if attached is not getattr(model, "era", None):
        raise TypeError(
            f"A part of this {name} already has ERA, so attaching it again would apply it twice. "
            f"Build the {name} from a model without ERA. Nothing was attached."
        )
    model.era = EntropyRegularizingActivation(model.num_classes, min_entropy, tau, inverse)
    if not hasattr(type(model), "without_era"):
        model.__class__ = _with_era(type(model))
    saved = getattr(model, "pretrained_cfg", None)
    if isinstance(saved, dict):
        saved.update({f"era_{name}": getattr(model.era, name) for name in SETTING})
    return model


def find_era(model: nn.Module) -> Optional[EntropyRegularizingActivation]:
    """The activation that `attach_era` put into a model, found through wrappers too, or None."""
    era = (
        module for module in model.modules() if isinstance(module, EntropyRegularizingActivation)
    )
    return next(era, None)


def carry_era(model: nn.Module, made: nn.Module) -> nn.Module:
    """Move the ERA of `model` to `made`, a classifier built from its parts; returns `made`."""
    era = find_era(model)
    if era is not None:
        del model.era
        made.num_classes = era.num_classes
        attach_era(made, era.min_entropy, era.tau, era.inverse)
    return made


@contextlib.contextmanager
def raw_logits(model: nn.Module) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Inside `with raw_logits(model) as activation:` the model returns its logits z before ERA.

    activation(z) is then the ERA model's output. Without ERA the model is unchanged and activation
    returns its argument. The switch acts in all threads that share the model.
    """
    era = find_era(model)
    if era is None:
        yield lambda logits: logits
        return
    outer, era.bypassed = era.bypassed, True
    try:
        yield era
    finally:
        era.bypassed = outer


def pop_era_kwargs(
    kwargs: Dict[str, Any], pretrained_cfg: Any = None
) -> Tuple[Dict[str, Any], Any]:
    """Take era_min_entropy, era_tau and era_inverse out of create_model's arguments.

    Args:
        kwargs: create_model's other keywords; ERA's are removed from this dict.
        pretrained_cfg: as create_model takes it. ERA's keys in a dict are the setting of the model
            that it was saved from. Keywords in kwargs override them, and a model of features
            ignores them.

    Returns:
        The arguments of attach_era, or {}, and pretrained_cfg without ERA's keys, because timm's
        class for it accepts only its own.
    """
    keys = [f"era_{name}" for name in SETTING]
    if wrong := [key for key in kwargs if key.lower().startswith("era_") and key not in keys]:
        raise ValueError(
            f"create_model: no keyword {', '.join(wrong)}; ERA's are {', '.join(keys)}"
        )
    era = {key: kwargs.pop(key) for key in keys if key in kwargs}
    if isinstance(pretrained_cfg, dict):
        classes = kwargs.get("num_classes", pretrained_cfg.get("num_classes"))
        if classes != 0 and not kwargs.get("features_only"):
            era = {**{key: pretrained_cfg[key] for key in keys if key in pretrained_cfg}, **era}
        pretrained_cfg = {key: x for key, x in pretrained_cfg.items() if key not in keys}
    if era and "era_min_entropy" not in era:
        raise ValueError(
            f"create_model: {' and '.join(era)} without era_min_entropy, which switches ERA on"
        )
    return {key[len("era_") :]: value for key, value in era.items()}, pretrained_cfg


def saved_setting(path: str) -> Optional[Dict[str, Any]]:
    """The ERA setting of a checkpoint: of train.py of a patched timm, or of torch.save(state_dict).

    Returns:
        A dict with min_entropy, tau and inverse at least; None where train.py trained without ERA;
        UNKNOWN where the file does not say: safetensors, NumPy's, weights that another program
        wrote, or those of a model without ERA.

    Raises:
        ValueError: reading the file would run code that is in it.
    """
    if os.path.splitext(path)[1].lower() in (".safetensors", ".npz", ".npy"):
        return UNKNOWN
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # train.py's arguments
            saved = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise ValueError(
            f"{path} holds {found[1] if found else 'objects'} beside weights, numbers and text, so "
            "its ERA setting cannot be read without running code from it."
        ) from None
    if not isinstance(saved, dict):
        return UNKNOWN
    if args := saved.get("args"):
        return (args if isinstance(args, dict) else vars(args)).get("era")
    for name, metadata in getattr(saved.get("state_dict", saved), "_metadata", {}).items():
        if name.split(".")[-1] == "era" and "min_entropy" in metadata:
            return {key: metadata[key] for key in SETTING}
    return UNKNOWN


@functools.cache
def _with_era(cls: type) -> type:
    """The subclass of a classifier's class whose forward ends with ERA; its name is the class's."""

    @functools.wraps(cls, updated=())
    class WithEra(cls):
        without_era = cls

        @functools.wraps(cls.forward)  # torch.fx reads the names of its arguments
        def forward(self, *args, **kwargs):
            output = cls.forward(self, *args, **kwargs)
            era = getattr(self, "era", None)  # gone after carry_era()
            if era is None or self.num_classes == 0:
                return output
            if era.num_classes != self.num_classes:  # in place: raw_logits() has handed it out
                era._set(self.num_classes, era.min_entropy, era.tau, era.inverse)
            return _apply_era(era, output)

        # copy and pickle would look for this class under its name, where they find `cls`.
        def __reduce_ex__(self, protocol):
            return _new_with_era, (cls,), super().__reduce_ex__(2)[2]

    return WithEra


def _new_with_era(cls: type) -> nn.Module:
    return cls.__new__(_with_era(cls))


@torch.fx.wrap  # a node of its own in a graph, since what is checked here are values
def _apply_era(era: EntropyRegularizingActivation, output: Any) -> Any:
    if era.bypassed:
        return output
    if not isinstance(output, torch.Tensor):
        raise TypeError(
            f"ERA needs a model that returns one tensor of logits (..., {era.num_classes}); "
            f"this one returned a {type(output).__name__}"
        )
    return era(output)  # which checks the shape


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


def _check_inside(name: str, value: float, bounds: Tuple[float, float], given: str) -> None:
    """Raises ValueError unless value, in nats, is strictly between the bounds."""
    low, high = bounds
    try:
        inside = low < value < high and not isinstance(value, bool)  # also false for nan
    except TypeError:  # a text, or None
        inside = False
    if not inside:
        raise ValueError(
            f"ERA: {name}={value!r} is not feasible for {given}: it must lie strictly between "
            f"{low:.4f} and {high:.4f} nats"
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
    probs = torch.tensor([1.0, 0.0], dtype=torch.float64)
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
