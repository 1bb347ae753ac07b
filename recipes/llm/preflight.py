# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Name what an LLM run lacks before it starts, and write its run.json.

    python -m MODULE [--record ENTRY] [--added N] CONFIG_DIR -- OVERRIDES

MODULE is recipe.era.preflight in a patched checkout of verl 0.4.1, and recipes.llm.preflight for verl 0.9. OVERRIDES
are the run's. It checks for what verl would silently train with, or would stop at after hours or only on the cluster,
and for what most first runs lack; verl reports the rest itself when it starts. Exit code 0: nothing is missing.
3: the run has reached its last step. 1: something is missing.

Where verl cannot be imported, packages, GPUs, model and data are checked all the same, by the standard library alone.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

IS_PATCHED_CHECKOUT = __package__ == "recipe.era"  # and not verl 0.9
if IS_PATCHED_CHECKOUT:
    from recipe.era import check_gpu_environment, run_json
else:
    from recipes import run_json
    from requirements import check_gpu_environment

TRACKER = "latest_checkpointed_iteration.txt"
FINISHED = 3  # the exit code

QWEN_MATH_POSITIONS = 32768  # as verl's recipe/dapo/test_dapo_7b_math.sh asks; Qwen2.5-Math itself has 4,096

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


def era_check() -> Callable:
    """The function that validates ERA's settings in a whole configuration, with a ValueError."""
    if IS_PATCHED_CHECKOUT:
        from verl.utils import era_config

        return era_config.check_trainer_config
    from era.verl import launch  # also registers the configuration that the recipe's is built on

    return launch.prepare


def problems(config) -> Iterator[str]:
    """What a run with this configuration, an OmegaConf of all of verl's settings, lacks."""
    yield from package_problems(config)
    yield from batch_problems(config)
    yield from length_problems(config)
    yield from gpu_problems(config.trainer.nnodes, config.trainer.n_gpus_per_node)
    folder = Path(config.actor_rollout_ref.model.path).expanduser()
    override = config.actor_rollout_ref.model.get("override_config", {}).get("max_position_embeddings")
    of_model = list(model_problems(folder, longest_sequence(config), override))
    tokenizer = None
    if (folder / "config.json").is_file():
        try:
            tokenizer = load_tokenizer(folder)
        except (OSError, ValueError) as error:
            of_model.append(f"model: the tokenizer of {folder} cannot be loaded: {str(error).splitlines()[0]}")
    yield from of_model
    for key in ("train_files", "val_files"):
        files = config.data[key]
        for file in [files] if isinstance(files, str) else files:
            yield from data_problems(key, Path(file).expanduser(), config, tokenizer)
    yield from checkpoint_problems(config)


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


def ranks(config) -> tuple[int, int]:
    """How many GPUs share a sequence, and how many data-parallel ranks there are."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy == "megatron":
        shared = actor.megatron.context_parallel_size
        group = shared * actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
    else:  # verl 0.9 has the size in fsdp_config
        shared = actor.fsdp_config.get("ulysses_sequence_parallel_size") or actor.ulysses_sequence_parallel_size
        group = shared
    return shared, max(1, config.trainer.nnodes * config.trainer.n_gpus_per_node // group)


def batch_problems(config) -> Iterator[str]:
    """What is wrong with the batch sizes: verl would train a rest as a mini-batch, and round mini-batches down."""
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
    """What is wrong with the lengths: verl packs micro-batches up to some tokens, and stops at a longer response."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {
        "actor.ppo_max_token_len_per_gpu": actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu,
        "rollout.log_prob_max_token_len_per_gpu": rollout.log_prob_use_dynamic_bsz
        and rollout.log_prob_max_token_len_per_gpu,
    }
    longest, shared = longest_sequence(config), ranks(config)[0]
    for key, tokens in budgets.items():
        if tokens and tokens * shared < longest:
            yield (
                f"lengths: max_prompt_length + max_response_length = {longest} tokens do not fit into "
                f"{key}={tokens} on {shared} GPUs."
            )
    if rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < longest:
        yield (
            f"lengths: max_prompt_length + max_response_length = {longest} tokens do not fit into "
            f"rollout.max_num_batched_tokens={rollout.max_num_batched_tokens}. verl's rollout asks for that with "
            "enable_chunked_prefill; raise the one or switch off the other."
        )


