# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Rehearse the paper's LLM runs on a machine without a GPU, with verl's and vLLM's own code (make rehearse-llm).

    python -m tools.rehearse_llm --checkout checkouts/verl [run_<...>.sh ...]

Each run script is started as a user starts it, in the environment of requirements/verl-gpu.txt, on a Ray cluster that
believes in four nodes with eight GPUs each. It goes through its own check, hydra, verl's DAPO trainer with its data set
and reward manager, the GPUs' placement, and the FSDP worker of 8 and of 32 ranks, up to the weights. Then it goes
through verl's rollout, up to vLLM's engine configuration for an H20, and verl's paths of checkpoints. A table says how
far each script came, and why it stopped. The last step is the weights, which this machine does not have.

Replaced are: the weights and the tokenizer, GPUs, flash-attn's metadata, and the process group (torch's fake one).
"""

import argparse
import itertools
import json
import os
import re
import string
import subprocess
import sys
import tempfile
import types
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
NODES, GPUS = 4, 8
LOG = "ERA_REHEARSAL_LOG"  # the file to which the processes of a script write the steps that they have reached
STEPS = ("check", "configuration", "data", "reward", "GPUs", "worker", "model", "rollout", "engine", "checkpoint")
# Of Qwen2.5-Math's config.json, what the configuration of a run depends on.
SHARED_FACTS = json.loads((PROJECT / "tests/llm/qwen2.5-math-7b.json").read_text())
FACTS = {
    "Qwen2.5-Math-7B": SHARED_FACTS,
    "Qwen2.5-Math-1.5B": SHARED_FACTS
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"max_window_layers": 21, "tie_word_embeddings": True, "vocab_size": 151936},
}


class Reached(Exception):
    """Ends a part of verl's code at the point up to which it is rehearsed."""


def reached(step: str, said: str) -> None:
    with open(os.environ[LOG], "a") as log:
        print(json.dumps([step, said]), file=log)


# ------------------------------------------------------------------------------- the inputs, and the scripts one by one


def write_inputs(home: Path) -> None:
    """Models, problems and stage 1's checkpoint, where the scripts look for them in RAY_DATA_HOME."""
    import pyarrow
    import pyarrow.parquet
    import torch

    from demo.llm import models
    from recipes.llm import data, model

    for name, facts in FACTS.items():
        original = home / f"models/{name}-original"
        models.character_tokenizer([*string.printable]).save_pretrained(original)
        (original / "config.json").write_text(json.dumps(facts))
        (original / "model.safetensors").touch()
        model.link(original, home / "models" / name)
    rows = [
        data.train_row({"problem": f"What is {i}?", "answer": str(i)}, PIN, "rehearsal", i) for i in range(1600)
    ]  # two batches of 768, because 1,000 epochs of one would end before the longest runs' 1,100 steps
    (home / "data").mkdir()
    for name in ("dapo-math-17k", "math-3to5", "aime-2024"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), home / f"data/{name}.parquet")
    checkpoint = home / "ckpts/ERA/era_stage1_qwen2.5_math_7b/global_step_600"
    (checkpoint / "actor").mkdir(parents=True)
    torch.save({}, checkpoint / "data.pt")  # a data loader that has not begun
    for kind, rank in itertools.product(("model", "optim", "extra_state"), range(NODES * GPUS)):
        (checkpoint / f"actor/{kind}_world_size_{NODES * GPUS}_rank_{rank}.pt").write_bytes(b"not read")


PIN = {"problem": "problem", "answer": "answer", "answer_form": "latex"}


