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
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Optional

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
COUNTS = (PROMPTS, GENERATED_PROMPTS, RESPONSES, MINI_BATCH, ULYSSES, TENSOR_PARALLEL, PROMPT_LENGTH, RESPONSE_LENGTH, NNODES, GPUS_PER_NODE, STEPS)

# verl packs micro-batches up to these many tokens per GPU.
TOKEN_BUDGETS = {
    "actor_rollout_ref.actor.use_dynamic_bsz": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
}
SETS = ("dapo-math-17k", "math-3to5", "aime-2024")
COLUMNS = ("data_source", "prompt", "reward_model")
TRACKER = "latest_checkpointed_iteration.txt"
# What verl loads of a checkpoint, and how it names the files of each rank.
SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}

Settings = dict[str, Any]


# The configuration of the run


def plain_value(text: str) -> Any:
    """The value that hydra reads from a plain or quoted scalar, or from a list of them."""
    if text.startswith("[") and text.endswith("]"):
        return [plain_value(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace("\\" + text[0], text[0])
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
        settings[key] = plain_value(value)
    return settings


def flattened(node: dict, prefix: str = "") -> Settings:
    settings = {}
    for key, value in node.items():
        settings.update(flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
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
            problems += era_problem(config)
        except (HydraException, OmegaConfBaseException) as error:
            named = f"{error.override}: " if isinstance(error, OverrideParseException) else ""
            problems.append(f"settings: {named}{error}".replace("\n", " "))
    problems += [f"settings: {key} is {settings.get(key)!r}, expected a whole number >= 1." for key in COUNTS if not is_count(settings.get(key))]
    return settings, problems


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


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
        return [f"settings: {error}"]
    return []


# What must be there


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
    code = f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='ERROR'); print('gpus', *(int(node['Resources'].get('GPU', 0)) for node in ray.nodes() if node['Alive']))"
    try:
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None
    found = [line.split()[1:] for line in answer.stdout.splitlines() if line.startswith("gpus ")]
    return [int(count) for count in found[0]] if found else None


def cluster_problem(address: str, wanted: str, nnodes: int, gpus_per_node: int, environment_to_come: bool) -> list[str]:
    if address.startswith(("http://", "https://")):
        return [f"GPUs: RAY_ADDRESS={address} is a dashboard's address, for `ray job submit` alone; give that of the cluster, such as auto or HOST:6379."]
    if importlib.util.find_spec("ray") is None:
        # The cluster can only be asked once there is an environment with ray; the run checks again then.
        return [] if environment_to_come else [f"GPUs: {sys.executable} has no ray, so the Ray cluster at RAY_ADDRESS={address} cannot be asked."]
    found = cluster_gpus(address)
    if found is None:
        return [f"GPUs: the run wants {wanted}; no Ray cluster answers at RAY_ADDRESS={address}. Start Ray on all nodes (`ray start`) with this Ray version."]
    if sum(count >= gpus_per_node for count in found) < nnodes:
        return [f"GPUs: the run wants {wanted}; the nodes of the Ray cluster at RAY_ADDRESS={address} have {', '.join(map(str, found))}."]
    return []


def gpu_problem(nnodes: int, gpus_per_node: int, environment_to_come: bool) -> list[str]:
    address = os.environ.get("RAY_ADDRESS")
    wanted = f"{nnodes} x {gpus_per_node} GPUs (NNODES x GPUS_PER_NODE)"
    if address:
        return cluster_problem(address, wanted, nnodes, gpus_per_node, environment_to_come)
    found = local_gpus()
    if nnodes > 1:
        return [f"GPUs: the run wants {wanted}, this machine has {found} and RAY_ADDRESS names no Ray cluster. Start Ray on all nodes and set RAY_ADDRESS=auto, submit recipe/era/slurm_ray.sbatch, or set NNODES=1."]
    return [] if found >= gpus_per_node else [f"GPUs: the run wants {wanted}, this machine has {found}."]


def batch_problems(settings: Settings, gpus: int) -> list[str]:
    """Where verl would stop after the start, or silently round a mini-batch down."""
    # The filter of recipe/dapo cuts what was generated to train_batch_size; without it all of it is trained on.
    trained = PROMPTS if settings.get("algorithm.filter_groups.enable") else GENERATED_PROMPTS
    prompts, generated, n, mini, ulysses, tensor_parallel = (settings[key] for key in (trained, GENERATED_PROMPTS, RESPONSES, MINI_BATCH, ULYSSES, TENSOR_PARALLEL))
    problems = []
    for key, size in ((ULYSSES, ulysses), (TENSOR_PARALLEL, tensor_parallel)):
        if gpus % size:
            problems.append(f"GPUs: {gpus} of them do not divide into groups of {key}={size}.")
    if prompts * n % gpus:
        problems.append(f"batch: {trained}={prompts} x {RESPONSES}={n} = {prompts * n} responses do not divide among {gpus} GPUs.")
    if generated % gpus:
        problems.append(f"batch: {GENERATED_PROMPTS}={generated} prompts do not divide among {gpus} GPUs.")
    if prompts % mini:
        problems.append(f"batch: {trained}={prompts} prompts do not divide into mini-batches of {MINI_BATCH}={mini}.")
    if gpus % ulysses == 0 and mini * n % (gpus // ulysses):
        problems.append(f"batch: {MINI_BATCH}={mini} x {RESPONSES}={n} = {mini * n} responses do not divide among {gpus // ulysses} data-parallel ranks.")
    return problems


def length_problems(settings: Settings) -> list[str]:
    context = settings[PROMPT_LENGTH] + settings[RESPONSE_LENGTH]
    text = f"{PROMPT_LENGTH}={settings[PROMPT_LENGTH]} + {RESPONSE_LENGTH}={settings[RESPONSE_LENGTH]} = {context} tokens"
    problems = []
    for dynamic, budget in TOKEN_BUDGETS.items():
        if settings.get(dynamic) and settings[budget] * settings[ULYSSES] < context:
            problems.append(f"lengths: {text} do not fit into {budget}={settings[budget]}" + (f" x {ULYSSES}={settings[ULYSSES]}." if settings[ULYSSES] > 1 else "."))
    rollout = "actor_rollout_ref.rollout"
    if settings[f"{rollout}.name"] == "vllm" and settings[f"{rollout}.enable_chunked_prefill"] and settings[f"{rollout}.max_num_batched_tokens"] < context:
        problems.append(f"lengths: verl wants {rollout}.max_num_batched_tokens={settings[f'{rollout}.max_num_batched_tokens']} to hold {text}.")
    return problems


def model_problem(model: str, context_length: int) -> list[str]:
    folder = Path(model).expanduser()
    config = folder / "config.json"
    if not config.is_file():
        return [f"model: no {config}. Download the model, for instance `huggingface-cli download Qwen/{folder.name} --local-dir {model}`, or set MODEL_PATH to its folder (a name on a hub will not do: the file is checked before the run)."]
    try:
        positions = json.loads(config.read_text())["max_position_embeddings"]
    except (ValueError, KeyError):
        return [f"model: {config} is not a model configuration with max_position_embeddings. Download it again."]
    problems = []
    if positions < context_length:
        problems.append(f"model: {config} has max_position_embeddings {positions}, prompts and responses need {context_length}. Set it to 32768 there, as verl's DAPO recipe asks for this model.")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        problems.append(f"model: {folder} holds no weights (*.safetensors or *.bin). Download it again.")
    return problems


def file_problem(file: str, least_rows: int) -> list[str]:
    path = Path(file).expanduser()
    if not path.is_file():
        make = f"Make it with `make llm-data`, or in the checkout with `python recipe/era/prepare_data.py {path.stem} --out {path.parent}`, or set" if path.stem in SETS else "Set"
        return [f"data: no {file}. {make} TRAIN_FILE and TEST_FILE."]
    with path.open("rb") as stream:
        begin = stream.read(4)
        stream.seek(max(path.stat().st_size - 4, 0))
        end = stream.read(4)
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
    problems = [f"data: {file} lacks verl's columns {', '.join(lacks)}. Make it with recipe/era/prepare_data.py."] if lacks else []
    if metadata.num_rows < least_rows:
        problems.append(f"data: {file} has {metadata.num_rows} rows, a generation batch needs {least_rows} ({GENERATED_PROMPTS}).")
    return problems


def data_problems(settings: Settings) -> list[str]:
    problems = []
    for key, least_rows in (("data.train_files", settings[GENERATED_PROMPTS]), ("data.val_files", 1)):
        files = settings[key] if isinstance(settings[key], list) else [settings[key]]
        if len(files) > 1:  # only together need they fill a batch
            least_rows = 1
        for file in files:
            problems += file_problem(str(file), least_rows)
    return problems


def recipe_problem() -> list[str]:
    if (CHECKOUT / "recipe/dapo/main_dapo.py").is_file():
        return []
    return ["recipe: this checkout has no recipe/dapo, because it was made from the source package, which lacks it. Make it from git: python apply.py apply verl --source git --checkouts <an empty folder>."]


def step_of(checkpoint: Path) -> Optional[int]:
    found = re.fullmatch(r"global_step_(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def checkpoint_problem(checkpoint: Path, contents: list[str], gpus: int) -> list[str]:
    """verl's FSDP checkpoints are one file per rank and load on as many ranks alone."""
    actor = checkpoint / "actor"
    sizes = {int(found[1]) for file in actor.glob("model_world_size_*_rank_*.pt") if (found := re.match(r"model_world_size_(\d+)_rank_", file.name))}
    if sizes and gpus not in sizes:
        return [f"checkpoint: {actor} was written by {', '.join(map(str, sorted(sizes)))} GPUs and loads on as many alone, this run has {gpus}. Choose NNODES and GPUS_PER_NODE accordingly."]
    files = [actor / f"{SHARDS[content]}_world_size_{gpus}_rank_{rank}.pt" for content in contents if content in SHARDS for rank in range(gpus)]
    files.append(checkpoint / "data.pt")
    # torch.save writes a zip archive, whose end is missing when the write was interrupted.
    broken = [str(file.relative_to(checkpoint)) for file in files if not zipfile.is_zipfile(file)]
    if broken:
        return [f"checkpoint: {checkpoint} is incomplete: {len(broken)} of {len(files)} files are missing or cut off, such as {broken[0]}."]
    return []


def resume_problems(settings: Settings, gpus: int) -> list[str]:
    """What would make verl stop, or silently start from scratch, where it is to go on from a checkpoint."""
    mode, own, start = (settings.get(f"trainer.{key}") for key in ("resume_mode", "default_local_dir", "resume_from_path"))
    contents = settings.get("actor_rollout_ref.actor.checkpoint.load_contents") or list(SHARDS)
    if mode == "resume_path":
        checkpoint = Path(str(start))
        if step_of(checkpoint) is None:
            return [f"checkpoint: trainer.resume_from_path={start} is not named global_step_<number>, as verl's checkpoints are."]
        if not checkpoint.is_dir():
            return [f"checkpoint: no {checkpoint}. Run stage 1 (run_era_stage1_qwen2.5_math_7b.sh, make llm-stage1) to its end, or set STAGE1_CKPT to its last global_step_<number>."]
        return [*checkpoint_problem(checkpoint, contents, gpus), *finished_problem(checkpoint, settings)]
    tracker = Path(str(own)) / TRACKER
    if mode != "auto" or not tracker.exists():
        return []
    text = tracker.read_text().strip()
    checkpoint = tracker.parent / f"global_step_{text}"
    if step_of(checkpoint) is None or not checkpoint.is_dir():
        return [f"checkpoint: {tracker} says {text!r}, and there is no such checkpoint beside it. Write the number of the newest complete global_step_<number> into it, or remove it to start from scratch."]
    if start and step_of(checkpoint) <= (step_of(Path(str(start))) or 0):
        return [f"checkpoint: {tracker.parent} holds step {text}, not later than {start}, from which this run goes on: it is another run's folder. Set CKPTS_DIR to one of its own."]
    return [*checkpoint_problem(checkpoint, contents, gpus), *finished_problem(checkpoint, settings)]


def finished_problem(checkpoint: Path, settings: Settings) -> list[str]:
    if step_of(checkpoint) < settings[STEPS]:
        return []
    return [f"steps: {checkpoint} has been reached, and the run ends at step {settings[STEPS]}: nothing is left to do. Raise TOTAL_STEPS to go on, or set CKPTS_DIR to a new folder."]


def find_problems(overrides: list[str], environment_to_come: bool) -> list[str]:
    settings, problems = read_settings(overrides)
    if all(is_count(settings.get(key)) for key in COUNTS):
        nnodes, gpus_per_node = settings[NNODES], settings[GPUS_PER_NODE]
        gpus = nnodes * gpus_per_node
        problems += gpu_problem(nnodes, gpus_per_node, environment_to_come)
        problems += batch_problems(settings, gpus)
        problems += length_problems(settings)
        problems += model_problem(str(settings["actor_rollout_ref.model.path"]), settings[PROMPT_LENGTH] + settings[RESPONSE_LENGTH])
        problems += data_problems(settings)
        problems += resume_problems(settings, gpus)
    return problems + recipe_problem()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="hydra overrides of the run")
    parser.add_argument("--environment-to-come", action="store_true", help="this Python is not yet the one that trains")
    args = parser.parse_args()
    os.chdir(CHECKOUT)  # where the run starts: hydra's search path and relative paths
    problems = find_problems(args.overrides, args.environment_to_come)
    if problems:
        print("This run cannot start; nothing was changed. Missing:\n" + "\n".join(f"  - {problem}" for problem in problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