def longest_sequence(config) -> int:
    """The tokens of the longest prompt with the longest response."""
    both = config.data.max_prompt_length + config.data.max_response_length
    return max(both, config.actor_rollout_ref.rollout.get("max_model_len") or 0)


def gpu_problems(nodes: int, wanted: int) -> Iterator[str]:
    """What is wrong with the GPUs of a run that starts Ray by itself; on a cluster verl asks Ray."""
    if find_spec("torch"):
        import torch

        gpus = torch.cuda.device_count()
    else:
        gpus = len(run_json.gpus())
    if "RAY_ADDRESS" not in os.environ and (nodes > 1 or gpus < wanted):
        yield (
            f"GPUs: the run wants {nodes} x {wanted} (NNODES x GPUS_PER_NODE), this machine has {gpus}. On several "
            "nodes start Ray and set RAY_ADDRESS=auto, or submit slurm_ray.sbatch."
        )


def model_problems(folder: Path, longest: int, override: int | None = None) -> Iterator[str]:
    """What the model's folder lacks for sequences of `longest` tokens.

    verl and vLLM would stop at a model with too few positions, but only after the cluster is up and the weights are
    loaded.

    Args:
        override: max_position_embeddings of verl's override_config, which reaches the actor and not vLLM.
    """
    file = folder / "config.json"
    if not file.is_file():
        yield f"model: no {file}. `make llm-model` downloads the paper's models; MODEL_PATH names another folder."
        return
    index = folder / "model.safetensors.index.json"
    try:
        settings = json.loads(file.read_text())
        has, is_scaled = positions(settings), bool(settings.get("rope_scaling"))
        shards = {*json.loads(index.read_text())["weight_map"].values()} if index.is_file() else set()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        yield f"model: {file}, or {index.name} beside it, is not a model's: {error!r}. Mend it, or download it again."
        return
    if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
        yield f"model: {folder} lacks {', '.join(missing)} of {index.name}. Download the model again."
    elif not shards and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        yield f"model: {folder} has no weights (*.safetensors or *.bin). Download the model again."
    if override is not None and has is not None and override != has:
        yield (
            f"positions: override_config.max_position_embeddings={override}, but vLLM reads {has:g} from {file}. Write "
            "it there, and leave the override out."
        )
    elif has is not None and has < longest:
        where = "with its rope_scaling" if is_scaled else 'the line "max_position_embeddings"'
        yield (
            f"positions: prompt and response need {longest} positions, and {file} has {has:g} ({where}). For "
            f"Qwen2.5-Math, `make llm-model` makes a folder with {QWEN_MATH_POSITIONS}, as verl's DAPO recipe asks. "
            "For another model, give it more in a copy of the folder if it can have them, or set a shorter response."
        )


def positions(settings: dict[str, Any]) -> float | None:
    """How many positions vLLM gives the model of this config.json; None if it has none of the usual keys.

    With rope_scaling (rope_parameters since transformers 5), vLLM multiplies them as its _get_and_verify_max_len says.
    """
    settings = settings.get("text_config") or settings
    count = settings.get("max_position_embeddings")
    if count is not None and not isinstance(count, (int, float)):
        raise TypeError(f"max_position_embeddings is {count!r}, not a number")
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type")
    if count is None or kind in ("su", "longrope", "llama3") or "gemma3" in settings.get("model_type", ""):
        return count
    if kind == "yarn":
        count = rope.get("original_max_position_embeddings", count)
    return count * rope.get("factor", 1)


