# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA in the classifiers of an installed timm, 1.0.20 to 1.0.31, without a patch:

    model = era.timm.create_model("resnet50", num_classes=10, era_min_entropy=0.6)

or `era.timm.attach(model, min_entropy=0.6)`. The activation and its rules are era.discrete's.
"""

import inspect
import warnings
from typing import Any, Dict, Tuple

import torch.nn as nn

from era.discrete import SETTING, carry_era, pop_era_kwargs, saved_setting
from era.discrete import attach_era as attach
from era.versions import Releases

INSTALL = "pip install 'timm>=1.0.20,<1.0.32'"
RELEASES = Releases("era.timm", "timm", "1.0.20", "1.0.31", INSTALL)  # `make test-timm` runs these

try:
    import timm
except ModuleNotFoundError as error:
    if error.name != "timm":
        raise
    raise ImportError(f"era.timm is for timm, which is not installed. {INSTALL}") from None

__all__ = ["apply_test_time_pool", "attach", "create_model"]


def check_version(installed: str) -> None:
    """Raises ImportError for a timm older than those of RELEASES, warns of a newer one."""
    if too_old := RELEASES.too_old(installed):
        raise ImportError(too_old)
    if untested := RELEASES.untested(installed):
        warnings.warn(untested, stacklevel=2)


check_version(timm.__version__)


def create_model(model_name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Make a model as timm.create_model does, with ERA.

    Args:
        model_name: as timm's, `local-dir:` and `hf-hub:` included. A model with ERA that timm's
            save_for_hf or push_to_hf_hub saved has ERA again, with the same setting.
        pretrained, kwargs: as timm's, with these keywords in addition. A checkpoint_path that says
            that its model had ERA (`era.discrete.saved_setting`) gives it again too.
        era_min_entropy: the paper's H0 in nats, which switches ERA on; see era.discrete.
        era_tau, era_inverse: ERA's other settings.

    Returns:
        The model; without any of these keywords, and without a saved setting, timm's own, with a
        warning that era_min_entropy=None leaves out.

    Raises:
        ValueError: ERA's setting is not feasible for the number of classes; or the file at
            checkpoint_path does not say without running code from it whether its model had ERA.
        TypeError: ERA was asked for, and what timm made is not a classifier (features_only=True).
    """
    without_era = "era_min_entropy" in kwargs  # None here; with a value there is ERA
    kwargs = {name: value for name, value in kwargs.items() if value is not None}  # as timm does
    source, name = timm.models.parse_model_name(model_name)
    if source:
        if "pretrained_cfg" in kwargs:
            raise ValueError(f"create_model: {model_name} has a pretrained_cfg of its own")
        model_name, saved = _load_config(source, name, kwargs.get("cache_dir"))
        kwargs = {**saved, **kwargs}
    era, pretrained_cfg = pop_era_kwargs(kwargs, kwargs.pop("pretrained_cfg", None))
    model = timm.create_model(model_name, pretrained, pretrained_cfg, **kwargs)
    if not era and kwargs.get("checkpoint_path"):
        saved = saved_setting(kwargs["checkpoint_path"]) or {}
        era = {name: saved[name] for name in SETTING if name in saved}
    if era:
        return attach(model, **era)
    if not without_era and getattr(model, "num_classes", False):
        warnings.warn(
            f"era.timm.create_model made {model_name} without ERA: no era_min_entropy was given, "
            "and nothing that was loaded has one. era_min_entropy=None says that this is meant.",
            stacklevel=2,
        )
    return model


def apply_test_time_pool(
    model: nn.Module, config: Dict[str, Any], use_test_size: bool = False
) -> Tuple[nn.Module, bool]:
    """Do what timm.layers.apply_test_time_pool does, and let the model that it builds keep ERA."""
    made, applied = timm.layers.apply_test_time_pool(model, config, use_test_size)
    return carry_era(model, made) if applied else made, applied


def _load_config(source: str, name: str, cache_dir: Any) -> Tuple[str, Dict[str, Any]]:
    """The architecture and create_model's arguments of a saved model.

    timm.create_model reads them too, but refuses ERA's keys in pretrained_cfg.
    """
    hub = timm.models._hub
    if source == "hf-hub":
        config, architecture, model_args = hub.load_model_config_from_hf(name, cache_dir=cache_dir)
    else:
        config, architecture, model_args = hub.load_model_config_from_path(name)
    arguments = {**model_args, "pretrained_cfg": config}
    # After 1.0.28, timm tells a model the arguments of the model that its weights come from.
    known = inspect.signature(timm.models.build_model_with_cfg).parameters
    if model_args and "pretrained_model_args" in known:
        arguments["pretrained_model_args"] = dict(model_args)
    return architecture, arguments
