# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""CPU time and peak memory of TRL's GRPOTrainer with ERA and without, as ratios in one run.

    python -m tools.bench.trl [--csv FILE]

Of a Qwen2 of few layers with a head of full size, without a GPU, in fp32 and under bf16's autocast:

    old log-probs    the pass over a generation batch before several updates
    update           loss and backward pass of a micro-batch
    step             generation, reward, what is scored, loss and backward pass

Every response of positive advantage is scaled, half of the tokens, which is asserted. Each arm is compared with its own
baseline, turn by turn. The memory is what the process holds at most beyond what it held before.
"""

import contextlib
import ctypes
import dataclasses
import gc
import math
import os
import tempfile
import threading
import time
import warnings
from functools import partial

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from demo.llm import models
from era.trl import EraGRPOConfig, EraGRPOTrainer
from tools.bench import tables

PROMPT, GROUP = "0123", 4
OFF_POLICY = {"num_iterations": 2}


@dataclasses.dataclass(frozen=True)
class Arm:
    title: str
    baseline: str
    era: dict | None = None
    settings: dict = dataclasses.field(default_factory=dict)


ARMS = {
    "grpo": Arm("GRPO", "grpo"),
    "logging": Arm("GRPO logging ERA's metrics (k 1)", "grpo", {"era_k": 1.0}),
    "era": Arm("ERA", "grpo", {}),
    "grpo-offpolicy": Arm("GRPO, 2 iterations", "grpo-offpolicy", settings=OFF_POLICY),
    "era-offpolicy": Arm("ERA, 2 iterations", "grpo-offpolicy", {}, OFF_POLICY),
    "grpo-kl": Arm("GRPO, KL loss", "grpo-kl", settings={"beta": 0.1}),
    "era-kl": Arm("ERA, KL loss", "grpo-kl", {}, {"beta": 0.1}),
}


class Peak(threading.Thread):
    """MiB by which the process grows at most in the block."""

    def __enter__(self):
        self.before = self.most = resident()
        self.running = True
        self.start()
        return self

    def run(self):
        while self.running:
            self.most = max(self.most, resident())
            time.sleep(0.002)

    def __exit__(self, *_):
        self.running = False
        self.join()
        self.mib = self.most - self.before


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def write_model(folder, args):
    torch.manual_seed(0)
    model = models.two_layer_qwen2(args.vocabulary, args.width, 4 * args.width, positions=args.tokens + len(PROMPT))
    torch.nn.init.constant_(model.model.norm.weight, 3 / (0.02 * args.width**0.5))  # fresh logits hardly differ
    model.generation_config.suppress_tokens = [models.EOS]  # all responses are of full length
    model.save_pretrained(folder)


def reward(completion_ids, **_):
    """Half of a group is better than the other."""
    return [float(i % GROUP < GROUP / 2) for i in range(len(completion_ids))]


def build(arm, folder, args, dtype):
    """The arm's trainer, on a model of its own."""
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": args.responses,
        "num_generations": GROUP,
        "max_completion_length": args.tokens // args.responses,
        "gradient_checkpointing": False,
        "bf16": dtype == "bfloat16",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        **arm.settings,
    }
    trainer_class, config_class = (GRPOTrainer, GRPOConfig) if arm.era is None else (EraGRPOTrainer, EraGRPOConfig)
    if arm.era is not None:
        settings |= {"era_enable": True, "era_low": 99.0, "era_high": math.inf, **arm.era}
    trainer = trainer_class(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=reward,
        args=config_class(**settings),
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * args.responses}),
        processing_class=models.character_tokenizer(list("0123456789")),
    )
    trainer.processing_class.chat_template = None
    trainer.current_gradient_accumulation_steps = 1  # set by train()
    trainer.model.train()
    return trainer


def measured(run):
    """CPU seconds, which other processes of the machine change less than those of a clock, and MiB."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed, and the process would not grow
    with Peak() as peak:
        start = time.process_time()
        run()
        seconds = time.process_time() - start
    return seconds, peak.mib


def take_turn(arm, trainer, rows):
    """By pass: seconds and MiB."""
    found, batches = {}, []
    torch.manual_seed(0)

    def generate():
        batches.append(trainer._generate_and_score_completions(rows))

    def update():
        trainer._compute_loss(trainer.model, batches[-1]).backward()

    def step():
        generate()
        update()

    found["step"] = measured(step)
    trainer.model.zero_grad()
    found["update"] = measured(update)
    trainer.model.zero_grad()
    if "old_per_token_logps" in batches[-1]:
        found["old log-probs"] = measured(partial(old_log_probs, trainer, batches[-1]))
    fractions = trainer._metrics["train"].pop("era/scaled_token_fraction", [])
    assert all(fraction == (0 if arm.era.get("era_k") == 1 else 0.5) for fraction in fractions), fractions
    assert bool(fractions) == (arm.era is not None)
    return found


def old_log_probs(trainer, batch):
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    trainer._era_sampled = []  # where ERA keeps what it finds; without ERA nobody reads it
    with torch.no_grad():
        trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), batch["completion_ids"].size(1)
        )
    trainer._era_sampled = None


def measure(args, dtype, folder):
    """A table for each pass."""
    trainers = {name: build(arm, folder, args, dtype) for name, arm in ARMS.items()}
    rows = [{"prompt": PROMPT} for _ in range(args.responses)]
    arms = {name: partial(take_turn, ARMS[name], trainer, rows) for name, trainer in trainers.items()}
    for turn in arms.values():  # warm up
        turn()
    found = tables.take_turns(arms, args.turns)
    for pass_ in ("old log-probs", "update", "step"):
        of_pass = {name: [turn[pass_] for turn in turns] for name, turns in found.items() if pass_ in turns[0]}
        baselines = {name: ARMS[name].baseline for name in of_pass}
        seconds = {name: [one for one, _ in turns] for name, turns in of_pass.items()}
        table = tables.ratios(seconds, ratio=baselines)
        table["mib"] = {name: max(mib for _, mib in turns) for name, turns in of_pass.items()}
        table["mib_ratio"] = table.mib / [table.mib[baselines[name]] for name in table.index]
        yield pass_, table


def main():
    parser = tables.parser(__doc__, turns=3)
    parser.add_argument("--tokens", type=int, default=128, help="of all responses")
    parser.add_argument("--responses", type=int, default=8, help=f"a multiple of {GROUP}")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.disable_progress_bar()
    written = tables.Tables(args.csv)
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, args)
        for dtype in args.dtypes:
            with contextlib.redirect_stdout(None):
                found = list(measure(args, dtype, folder))
            for pass_, table in found:
                title = f"{pass_}, {dtype}: {args.tokens} tokens x {args.vocabulary:,}, ratios to the arm's baseline"
                shape = {name: getattr(args, name) for name in ("tokens", "vocabulary", "width", "turns")}
                titles = {name: arm.title for name, arm in ARMS.items()}
                written.add(title, table, titles, **{"pass": f"{pass_} {dtype}"}, **shape)


if __name__ == "__main__":
    main()