def data_problems(key: str, file: Path, config=None, tokenizer=None) -> Iterator[str]:
    """What is wrong with a file of prompts.

    verl would cut a prompt that is too long, or with data.truncation=error stop when it comes to it; what else is wrong
    it would find only on the cluster.

    Args:
        config: None where verl's cannot be composed; then only the file itself is looked for.
        tokenizer: None where the model has none; then no prompts are counted.
    """
    if not file.is_file():
        variable = {"train_files": "TRAIN_FILE", "val_files": "TEST_FILE"}[key]
        yield f"data: no {file}. Make it with `make llm-data`, or set {variable} to another."
        return
    if config is None:
        return
    import pyarrow.parquet

    prompts, most = config.data.prompt_key, config.data.max_prompt_length
    try:
        columns = pyarrow.parquet.read_schema(file)
        rows = pyarrow.parquet.read_metadata(file).num_rows
    except (OSError, pyarrow.ArrowException) as error:
        yield f"data: {file} is not a parquet file: {error}"
        return
    wanted = (prompts, config.data.get("reward_fn_key", "data_source"), "reward_model")
    if missing := [name for name in wanted if name not in columns.names]:
        yield f"data: {file} has no column {', '.join(missing)}; it has {', '.join(columns.names)}."
    elif not is_messages(columns.field(prompts).type):
        yield f"data: the column {prompts} of {file} holds no lists of messages with a role and a content."
    elif tokenizer and not config.data.get("filter_overlong_prompts"):
        longer, longest = long_prompts(file, prompts, most, tokenizer)
        if longer:
            yield (
                f"data: {longer} prompts of {file} are longer than data.max_prompt_length={most} tokens, the longest "
                f"has {longest}. Raise that, or leave them out with data.filter_overlong_prompts=True."
            )
    batch = config.data.get("gen_batch_size") or config.data.train_batch_size
    if key == "train_files" and isinstance(config.data[key], str) and rows < batch:
        yield f"data: {file} has {rows} prompts, and a batch takes {batch}."


def is_messages(kind) -> bool:
    """Whether a column of this type of pyarrow's holds lists of structures with a content."""
    import pyarrow.types

    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    return is_list and pyarrow.types.is_struct(kind.value_type) and kind.value_type.get_field_index("content") >= 0


def load_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def long_prompts(file: Path, key: str, most: int, tokenizer) -> tuple[int, int]:
    """How many prompts have more than `most` tokens, and the tokens of the longest; 0, 0 if none has."""
    import pandas
    import pyarrow.compute as pc
    import pyarrow.parquet

    column = pyarrow.parquet.read_table(file, columns=[key])[key]
    contents = pc.struct_field(pc.list_flatten(column), "content")
    sizes = pandas.Series(pc.binary_length(contents)).groupby(pandas.Series(pc.list_parent_indices(column))).sum()

    def tokens(messages: list[dict]) -> int:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    # A token of a text has at least a byte of it, so that few prompts have to be counted.
    longest = sizes[sizes > most - tokens([{"role": "user", "content": ""}])].index
    counts = [count for count in map(tokens, column.take(pyarrow.array(longest)).to_pylist()) if count > most]
    return len(counts), max(counts, default=0)


def checkpoint_problems(config) -> Iterator[str]:
    """What is wrong with the checkpoint to resume: verl would start anew without it, or resume another run's."""
    trainer, tracker = config.trainer, Path(config.trainer.default_local_dir) / TRACKER
    last = trainer.total_training_steps
    if last is not None and (not isinstance(last, int) or last < 1):
        yield f"steps: trainer.total_training_steps (TOTAL_STEPS) is {last!r}, not a whole number of at least 1."
        return
    start = trainer.get("resume_from_path")
    if trainer.resume_mode == "resume_path":
        folder = Path(str(start))
        step = folder.name.removeprefix("global_step_")
        if not folder.is_dir():
            yield f"checkpoint: no {start}. Run stage 1 to its end, or set STAGE1_CKPT to its last checkpoint."
        elif not step.isdigit():
            yield f"checkpoint: {start} is not the folder of a step. Name one like .../global_step_600."
        elif lacks := checkpoint_lacks(folder, config):
            yield f"checkpoint: {lacks}"
        elif last is not None and int(step) >= last:
            yield f"steps: the run begins after step {step}, and TOTAL_STEPS={last} counts the steps before it too."
    elif trainer.resume_mode == "auto" and tracker.exists():
        step = tracker.read_text(errors="replace").strip()
        folder = tracker.parent / f"global_step_{step}"
        if not step.isdigit() or not folder.is_dir():
            yield (
                f"checkpoint: {tracker} says {step!r}, and there is no such checkpoint. Write the number of the newest "
                "complete global_step_<number> into it, or remove it to start from scratch."
            )
        elif lacks := checkpoint_lacks(folder, config):
            yield f"checkpoint: {lacks} {tracker} names the checkpoint to resume."
        elif start and int(step) <= int(str(start).rpartition("_")[2]):
            yield (
                f"checkpoint: {tracker.parent} has step {step}, and this run starts from {start}: the folder is "
                "another run's. Set CKPTS_DIR to a folder of its own."
            )


