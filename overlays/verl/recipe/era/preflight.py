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
"""python preflight.py [--environment-to-come] -- OVERRIDES: says everything that a run still lacks, before anything starts.

OVERRIDES are those of the run. Where hydra is there they are composed with verl's whole configuration; before there is
a training environment, the standard library reads them and config/era_math.yaml. Exit code 0: all is there.
"""

import argparse
import ast
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Callable, Optional

CHECKOUT = Path(__file__).resolve().parent.parent.parent
CONFIG = CHECKOUT / "recipe/era/config/era_math.yaml"

PROMPTS = "data.train_batch_size"
GENERATED_PROMPTS = "data.gen_batch_size"
RESPONSES = "actor_rollout_ref.rollout.n"
MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
ULYSSES = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
PROMPT_LENGTH = "data.max_prompt_length"
RESPONSE_LENGTH = "data.max_response_length"
NNODES = "trainer.nnodes"
GPUS_PER_NODE = "trainer.n_gpus_per_node"
STEPS = "trainer.total_training_steps"
COUNTS = (
    PROMPTS,
    GENERATED_PROMPTS,
    RESPONSES,
    MINI_BATCH,
    ULYSSES,
    TENSOR_PARALLEL,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    NNODES,
    GPUS_PER_NODE,
    STEPS,
)

POLICY_LOSS = "actor_rollout_ref.actor.policy_loss"
AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"
LOGGER = "trainer.logger"
MODEL = "actor_rollout_ref.model.path"
ROLLOUT = "actor_rollout_ref.rollout.name"
CHUNKED_PREFILL = "actor_rollout_ref.rollout.enable_chunked_prefill"
BATCHED_TOKENS = "actor_rollout_ref.rollout.max_num_batched_tokens"
CHECKPOINTS = "trainer.default_local_dir"
LOADED = "actor_rollout_ref.actor.checkpoint.load_contents"
RESUME_MODE = "trainer.resume_mode"
FILES = {
    "data.train_files": "TRAIN_FILE",
    "data.val_files": "TEST_FILE",
}  # and the variable of the run scripts

# verl packs micro-batches up to these many tokens per GPU.
TOKEN_BUDGETS = {
    "actor_rollout_ref.actor.use_dynamic_bsz": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
}
DAPO_POSITIONS = 32768
SETS = ("dapo-math-17k", "math-3to5", "aime-2024")
COLUMNS = ("data_source", "prompt", "reward_model")
TRACKER = "latest_checkpointed_iteration.txt"
# What every run imports, and what a logger does beside that.
MODULES = (
    "accelerate",
    "codetiming",
    "datasets",
    "hydra",
    "numpy",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "tensordict",
    "torch",
    "torchdata",
    "transformers",
)
LOGGER_MODULES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
}
CLUSTER_SECONDS = 60
# What verl loads of a checkpoint, and how it names the files of each rank.
SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}

Settings = dict[str, Any]


# The configuration of the run


