# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA in train.py, validate.py, inference.py and onnx_export.py: flags, saved settings, entropies.

A setting is a dict of plain values, {num_classes, min_entropy, tau, inverse, floor,
max_probability}, saved in a checkpoint as `args.era_setting`. ERA adds no key to a state_dict, so a
file without arguments says it only where torch.save kept the state_dict's metadata.
"""

import argparse
import logging
import math
import os
import re
import sys
from typing import Any, Dict, NoReturn, Optional, Tuple

import torch
import torch.nn as nn

from timm.layers.era import (
    INVERSES,
    UNKNOWN,
    attach_era,
    calibrate_min_entropy,
    find_era,
    saved_setting,
)
from timm.utils.log import setup_default_logging

_logger = logging.getLogger("era")

SETTING = ("num_classes", "min_entropy", "tau", "inverse", "floor", "max_probability")


def add_arguments(parser: argparse.ArgumentParser, evaluation: bool = False) -> None:
    """The flags of train.py, or with `evaluation` those of the scripts that read a checkpoint."""
    add = parser.add_argument_group("Entropy Regularizing Activation (ERA)").add_argument
    minimum = "Switch ERA on with the paper's H0 in nats: 0.6 for CIFAR-10, 1.2 for ImageNet"
    add("--era-min-entropy", type=float, metavar="H0", help=minimum)
    floor = "Switch ERA on with the H0 whose true smallest entropy is F nats"
    add("--era-floor", type=float, metavar="F", help=floor)
    add("--era-tau", type=float, metavar="TAU", help="tau of ERA, at least e (default: 4)")
    inverse = "inverse of -q ln q: the paper's approximation, or exact (default: approx)"
    add("--era-inverse", choices=INVERSES, help=inverse)
    if evaluation:
        no_era = "Leave ERA off although the checkpoint was trained with it"
        add("--no-era", action="store_true", help=no_era)
    else:
        log = "Log the entropy of the predictions without ERA too"
        add("--log-entropy", action="store_true", help=log)


def setup(model: nn.Module, args: argparse.Namespace) -> None:
    """train.py: attach ERA as the flags say, log its guarantee, and set `args.era_setting`.

    Checkpoints have that; one given by --resume must have been trained with the same setting.
    """
    args.era_setting = _attach(model, args)
    saved = UNKNOWN
    if args.resume and os.path.isfile(args.resume):
        saved = _read(args.resume, "Resume from a checkpoint of train.py alone.")
    if saved != UNKNOWN and _as_flags(saved) != _as_flags(args.era_setting):
        _fail(
            f"--resume {args.resume} was trained with {_as_flags(saved)}, and this run has "
            f"{_as_flags(args.era_setting)}. Give the flags of the checkpoint, or start a new run "
            "from its weights with --initial-checkpoint."
        )


def restore(model: nn.Module, args: argparse.Namespace) -> None:
    """Scripts that read a checkpoint: attach ERA as in its training, unless flags override it."""
    if not logging.root.handlers:  # onnx_export.py
        setup_default_logging()
    saved = UNKNOWN
    if args.checkpoint:
        by_flags = args.no_era or args.era_min_entropy is not None or args.era_floor is not None
        saved = _read(
            args.checkpoint, "Say how it was trained: --era-min-entropy, --no-era.", by_flags
        )
    chosen = _attach(model, args, saved)
    if saved == UNKNOWN and args.checkpoint and chosen is None and not args.no_era:
        _logger.info(
            f"{args.checkpoint} holds no ERA setting, so the model is used without ERA. If it was "
            "trained with ERA, say so: --era-min-entropy, --era-tau, --era-inverse."
        )
    if saved != UNKNOWN and _as_flags(saved) != _as_flags(chosen):
        _logger.warning(
            f"{args.checkpoint} was trained with {_as_flags(saved)}, and is used with "
            f"{_as_flags(chosen)}."
        )


def topk(
    model: nn.Module, scores: torch.Tensor, logits: torch.Tensor, k: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """scores.topk(k), (batch, k) scores and indices; an ERA model is ranked by its raw logits.

    Its output may have ties that the raw logits do not have.
    """
    if find_era(model) is None:
        return scores.topk(k)
    indices = logits.topk(k).indices
    return scores.gather(-1, indices), indices


class EntropyMeter(nn.Module):
    """A loss function that also tracks the mean and the smallest entropy of the predictions.

    Args:
        loss_fn: called as loss_fn(output, target), output: logits (batch, n).
    """

    def __init__(self, loss_fn: nn.Module):
        super().__init__()
        self.loss_fn = loss_fn
        self.reset()

    def reset(self) -> None:
        self.total, self.count, self.smallest = 0.0, 0, math.inf

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            entropies = predictive_entropy(output)
            # Stays on the device, so that the backward pass need not wait for it.
            self.total = self.total + entropies.sum()
            self.count += entropies.numel()
            self.smallest = entropies.min().clamp(max=self.smallest)
        return self.loss_fn(output, target)

    def metrics(self) -> Dict[str, float]:
        """entropy_mean and entropy_min in nats, over all processes, since the last call."""
        # clone(): torch forbids changing inference-mode tensors in place outside of that mode.
        # fp32: MPS has no fp64.
        total, smallest = (
            torch.as_tensor(value, dtype=torch.float32).clone()
            for value in (self.total, self.smallest)
        )
        count = torch.full_like(total, self.count)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            torch.distributed.all_reduce(count)
            torch.distributed.all_reduce(smallest, op=torch.distributed.ReduceOp.MIN)
        # Gloo's thread drops these tensors a little later. Were it the last to hold them, it would
        # need the GIL, which a process that ends right after this call holds while it waits for
        # that thread, forever.
        self._reduced = total, count, smallest
        self.reset()
        return {"entropy_mean": (total / count).item(), "entropy_min": smallest.item()}

    def log(self) -> str:
        """The same for this process so far, for a progress line."""
        return f"  Entropy: {float(self.total) / self.count:.4f} (min {float(self.smallest):.4f})"


def predictive_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of softmax(logits): (..., n) -> (...), fp32."""
    log_probs = logits.float().log_softmax(dim=-1)
    log_probs = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 ln 0 = 0
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def meter(args: argparse.Namespace, *loss_fns: nn.Module) -> Tuple[nn.Module, ...]:
    """The loss functions, wrapped in EntropyMeters if entropies are to be logged."""
    return tuple(map(EntropyMeter, loss_fns)) if args.era_setting or args.log_entropy else loss_fns


