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
"""Says everything that a run still lacks, at once and before anything starts.

Standard library only: it also runs where the training environment is yet to be made. Exit code 0: all is there.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

RECIPE_ROOT = Path(__file__).resolve().parent.parent


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


def cluster_gpus(address: str) -> Optional[int]:
    """GPUs of the Ray cluster at `address`; None where none answers."""
    code = f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='ERROR'); print('gpus', int(ray.cluster_resources().get('GPU', 0)))"
    try:
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None
    found = [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("gpus ")]
    return int(found[0]) if found else None


def cluster_problem(address: str, wanted: str, least: int, environment_to_come: bool) -> list[str]:
    if address.startswith(("http://", "https://")):
        return [f"GPUs: RAY_ADDRESS={address} is a dashboard's address; give that of the cluster, such as auto or HOST:6379."]
    if importlib.util.find_spec("ray") is None:
        # The cluster can only be asked once there is an environment with ray; the run checks again then.
        return [] if environment_to_come else [f"GPUs: {sys.executable} has no ray, so the Ray cluster at RAY_ADDRESS={address} cannot be asked."]
    found = cluster_gpus(address)
    if found is None:
        return [f"GPUs: the run wants {wanted}; no Ray cluster answers at RAY_ADDRESS={address}. Start Ray on all nodes (`ray start`) with this Ray version."]
    return [] if found >= least else [f"GPUs: the run wants {wanted}; the Ray cluster at RAY_ADDRESS={address} has {found}."]


def gpu_problem(nnodes: int, gpus_per_node: int, environment_to_come: bool) -> list[str]:
    address = os.environ.get("RAY_ADDRESS")
    wanted = f"{nnodes} x {gpus_per_node} GPUs (NNODES x GPUS_PER_NODE)"
    if address:
        return cluster_problem(address, wanted, nnodes * gpus_per_node, environment_to_come)
    found = local_gpus()
    if nnodes > 1:
        return [f"GPUs: the run wants {wanted}, this machine has {found} and RAY_ADDRESS names no Ray cluster. Start Ray on all nodes and set RAY_ADDRESS=auto, or set NNODES=1."]
    return [] if found >= gpus_per_node else [f"GPUs: the run wants {wanted}, this machine has {found}."]


def model_problem(model: str, context_length: int) -> list[str]:
    config = Path(model).expanduser() / "config.json"
    if not config.is_file():
        name = Path(model).name
        return [f"model: no {config}. Download the model, for instance `huggingface-cli download Qwen/{name} --local-dir {model}`, or set MODEL_PATH to its folder (a name on a hub will not do: the file is checked before the run)."]
    try:
        positions = json.loads(config.read_text())["max_position_embeddings"]
    except (ValueError, KeyError):
        return [f"model: {config} is not a model configuration with max_position_embeddings. Download it again."]
    if positions < context_length:
        return [f"model: {config} has max_position_embeddings {positions}, prompts and responses need {context_length}. Set it to 32768 there, as verl's DAPO recipe asks for this model."]
    return []


def file_problems(files: list[str]) -> list[str]:
    missing = [file for file in files if not Path(file).expanduser().is_file()]
    hint = "Make the data with verl's recipe/dapo/prepare_dapo_data.sh, or set TRAIN_FILE and TEST_FILE."
    return [f"data: no {file}. {hint}" for file in missing]


def recipe_problem() -> list[str]:
    if (RECIPE_ROOT / "dapo" / "main_dapo.py").is_file():
        return []
    return ["recipe: this checkout has no recipe/dapo, because it was made from the source package, which lacks it. Make it from git: python apply.py apply verl --source git --checkouts <an empty folder>."]


def divisibility_problem(trajectories: int, gpus: int) -> list[str]:
    return [f"batch: {trajectories} responses per step do not divide among {gpus} GPUs. Choose NNODES and GPUS_PER_NODE so that they do."] if trajectories % gpus else []


def whole_number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nnodes", type=whole_number, required=True, help="NNODES")
    parser.add_argument("--gpus-per-node", type=whole_number, required=True, help="GPUS_PER_NODE")
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--context-length", type=int, required=True, help="tokens of prompt and response")
    parser.add_argument("--trajectories", type=int, required=True, help="responses per optimizer step")
    parser.add_argument("--file", nargs="+", required=True, help="data files")
    parser.add_argument("--environment-to-come", action="store_true", help="this Python is not yet the one that trains")
    args = parser.parse_args()
    problems = [
        *gpu_problem(args.nnodes, args.gpus_per_node, args.environment_to_come),
        *divisibility_problem(args.trajectories, args.nnodes * args.gpus_per_node),
        *model_problem(args.model, args.context_length),
        *file_problems(args.file),
        *recipe_problem(),
    ]
    if problems:
        print("This run cannot start; nothing was changed. Missing:\n" + "\n".join(f"  - {problem}" for problem in problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
