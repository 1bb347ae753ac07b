# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Values of a run that verl looks up or opens late: texts in place of numbers, names, loggers and folders.

Names are given to verl's own functions wherever it has one to ask.
"""

import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from .preflight_settings import ACTOR, IS_PATCHED_CHECKOUT, ROLLOUT, listed, uses_critic

# What verl v0.4.1 compares in the middle of a function: recipe/dapo/main_dapo.py, workers/fsdp_workers.py.
CHOICES = {
    f"{ACTOR}.strategy": ("fsdp", "megatron"),
    f"{ACTOR}.optim.warmup_style": ("constant", "cosine"),
    f"{ROLLOUT}.name": ("vllm", "sglang", "sglang_async", "hf"),
}
RESUME_MODES = ("auto", "disable", "resume_path")
COUNTS = (
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", f"{ACTOR}.ppo_mini_batch_size"),
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length", f"{ROLLOUT}.n"),
)
NUMBERS = ("trainer.save_freq", "trainer.test_freq", f"{ROLLOUT}.temperature", f"{ROLLOUT}.top_p")
LOGGER_PACKAGES = ("wandb", "mlflow", "swanlab", "clearml", "trackio")  # tensorboard is among the environment's


def type_problems(config, recipe) -> Iterator[str]:
    """Texts where the recipe has a number, or true or false, and null or 0 where verl counts with a number.

    A text counts as true, and as a number it fails late. In `config` they become the recipe's values, with which the
    rest of it can be looked at.
    """
    for key, value in leaves(recipe):
        given = OmegaConf.select(config, key)
        if isinstance(value, (bool, int, float)) and isinstance(given, str):
            yield f"settings: {key} is {given!r}, not {'true or false' if isinstance(value, bool) else 'a number'}."
            OmegaConf.update(config, key, value)
    for key in (*COUNTS, *NUMBERS):
        given = OmegaConf.select(config, key)
        if given is None or (key in COUNTS and not (isinstance(given, int) and given >= 1)):
            kind = "a whole number of at least 1" if key in COUNTS else "a number"
            yield f"settings: {key} is {'null' if given is None else given}, not {kind}."
            OmegaConf.update(config, key, OmegaConf.select(recipe, key))


def leaves(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in OmegaConf.to_container(config).items() if isinstance(config, DictConfig) else config.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def name_problems(config) -> Iterator[str]:
    """Names that verl does not know: most of them it would look up after the first generation."""
    import torch
    from verl.trainer.ppo import core_algos
    from verl.utils.tracking import Tracking

    if IS_PATCHED_CHECKOUT:
        import verl.trainer.ppo.gspo  # noqa: F401 - registers itself

    one, actor = torch.ones(1, 1), config.actor_rollout_ref.actor
    asked = {
        f"{ACTOR}.policy_loss.loss_mode": lambda name: name == "vanilla" or core_algos.get_policy_loss_fn(name),
        "algorithm.adv_estimator": core_algos.get_adv_estimator_fn,
    }
    if actor.use_kl_loss:
        asked[f"{ACTOR}.kl_loss_type"] = lambda name: core_algos.kl_penalty(one, one, name)
    if config.algorithm.use_kl_in_reward:
        asked["algorithm.kl_penalty"] = lambda name: core_algos.kl_penalty(one, one, name)
    for key, ask in asked.items():
        name = OmegaConf.select(config, key)
        try:
            ask(name)
        except (ValueError, NotImplementedError) as error:
            yield f"names: {key}={name}: {str(error) or 'verl has none of this name'}."
    known = {"trainer.resume_mode": RESUME_MODES, **(CHOICES if IS_PATCHED_CHECKOUT else engines())}
    for key, names in known.items():
        if (name := OmegaConf.select(config, key)) not in names:
            yield f"names: {key}={name} is none of {', '.join(names)}."
    for name in listed(config.trainer.logger):
        if name not in (*Tracking.supported_backend, "tracking"):
            yield f"names: trainer.logger has {name}; verl has {', '.join(Tracking.supported_backend)}."
    critic = Path(str(config.critic.model.path)) / "config.json"
    if uses_critic(config) and not critic.is_file():
        yield f"model: the run trains a critic (algorithm.adv_estimator), and critic.model.path has no {critic}."


def engines() -> dict[str, tuple[str, ...]]:
    """The engines of verl 0.9's rollouts, with those of modules in VERL_USE_EXTERNAL_MODULES."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    return {f"{ROLLOUT}.name": tuple(RolloutReplicaRegistry._registry)}


def logger_problems(config) -> Iterator[str]:
    """Loggers that lack their package or, as Weights & Biases, a key; verl makes them once the weights are loaded."""
    for name in (name for name in listed(config.trainer.logger) if name in LOGGER_PACKAGES):
        if not find_spec(name):
            yield f"packages: no {name}, which trainer.logger (LOGGER) asks for."
    if "wandb" in listed(config.trainer.logger) and find_spec("wandb"):
        import wandb

        mode = os.environ.get("WANDB_MODE") or wandb.api.settings().get("mode")  # as `wandb offline` sets it
        if mode in (None, "online") and not wandb.api.api_key:
            yield "logger: wandb has no key. Call `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline."


def folder_problems(config) -> Iterator[str]:
    """Folders and files that the run cannot write."""
    trainer, folders = config.trainer, {"CKPTS_DIR": config.trainer.default_local_dir}
    folders |= {f"trainer.{key}": trainer.get(key) for key in ("rollout_data_dir", "validation_data_dir")}
    if "tensorboard" in listed(config.trainer.logger):
        folders["TENSORBOARD_DIR"] = os.environ.get("TENSORBOARD_DIR")
    file = Path(os.environ.get("VERL_FILE_LOGGER_PATH") or "")
    if "file" in listed(config.trainer.logger) and file.name:
        folders["VERL_FILE_LOGGER_PATH"] = file.parent
        if file.exists() and not (file.is_file() and os.access(file, os.W_OK)):
            yield f"folders: VERL_FILE_LOGGER_PATH={file} is not a file that this user can write."
    for name, folder in folders.items():
        if folder and (error := why_not_writable(Path(folder).expanduser())):
            yield f"folders: {name}={folder} cannot be written: {error}."


def why_not_writable(folder: Path) -> str:
    """Why no file can be made in a folder, or in the first one above it that is there; empty if one can."""
    try:
        with tempfile.TemporaryFile(dir=next(place for place in (folder, *folder.parents) if place.exists())):
            return ""
    except OSError as error:
        return str(error)
