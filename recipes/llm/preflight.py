# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Name what an LLM run lacks before it starts, and write its run.json.

    python -m MODULE [--record] [--added N] CONFIG_DIR -- OVERRIDES

MODULE is recipe.era.preflight in a patched checkout of verl 0.4.1, and recipes.llm.preflight for verl 0.9. OVERRIDES
are the run's. It checks for what verl would silently train with or stop at after hours, and for what most first runs
lack; verl reports the rest itself when it starts. Exit code 0: nothing is missing.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if __package__ == "recipe.era":
    from recipe.era import run_json
else:
    from recipes import run_json

TRACKER = "latest_checkpointed_iteration.txt"

# What every run uses, and overrides that change nothing in what is trained.
PACKAGES = ("verl", "torch", "vllm", "ray", "transformers", "flash-attn", "tensordict", "numpy")
HARMLESS = (
    *("data.seed", "trainer.project_name", "trainer.experiment_name", "trainer.logger"),
    *("trainer.save_freq", "trainer.test_freq", "trainer.val_before_train", "trainer.default_local_dir"),
    *("trainer.max_actor_ckpt_to_keep", "trainer.rollout_data_dir", "trainer.validation_data_dir"),
)


def era_check() -> Callable:
    """The function that validates ERA's settings in a whole configuration, with a ValueError."""
    if __package__ == "recipe.era":
        from verl.utils import era_config

        return era_config.check_trainer_config
    from era.verl import launch  # also registers the configuration that the recipe's is built on

    return launch.prepare


def problems(config) -> Iterator[str]:
    """What a run with this configuration, an OmegaConf of all of verl's settings, lacks."""
    yield from batch_problems(config)
    yield from length_problems(config)
    yield from gpu_problems(config)
    yield from file_problems(config)
    yield from checkpoint_problems(config)


def ranks(config) -> tuple[int, int]:
    """GPUs that share a sequence, and data-parallel ranks."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy == "megatron":
        shared = actor.megatron.context_parallel_size
        group = shared * actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
    else:  # verl 0.9 has the size in fsdp_config
        shared = actor.fsdp_config.get("ulysses_sequence_parallel_size") or actor.ulysses_sequence_parallel_size
        group = shared
    return shared, max(1, config.trainer.nnodes * config.trainer.n_gpus_per_node // group)


def batch_problems(config) -> Iterator[str]:
    """verl would train the rest of a batch as a smaller mini-batch, and round mini-batches down."""
    # The filter of recipe/dapo cuts what was generated to train_batch_size; without the filter all is trained on.
    filtered = config.algorithm.filter_groups.enable or not config.data.get("gen_batch_size")
    key = "train_batch_size" if filtered else "gen_batch_size"
    prompts, mini = config.data[key], config.actor_rollout_ref.actor.ppo_mini_batch_size
    responses, data_parallel = mini * config.actor_rollout_ref.rollout.n, ranks(config)[1]
    if prompts % mini:
        yield f"batch: data.{key}={prompts} prompts do not divide into mini-batches of ppo_mini_batch_size={mini}."
    if responses % data_parallel:
        yield (
            f"batch: the {responses} responses of a mini-batch (ppo_mini_batch_size={mini} x rollout.n) do not divide "
            f"among {data_parallel} data-parallel ranks."
        )


def length_problems(config) -> Iterator[str]:
    """verl packs micro-batches up to a number of tokens, and stops at the first response that is longer."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {
        "actor.ppo_max_token_len_per_gpu": actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu,
        "rollout.log_prob_max_token_len_per_gpu": rollout.log_prob_use_dynamic_bsz
        and rollout.log_prob_max_token_len_per_gpu,
    }
    longest, shared = config.data.max_prompt_length + config.data.max_response_length, ranks(config)[0]
    for key, tokens in budgets.items():
        if tokens and tokens * shared < longest:
            yield (
                f"lengths: max_prompt_length + max_response_length = {longest} tokens do not fit into "
                f"{key}={tokens} on {shared} GPUs."
            )