def entropy_metrics(loss_fn: nn.Module) -> Dict[str, float]:
    """The metrics of an EntropyMeter, or nothing for another loss."""
    return loss_fn.metrics() if isinstance(loss_fn, EntropyMeter) else {}


def entropy_log(loss_fn: nn.Module) -> str:
    """What to append to a line of the log: the entropies, or nothing for another loss."""
    return loss_fn.log() if isinstance(loss_fn, EntropyMeter) else ""


def _read(path: str, advice: str, optional: bool = False) -> Optional[Dict[str, Any]]:
    """saved_setting(path); where that cannot be read, UNKNOWN if it is optional, else the end."""
    try:
        return saved_setting(path)
    except ValueError as error:
        return UNKNOWN if optional else _fail(f"{error} {advice}")


def _attach(
    model: nn.Module, args: argparse.Namespace, saved: Optional[Dict[str, Any]] = None
) -> Optional[Dict[str, Any]]:
    """Attach ERA as the flags say, or else as it was saved. Returns the model's setting or None.

    With neither, the model may still have the setting that create_model attached.
    """
    setting = _chosen_setting(args, saved)
    try:
        if setting is not None:
            if not hasattr(model, "num_classes"):  # timm's TestTimePoolHead
                model.num_classes = args.num_classes
            floor = setting.pop("floor", None)
            if floor is not None:
                setting["min_entropy"] = calibrate_min_entropy(floor, model.num_classes, **setting)
            attach_era(model, **setting)
    except (TypeError, ValueError) as error:
        _fail(str(error))

    era = find_era(model)
    if era is None:
        return None
    _check_other_flags(args)
    if getattr(args, "rank", 0) == 0:
        _logger.info(
            f"ERA with H0 = {era.min_entropy:g} nats, tau {era.tau:g}, {era.inverse} inverse, "
            f"{era.num_classes} classes: no prediction has less entropy than {era.floor:.4f} nats "
            f"(floor) or a probability above {era.max_probability:.4f}."
        )
    return {name: getattr(era, name) for name in SETTING}


def _chosen_setting(
    args: argparse.Namespace, saved: Optional[Dict[str, Any]]
) -> Optional[Dict[str, Any]]:
    """attach_era's arguments, with `floor` or `min_entropy` for H0; None to attach nothing.

    Exits where flags contradict each other, or would do nothing.
    """
    alike = {name for name in vars(args) if "era" in re.split(r"[^a-z0-9]", name.lower())}
    if wrong := alike - {"era_min_entropy", "era_floor", "era_tau", "era_inverse", "no_era"}:
        # timm ignores what its --config sets and no flag is called.
        _fail(f"--config sets {', '.join(sorted(wrong))}, which no flag of ERA is called")

    flags = {
        "min_entropy": args.era_min_entropy,
        "floor": args.era_floor,
        "tau": args.era_tau,
        "inverse": args.era_inverse,
    }
    flags = {name: value for name, value in flags.items() if value is not None}
    by_flags = "min_entropy" in flags or "floor" in flags
    no_era = getattr(args, "no_era", False)
    if "min_entropy" in flags and "floor" in flags:
        _fail("--era-min-entropy and --era-floor both set H0: give one of them (a --config counts)")
    if flags and not by_flags:
        names = " and ".join(f"--era-{name}" for name in flags)
        _fail(f"{names} without --era-min-entropy or --era-floor, which switch ERA on")
    if no_era and by_flags:
        _fail("--no-era contradicts --era-min-entropy and --era-floor")

    if by_flags:
        return flags
    if saved and not no_era:
        return {name: saved[name] for name in ("min_entropy", "tau", "inverse")}
    return None


def _check_other_flags(args: argparse.Namespace) -> None:
    """Exits where a flag would silently give something else than ERA."""
    if getattr(args, "no_era", False):
        _fail("--no-era leaves off a checkpoint's ERA; here it is in the configuration of --model")
    if getattr(args, "bce_loss", False):
        _fail(
            "ERA does not work with --bce-loss: its logits are defined only up to a constant per "
            "sample, which a softmax removes and the sigmoids of binary cross-entropy do not"
        )
    if getattr(args, "kd_model_name", None) is not None:
        _fail(
            "ERA does not work with --kd-model-name: logit distillation draws ERA's bounded "
            "logits to those of a teacher without a floor, feature distillation calls the model's "
            "parts and so goes past the activation, and token distillation needs two outputs"
        )


def _as_flags(setting: Optional[Dict[str, Any]]) -> str:
    """The setting as flags, rounded: the H0 of one --era-floor may differ in its last digits."""
    if not setting:
        return "no ERA flag"
    flags = "--era-min-entropy {min_entropy:.9g} --era-tau {tau:.9g} --era-inverse {inverse}"
    return flags.format(**setting)


def _fail(message: str) -> NoReturn:
    print(f"{os.path.basename(sys.argv[0])}: error: {message}", file=sys.stderr)
    sys.exit(2)
