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
"""What an LLM run still lacks: the checks of preflight.py that do not depend on verl's version."""

import argparse
import ast
import importlib.util
import json
import math
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import run_json

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
PROMPTS = "data.train_batch_size"
RESPONSES = f"{ROLLOUT}.n"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
PROMPT_LENGTH = "data.max_prompt_length"
RESPONSE_LENGTH = "data.max_response_length"
NNODES = "trainer.nnodes"
GPUS_PER_NODE = "trainer.n_gpus_per_node"
STEPS = "trainer.total_training_steps"
BATCH = (PROMPTS, RESPONSES, MINI_BATCH, TENSOR_PARALLEL)
COUNTS = (*BATCH, PROMPT_LENGTH, RESPONSE_LENGTH, NNODES, GPUS_PER_NODE, STEPS)

LOGGER = "trainer.logger"
MODEL = "actor_rollout_ref.model.path"
ENGINE = f"{ROLLOUT}.name"
CHECKPOINTS = "trainer.default_local_dir"
LOADED = f"{ACTOR}.checkpoint.load_contents"
RESUME_MODE = "trainer.resume_mode"
FILES = {"data.train_files": "TRAIN_FILE", "data.val_files": "TEST_FILE"}  # the scripts' variables

# verl packs micro-batches up to these many tokens per GPU.
TOKEN_BUDGETS = {
    f"{ACTOR}.use_dynamic_bsz": f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
}
DAPO_POSITIONS = 32768
SETS = ("dapo-math-17k", "math-3to5", "aime-2024")
COLUMNS = ("data_source", "prompt", "reward_model")
TRACKER = "latest_checkpointed_iteration.txt"
# What every run imports, and what a logger does beside that.
MODULES = (
    *("accelerate", "codetiming", "datasets", "hydra", "numpy", "pandas", "peft", "pyarrow"),
    *("ray", "tensordict", "torch", "torchdata", "transformers"),
)
LOGGER_MODULES = {
    **{name: name for name in ("wandb", "mlflow", "swanlab", "tensorboard", "clearml")},
    "vemlp_wandb": "volcengine_ml_platform",
}
CLUSTER_SECONDS = 60
# What verl loads of a checkpoint, and how it names the files of each rank.
SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}

Settings = dict[str, Any]


# The configuration of the run


def flattened(node: dict, prefix: str = "") -> Settings:
    settings = {}
    for key, value in node.items():
        is_group = isinstance(value, dict)
        settings |= flattened(value, f"{prefix}{key}.") if is_group else {f"{prefix}{key}": value}
    return settings