def plain_value(text: str) -> Any:
    """The value that hydra reads from a plain or quoted scalar, or from a list of them."""
    if text.startswith("[") and text.endswith("]"):
        return [plain_value(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        # Backslashes count in pairs before a quote alone, the closing one included.
        return re.sub(
            rf"(\\+)({text[0]}|\Z)",
            lambda found: "\\" * (len(found[1]) // 2) + found[2],
            text[1:-1],
        )
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def plain_settings(overrides: list[str]) -> Settings:
    """The scalars of era_math.yaml and the overrides, by dotted key."""
    settings, path = {}, []
    for line in CONFIG.read_text().splitlines():
        found = re.fullmatch(r"( *)(\w+):(?: +(\S.*))?", line)
        if found:
            indent, key, value = found.groups()
            path[len(indent) // 2 :] = [key]
            if value:
                settings[".".join(path)] = plain_value(value)
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        settings[key] = None if override.startswith("~") else plain_value(value)
    return settings


def flattened(node: dict, prefix: str = "") -> Settings:
    settings = {}
    for key, value in node.items():
        settings.update(
            flattened(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return settings


def read_settings(overrides: list[str]) -> tuple[Settings, list[str]]:
    """The run's settings by dotted key, and what is wrong with them."""
    settings = plain_settings(overrides)
    problems = []
    if importlib.util.find_spec("hydra"):
        import hydra
        from hydra.errors import HydraException, OverrideParseException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            with hydra.initialize_config_dir(str(CONFIG.parent), version_base=None):
                config = OmegaConf.to_container(hydra.compose(CONFIG.stem, overrides), resolve=True)
            settings = flattened(config)
            problems += policy_loss_problems(config)
            problems += era_problem(config)
        except (HydraException, OmegaConfBaseException) as error:
            named = f"{error.override}: " if isinstance(error, OverrideParseException) else ""
            problems.append(f"settings: {named}{error}".replace("\n", " "))
        except (KeyError, TypeError) as error:
            problems.append(
                f"settings: an override deletes or replaces what verl needs ({type(error).__name__}: {error})."
            )
    return settings, problems


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def is_text_or_texts(value: Any) -> bool:
    return bool(as_list(value)) and all(map(is_text, as_list(value)))


def expectations(settings: Settings) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """What the settings that the checks go by must be, as a test and in words."""
    count = (is_count, "a whole number >= 1")
    modes = ("auto", "disable", "resume_path")
    expected = dict.fromkeys(COUNTS, count)
    expected |= {
        budget: count for dynamic, budget in TOKEN_BUDGETS.items() if settings.get(dynamic)
    }
    if settings.get(ROLLOUT) == "vllm" and settings.get(CHUNKED_PREFILL):
        expected[BATCHED_TOKENS] = count
    if settings.get(LOADED) is not None:
        expected[LOADED] = (is_text_or_texts, f"a list of {', '.join(SHARDS)}")
    expected[ROLLOUT] = (is_text, "the name of a rollout engine, such as vllm")
    expected[MODEL] = (is_text, "a folder (MODEL_PATH)")
    expected[CHECKPOINTS] = (is_text, "a folder (CKPTS_DIR)")
    expected |= {
        key: (is_text_or_texts, f"a file or a list of files ({variable})")
        for key, variable in FILES.items()
    }
    expected |= dict.fromkeys(
        ("trainer.save_freq", "trainer.test_freq"), (is_whole, "a whole number; -1 for never")
    )
    expected[RESUME_MODE] = (lambda mode: mode in modes, f"one of {', '.join(modes)}")
    names = supported_loggers()
    expected[LOGGER] = (
        lambda loggers: is_text_or_texts(loggers) and set(as_list(loggers)) <= {*names, "tracking"},
        f"one or a list of {', '.join(names)} (LOGGER)",
    )
    return expected


def supported_loggers() -> list[str]:
    found = re.search(
        r"supported_backend = (\[.*?\])",
        (CHECKOUT / "verl/utils/tracking.py").read_text(),
        re.DOTALL,
    )
    return ast.literal_eval(found[1])


def wrong_settings(settings: Settings) -> dict[str, str]:
    """The problem with each setting that is not what it must be."""
    wrong = {}
    for key, (is_right, words) in expectations(settings).items():
        value = settings.get(key)
        if not is_right(value):
            wrong[key] = (
                f"settings: {key} is {'not set' if value is None else repr(value)}, expected {words}."
            )
    return wrong


def era_problem(config: dict) -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    # By its path: era.py needs torch alone, while `import verl` loads all of it.
    spec = importlib.util.spec_from_file_location("era", CHECKOUT / "verl/utils/era.py")
    era = importlib.util.module_from_spec(spec)
    sys.modules["era"] = era
    spec.loader.exec_module(era)
    try:
        era.validate_trainer_config(config)
    except ValueError as error:
        return [f"settings: {error}".replace("\n", "\n    ")]
    return []


def policy_loss_problems(config: dict) -> list[str]:
    """What verl would refuse at the first update, and forking_tokens.py and gspo.py, which import all of verl, once Ray has started."""
    actor, model = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["model"]
    mode, fraction, aggregation = (
        actor["policy_loss"]["loss_mode"],
        actor["policy_loss"]["forking_fraction"],
        actor["loss_agg_mode"],
    )
    sources = [
        (CHECKOUT / f"verl/trainer/ppo/{name}.py").read_text() for name in ("core_algos", "gspo")
    ]
    modes = ["vanilla", *re.findall(r'@register_policy_loss\("(\w+)"\)', "".join(sources))]
    aggregations = re.findall(r'if loss_agg_mode == "([\w-]+)"', sources[0])
    problems = []
    if mode not in modes and not model.get("external_lib"):  # which may register losses of its own
        problems.append(
            f"settings: {POLICY_LOSS}.loss_mode is {mode!r}, expected one of {', '.join(modes)}."
        )
    if (
        isinstance(fraction, bool)
        or not isinstance(fraction, (int, float))
        or not 0 < fraction <= 1
    ):
        problems.append(
            f"settings: {POLICY_LOSS}.forking_fraction is {fraction!r}, expected a number in (0, 1], 1 for all tokens."
        )
    elif fraction != 1 and "cov" in str(mode):
        problems.append(
            f"settings: {POLICY_LOSS}.forking_fraction={fraction} does not go together with {POLICY_LOSS}.loss_mode={mode}: its covariances would be those of advantages set to 0."
        )
    if aggregation not in aggregations:
        problems.append(
            f"settings: {AGGREGATION} is {aggregation!r}, expected one of {', '.join(aggregations)}."
        )
    elif mode == "gspo" and aggregation != "seq-mean-token-mean":
        problems.append(
            f"settings: {AGGREGATION} is {aggregation!r}, expected seq-mean-token-mean with {POLICY_LOSS}.loss_mode=gspo."
        )
    return problems


# What must be there


def python_problem() -> list[str]:
    """Ray starts its workers in a shell, with Python's path as it is (exec_worker in runtime_env/context.py of 2.46.0), and waits minutes."""
    odd = "".join(sorted(set(re.findall(r"[^\w./+,:@%=-]", sys.executable))))
    return (
        [
            f"python: Ray cannot start its processes with {sys.executable}, because of the characters {odd!r} in that path. Set PYTHON to one without them."
        ]
        if odd
        else []
    )


def packages_problem(settings: Settings) -> list[str]:
    """What this Python lacks of what the run will import."""
    override = "actor_rollout_ref.model.override_config."
    attention = (
        settings.get(f"{override}_attn_implementation")
        or settings.get(f"{override}attn_implementation")
        or "flash_attention_2"
    )  # verl's
    loggers = [
        module for name, module in LOGGER_MODULES.items() if name in as_list(settings.get(LOGGER))
    ]
    modules = [*MODULES, *loggers]
    if settings.get(ROLLOUT) in ("vllm", "sglang"):
        modules.append(settings[ROLLOUT])
    if attention == "flash_attention_2" or settings.get(
        "actor_rollout_ref.model.use_remove_padding"
    ):
        modules.append("flash_attn")
    lacks = [module for module in modules if importlib.util.find_spec(module) is None]
    if not lacks:
        return []
    other_loggers = " LOGGER chooses other loggers." if set(lacks) & set(loggers) else ""
    return [
        f"packages: {sys.executable} lacks {', '.join(lacks)}. Activate the environment that trains or set PYTHON to its python; `make llm-...` makes one.{other_loggers}"
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


def cluster_gpus(address: str) -> Optional[list[int]]:
    """GPUs of each node of the Ray cluster at `address`; None where none answers."""
    print(f"asking the Ray cluster at {address} ...", file=sys.stderr, flush=True)
    host_and_port = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if host_and_port:  # Ray itself would try for minutes where nobody listens
        try:
            socket.create_connection((host_and_port[1], int(host_and_port[2])), timeout=10).close()
        except (OSError, OverflowError):
            return None
    code = f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='ERROR'); print('gpus', *(int(node['Resources'].get('GPU', 0)) for node in ray.nodes() if node['Alive']))"
    try:
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=CLUSTER_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    found = [line.split()[1:] for line in answer.stdout.splitlines() if line.startswith("gpus ")]
    return [int(count) for count in found[0]] if found else None


def cluster_problem(
    address: str, wanted: str, nnodes: int, gpus_per_node: int, environment_to_come: bool
) -> list[str]:
    if address.startswith(("http://", "https://")):
        return [
            f"GPUs: RAY_ADDRESS={address} is a dashboard's address, for `ray job submit` alone; give that of the cluster, such as auto or HOST:6379."
        ]
    if importlib.util.find_spec("ray") is None:
        # The cluster can only be asked once there is an environment with ray; the run checks again then.
        return (
            []
            if environment_to_come
            else [
                f"GPUs: {sys.executable} has no ray, so the Ray cluster at RAY_ADDRESS={address} cannot be asked."
            ]
        )
    found = cluster_gpus(address)
    if found is None:
        return [
            f"GPUs: the run wants {wanted}; no Ray cluster answers at RAY_ADDRESS={address}. Start Ray on all nodes (`ray start`) with this Ray version."
        ]
    if sum(count >= gpus_per_node for count in found) < nnodes:
        return [
            f"GPUs: the run wants {wanted}; the nodes of the Ray cluster at RAY_ADDRESS={address} have {', '.join(map(str, found))}."
        ]
    return []


def gpu_problem(nnodes: int, gpus_per_node: int, environment_to_come: bool) -> list[str]:
    address = os.environ.get("RAY_ADDRESS")
    wanted = f"{nnodes} x {gpus_per_node} GPUs (NNODES x GPUS_PER_NODE)"
    if address:
        return cluster_problem(address, wanted, nnodes, gpus_per_node, environment_to_come)
    found = local_gpus()
    if nnodes > 1:
        return [
            f"GPUs: the run wants {wanted}, this machine has {found} and RAY_ADDRESS names no Ray cluster. Start Ray on all nodes and set RAY_ADDRESS=auto, or submit recipe/era/slurm_ray.sbatch{', or set NNODES=1' if found else ''}."
        ]
    return (
        []
        if found >= gpus_per_node
        else [f"GPUs: the run wants {wanted}, this machine has {found}."]
    )


def batch_problems(settings: Settings, gpus: int) -> list[str]:
    """Where verl would stop after the start, or silently round a mini-batch down."""
    # The filter of recipe/dapo cuts what was generated to train_batch_size; without it all of it is trained on.
    trained = PROMPTS if settings.get("algorithm.filter_groups.enable") else GENERATED_PROMPTS
    prompts, generated, n, mini, ulysses, tensor_parallel = (
        settings[key]
        for key in (trained, GENERATED_PROMPTS, RESPONSES, MINI_BATCH, ULYSSES, TENSOR_PARALLEL)
    )
    problems = []
    for key, size in ((ULYSSES, ulysses), (TENSOR_PARALLEL, tensor_parallel)):
        if gpus % size:
            problems.append(f"GPUs: {gpus} of them do not divide into groups of {key}={size}.")
    if prompts * n % gpus:
        problems.append(
            f"batch: {trained}={prompts} x {RESPONSES}={n} = {prompts * n} responses do not divide among {gpus} GPUs."
        )
    if generated % gpus:
        problems.append(
            f"batch: {GENERATED_PROMPTS}={generated} prompts do not divide among {gpus} GPUs."
        )
    if prompts % mini:
        problems.append(
            f"batch: {trained}={prompts} prompts do not divide into mini-batches of {MINI_BATCH}={mini}."
        )
    if gpus % ulysses == 0 and mini * n % (gpus // ulysses):
        problems.append(
            f"batch: {MINI_BATCH}={mini} x {RESPONSES}={n} = {mini * n} responses do not divide among {gpus // ulysses} data-parallel ranks."
        )
    return problems


def length_problems(settings: Settings) -> list[str]:
    context = settings[PROMPT_LENGTH] + settings[RESPONSE_LENGTH]
    text = f"{PROMPT_LENGTH}={settings[PROMPT_LENGTH]} + {RESPONSE_LENGTH}={settings[RESPONSE_LENGTH]} = {context} tokens"
    problems = []
    for dynamic, budget in TOKEN_BUDGETS.items():
        if settings.get(dynamic) and settings[budget] * settings[ULYSSES] < context:
            problems.append(
                f"lengths: {text} do not fit into {budget}={settings[budget]}"
                + (f" x {ULYSSES}={settings[ULYSSES]}." if settings[ULYSSES] > 1 else ".")
            )
    if (
        settings[ROLLOUT] == "vllm"
        and settings.get(CHUNKED_PREFILL)
        and settings[BATCHED_TOKENS] < context
    ):
        problems.append(
            f"lengths: verl wants {BATCHED_TOKENS}={settings[BATCHED_TOKENS]} to hold {text}."
        )
    return problems


def model_problem(model: str, context_length: int) -> list[str]:
    folder = Path(model).expanduser()
    config = folder / "config.json"
    if not config.is_file():
        return [
            f"model: no {config}. Download the model, for instance `huggingface-cli download Qwen/{folder.name} --local-dir {model}`, or set MODEL_PATH to its folder (a name on a hub will not do: the file is checked before the run)."
        ]
    try:
        positions = json.loads(config.read_text(encoding="utf-8"))["max_position_embeddings"]
    except (OSError, ValueError, KeyError, TypeError):
        positions = None
    if not is_count(positions):
        return [
            f"model: {config} is not a model configuration with max_position_embeddings. Download it again."
        ]
    problems = []
    if positions < context_length:
        advice = (
            f"Set it to {DAPO_POSITIONS} there, as verl's DAPO recipe asks for this model"
            if context_length <= DAPO_POSITIONS
            else f"Lower {PROMPT_LENGTH} or {RESPONSE_LENGTH}, or take a model with a longer context"
        )
        problems.append(
            f"model: {config} has max_position_embeddings {positions}, prompts and responses need {context_length}. {advice}."
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        problems.append(
            f"model: {folder} holds no weights (*.safetensors or *.bin). Download it again."
        )
    return problems


def file_problem(file: str, variable: str, least_rows: int) -> list[str]:
    path = Path(file).expanduser()
    if not path.is_file():
        make = (
            f"Make it with `make llm-data`, or in the checkout with `python recipe/era/prepare_data.py {path.stem} --out {path.parent}`, or set"
            if path.stem in SETS
            else "Set"
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
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(path)
    except pyarrow.ArrowException as error:
        return [f"data: {file} is not a readable parquet file: {error}. Make it again."]
    lacks = [column for column in COLUMNS if column not in metadata.schema.to_arrow_schema().names]
    problems = (
        [
            f"data: {file} lacks verl's columns {', '.join(lacks)}. Make it with recipe/era/prepare_data.py."
        ]
        if lacks
        else []
    )
    if metadata.num_rows < least_rows:
        problems.append(
            f"data: {file} has {metadata.num_rows} rows, a generation batch needs {least_rows} ({GENERATED_PROMPTS})."
        )
    return problems


def data_problems(settings: Settings, key: str) -> list[str]:
    files = as_list(settings[key])
    # Several files need fill a batch only together.
    fills_batch = (
        key == "data.train_files" and len(files) == 1 and is_count(settings.get(GENERATED_PROMPTS))
    )
    least_rows = settings[GENERATED_PROMPTS] if fills_batch else 1
    return [problem for file in files for problem in file_problem(file, FILES[key], least_rows)]


def recipe_problem() -> list[str]:
    if (CHECKOUT / "recipe/dapo/main_dapo.py").is_file():
        return []
    return [
        "recipe: this checkout has no recipe/dapo, because it was made from the source package, which lacks it. Make it from git: python apply.py apply verl --source git --checkouts <an empty folder>."
    ]


def step_of(checkpoint: Path) -> Optional[int]:
    found = re.fullmatch(r"global_step_(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def checkpoint_problem(checkpoint: Path, contents: list[str], gpus: int) -> list[str]:
    """verl's FSDP checkpoints are one file per rank and load on as many ranks alone."""
    actor = checkpoint / "actor"
    sizes = {
        int(found[1])
        for file in actor.glob("model_world_size_*_rank_*.pt")
        if (found := re.match(r"model_world_size_(\d+)_rank_", file.name))
    }
    if sizes and gpus not in sizes:
        return [
            f"checkpoint: {actor} was written by {', '.join(map(str, sorted(sizes)))} GPUs and loads on as many alone, this run has {gpus}. Choose NNODES and GPUS_PER_NODE accordingly."
        ]
    files = [
        actor / f"{SHARDS[content]}_world_size_{gpus}_rank_{rank}.pt"
        for content in contents
        if content in SHARDS
        for rank in range(gpus)
    ]
    files.append(checkpoint / "data.pt")
    # torch.save writes a zip archive, whose end is missing when the write was interrupted.
    broken = [str(file.relative_to(checkpoint)) for file in files if not zipfile.is_zipfile(file)]
    if broken:
        return [
            f"checkpoint: {checkpoint} is incomplete: {len(broken)} of {len(files)} files are missing or cut off, such as {broken[0]}."
        ]
    return []


def resume_problems(settings: Settings, gpus: int) -> list[str]:
    """What would make verl stop, or silently start from scratch, where it is to go on from a checkpoint."""
    mode, own, start = (
        settings[RESUME_MODE],
        settings[CHECKPOINTS],
        settings.get("trainer.resume_from_path"),
    )
    contents = as_list(settings.get(LOADED) or list(SHARDS))
    if mode == "resume_path":
        checkpoint = Path(str(start))
        if step_of(checkpoint) is None:
            return [
                f"checkpoint: trainer.resume_from_path={start} is not named global_step_<number>, as verl's checkpoints are."
            ]
        if not checkpoint.is_dir():
            return [
                f"checkpoint: no {checkpoint}. Run stage 1 (run_era_stage1_qwen2.5_math_7b.sh, make llm-stage1) to its end, or set STAGE1_CKPT to its last global_step_<number>."
            ]
        return [
            *checkpoint_problem(checkpoint, contents, gpus),
            *finished_problem(checkpoint, settings),
        ]
    tracker = Path(own) / TRACKER
    if mode != "auto" or not tracker.exists():
        return []
    try:
        text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return [
            f"checkpoint: {tracker} cannot be read: {error.strerror}. It should hold the number of the newest complete global_step_<number>; remove it to start from scratch."
        ]
    checkpoint = tracker.parent / f"global_step_{text}"
    if step_of(checkpoint) is None or not checkpoint.is_dir():
        return [
            f"checkpoint: {tracker} says {text!r}, and there is no such checkpoint beside it. Write the number of the newest complete global_step_<number> into it, or remove it to start from scratch."
        ]
    if start and step_of(checkpoint) <= (step_of(Path(str(start))) or 0):
        return [
            f"checkpoint: {tracker.parent} holds step {text}, not later than {start}, from which this run goes on: it is another run's folder. Set CKPTS_DIR to one of its own."
        ]
    return [
        *checkpoint_problem(checkpoint, contents, gpus),
        *finished_problem(checkpoint, settings),
    ]


def finished_problem(checkpoint: Path, settings: Settings) -> list[str]:
    if step_of(checkpoint) < settings[STEPS]:
        return []
    return [
        f"steps: {checkpoint} has been reached, and the run ends at step {settings[STEPS]}: nothing is left to do. Raise TOTAL_STEPS to go on, or set CKPTS_DIR to a new folder."
    ]


def find_problems(overrides: list[str], environment_to_come: bool) -> list[str]:
    settings, problems = read_settings(overrides)
    wrong = wrong_settings(settings)
    problems += wrong.values()

    def right(*keys: str) -> bool:
        """Whether a check that goes by these settings can be made."""
        return not wrong.keys() & set(keys)

    if not environment_to_come:
        problems += python_problem() + packages_problem(settings)
    if right(NNODES, GPUS_PER_NODE):
        problems += gpu_problem(settings[NNODES], settings[GPUS_PER_NODE], environment_to_come)
    if right(*COUNTS):
        problems += batch_problems(settings, settings[NNODES] * settings[GPUS_PER_NODE])
    if right(
        PROMPT_LENGTH, RESPONSE_LENGTH, ULYSSES, ROLLOUT, BATCHED_TOKENS, *TOKEN_BUDGETS.values()
    ):
        problems += length_problems(settings)
    if right(MODEL, PROMPT_LENGTH, RESPONSE_LENGTH):
        problems += model_problem(
            settings[MODEL], settings[PROMPT_LENGTH] + settings[RESPONSE_LENGTH]
        )
    for key in FILES:
        if right(key):
            problems += data_problems(settings, key)
    if right(NNODES, GPUS_PER_NODE, STEPS, CHECKPOINTS, RESUME_MODE, LOADED):
        problems += resume_problems(settings, settings[NNODES] * settings[GPUS_PER_NODE])
    return problems + recipe_problem()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="hydra overrides of the run")
    parser.add_argument(
        "--environment-to-come",
        action="store_true",
        help="this Python is not yet the one that trains",
    )
    args = parser.parse_args()
    os.chdir(CHECKOUT)  # where the run starts: hydra's search path and relative paths
    problems = find_problems(args.overrides, args.environment_to_come)
    if problems:
        print(
            "This run cannot start; nothing was changed:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            file=sys.stderr,
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
