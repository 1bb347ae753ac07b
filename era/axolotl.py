# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA as a plug-in of Axolotl's GRPO; docs/llm/axolotl.md shows the YAML that switches it on.

Axolotl's GRPO trainer is derived from TRL's and leaves its loss alone, so era.trl does the work.
Here are the plug-in's fields, the check of the user's file, and the choice of the trainer.

Axolotl 0.21 loads the plug-in in every training, by the entry point in pyproject.toml, so that
era_enable is not ignored where a file does not list it. A file without ERA is left alone, and
era.trl, with its check of TRL's release, is only imported for one with ERA.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

import pydantic
from axolotl.integrations.base import BasePlugin

from era.language_config import EraConfig, Refusal, announce, misplaced, refuse

_PLUGIN, _TRAINER = "era.axolotl.EraPlugin", "era.axolotl.EraAxolotlGRPOTrainer"
_TYPES = {f"era_{field.name}": field.type for field in dataclasses.fields(EraConfig)}

REFUSED = {
    "rl": Refusal("`rl` other than grpo or gdpo", "ERA is for GRPO", "Set it to grpo or gdpo"),
    "context parallelism": Refusal(
        "`context_parallel_size` above 1",
        "it splits an answer, whose tokens ERA compares",
        "Set it to 1",
    ),
    **{
        name: Refusal(
            f"`trl.{name}`",
            "it takes a trainer of Axolotl's in which ERA was not tried",
            "Leave it out",
        )
        for name in ("async_prefetch", "use_data_producer")
    },
}

# What Axolotl keeps of a YAML file: it drops every other key without a word.
EraArgs = pydantic.create_model(
    "EraArgs", **{name: (Optional[type_], None) for name, type_ in _TYPES.items()}
)


def __getattr__(name: str) -> type:
    # Not at import: Axolotl's trainers fix the fields of their arguments when they are imported,
    # and would do so before Axolotl knows this plug-in.
    if name != "EraAxolotlGRPOTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

    from era.trl import EraGRPOConfig, EraMixin

    class EraAxolotlGRPOTrainer(EraMixin, AxolotlGRPOTrainer):
        """Axolotl's GRPO trainer with ERA."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if not isinstance(kwargs.get("args"), EraGRPOConfig):
                raise TypeError(
                    f"trainer_cls names {_TRAINER}, but Axolotl has not loaded {_PLUGIN}, without "
                    "which it drops ERA's fields. Add it to the list plugins; if it is there, see "
                    "above why it could not be imported. Nothing was trained."
                )
            super().__init__(*args, **kwargs)

    globals()[name] = EraAxolotlGRPOTrainer
    return EraAxolotlGRPOTrainer


def _ranks(cfg: Mapping[str, Any]) -> Iterator[str]:
    """How the file asks for context parallelism, for which Axolotl has three settings."""
    block = cfg.get("context_parallel")
    sizes = {name: cfg.get(name) for name in ("context_parallel_size", "sequence_parallel_degree")}
    sizes["context_parallel.size"] = block.get("size") if isinstance(block, Mapping) else None
    return (f"{name}={size}" for name, size in sizes.items() if size and size > 1)


def _config_of(cfg: Mapping[str, Any]) -> EraConfig:
    """ERA's configuration, of its keys that are there; ValueError for what EraConfig excludes."""
    values = {name: cfg[name] for name in _TYPES if name in cfg}
    numbers = [name for name, type_ in _TYPES.items() if type_ is not bool]
    if wrong := [name for name in numbers if isinstance(values.get(name), bool)]:
        raise ValueError(f"{', '.join(wrong)}: expected a number.")  # pydantic takes true for 1
    parsed = EraArgs(**values).model_dump(exclude_unset=True)
    fields = {name.removeprefix("era_"): value for name, value in parsed.items()}
    return EraConfig(**fields, prefix="era_")


class EraPlugin(BasePlugin):
    """The plug-in that a YAML file of Axolotl's lists in `plugins`, with EraGRPOConfig's fields."""

    _in_use = False  # whether the file asks for ERA, or for era_enable: false

    def register(self, cfg: dict) -> None:
        """Check the file as the user wrote it, and choose the trainer with ERA.

        Nothing happens where neither `plugins`, `trainer_cls` nor any key is ERA's or looks so.

        Raises:
            ValueError: all of what would train without ERA, or with something else.
        """
        listed = [str(name).replace(":", ".") for name in cfg.get("plugins") or []]
        asked = (
            _PLUGIN in listed
            or cfg.get("trainer_cls") == _TRAINER
            or any(name in cfg for name in _TYPES)
        )

        # Keys and options that Axolotl would drop. Without the prefix a field's name (`low`) counts
        # at the top of a file that asks for ERA.
        fields = f"ERA's fields are, in no group, {', '.join(_TYPES)}"
        keys = misplaced(cfg, _TYPES, ("",) if asked else ())
        problems = [f"{key} would be ignored; {fields}." for key in keys]
        if Path(sys.argv[0]).name == "axolotl":  # its python launcher forgets unknown options
            options = [option for option in sys.argv if option.startswith("--era")]
            problems += [f"{option}: set it in the file." for option in options]
        self._in_use = bool(asked or problems)
        if not self._in_use:
            return

        if listed.count(_PLUGIN) > 1:
            problems.append(f"plugins names {_PLUGIN} more than once.")
        if "era_enable" not in cfg:
            problems.append("era_enable is missing: set it to true, or to false for no ERA.")
        enable = bool(cfg.get("era_enable"))
        try:
            era = _config_of(cfg)
            enable = era.enable
            problems += era.problems_without_enable("era_")
        except ValueError as error:
            problems.append(str(error))

        trl = cfg.get("trl") or {}
        present = {
            "rl": cfg.get("rl") not in ("grpo", "gdpo") and f"rl={cfg.get('rl')}",
            "context parallelism": next(_ranks(cfg), None),
            "async_prefetch": trl.get("async_prefetch"),
            "use_data_producer": trl.get("use_data_producer"),
        }
        refuse(REFUSED, present if enable else {}, "era_enable=True", problems)
        if enable:
            cfg["trainer_cls"] = cfg.get("trainer_cls") or _TRAINER

    def get_input_args(self) -> Optional[str]:
        return "era.axolotl.EraArgs" if self._in_use else None

    def get_training_args_mixin(self) -> Optional[str]:
        return "era.trl.EraGRPOConfig" if self._in_use else None

    def get_training_args(self, cfg: Mapping[str, Any]) -> Optional[dict[str, Any]]:
        given = {name: cfg[name] for name in _TYPES if cfg[name] is not None}
        return given if self._in_use else None

    def post_trainer_create(self, cfg: Mapping[str, Any], trainer: Any) -> None:
        if self._in_use:
            from era.trl import EraMixin

            # A trainer with EraMixin has said it itself.
            if not isinstance(trainer, EraMixin) and trainer.is_world_process_zero():
                announce(_config_of(self.get_training_args(cfg) or {}))