def named_settings(overrides: list[str]) -> Settings:
    """What `KEY=VALUE` names in a form that needs no grammar; anything else is left out."""
    settings = {}
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        settings.pop(key, None)
        if re.fullmatch(r"'.*'", value, re.DOTALL):  # as launch.sh's `quoted` writes paths
            settings[key] = re.sub(r"(\\+)('|\Z)", lambda m: "\\" * (len(m[1]) // 2) + m[2], value[1:-1])
        elif re.fullmatch(r"\[[\w,]+\]", value):
            settings[key] = value[1:-1].split(",")
        elif re.fullmatch(r"\d+", value):
            settings[key] = int(value)
        elif re.fullmatch(r"[\w./-]+", value):
            settings[key] = value
    return settings


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


COUNT = (is_count, "a whole number >= 1")


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def is_text_or_texts(value: Any) -> bool:
    return bool(as_list(value)) and all(map(is_text, as_list(value)))


def expectations(
    settings: Settings, counts: Iterable[str], verl: Path | None
) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """What the settings that the checks go by must be, as a test and in words.

    Args:
        counts: those of this verl version that must be whole numbers, beside the ones of all.
        verl: the folder of the package; None where it is not installed yet.
    """
    modes = ("auto", "disable", "resume_path")
    budgets = [budget for key, budget in TOKEN_BUDGETS.items() if settings.get(key)]
    expected = dict.fromkeys((*COUNTS, *counts, *budgets), COUNT)
    if settings.get(LOADED) is not None:
        expected[LOADED] = (is_text_or_texts, f"a list of {', '.join(SHARDS)}")
    expected[ENGINE] = (is_text, "the name of a rollout engine, such as vllm")
    expected[MODEL] = (is_text, "a folder (MODEL_PATH)")
    expected[CHECKPOINTS] = (is_text, "a folder (CKPTS_DIR)")
    for key, variable in FILES.items():
        expected[key] = (is_text_or_texts, f"a file or a list of files ({variable})")
    for key in ("trainer.save_freq", "trainer.test_freq"):
        expected[key] = (is_whole, "a whole number; -1 for never")
    expected[RESUME_MODE] = (lambda mode: mode in modes, f"one of {', '.join(modes)}")
    if verl:
        loggers = supported_loggers(verl)
        expected[LOGGER] = (
            lambda given: is_text_or_texts(given) and set(as_list(given)) <= {*loggers, "tracking"},
            f"one or a list of {', '.join(loggers)} (LOGGER)",
        )
    return expected


def supported_loggers(verl: Path) -> list[str]:
    source = (verl / "utils/tracking.py").read_text()
    return ast.literal_eval(re.search(r"supported_backend = (\[.*?\])", source, re.DOTALL)[1])


def wrong_settings(settings: Settings, expected: dict[str, tuple[Callable[[Any], bool], str]]) -> dict[str, str]:
    """The problem with each setting that is not what it must be."""
    composed = "trainer.project_name" in settings  # else only some of the settings are known
    wrong = {}
    for key, (is_right, words) in expected.items():
        value = settings.get(key)
        if (composed or key in settings) and not is_right(value):
            found = "not set" if value is None else repr(value)
            wrong[key] = f"settings: {key} is {found}, expected {words}."
    return wrong


# The environment and the GPUs


def python_problems() -> list[str]:
    """Ray starts its workers in a shell, with Python's path unquoted, and then waits for minutes.

    exec_worker in runtime_env/context.py of Ray 2.46.0.
    """
    odd = "".join(sorted(set(re.findall(r"[^\w./+,:@%=-]", sys.executable))))
    if not odd:
        return []
    return [
        f"python: Ray cannot start its processes with {sys.executable}, because of the characters "
        f"{odd!r} in that path. Set PYTHON to one without them."
    ]


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False


def lacking_packages(settings: Settings, modules: Iterable[str], where: str) -> list[str]:
    """What this Python lacks of what the run will import.

    Args:
        modules: what the run needs beside MODULES, its loggers and its rollout engine.
        where: what makes an environment that has them, as a clause.
    """
    chosen = as_list(settings.get(LOGGER))
    loggers = [module for name, module in LOGGER_MODULES.items() if name in chosen]
    engine = settings.get(ENGINE, "vllm")
    engines = [engine] if engine in ("vllm", "sglang") else []
    lacks = [name for name in (*MODULES, *loggers, *engines, *modules) if not is_there(name)]
    if not lacks:
        return []
    other_loggers = " LOGGER chooses other loggers." if set(lacks) & set(loggers) else ""
    return [
        f"packages: {sys.executable} lacks {', '.join(lacks)}. Activate the environment that "
        f"trains or set PYTHON to its python; {where}.{other_loggers}"
    ]


def local_gpus() -> int:
    """GPUs of this machine that CUDA may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


CLUSTER_GPUS = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')
print('gpus', *(int(n['Resources'].get('GPU', 0)) for n in ray.nodes() if n['Alive']))
"""


def cluster_gpus(address: str) -> list[int] | None:
    """GPUs of each node of the Ray cluster at `address`; None where none answers."""
    print(f"asking the Ray cluster at {address} ...", file=sys.stderr, flush=True)
    host_and_port = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if host_and_port:  # Ray itself would try for minutes where nobody listens
        try:
            socket.create_connection((host_and_port[1], int(host_and_port[2])), timeout=10).close()
        except (OSError, OverflowError):
            return None
    command = [sys.executable, "-c", CLUSTER_GPUS, address]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    found = [line.split()[1:] for line in answer.stdout.splitlines() if line.startswith("gpus ")]
    return [int(count) for count in found[0]] if found else None


def cluster_problems(
    address: str, wanted: str, nnodes: int, gpus_per_node: int, environment_to_come: bool
) -> list[str]:
    if address.startswith(("http://", "https://")):
        return [
            f"GPUs: RAY_ADDRESS={address} is a dashboard's address, only for `ray job submit`; "
            "give that of the cluster, such as auto or HOST:6379."
        ]
    if importlib.util.find_spec("ray") is None:
        # Only an environment with ray can ask the cluster; the run checks again then.
        if environment_to_come:
            return []
        return [f"GPUs: {sys.executable} has no ray, so the Ray cluster at RAY_ADDRESS={address} cannot be asked."]
    found = cluster_gpus(address)
    if found is None:
        return [
            f"GPUs: the run wants {wanted}; no Ray cluster answers at RAY_ADDRESS={address}. "
            "Start Ray on all nodes (`ray start`) with this Ray version."
        ]
    if sum(count >= gpus_per_node for count in found) < nnodes:
        return [
            f"GPUs: the run wants {wanted}; the nodes of the Ray cluster at RAY_ADDRESS={address} "
            f"have {', '.join(map(str, found))}."
        ]
    return []


def gpu_problems(nnodes: int, gpus_per_node: int, environment_to_come: bool, or_submit: str = "") -> list[str]:
    """or_submit: what else starts Ray on several nodes, as the end of a clause."""
    address = os.environ.get("RAY_ADDRESS")
    wanted = f"{nnodes} x {gpus_per_node} GPUs (NNODES x GPUS_PER_NODE)"
    if address:
        return cluster_problems(address, wanted, nnodes, gpus_per_node, environment_to_come)
    found = local_gpus()
    if nnodes > 1:
        one_node = ", or set NNODES=1" if found else ""
        return [
            f"GPUs: the run wants {wanted}, this machine has {found} and RAY_ADDRESS names no Ray "
            f"cluster. Start Ray on all nodes and set RAY_ADDRESS=auto{or_submit}{one_node}."
        ]
    if found < gpus_per_node:
        return [f"GPUs: the run wants {wanted}, this machine has {found}."]
    return []


# Batches, lengths, model and data


def batch_problems(settings: Settings, gpus: int, trained: str, groups: Iterable[str]) -> list[str]:
    """Where verl would stop after the start, or silently round a mini-batch down.

    Args:
        trained: the key of the number of prompts of a step.
        groups: the keys whose values, multiplied, are the GPUs of a data-parallel rank.
    """
    prompts, n, mini = settings[trained], settings[RESPONSES], settings[MINI_BATCH]
    group = math.prod(settings[key] for key in groups)
    problems = [
        f"GPUs: {gpus} of them do not divide into groups of {key}={settings[key]}."
        for key in (*groups, TENSOR_PARALLEL)
        if gpus % settings[key]
    ]
    if prompts % mini:
        problems.append(f"batch: {trained}={prompts} prompts do not divide into mini-batches of {MINI_BATCH}={mini}.")
    if gpus % group == 0 and mini * n % (gpus // group):
        problems.append(
            f"batch: {MINI_BATCH}={mini} x {RESPONSES}={n} = {mini * n} responses do not divide "
            f"among {gpus // group} data-parallel ranks."
        )
    return problems


def length_problems(settings: Settings, ulysses: str) -> list[str]:
    """ulysses: the key of the number of GPUs that share a sequence."""
    prompt, response, gpus = settings[PROMPT_LENGTH], settings[RESPONSE_LENGTH], settings[ulysses]
    context = prompt + response
    text = f"{PROMPT_LENGTH}={prompt} + {RESPONSE_LENGTH}={response} = {context} tokens"
    times = f" x {ulysses}={gpus}" if gpus > 1 else ""
    return [
        f"lengths: {text} do not fit into {budget}={settings[budget]}{times}."
        for dynamic, budget in TOKEN_BUDGETS.items()
        if settings.get(dynamic) and settings[budget] * gpus < context
    ]


def model_problems(model: str, context_length: int | None) -> list[str]:
    """context_length: tokens of the longest prompt and response; None while they are not known."""
    folder = Path(model).expanduser()
    config = folder / "config.json"
    if not config.is_file():
        return [
            f"model: no {config}. Download the model, for instance `huggingface-cli download "
            f"Qwen/{folder.name} --local-dir {model}`, or set MODEL_PATH to its folder (a name on "
            "a hub will not do: the file is checked before the run)."
        ]
    try:
        positions = json.loads(config.read_text(encoding="utf-8"))["max_position_embeddings"]
    except (OSError, ValueError, KeyError, TypeError):
        positions = None
    if not is_count(positions):
        return [f"model: {config} is not a model configuration with max_position_embeddings. Download it again."]
    problems = []
    if context_length and positions < context_length:
        advice = (
            f"Set it to {DAPO_POSITIONS} there, as verl's DAPO recipe asks for this model"
            if context_length <= DAPO_POSITIONS
            else f"Lower {PROMPT_LENGTH} or {RESPONSE_LENGTH}, or take a model with more positions"
        )
        problems.append(
            f"model: {config} has max_position_embeddings {positions}, prompts and responses need "
            f"{context_length}. {advice}."
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        problems.append(f"model: {folder} holds no weights (*.safetensors or *.bin). Download it again.")
    return problems


def data_problems(settings: Settings, key: str, fetched: str) -> list[str]:
    """fetched: the key of the number of prompts that verl takes at once."""
    files = as_list(settings[key])
    # Several files need to fill a batch only together.
    fills_batch = key == "data.train_files" and len(files) == 1 and is_count(settings.get(fetched))
    least = (fetched, settings[fetched]) if fills_batch else ("", 1)
    return [problem for file in files for problem in file_problems(file, FILES[key], *least)]


def file_problems(file: str, variable: str, fetched: str, least_rows: int) -> list[str]:
    path = Path(file).expanduser()
    if not path.is_file():
        make = "Set"
        if path.stem in SETS:
            make = (
                "Make it with `make llm-data`, or in the checkout with `python "
                f"recipe/era/prepare_data.py {path.stem} --out {path.parent}`, or set"
            )
        return [f"data: no {file}. {make} {variable}."]
    try:
        with path.open("rb") as stream:
            begin = stream.read(4)
            stream.seek(max(path.stat().st_size - 4, 0))
            end = stream.read(4)
    except OSError as error:
        return [f"data: {file} cannot be read: {error.strerror}."]
    if begin != b"PAR1" or end != b"PAR1":
        return [f"data: {file} is not a whole parquet file. Make it again."]
    if importlib.util.find_spec("pyarrow") is None:
        return []
    return table_problems(path, fetched, least_rows)


def table_problems(path: Path, fetched: str, least_rows: int) -> list[str]:
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(path)
    except pyarrow.ArrowException as error:
        return [f"data: {path} is not a readable parquet file: {error}. Make it again."]
    names = metadata.schema.to_arrow_schema().names
    lacks = ", ".join(column for column in COLUMNS if column not in names)
    problems = []
    if lacks:
        problems.append(f"data: {path} lacks verl's columns {lacks}. Make it with recipe/era/prepare_data.py.")
    if metadata.num_rows < least_rows:
        problems.append(
            f"data: {path} has {metadata.num_rows} rows, a generation batch needs {least_rows} ({fetched})."
        )
    return problems


# Checkpoints


def step_of(checkpoint: Path) -> int | None:
    found = re.fullmatch(r"global_step_(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def resume_problems(settings: Settings, gpus: int) -> list[str]:
    """Where verl would stop, or silently start from scratch instead of resuming."""
    mode = settings.get(RESUME_MODE, "auto")
    start = settings.get("trainer.resume_from_path")
    contents = as_list(settings.get(LOADED) or list(SHARDS))
    if mode == "resume_path":
        return start_problems(Path(str(start)), contents, settings, gpus)
    tracker = Path(settings[CHECKPOINTS]) / TRACKER
    if mode != "auto" or not tracker.exists():
        return []
    try:
        text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return [
            f"checkpoint: {tracker} cannot be read: {error.strerror}. It should hold the number of "
            "the newest complete global_step_<number>; remove it to start from scratch."
        ]
    checkpoint = tracker.parent / f"global_step_{text}"
    if step_of(checkpoint) is None or not checkpoint.is_dir():
        return [
            f"checkpoint: {tracker} says {text!r}, and there is no such checkpoint beside it. "
            "Write the number of the newest complete global_step_<number> into it, or remove it "
            "to start from scratch."
        ]
    if start and step_of(checkpoint) <= (step_of(Path(str(start))) or 0):
        return [
            f"checkpoint: {tracker.parent} holds step {text}, not later than {start}, from which "
            "this run goes on: it is another run's folder. Set CKPTS_DIR to one of its own."
        ]
    return checkpoint_problems(checkpoint, contents, settings, gpus)


def start_problems(checkpoint: Path, contents: list[str], settings: Settings, gpus: int) -> list[str]:
    if step_of(checkpoint) is None:
        return [
            f"checkpoint: trainer.resume_from_path={checkpoint} is not named global_step_<number>, "
            "as verl's checkpoints are."
        ]
    if not checkpoint.is_dir():
        return [
            f"checkpoint: no {checkpoint}. Run stage 1 (run_era_stage1_qwen2.5_math_7b.sh, make "
            "llm-stage1) to its end, or set STAGE1_CKPT to its last global_step_<number>."
        ]
    return checkpoint_problems(checkpoint, contents, settings, gpus)


def checkpoint_problems(checkpoint: Path, contents: list[str], settings: Settings, gpus: int) -> list[str]:
    """verl's FSDP checkpoints are one file per rank, and load only on as many ranks."""
    actor = checkpoint / "actor"
    names = [file.name for file in actor.glob("model_world_size_*_rank_*.pt")]
    sizes = {int(size) for size in re.findall(r"model_world_size_(\d+)_rank_", " ".join(names))}
    if sizes and gpus not in sizes:
        return [
            f"checkpoint: {actor} was written by {', '.join(map(str, sorted(sizes)))} GPUs and "
            f"loads only on as many; this run has {gpus}. Choose NNODES and GPUS_PER_NODE "
            "accordingly."
        ]
    is_megatron = settings.get(f"{ACTOR}.strategy") == "megatron"  # reshards, in another layout
    kinds = [] if is_megatron else [SHARDS[content] for content in contents if content in SHARDS]
    files = [actor / f"{kind}_world_size_{gpus}_rank_{rank}.pt" for kind in kinds for rank in range(gpus)]
    files.append(checkpoint / "data.pt")
    # torch.save writes a zip archive, whose end is missing when the write was interrupted.
    broken = [str(file.relative_to(checkpoint)) for file in files if not zipfile.is_zipfile(file)]
    problems = []
    if broken:
        problems.append(
            f"checkpoint: {checkpoint} is incomplete: {len(broken)} of {len(files)} files are "
            f"missing or cut off, such as {broken[0]}."
        )
    if step_of(checkpoint) >= settings[STEPS]:
        problems.append(
            f"steps: {checkpoint} has been reached, and the run ends at step {settings[STEPS]}: "
            "nothing is left to do. Raise TOTAL_STEPS to go on, or set CKPTS_DIR to a new folder."
        )
    return problems


# run.json

# What every run uses, and overrides that change nothing in what is trained.
PACKAGES = ("verl", "torch", "vllm", "ray", "transformers", "flash-attn", "tensordict", "numpy")
HARMLESS = (
    *("data.seed", "trainer.project_name", "trainer.experiment_name", "trainer.logger"),
    *("trainer.save_freq", "trainer.test_freq", "trainer.val_before_train", CHECKPOINTS),
    *("trainer.max_actor_ckpt_to_keep", "trainer.rollout_data_dir", "trainer.validation_data_dir"),
)


def write_record(overrides: list[str], added: int, root: Path, is_papers: bool) -> None:
    """run.json of a run that starts now, in the folder of its checkpoints.

    Args:
        added: how many of the overrides, the last ones, are the user's.
        is_papers: whether the recipe is one of the paper's.
    """
    settings, users = named_settings(overrides), overrides[len(overrides) - added :]
    folder = Path(settings[CHECKPOINTS])
    folder.mkdir(parents=True, exist_ok=True)
    record = run_json.begin(
        "verl",
        task=Path(str(settings.get(MODEL))).name,
        seed=settings.get("data.seed"),
        total_steps=settings.get(STEPS),
        packages=PACKAGES,
        agent=settings.get("trainer.experiment_name"),
        command=overrides,
        added=users,
        as_paper=is_papers and run_json.is_as_paper(users, HARMLESS),
        **run_json.code(root),
    )
    run_json.start(folder, record)


# All of them


def input_problems(right: Settings, wrong: dict[str, str], ulysses: str, fetched: str) -> list[str]:
    """The problems with lengths, model, data and checkpoints, as far as the settings are known.

    Args:
        right: the settings that are what they must be.
        wrong: see wrong_settings.
        ulysses, fetched: see length_problems and data_problems.
    """
    problems = []
    has_lengths = {PROMPT_LENGTH, RESPONSE_LENGTH} <= right.keys()
    if has_lengths and ulysses in right and not wrong.keys() & TOKEN_BUDGETS.values():
        problems += length_problems(right, ulysses)
    if MODEL in right:
        context = right[PROMPT_LENGTH] + right[RESPONSE_LENGTH] if has_lengths else None
        problems += model_problems(right[MODEL], context)
    for key in FILES:
        if key in right:
            problems += data_problems(right, key, fetched)
    knows_run = {NNODES, GPUS_PER_NODE, STEPS, CHECKPOINTS} <= right.keys()
    if knows_run and not wrong.keys() & {RESUME_MODE, LOADED}:
        problems += resume_problems(right, right[NNODES] * right[GPUS_PER_NODE])
    return problems


def main(
    description: str,
    find_problems: Callable[[list[str], bool], list[str]],
    root: Path,
    is_papers: bool = True,
) -> int:
    """The command, with its exit code.

    Args:
        find_problems: of the overrides and environment_to_come.
        root: where the run starts, for relative paths.
        is_papers: whether the recipe is one of the paper's.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="hydra overrides of the run")
    parser.add_argument(
        "--environment-to-come",
        action="store_true",
        help="this Python is not yet the one that trains",
    )
    parser.add_argument("--record", action="store_true", help="then write run.json")
    users = "how many of the overrides, the last ones, the user has added to the recipe's"
    parser.add_argument("--added", type=int, default=0, metavar="N", help=users)
    args = parser.parse_args()
    os.chdir(root)
    problems = find_problems(args.overrides, args.environment_to_come)
    if problems:
        print("This run cannot start; nothing was changed:", file=sys.stderr)
        print("\n".join(f"  - {problem}" for problem in problems), file=sys.stderr)
    elif args.record:
        write_record(args.overrides, args.added, root, is_papers)
    return 1 if problems else 0
