# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA as the output activation of a classifier: attached to a model, taken along, found again.

    attach_era(model, min_entropy=0.6)     the model's logits have the entropy floor
    with raw_logits(model) as activation:  the model's logits are those before ERA

The activation itself, its equation and its floor are in discrete_activation.py, beside this file;
its names can be imported from here too. This file needs only that one, torch and the standard
library.
"""

import argparse
import contextlib
import functools
import numbers
import os
import pickle
import re
import zipfile
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
import torch.nn as nn

from .discrete_activation import (
    INVERSES,
    SETTING,
    EntropyRegularizingActivation,
    calibrate_min_entropy,
)

__all__ = [
    "INVERSES",
    "SETTING",
    "EntropyRegularizingActivation",
    "attach_era",
    "calibrate_min_entropy",
    "carry_era",
    "find_era",
    "pop_era_kwargs",
    "raw_logits",
    "saved_setting",
]

# What `saved_setting` returns where a file does not say whether its model had ERA.
UNKNOWN: Dict[str, Any] = {}


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
    # What would not reach the activation, or would have it twice.
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        raise TypeError(f"The first argument is {model!r}, not a Module. Nothing was attached.")
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
            f"{name} is not one. If it returns one tensor of logits, set model.num_classes = n; "
            f"else put EntropyRegularizingActivation(n, {min_entropy!r}) behind its last layer, as "
            "docs/vision/plug-in.md does with a classifier of transformers. Nothing was attached."
        )
    attached = find_era(model)
    if attached is not getattr(model, "era", None):
        raise TypeError(
            f"A part of this {name} already has ERA, so attaching it again would apply it twice. "
            f"Build the {name} from a model without ERA. Nothing was attached."
        )

    num_classes: Any = model.num_classes
    model.era = EntropyRegularizingActivation(num_classes, min_entropy, tau, inverse)
    if not hasattr(type(model), "without_era"):
        cls: Any = type(model)  # mypy takes no class for hashable
        model.__class__ = _with_era(cls)

    # timm saves this dictionary beside the weights.
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
        made.num_classes = era.num_classes  # type: ignore[assignment]  # no tensor, no module
        attach_era(made, era.min_entropy, era.tau, era.inverse)
    return made


@contextlib.contextmanager
def raw_logits(model: nn.Module) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Make the model return its logits z before ERA, inside a with statement.

    In `with raw_logits(model) as activation:` activation(z) is the ERA model's output. Without ERA
    the model is unchanged and activation returns its argument. The switch acts in all threads that
    share the model.
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
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise ValueError(
            f"{path} holds {name[1] if name else 'objects'} beside weights, numbers and text, so "
            "its ERA setting cannot be read without running code from it."
        ) from None
    if not isinstance(saved, dict):
        return UNKNOWN

    # train.py's arguments say it; without any, what torch.save keeps beside the weights.
    if args := saved.get("args"):
        return (args if isinstance(args, dict) else vars(args)).get("era_setting")
    for name, metadata in getattr(saved.get("state_dict", saved), "_metadata", {}).items():
        if name.split(".")[-1] == "era" and "min_entropy" in metadata:
            return {key: metadata[key] for key in SETTING}
    return UNKNOWN


@functools.cache
def _with_era(cls: Any) -> type:
    """The subclass of a classifier's class whose forward ends with ERA, with the class's name."""

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


def _new_with_era(cls: Any) -> nn.Module:
    return cls.__new__(_with_era(cls))


@torch.fx.wrap  # a node of its own in a graph, since what is checked here are values
def _apply_era(era: EntropyRegularizingActivation, output: Any) -> Any:
    if era.bypassed:
        return output
    if not isinstance(output, torch.Tensor):
        raise TypeError(
            f"ERA needs a model that returns one tensor of logits (..., {era.num_classes}); "
            f"this one returned a {type(output).__name__}. Put EntropyRegularizingActivation "
            "behind its last layer instead (docs/vision/plug-in.md)."
        )
    return era(output)  # which checks the shape
