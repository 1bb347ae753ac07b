# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Name what an LLM run lacks before it starts, and write its run.json.

    python -m MODULE [--record ENTRY] [--added N] CONFIG_DIR -- OVERRIDES

MODULE is recipe.era.preflight in a patched checkout of verl 0.4.1, and recipes.llm.preflight for verl 0.9. OVERRIDES
are the run's. It checks for what verl would silently train with, or would stop at after hours or only on the cluster,
and for what most first runs lack; verl reports the rest itself when it starts. Exit code 0: nothing is missing.
3: the run has reached its last step. 1: something is missing.

Where verl cannot be imported, packages, GPUs, and whether model and data are there, are checked by the standard library
alone.
Beside this file, preflight_settings.py and preflight_names.py look at the configuration, preflight_model.py,
preflight_data.py and preflight_checkpoint.py at folders and files.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from . import check_gpu_environment
from .preflight_checkpoint import checkpoint_problems, reached_step
from .preflight_data import VARIABLES, data_problems, missing_file
from .preflight_model import model_problems
from .preflight_settings import IS_PATCHED_CHECKOUT, longest_sequence, setting_problems, uses_critic

if IS_PATCHED_CHECKOUT:
    from recipe.era import run_json
else:
    from recipes import run_json

FINISHED = 3  # the exit code

PACKAGES = ("verl", "torch", "vllm", "ray", "transformers", "flash-attn", "tensordict", "numpy")  # that every run uses
# Overrides that change nothing in what is trained, as read in verl v0.4.1.
HARMLESS = (
    *("data.seed", "trainer.project_name", "trainer.experiment_name", "trainer.logger"),
    *("trainer.save_freq", "trainer.test_freq", "trainer.val_before_train", "trainer.default_local_dir"),
    *("trainer.max_actor_ckpt_to_keep", "trainer.rollout_data_dir", "trainer.validation_data_dir"),
    *("trainer.log_val_generations", "trainer.resume_mode", "trainer.ray_wait_register_center_timeout"),
    *("ray_init.num_cpus", "data.filter_overlong_prompts_workers", "data.dataloader_num_workers", "data.use_shm"),
    *(
        f"actor_rollout_ref.{name}"
        for name in (
            # vllm_rollout_spmd.py: how much vLLM generates at a time, and on how many GPUs a copy of the model is.
            *("rollout.gpu_memory_utilization", "rollout.max_num_batched_tokens", "rollout.max_num_seqs"),
            *("rollout.tensor_model_parallel_size", "rollout.enable_chunked_prefill", "rollout.enforce_eager"),
            *("rollout.free_cache_engine", "rollout.disable_log_stats", "rollout.engine_kwargs.vllm.swap_space"),
            # fsdp_workers.py: where weights, moments and activations are while they are not needed.
            *(
                "actor.fsdp_config.param_offload",
                "actor.fsdp_config.optimizer_offload",
                "ref.fsdp_config.param_offload",
            ),
            *("actor.fsdp_config.forward_prefetch", "ref.fsdp_config.forward_prefetch", "model.use_shm"),
            *("model.enable_gradient_checkpointing", "model.enable_activation_offload"),
            # dp_actor.py, compute_log_prob: the log-prob and entropy of a token is the same in any micro-batch. Not so
            # the loss, an average over the tokens of each micro-batch: ppo_max_token_len_per_gpu, use_dynamic_bsz,
            # ulysses_sequence_parallel_size and balance_batch, which say what is in one, are not here.
            *("rollout.log_prob_max_token_len_per_gpu", "ref.log_prob_max_token_len_per_gpu"),
            *("rollout.log_prob_micro_batch_size_per_gpu", "ref.log_prob_micro_batch_size_per_gpu"),
            *("rollout.log_prob_use_dynamic_bsz", "ref.log_prob_use_dynamic_bsz"),
            *("actor.entropy_from_logits_with_chunking", "actor.ppo_micro_batch_size_per_gpu"),  # the latter is unused
        )
    ),
)


