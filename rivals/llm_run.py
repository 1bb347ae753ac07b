# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.llm_run --task chain --method era-hold --setting 8 --seed 31: one run of verl's trainer on a CPU.

Writes into the folder that it is started in: train.csv, a row per step; samples.csv, a row for each temperature at
which answers were sampled from the final weights; run.json. The model that a seed's runs start from is made once, in
../start.
"""

import argparse
import os
import shutil
import signal
import tempfile
from pathlib import Path
from statistics import mean

import pandas as pd

from demo.llm import chain, config, curves, training, warmup
from demo.llm.models import EOS
from era.language import response_entropy
from recipes import PROJECT, run_json
from rivals import equal, llm
from rivals.llm import CURVES, SAMPLES, STEPS, TEMPERATURES

PACKAGES = ("torch", "transformers", "ray", "tensordict", "numpy")
ANSWERS, ANSWERS_AT_1 = 64, 256  # sampled per prompt
# A policy that has given up some starts has given them up entirely, so a share of 16 would be coarse.
STARTS = dict.fromkeys(llm.START, chain.VALIDATION_STARTS) | {"chain-goal": range(10, 90, 2)}
BLOCK = 32  # answers, of which distinct ones are counted
# verl writes the final weights as a model of transformers. The adaptive bonus saves its coefficient with the optimizer.
SAVE = ("trainer.save_freq={frequency}", "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,hf_model]")


def start_model(task: str, seed: int) -> Path:
    """The model to start from. Two runs may make it at a time: both make the same, and the second is dropped."""
    folder = Path(f"../start/plus_one{chain.TASKS[task].plus_one:g}-seed{seed}")  # on which the warm-up depends
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
        warmup.write_model(new, chain.TASKS[task], seed)
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
    return folder


def sampled(model, tokenizer, task: str, temperature: float, size: int) -> dict:
    """Measures of `size` answers to each prompt: means over prompts, and over blocks of BLOCK answers."""
    import torch

    starts = [start for start in STARTS[task] for _ in range(size)]
    sequences, answers = warmup.sample(model, tokenizer, starts, top_p=1.0, temperature=temperature)
    kind = chain.TASKS[task]
    right = [answer if chain.is_right(start, answer, kind.goal) else None for start, answer in zip(starts, answers)]
    blocks = [len(set(right[i : i + BLOCK]) - {None}) for i in range(0, len(right), BLOCK)]
    whole = [len(set(right[i : i + size]) - {None}) for i in range(0, len(right), size)]
    row = {
        "temperature": temperature,
        "answers": size,
        "pass_at_1": 1 - right.count(None) / len(right),
        "pass_at_32": sum(map(bool, blocks)) / len(blocks),
        "distinct_32": sum(blocks) / len(blocks),
        "distinct_all": sum(whole) / len(whole),
        "reward": mean(chain.expected_reward(start, answer, kind) for start, answer in zip(starts, answers)),
        "response_entropy": "",
        "answer_entropy": "",
    }
    if temperature == 1.0:
        responses = sequences[:, chain.PROMPT_LENGTH :]
        logits = model(sequences).logits[:, chain.PROMPT_LENGTH - 1 : -1]
        ended = (responses == EOS).cumsum(-1) - (responses == EOS).int()  # 0 up to the first end of sequence
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        row["response_entropy"] = response_entropy(entropy, ended == 0).mean().item()
        row["answer_entropy"] = (entropy * (ended == 0)).sum(-1).mean().item()
    return row


def sample(weights: Path, task: str) -> list[dict]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    model = AutoModelForCausalLM.from_pretrained(weights, torch_dtype=torch.float32).eval()
    with torch.inference_mode():
        return [
            sampled(model, tokenizer, task, temperature, ANSWERS_AT_1 if temperature == 1.0 else ANSWERS)
            for temperature in TEMPERATURES
        ]


def train(arguments: argparse.Namespace) -> Path:
    """Train the run, and return the folder of the weights of which answers are sampled: the final ones, or those of
    equal.middle_update, for which a run that is stopped keeps all."""
    settings = config.Settings(arguments.task, arguments.seed, arguments.steps)
    start = start_model(arguments.task, arguments.seed)
    folder = Path("verl").resolve()
    warmup.write_data(folder.parent, arguments.task, arguments.seed)
    stopped = arguments.method == "grpo-stopped"
    overrides = [setting.format(frequency=1 if stopped else arguments.steps) for setting in SAVE]
    overrides += llm.overrides(arguments.method, arguments.setting, arguments.task)
    trainer = "rivals.llm_trainer" if arguments.method == "era-negative" else None
    training.train_arm(settings, "grpo", arguments.checkout, start, folder, overrides, trainer=trainer)
    rows = curves.steps(folder, arguments.task).rename(columns={"step": "global_step"})
    last = arguments.steps
    if stopped:
        held = (arguments.task, "era-hold", arguments.setting, arguments.seed)
        last = equal.middle_update(rows.reward, equal.reward_at_end("llm", held)) or last
    rows[rows.global_step <= last].to_csv(CURVES, index=False)
    return folder / f"global_step_{last}/actor/huggingface"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rivals.llm_run", description=__doc__)
    parser.add_argument("--task", required=True, choices=llm.START)
    parser.add_argument("--method", required=True, choices=llm.METHODS)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--steps", type=int, help="those of the task's protocol")
    checkouts = os.environ.get("CHECKOUTS") or PROJECT / "checkouts"
    parser.add_argument("--checkout", default=Path(checkouts, "verl"), type=Path, help="v0.4.1 with the overlay")
    arguments = parser.parse_args()
    known = llm.hold_settings(arguments.task)[arguments.method]
    if arguments.setting not in known:
        parser.error(f"--setting {arguments.setting}: {arguments.method} has {', '.join(known)}.")
    arguments.steps = arguments.steps or STEPS[arguments.task]
    return arguments


def main() -> None:
    arguments = parse()
    code = run_json.code(PROJECT, arguments.checkout)
    known = {"method": arguments.method, "setting": arguments.setting, **code}
    record = run_json.begin("verl", arguments.task, arguments.seed, arguments.steps, PACKAGES, **known)
    run_json.start(Path(), record)
    weights = train(arguments)
    pd.DataFrame(sample(weights, arguments.task)).to_csv(SAMPLES, index=False)
    shutil.rmtree("verl")
    record["total_steps"] = len(pd.read_csv(CURVES))
    run_json.finish(Path(), record)  # without a CPU time: most of it is used by Ray's processes, which are not counted


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that training.train_arm removes Ray's folder
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