def gpu_problems(config) -> Iterator[str]:
    """Of a run that starts Ray by itself; on a cluster verl asks Ray."""
    import torch

    nodes, wanted, found = config.trainer.nnodes, config.trainer.n_gpus_per_node, torch.cuda.device_count()
    if "RAY_ADDRESS" not in os.environ and (nodes > 1 or found < wanted):
        yield (
            f"GPUs: the run wants {nodes} x {wanted} (NNODES x GPUS_PER_NODE), this machine has {found}. On several "
            "nodes start Ray and set RAY_ADDRESS=auto, or submit slurm_ray.sbatch."
        )


def file_problems(config) -> Iterator[str]:
    model = Path(config.actor_rollout_ref.model.path).expanduser()
    if not (model / "config.json").is_file():
        yield f"model: no {model}/config.json. Download the model into that folder, or set MODEL_PATH to another."
    for key, variable in (("train_files", "TRAIN_FILE"), ("val_files", "TEST_FILE")):
        files = config.data[key]
        for file in [files] if isinstance(files, str) else files:
            if not Path(file).expanduser().is_file():
                yield f"data: no {file}. Make it with `make llm-data`, or set {variable} to another."


def checkpoint_problems(config) -> Iterator[str]:
    """verl would start from scratch without the checkpoint that is to be resumed, or resume another run's."""
    trainer, tracker = config.trainer, Path(config.trainer.default_local_dir) / TRACKER
    start = trainer.get("resume_from_path")
    if trainer.resume_mode == "resume_path":
        if not Path(str(start)).is_dir():
            yield f"checkpoint: no {start}. Run stage 1 to its end, or set STAGE1_CKPT to its last checkpoint."
    elif trainer.resume_mode == "auto" and tracker.exists():
        step = tracker.read_text(errors="replace").strip()
        if not step.isdigit() or not (tracker.parent / f"global_step_{step}").is_dir():
            yield (
                f"checkpoint: {tracker} says {step!r}, and there is no such checkpoint. Write the number of the newest "
                "complete global_step_<number> into it, or remove it to start from scratch."
            )
        elif int(step) >= (trainer.total_training_steps or math.inf):  # verl would train a step more
            yield f"steps: {tracker.parent} has reached step {step}. Raise TOTAL_STEPS, or set another CKPTS_DIR."
        elif start and int(step) <= int(str(start).rpartition("_")[2]):
            yield (
                f"checkpoint: {tracker.parent} has step {step}, and this run starts from {start}: the folder is "
                "another run's. Set CKPTS_DIR to a folder of its own."
            )


def write_record(config, overrides: list[str], added: int) -> None:
    """run.json of a run that starts now, in the folder of its checkpoints.

    Args:
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
        command=overrides,
        added=users,
        as_paper=__package__ == "recipe.era" and run_json.is_as_paper(users, HARMLESS),
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
    parser.add_argument("--record", action="store_true", help="write run.json if nothing is missing")
    added = "how many of the overrides, the last ones, the user has added to the recipe's"
    parser.add_argument("--added", type=int, default=0, metavar="N", help=added)
    args = parser.parse_args(arguments)
    try:
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        check = era_check()
    except ImportError as error:
        found = [f"packages: {sys.executable}: {error}. Set PYTHON to that of the environment that trains."]
    else:
        found = []
        try:
            config = compose(args.config_dir, args.overrides)
            found.extend(problems(config))
            check(config.copy())
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            found.append(f"settings: {error}")
        except (AttributeError, TypeError, ArithmeticError) as error:
            found.append(f"settings: one of them has another type or is missing: {error}. Look at ARGS and NNODES.")
    if found:
        print("This run cannot start:", *found, sep="\n  - ", file=sys.stderr)
    elif args.record:
        write_record(config, args.overrides, args.added)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