def verl_check() -> Callable:
    """verl's own validation of a whole configuration, and ERA's; it raises ValueError or AssertionError.

    verl comes to it once its cluster is up and the data is read.
    """
    if IS_PATCHED_CHECKOUT:
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer

        def validate(config, **uses) -> None:  # the trainer's method calls ERA's check
            RayPPOTrainer._validate_config(SimpleNamespace(config=config, **uses))
    else:
        from era.verl import launch  # also registers the configuration that the recipe's is built on

        def validate(config, **uses) -> None:
            launch.prepare(config)
            launch.validate_config(config, **uses)

    def check(config) -> None:
        has_reference = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
        with contextlib.redirect_stdout(io.StringIO()):
            validate(config, use_critic=uses_critic(config), use_reference_policy=has_reference)

    return check


def problems(config) -> Iterator[str]:
    """What a run with this configuration, an OmegaConf of all of verl's settings, lacks."""
    from transformers import AutoTokenizer

    from . import preflight_names as names

    yield from package_problems(config)
    yield from names.name_problems(config)
    yield from names.logger_problems(config)
    yield from setting_problems(config)
    yield from gpu_problems(config.trainer.nnodes, config.trainer.n_gpus_per_node)
    path, tokenizer = config.actor_rollout_ref.model.path, None
    override = config.actor_rollout_ref.model.get("override_config", {}).get("max_position_embeddings")
    if "://" not in path:  # verl copies hdfs://... on the cluster
        yield from model_problems(Path(path), longest_sequence(config), override)  # verl does not expand a ~
    if os.path.isfile(f"{path}/config.json"):
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except Exception as error:  # each kind of tokenizer fails in its own way where a file is missing
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            yield (
                f"model: the tokenizer of {path} cannot be loaded: {said}. Its files (tokenizer.json, "
                "tokenizer_config.json) belong beside config.json; download the model again."
            )
    yield from data_problems(config, tokenizer)
    yield from checkpoint_problems(config)
    yield from names.folder_problems(config)


def package_problems(config) -> Iterator[str]:
    """What the environment lacks for a run on GPUs; verl would say so only on the cluster."""
    unused = set()
    if config.actor_rollout_ref.rollout.name != "vllm":
        unused.add("vllm")
    if "tensorboard" not in config.trainer.logger:
        unused.add("tensorboard")
    override = config.actor_rollout_ref.model.get("override_config", {})
    # verl 0.4.1 takes the first name, verl 0.9 the second; both load flash-attn where neither is given.
    attention = override.get("_attn_implementation") or override.get("attn_implementation") or "flash_attention_2"
    if not attention.startswith("flash_attention"):
        unused.add("flash-attn")
    yield from environment_problems("verl" if IS_PATCHED_CHECKOUT else "verl-0.9", unused)


def environment_problems(framework: str, unused: Collection[str] = ()) -> Iterator[str]:
    if lacks := check_gpu_environment.problems(framework, unused):
        yield (
            f"packages: {sys.executable}: {'; '.join(lacks)}. Set PYTHON to that of the environment that trains; "
            f"`make .venv/{framework}-gpu/installed` makes one."
        )


def gpu_problems(nodes: int, wanted: int) -> Iterator[str]:
    """What is wrong with this machine's GPUs, and with their number if the run starts Ray by itself."""
    if find_spec("torch"):
        import torch

        gpus = torch.cuda.device_count()
        if os.environ.get("RAY_ADDRESS") != "none":  # which a login node has, whose GPUs do not count
            yield from (f"GPUs: {lacks}" for lacks in check_gpu_environment.unsupported_gpus())
    else:
        gpus = len(run_json.gpus())
    if "RAY_ADDRESS" not in os.environ and (nodes > 1 or gpus < wanted):
        yield (
            f"GPUs: the run wants {nodes} x {wanted} (NNODES x GPUS_PER_NODE), this machine has {gpus}. On several "
            "nodes start Ray and set RAY_ADDRESS=auto, or submit slurm_ray.sbatch."
        )


def problems_without_verl(framework: str) -> Iterator[str]:
    """What can be said where verl's configuration cannot be composed: by the variables that launch.sh gives."""
    yield from environment_problems(framework)
    given = [os.environ.get(name) for name in ("NNODES", "GPUS_PER_NODE", "MODEL_PATH", *VARIABLES.values())]
    if None in given:  # not started by launch.sh
        return
    nodes, gpus, model, *files = given
    yield from gpu_problems(int(nodes), int(gpus))
    yield from model_problems(Path(model), longest=0)
    for key, file in zip(VARIABLES, files):
        yield from missing_file(key, Path(file))