def checkpoint_lacks(folder: Path, config) -> str:
    """A sentence on what a checkpoint of FSDP workers lacks to be loaded on this run's GPUs; empty if nothing."""
    if not config.actor_rollout_ref.actor.strategy.startswith("fsdp"):
        return ""
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    names = [f"actor/model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return ""
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{folder} lacks {missing[0]}{others}. A checkpoint loads on as many GPUs as wrote it, here {ranks}."


def reached_step(config) -> int | None:
    """The step of the newest checkpoint if that is the run's last one; verl would train a step more."""
    tracker = Path(config.trainer.default_local_dir) / TRACKER
    last = config.trainer.total_training_steps
    if config.trainer.resume_mode == "disable" or not tracker.exists() or not isinstance(last, int):
        return None
    step = tracker.read_text(errors="replace").strip()
    folder = tracker.parent / f"global_step_{step}"
    is_last = step.isdigit() and int(step) >= last and folder.is_dir() and not checkpoint_lacks(folder, config)
    return int(step) if is_last else None


def problems_without_verl(framework: str, config_dir: str, overrides: list[str]) -> Iterator[str]:
    """What can be said where verl's configuration cannot be composed, by the standard library alone."""
    text = (Path(config_dir) / "era_math.yaml").read_text()

    def value(key: str) -> str:
        values = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith(f"{key}=")]
        if values:
            return unquoted(values[-1])
        return re.search(rf"^ +{key.rpartition('.')[2]}: (\S+)", text, re.MULTILINE)[1]

    yield from environment_problems(framework)
    yield from gpu_problems(int(value("trainer.nnodes")), int(value("trainer.n_gpus_per_node")))
    longest = int(value("data.max_prompt_length")) + int(value("data.max_response_length"))
    yield from model_problems(Path(value("actor_rollout_ref.model.path")), longest)
    for key in ("train_files", "val_files"):
        if not value(f"data.{key}").startswith("["):  # a list is left to hydra
            yield from data_problems(key, Path(value(f"data.{key}")))


def unquoted(word: str) -> str:
    """A value without hydra's quotes and backslashes, which launch.sh has written."""
    if not word.startswith("'"):
        return word
    return re.sub(r"(\\+)('|$)", lambda match: match[1][: len(match[1]) // 2] + match[2], word[1:-1])


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
            lacks.extend(problems_without_verl("verl", args.config_dir, args.overrides))
        elif IS_PATCHED_CHECKOUT and not find_spec("recipe.dapo"):
            lacks.append(
                f"checkout: {Path.cwd()} was made from verl's source package, which lacks recipe/dapo, the trainer of "
                "the paper's runs. Move it away and run: python3 apply.py apply verl --source git"
            )
            lacks.extend(problems_without_verl("verl", args.config_dir, args.overrides))
        else:
            config = checked_config(args.config_dir, args.overrides, lacks)
    except (ValueError, OSError, TypeError) as error:
        lacks.append(f"settings: {error}")
    if config is not None and (step := reached_step(config)) is not None:
        folder, last = config.trainer.default_local_dir, config.trainer.total_training_steps
        print(f"{folder} has reached step {step} of {last}: nothing is left to train. TOTAL_STEPS=... trains on.")
        return FINISHED
    if lacks:
        print("This run cannot start:", *lacks, sep="\n  - ", file=sys.stderr)
    elif args.record:
        write_record(config, args.overrides, args.record, args.added)
    return int(bool(lacks))


def checked_config(config_dir: str, overrides: list[str], lacks: list[str]):
    """The run's whole configuration, None if there is none; what it lacks is appended to `lacks`."""
    try:
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        check = era_check()
    except ImportError as error:
        lacks.extend(problems_without_verl("verl" if IS_PATCHED_CHECKOUT else "verl-0.9", config_dir, overrides))
        if not any(problem.startswith("packages: ") for problem in lacks):
            lacks.append(f"packages: {sys.executable}: {error}. Set PYTHON to that of the environment that trains.")
        return None
    config = None
    try:
        config = compose(config_dir, overrides)
        lacks.extend(problems(config))
        check(config.copy())
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        lacks.append(f"settings: {error}")
    except (AttributeError, TypeError, ArithmeticError) as error:
        lacks.append(f"settings: one of them has another type or is missing: {error}. Look at ARGS and NNODES.")
    return config


if __name__ == "__main__":
    sys.exit(main())