@contextmanager
def ray_cluster():
    """The address of a Ray cluster of this machine that believes in four nodes of eight GPUs."""
    from ray.cluster_utils import Cluster

    node = {"num_gpus": GPUS, "num_cpus": GPUS + 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()


def rehearse_script(script: Path, home: Path, address: str) -> tuple[dict[str, str], str]:
    """The steps that a script has reached, each with what it said, and the end of its output."""
    log = home / f"{script.stem}.steps"
    python = home / "python"
    python.write_text(f'#!/bin/sh\nshift # -m\nexec "{sys.executable}" -m tools.rehearse_llm --module "$@"\n')
    python.chmod(0o755)
    variables = {"RAY_DATA_HOME": home, "PYTHON": python, "RAY_ADDRESS": address, LOG: log, "WANDB_MODE": "offline"}
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    process = subprocess.run(
        ["bash", str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    (home / f"{script.stem}.log").write_text(process.stdout)
    steps = dict(json.loads(line) for line in log.read_text().splitlines()) if log.exists() else {}
    return steps, reason(process.stdout)


def reason(output: str) -> str:
    """Why a script ended: the check's list, or the last exception."""
    if "This run cannot start:" in output:
        return output.partition("This run cannot start:")[2].strip()
    errors = re.findall(r"^(?:\S* )?(\w+(?:Error|Exception): .*)", output, re.MULTILINE)
    return errors[-1] if errors else output.strip()[-300:]


def rehearse(checkout: Path, names: list[str]) -> int:
    scripts = sorted((checkout / "recipe/era").glob("run_*.sh"))
    scripts = [script for script in scripts if not names or script.name in names]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="era", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        write_inputs(home)
        # The workers of Ray find these modules too.
        os.environ["PYTHONPATH"] = os.pathsep.join((str(checkout), str(PROJECT)))
        # Without the second and third, Ray starts a process for each CPU that it believes in.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ |= dict.fromkeys(("RAY_enable_worker_prestart", "RAY_prestart_worker_first_driver"), "0")
        with ray_cluster() as address:
            print(f"{'script':<46} {'step':<14} why it stops")
            for script in scripts:
                steps, why = rehearse_script(script, home, address)
                last = next((step for step in reversed(STEPS) if step in steps), "-")
                is_whole = set(STEPS) <= steps.keys()
                failed += not is_whole
                print(f"{script.name:<46} {last:<14} {'the weights are not here' if is_whole else why}", flush=True)
        for step, said in steps.items():
            print(f"  {step:<14} {said}")
        failed += not merges(checkout, home)
    return int(bool(failed) or not scripts)


def merges(checkout: Path, home: Path) -> bool:
    """Whether `make llm-merge` makes a model of a small checkpoint with verl's tool of this environment."""
    folder = home / "global_step_1"
    write = [sys.executable, PROJECT / "tests/llm/sharded_checkpoint.py", folder / "actor"]
    subprocess.run(write, check=True, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    variables = {"CKPT": folder, "MODEL_PATH": home / "merged", "PYTHON": sys.executable, "CHECKOUTS": checkout.parent}
    make = ["make", "--no-print-directory", "llm-merge", *(f"{name}={value}" for name, value in variables.items())]
    result = subprocess.run(make, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    is_model = (home / "merged/config.json").is_file() and any((home / "merged").glob("*.safetensors"))
    print(f"  {'merge':<14} {'verl made a model of a checkpoint' if is_model else result.stdout[-300:]}")
    return is_model


# -------------------------------------------------------------------------------- in the processes that a script starts


def run_module(module: str, arguments: list[str]) -> None:
    """What the script starts as `python -m MODULE`."""
    sys.argv = [module, *arguments]
    if module == "recipe.era.preflight":
        from recipe.era import preflight

        check = preflight.check_gpu_environment
        lacks = check.problems
        check.problems = lambda framework, unused: lacks(framework, {*unused, "flash-attn"})
        code = preflight.main()
        if code == 0:
            reached("check", "nothing is missing, but for flash-attn and its GPUs")
        sys.exit(code)

    import ray
    from recipe.dapo import main_dapo
    from recipe.era import main_era

    log = os.environ[LOG]

    class Rehearsal(main_dapo.TaskRunner.__ray_metadata__.modified_class):
        def run(self, config):
            from tools import rehearse_llm

            os.environ[LOG] = log  # which the cluster's processes do not have from this one
            rehearse_llm.run_trainer(config, super().run)

    main_dapo.TaskRunner = ray.remote(num_cpus=1)(Rehearsal)
    main_era.main()


def run_trainer(config, run) -> None:
    """verl's TaskRunner.run, in its process of the cluster, with parts of this file in place of the trainer's loop."""
    from recipe.dapo import main_dapo

    reached("configuration", f"{config.trainer.experiment_name}, {config.trainer.total_training_steps} steps")
    trainer = main_dapo.RayDAPOTrainer
    trainer.init_workers = lambda self: (place_gpus(self), build_worker(self.config.actor_rollout_ref))
    trainer.fit = lambda self: (take_batch(self), save_checkpoint(self))
    run(config)


def take_batch(trainer) -> None:
    """The first batch of verl's data loader, with a right and a wrong answer for its reward manager."""
    import torch
    from verl import DataProto

    batch = DataProto.from_single_dict(next(iter(trainer.train_dataloader)))
    prompts, attended = batch.batch["input_ids"], batch.batch["attention_mask"]
    reached("data", f"a batch of {len(prompts)} prompts, padded to {prompts.shape[1]} tokens")
    answers = [row["ground_truth"] for row in batch.non_tensor_batch["reward_model"]]
    texts = [f"Answer: {answer if i % 2 else 'none'}" for i, answer in enumerate(answers)]
    tokens = trainer.tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    batch.batch["prompts"], batch.batch["responses"] = prompts, tokens["input_ids"]
    batch.batch["attention_mask"] = torch.cat([attended, tokens["attention_mask"]], dim=1)
    scores = trainer.reward_fn(batch, return_dict=True)["reward_tensor"].sum(-1)
    expected = torch.tensor([1.0 if i % 2 else -1.0 for i in range(len(texts))])
    assert torch.equal(scores, expected), f"scores of right and wrong answers: {scores[:4].tolist()}"
    reached("reward", "right answers have 1, wrong ones -1")


def place_gpus(trainer) -> None:
    """verl's placement groups on the cluster."""
    import ray

    manager = trainer.resource_pool_manager
    manager.create_resource_pool()
    groups = [group for pool in manager.resource_pool_dict.values() for group in pool.get_placement_groups()]
    for group in groups:
        ray.util.remove_placement_group(group)
    sizes = [len(group.bundle_specs) for group in groups]
    assert sizes == [GPUS] * NODES, f"{sizes} GPUs on the nodes"
    reached("GPUs", f"{NODES} x {GPUS} were placed")


def build_worker(settings) -> None:
    """verl's FSDP worker up to the weights, and its rollout up to vLLM's engine."""
    batches = {}
    for ranks in (GPUS, NODES * GPUS):
        worker = make_worker(settings, ranks)
        batches[ranks] = f"{worker.config.actor.ppo_mini_batch_size} responses on {ranks} ranks"
    reached("worker", f"mini-batches of {' or '.join(batches.values())}")
    worker.actor_module_fsdp, worker.actor_model_config = None, config_of_the_model(worker)
    reached("model", f"{worker.actor_model_config.max_position_embeddings} positions, flash-attn")
    with vllm_for_an_h20() as engines:
        try:
            worker._build_rollout()
        except Reached:
            reached("rollout", "verl's vLLMRollout was made")
    engine = engines[0]
    reached(
        "engine", f"vLLM takes {engine.model_config.max_model_len} tokens, {engine.parallel_config.world_size} GPUs"
    )


def make_worker(settings, ranks: int):
    """verl's worker of the last of so many ranks, in torch's process group without other processes."""
    import copy

    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    rank = ranks - 1
    variables = {"WORLD_SIZE": ranks, "RANK": rank, "LOCAL_WORLD_SIZE": GPUS, "LOCAL_RANK": rank % GPUS}
    os.environ |= {name: str(value) for name, value in variables.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    return ActorRolloutRefWorker(copy.deepcopy(settings), "actor_rollout")


def config_of_the_model(worker):
    """transformers' configuration with which the worker would load the weights."""
    from transformers import AutoModelForCausalLM

    def from_pretrained(*_, config, **__):
        raise Reached(config)

    AutoModelForCausalLM.from_pretrained = from_pretrained
    try:
        worker.init_model()
    except Reached as stop:
        return stop.args[0]
    raise AssertionError("verl's worker loads no weights here any more")


@contextmanager
def vllm_for_an_h20():
    """The configurations that vLLM makes of its arguments, by its own code for CUDA, with an H20's facts.

    vLLM's platform for CUDA needs the driver only for these facts, and for its kernels, which no configuration calls.
    """
    import vllm.platforms
    from vllm import EngineArgs
    from vllm.platforms.interface import DeviceCapability
    from vllm.usage.usage_lib import UsageContext

    sys.modules.setdefault("vllm._C", types.ModuleType("vllm._C"))
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
    from verl.workers.sharding_manager import fsdp_vllm
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    class H20(NonNvmlCudaPlatform):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H20")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 96 * 2**30)

    here, h20, configurations = vllm.platforms.current_platform, H20(), []
    for module in list(sys.modules.values()):
        if getattr(module, "current_platform", None) is here:
            module.current_platform = h20

    class LLM:
        def __init__(self, **arguments):
            configurations.append(EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS))

        def sleep(self, level):
            pass

    class ShardingManager:
        def __init__(self, **_):
            raise Reached

    vllm_rollout_spmd.LLM = LLM
    fsdp_vllm.FSDPVLLMShardingManager = ShardingManager
    yield configurations


def save_checkpoint(trainer) -> None:
    """verl's loading and saving of checkpoints around the weights, and what `make llm-merge` finds of them."""
    folders = []
    trainer.actor_rollout_wg = types.SimpleNamespace(
        load_checkpoint=lambda folder, **_: folders.append(folder),
        save_checkpoint=lambda folder, *_, **__: (folders.append(folder), os.makedirs(folder)),
    )
    trainer.global_steps = 0
    trainer._load_checkpoint()
    begun = trainer.global_steps
    trainer.global_steps += 1
    trainer._save_checkpoint()
    saved = Path(trainer.config.trainer.default_local_dir) / f"global_step_{begun + 1}"
    assert folders[-1] == str(saved / "actor") and (saved / "data.pt").is_file(), folders
    reached("checkpoint", f"goes on from step {begun}, and writes {saved.parent.name}/{saved.name}/actor")


def main() -> int:
    if sys.argv[1:2] == ["--module"]:  # from a script
        run_module(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="the patched checkout of verl v0.4.1, from git")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="run scripts; default: all")
    args = parser.parse_args()
    return rehearse(args.checkout.resolve(), args.scripts)


if __name__ == "__main__":
    sys.exit(main())