def write_record(config, overrides: list[str], entry: str, added: int) -> None:
    """Write run.json of a run that starts now, in the folder of its checkpoints.

    Args:
        entry: what the run counts for in `make report`.
        added: how many of the overrides, the last ones, are the user's.
    """
    users = overrides[len(overrides) - added :]
    folder = Path(config.trainer.default_local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    record = run_json.begin(
        "verl",
        task=Path(config.actor_rollout_ref.model.path).name,
        seed=config.data.get("seed"),
        total_steps=config.trainer.total_training_steps,
        packages=PACKAGES,
        agent=config.trainer.experiment_name,
        entry=entry,
        command=overrides,
        added=users,
        as_paper=IS_PATCHED_CHECKOUT and run_json.is_as_paper(users, HARMLESS),
        **run_json.code(Path.cwd()),
    )
    run_json.start(folder, record)


def compose(config_dir: str, overrides: list[str]):
    import hydra

    with hydra.initialize_config_dir(os.path.abspath(config_dir), version_base=None):
        return hydra.compose("era_math", overrides)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config_dir", help="the folder of era_math.yaml")
    parser.add_argument("overrides", nargs="*", help="hydra overrides of the run")
    record = "write run.json, with this name of what the run counts for, if nothing is missing"
    parser.add_argument("--record", metavar="ENTRY", help=record)
    added = "how many of the overrides, the last ones, the user has added to the recipe's"
    parser.add_argument("--added", type=int, default=0, metavar="N", help=added)
    missing = "the folder in which verl 0.4.1's checkout will be; all but its own settings is checked"
    parser.add_argument("--without-checkout", metavar="FOLDER", help=missing)
    args = parser.parse_args(arguments)
    lacks, config = [], None
    try:
        if args.without_checkout:
            lacks.append(f"checkout: no {args.without_checkout}. Run `make apply`, then this check again.")
            lacks.extend(problems_without_verl("verl"))
        elif IS_PATCHED_CHECKOUT and not find_spec("recipe.dapo"):
            lacks.append(
                f"checkout: {Path.cwd()} was made from verl's source package, which lacks recipe/dapo, the trainer of "
                "the paper's runs. Move it away and run: python3 apply.py apply verl --source git"
            )
            lacks.extend(problems_without_verl("verl"))
        else:
            config = checked_config(args.config_dir, args.overrides, lacks)
        if config is not None and (step := reached_step(config)) is not None:
            folder, last = config.trainer.default_local_dir, config.trainer.total_training_steps
            print(f"{folder} has reached step {step} of {last}: nothing is left to train. TOTAL_STEPS=... trains on.")
            return FINISHED
        if args.record and not lacks:
            write_record(config, args.overrides, args.record, args.added)
    except (ValueError, OSError, TypeError) as error:
        lacks.append(f"settings: {error}")
    if lacks:
        print("This run cannot start:", *lacks, sep="\n  - ", file=sys.stderr)
    return int(bool(lacks))


def checked_config(config_dir: str, overrides: list[str], lacks: list[str]):
    """The run's whole configuration, None if there is none; what it lacks is appended to `lacks`."""
    try:
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        from .preflight_names import type_problems

        check = verl_check()
    except ImportError as error:
        lacks.extend(problems_without_verl("verl" if IS_PATCHED_CHECKOUT else "verl-0.9"))
        if not any(problem.startswith("packages: ") for problem in lacks):
            lacks.append(f"packages: {sys.executable}: {error}. Set PYTHON to that of the environment that trains.")
        return None
    config = None
    try:
        config = compose(config_dir, overrides)
        lacks.extend(type_problems(config, compose(config_dir, [])))
        lacks.extend(problems(config))
        check(config.copy())
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        lacks.append(f"settings: {error}")
    except (AttributeError, TypeError, ArithmeticError) as error:
        lacks.append(f"settings: one of them has another type or is missing: {error}. Look at ARGS and NNODES.")
    return config


if __name__ == "__main__":
    sys.exit(main())
