# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time and peak memory of what verl 0.9's Megatron engine makes of its logits, with a vocabulary split over processes.

    python -m tools.bench.megatron [--tensor-parallel 1 2] [--tokens 256] [--csv FILE]

This runs where verl 0.9 and Megatron-core can be imported, on CPUs with gloo, a thread for each process. Each baseline
is GRPO as verl's engine computes it, with the copy that it makes for the entropies. "ERA by their functions" is what
the same functions would need for ERA's terms: a scaled copy for the scaled log-probs and, for a KL loss, the logits
once more. The costs are those of the first process; memory is the peak of its part of the logits and what is made of
it.
"""

import os
import tempfile
import warnings
from functools import partial

import pandas as pd
import torch
import torch.distributed as dist
import torch.multiprocessing

from demo.llm.verl_0_9 import cpu
from tools.bench import measure
from tools.bench.logprobs import TEMPERATURE, TOP_K, Case, K, era


def verl(case, logits, entropy=False):
    from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits

    logits.div_(TEMPERATURE)
    kept = logits.clone() if entropy else logits
    terms = [vocab_parallel_entropy(logits)] if entropy else []
    return [vocab_parallel_log_probs_from_logits(kept, case.labels), *terms]


def by_their_functions(case, logits, entropy=False):
    from verl.utils.megatron.tensor_parallel import vocab_parallel_log_probs_from_logits

    scaled = logits * (case.scale(K) / TEMPERATURE).unsqueeze(-1)
    return [vocab_parallel_log_probs_from_logits(scaled, case.labels), *verl(case, logits, entropy)]


def era_in_parts(case, logits, **options):
    return era(case, logits, group=dist.group.WORLD, **options)


BASELINE, THEIRS = "verl", "ERA by their functions"
ARMS = {
    "update": {BASELINE: verl, "ERA": era_in_parts, f"ERA, top-k {TOP_K}": partial(era_in_parts, top_k=TOP_K)},
    "update, KL loss": {
        BASELINE: verl,
        THEIRS: by_their_functions,
        "ERA": partial(era_in_parts, original=True),
    },
    "update, KL loss, entropy bonus": {
        BASELINE: partial(verl, entropy=True),
        THEIRS: partial(by_their_functions, entropy=True),
        "ERA": partial(era_in_parts, original=True, entropy=True),
    },
}
ARGUMENTS = {
    "--tensor-parallel": {"type": int, "nargs": "+", "default": [1, 2]},
    "--tokens": {"type": int, "default": 256, "help": "a multiple of 8"},
    **measure.VOCABULARY,
}


def process(rank: int, size: int, folder: str, tokens: int, vocabulary: int, turns: int) -> None:
    """Measure all arms in one of `size` processes; the first writes WHAT.csv into the folder."""
    from megatron.core import parallel_state

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    torch.manual_seed(rank)
    case, totals = Case(tokens, vocabulary, columns=vocabulary // size), {}
    dist.broadcast(case.labels, 0)

    def take_turn(what, arm):
        dist.barrier()
        costs = case.take_turn(what, ARMS[what][arm])
        totals[arm] = case.total.item()
        return costs

    for what in ARMS:
        table = measure.compare({arm: partial(take_turn, what, arm) for arm in ARMS[what]}, turns, ratio=BASELINE)[what]
        if THEIRS in ARMS[what]:
            assert abs(totals["ERA"] - totals[THEIRS]) < 1e-4 * abs(totals[THEIRS]), f"the terms differ: {totals}"
        if rank == 0:
            table.to_csv(f"{folder}/{what}.csv")
    dist.barrier()
    os._exit(0)  # destroy_process_group sometimes hangs in gloo's teardown


def tables(args):
    """A table for each number of processes and group of arms."""
    os.environ.update(cpu.ENVIRONMENT, OMP_NUM_THREADS="1")
    for size in args.tensor_parallel:
        with tempfile.TemporaryDirectory() as folder:
            inputs = size, folder, args.tokens, args.vocabulary, args.turns
            torch.multiprocessing.spawn(process, inputs, nprocs=size)
            measured = {what: pd.read_csv(f"{folder}/{what}.csv", index_col=0) for what in ARMS}
        for what, rows in measured.items():
            yield rows, {"group": what, "tensor_parallel": size}


if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables)
