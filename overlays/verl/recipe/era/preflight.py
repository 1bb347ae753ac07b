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
"""python preflight.py [--environment-to-come] -- OVERRIDES: name all that a run still lacks.

OVERRIDES are those of the run. Hydra composes them with verl's whole configuration. Before there is
an environment with hydra, only the values that the overrides name are checked; the run script
checks again once there is one. Exit code 0: nothing is missing.
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

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
PROMPTS = "data.train_batch_size"
GENERATED_PROMPTS = "data.gen_batch_size"
RESPONSES = f"{ROLLOUT}.n"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
ULYSSES = f"{ACTOR}.ulysses_sequence_parallel_size"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
PROMPT_LENGTH = "data.max_prompt_length"
RESPONSE_LENGTH = "data.max_response_length"
NNODES = "trainer.nnodes"
GPUS_PER_NODE = "trainer.n_gpus_per_node"
STEPS = "trainer.total_training_steps"
BATCH = (PROMPTS, GENERATED_PROMPTS, RESPONSES, MINI_BATCH, ULYSSES, TENSOR_PARALLEL)
COUNTS = (*BATCH, PROMPT_LENGTH, RESPONSE_LENGTH, NNODES, GPUS_PER_NODE, STEPS)

LOGGER = "trainer.logger"
MODEL = "actor_rollout_ref.model.path"
ENGINE = f"{ROLLOUT}.name"
CHUNKED_PREFILL = f"{ROLLOUT}.enable_chunked_prefill"
BATCHED_TOKENS = f"{ROLLOUT}.max_num_batched_tokens"
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


def read_settings(overrides: list[str]) -> tuple[Settings, list[str]]:
    """The run's settings by dotted key, and what is wrong with them.

    All of verl's settings where hydra can compose them, else those that the overrides name.
    """
    if importlib.util.find_spec("hydra") is None:
        return named_settings(overrides), []
    import hydra
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    settings, problems = named_settings(overrides), []
    try:
        with hydra.initialize_config_dir(str(CONFIG.parent), version_base=None):
            config = OmegaConf.to_container(hydra.compose(CONFIG.stem, overrides), resolve=True)
        settings = flattened(config)
        problems += policy_loss_problems(config)
        problems += era_problems(config)
    except (HydraException, OmegaConfBaseException) as error:
        named = f"{error.override}: " if isinstance(error, OverrideParseException) else ""
        problems.append(f"settings: {named}{error}".replace("\n", " "))
    except (KeyError, TypeError) as error:
        problems.append(
            "settings: an override deletes or replaces what verl needs "
            f"({type(error).__name__}: {error})."
        )
    return settings, problems


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
        if re.fullmatch(r"'.*'", value, re.DOTALL):  # as common.sh's `quoted` writes paths
            settings[key] = re.sub(
                r"(\\+)('|\Z)", lambda m: "\\" * (len(m[1]) // 2) + m[2], value[1:-1]
            )
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
    names = supported_loggers()
    expected = dict.fromkeys(COUNTS, count)
    expected |= {budget: count for key, budget in TOKEN_BUDGETS.items() if settings.get(key)}
    if settings.get(ENGINE) == "vllm" and settings.get(CHUNKED_PREFILL):
        expected[BATCHED_TOKENS] = count
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
    expected[LOGGER] = (
        lambda given: is_text_or_texts(given) and set(as_list(given)) <= {*names, "tracking"},
        f"one or a list of {', '.join(names)} (LOGGER)",
    )
    return expected


def supported_loggers() -> list[str]:
    source = (CHECKOUT / "verl/utils/tracking.py").read_text()
    return ast.literal_eval(re.search(r"supported_backend = (\[.*?\])", source, re.DOTALL)[1])


def wrong_settings(settings: Settings) -> dict[str, str]:
    """The problem with each setting that is not what it must be."""
    composed = "trainer.project_name" in settings  # else only some of the settings are known
    wrong = {}
    for key, (is_right, words) in expectations(settings).items():
        value = settings.get(key)
        if (composed or key in settings) and not is_right(value):
            found = "not set" if value is None else repr(value)
            wrong[key] = f"settings: {key} is {found}, expected {words}."
    return wrong


def era_problems(config: dict) -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    # By its path: era.py needs only torch, while `import verl` loads all of it.
    spec = importlib.util.spec_from_file_location("checkout_era", CHECKOUT / "verl/utils/era.py")
    era = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = era
    spec.loader.exec_module(era)
    try:
        era.validate_trainer_config(config)
    except ValueError as error:
        return [f"settings: {error}".replace("\n", "\n    ")]
    return []


def policy_loss_problems(config: dict) -> list[str]:
    """Names that verl would refuse at the first update, after the first responses were drawn."""
    actor, model = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["model"]
    sources = [
        (CHECKOUT / f"verl/trainer/ppo/{name}.py").read_text() for name in ("core_algos", "gspo")
    ]
    losses = re.findall(r'@register_policy_loss\("(\w+)"\)', "".join(sources))
    known = {
        "policy_loss.loss_mode": (actor["policy_loss"]["loss_mode"], ["vanilla", *losses]),
        "loss_agg_mode": (
            actor["loss_agg_mode"],
            re.findall(r'if loss_agg_mode == "([\w-]+)"', sources[0]),
        ),
    }
    if model.get("external_lib"):  # which may register losses of its own
        del known["policy_loss.loss_mode"]
    return [
        f"settings: {ACTOR}.{key} is {value!r}, expected one of {', '.join(names)}."
        for key, (value, names) in known.items()
        if value not in names
    ]


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


def packages_problems(settings: Settings) -> list[str]:
    """What this Python lacks of what the run will import."""
    override = "actor_rollout_ref.model.override_config."
    attention = (
        settings.get(f"{override}_attn_implementation")
        or settings.get(f"{override}attn_implementation")
        or "flash_attention_2"  # verl's default
    )
    chosen = as_list(settings.get(LOGGER))
    loggers = [module for name, module in LOGGER_MODULES.items() if name in chosen]
    modules = [*MODULES, *loggers]
    engine = settings.get(ENGINE, "vllm")
    if engine in ("vllm", "sglang"):
        modules.append(engine)
    remove_padding = settings.get("actor_rollout_ref.model.use_remove_padding")
    if attention == "flash_attention_2" or remove_padding:
        modules.append("flash_attn")
    lacks = [module for module in modules if importlib.util.find_spec(module) is None]
    if not lacks:
        return []
    other_loggers = " LOGGER chooses other loggers." if set(lacks) & set(loggers) else ""
    return [
        f"packages: {sys.executable} lacks {', '.join(lacks)}. Activate the environment that "
        f"trains or set PYTHON to its python; `make llm-...` makes one.{other_loggers}"
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


def cluster_gpus(address: str) -> Optional[list[int]]:
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
        return [
            f"GPUs: {sys.executable} has no ray, so the Ray cluster at RAY_ADDRESS={address} "
            "cannot be asked."
        ]
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


def gpu_problems(nnodes: int, gpus_per_node: int, environment_to_come: bool) -> list[str]:
    address = os.environ.get("RAY_ADDRESS")
    wanted = f"{nnodes} x {gpus_per_node} GPUs (NNODES x GPUS_PER_NODE)"
    if address:
        return cluster_problems(address, wanted, nnodes, gpus_per_node, environment_to_come)
    found = local_gpus()
    if nnodes > 1:
        one_node = ", or set NNODES=1" if found else ""
        return [
            f"GPUs: the run wants {wanted}, this machine has {found} and RAY_ADDRESS names no Ray "
            "cluster. Start Ray on all nodes and set RAY_ADDRESS=auto, or submit "
            f"recipe/era/slurm_ray.sbatch{one_node}."
        ]
    if found < gpus_per_node:
        return [f"GPUs: the run wants {wanted}, this machine has {found}."]
    return []


# Batches, lengths, model and data


def batch_problems(settings: Settings, gpus: int) -> list[str]:
    """Where verl would stop after the start, or silently round a mini-batch down."""
    # The filter of recipe/dapo cuts what was generated to train_batch_size; without it all of it is
    # trained on.
    trained = PROMPTS if settings.get("algorithm.filter_groups.enable") else GENERATED_PROMPTS
    prompts, generated = settings[trained], settings[GENERATED_PROMPTS]
    n, mini, ulysses = settings[RESPONSES], settings[MINI_BATCH], settings[ULYSSES]
    ranks = gpus // ulysses
    problems = [
        f"GPUs: {gpus} of them do not divide into groups of {key}={settings[key]}."
        for key in (ULYSSES, TENSOR_PARALLEL)
        if gpus % settings[key]
    ]
    if prompts * n % gpus:
        problems.append(
            f"batch: {trained}={prompts} x {RESPONSES}={n} = {prompts * n} responses do not divide "
            f"among {gpus} GPUs."
        )
    if generated % gpus:
        problems.append(
            f"batch: {GENERATED_PROMPTS}={generated} prompts do not divide among {gpus} GPUs."
        )
    if prompts % mini:
        problems.append(
            f"batch: {trained}={prompts} prompts do not divide into mini-batches of "
            f"{MINI_BATCH}={mini}."
        )
    if gpus % ulysses == 0 and mini * n % ranks:
        problems.append(
            f"batch: {MINI_BATCH}={mini} x {RESPONSES}={n} = {mini * n} responses do not divide "
            f"among {ranks} data-parallel ranks."
        )
    return problems


def length_problems(settings: Settings) -> list[str]:
    prompt, response, ulysses = (settings[k] for k in (PROMPT_LENGTH, RESPONSE_LENGTH, ULYSSES))
    context = prompt + response
    text = f"{PROMPT_LENGTH}={prompt} + {RESPONSE_LENGTH}={response} = {context} tokens"
    problems = []
    for dynamic, budget in TOKEN_BUDGETS.items():
        if settings.get(dynamic) and settings[budget] * ulysses < context:
            times = f" x {ULYSSES}={ulysses}" if ulysses > 1 else ""
            problems.append(f"lengths: {text} do not fit into {budget}={settings[budget]}{times}.")
    is_chunked = settings[ENGINE] == "vllm" and settings.get(CHUNKED_PREFILL)
    if is_chunked and settings[BATCHED_TOKENS] < context:
        problems.append(
            f"lengths: verl wants {BATCHED_TOKENS}={settings[BATCHED_TOKENS]} to hold {text}."
        )
    return problems


def model_problems(model: str, context_length: Optional[int]) -> list[str]:
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
        return [
            f"model: {config} is not a model configuration with max_position_embeddings. Download "
            "it again."
        ]
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
        problems.append(
            f"model: {folder} holds no weights (*.safetensors or *.bin). Download it again."
        )
    return problems


def data_problems(settings: Settings, key: str) -> list[str]:
    files = as_list(settings[key])
    # Several files need to fill a batch only together.
    fills_batch = key == "data.train_files" and len(files) == 1
    generated = settings.get(GENERATED_PROMPTS)
    least_rows = generated if fills_batch and is_count(generated) else 1
    return [problem for file in files for problem in file_problems(file, FILES[key], least_rows)]


def file_problems(file: str, variable: str, least_rows: int) -> list[str]:
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
    return [] if importlib.util.find_spec("pyarrow") is None else table_problems(path, least_rows)


def table_problems(path: Path, least_rows: int) -> list[str]:
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(path)
    except pyarrow.ArrowException as error:
        return [f"data: {path} is not a readable parquet file: {error}. Make it again."]
    names = metadata.schema.to_arrow_schema().names
    lacks = ", ".join(column for column in COLUMNS if column not in names)
    problems = []
    if lacks:
        problems.append(
            f"data: {path} lacks verl's columns {lacks}. Make it with recipe/era/prepare_data.py."
        )
    if metadata.num_rows < least_rows:
        problems.append(
            f"data: {path} has {metadata.num_rows} rows, a generation batch needs {least_rows} "
            f"({GENERATED_PROMPTS})."
        )
    return problems


def recipe_problems() -> list[str]:
    if (CHECKOUT / "recipe/dapo/main_dapo.py").is_file():
        return []
    return [
        "recipe: this checkout has no recipe/dapo, because it was made from the source package, "
        "which lacks it. Make it from git: python apply.py apply verl --source git --checkouts "
        "<an empty folder>."
    ]


# Checkpoints


def step_of(checkpoint: Path) -> Optional[int]:
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


def start_problems(
    checkpoint: Path, contents: list[str], settings: Settings, gpus: int
) -> list[str]:
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


def checkpoint_problems(
    checkpoint: Path, contents: list[str], settings: Settings, gpus: int
) -> list[str]:
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
    kinds = [SHARDS[content] for content in contents if content in SHARDS]
    files = [
        actor / f"{kind}_world_size_{gpus}_rank_{rank}.pt" for kind in kinds for rank in range(gpus)
    ]
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


def find_problems(overrides: list[str], environment_to_come: bool) -> list[str]:
    settings, problems = read_settings(overrides)
    wrong = wrong_settings(settings)
    problems += wrong.values()

    def are_known(*keys: str) -> bool:
        """Whether a check that goes by these settings can be made."""
        return all(key in settings and key not in wrong for key in keys)

    has_gpus = are_known(NNODES, GPUS_PER_NODE)
    gpus = settings[NNODES] * settings[GPUS_PER_NODE] if has_gpus else 0
    has_lengths = are_known(PROMPT_LENGTH, RESPONSE_LENGTH)
    budgets_are_right = not {BATCHED_TOKENS, *TOKEN_BUDGETS.values()} & {*wrong}
    if not environment_to_come:
        problems += python_problems() + packages_problems(settings)
    if has_gpus:
        problems += gpu_problems(settings[NNODES], settings[GPUS_PER_NODE], environment_to_come)
    if has_gpus and are_known(*BATCH):
        problems += batch_problems(settings, gpus)
    if has_lengths and are_known(ULYSSES, ENGINE) and budgets_are_right:
        problems += length_problems(settings)
    if are_known(MODEL):
        context = settings[PROMPT_LENGTH] + settings[RESPONSE_LENGTH] if has_lengths else None
        problems += model_problems(settings[MODEL], context)
    for key in FILES:
        if are_known(key):
            problems += data_problems(settings, key)
    if has_gpus and are_known(STEPS, CHECKPOINTS) and not {RESUME_MODE, LOADED} & {*wrong}:
        problems += resume_problems(settings, gpus)
    return problems + recipe_problems()


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
        print("This run cannot start; nothing was changed:", file=sys.stderr)
        print("\n".join(f"  - {problem}" for problem in problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
