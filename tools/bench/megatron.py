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
from era.log_probs import policy_terms
from tools.bench import tables
from tools.bench.logprobs import TEMPERATURE, TOP_K, Model

K = 2.0


class Case:
    """Eight responses, as ERA scales them: one of too little entropy, one of too much, both of positive advantage."""

    def __init__(self, tokens: int, vocabulary: int):
        of_response = torch.tensor([K, 1, 1, 1, 1, 1, 1, 1 / K])
        self.scale = of_response.repeat_interleave(tokens // 8).unsqueeze(0)
        self.labels = torch.randint(vocabulary, self.scale.shape)  # alike on all ranks
        torch.manual_seed(dist.get_rank())
        self.kept = torch.randn(*self.scale.shape, vocabulary // dist.get_world_size()).mul_(3)
        self.logits, self.losses = torch.empty_like(self.kept), {}

    def take_turn(self, group, arm):
        """Makes the arm's terms of the logits and their gradient, and keeps their sum."""
        self.logits.copy_(self.kept)
        dist.barrier()

        def run():
            logits = Model.apply(torch.zeros((), requires_grad=True), [self.logits.detach()])
            loss = sum(term.sum() for term in ARMS[group][arm](self, logits))
            loss.backward()
            self.losses[group, arm] = loss.item()

        cost = tables.cost(run)
        cost["mib"] += self.logits.nbytes / 2**20
        return {group: cost}


def verl(case, logits, entropy=False):
    from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits

    logits.div_(TEMPERATURE)
    kept = logits.clone() if entropy else logits
    terms = [vocab_parallel_entropy(logits)] if entropy else []
    return [vocab_parallel_log_probs_from_logits(kept, case.labels), *terms]


def by_their_functions(case, logits, entropy=False):
    from verl.utils.megatron.tensor_parallel import vocab_parallel_log_probs_from_logits

    scaled = logits * (case.scale / TEMPERATURE).unsqueeze(-1)
    return [vocab_parallel_log_probs_from_logits(scaled, case.labels), *verl(case, logits, entropy)]


def era(case, logits, **asked):
    terms = policy_terms(
        logits, case.labels, case.scale, TEMPERATURE, group=dist.group.WORLD, inplace_backward=True, **asked
    )
    return [term for term in terms if term is not None]


ARMS = {  # of each group the first is the baseline
    "update": {"verl": verl, "ERA": era, f"ERA, top-k {TOP_K}": partial(era, top_k=TOP_K)},
    "update, KL loss": {"verl": verl, "ERA by their functions": by_their_functions, "ERA": partial(era, original=True)},
    "update, KL loss, entropy bonus": {
        "verl": partial(verl, entropy=True),
        "ERA by their functions": partial(by_their_functions, entropy=True),
        "ERA": partial(era, original=True, entropy=True),
    },
}


def process(rank: int, size: int, folder: str, tokens: int, vocabulary: int, turns: int) -> None:
    from megatron.core import parallel_state

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    torch.manual_seed(0)
    case, found = Case(tokens, vocabulary), {}
    for group in ARMS:
        arms = {arm: partial(case.take_turn, group, arm) for arm in ARMS[group]}
        found |= tables.compare(arms, turns, ratio="verl")
        losses = [case.losses[group, arm] for arm in ("ERA by their functions", "ERA") if (group, arm) in case.losses]
        assert all(abs(a - losses[0]) < 1e-4 * abs(a) for a in losses), f"the arms' terms differ: {losses}"
    if rank == 0:
        for group, table in found.items():
            table.to_csv(f"{folder}/{group}.csv")
    dist.barrier()
    os._exit(0)  # destroy_process_group sometimes hangs in gloo's teardown


def main():
    parser = tables.parser(__doc__)
    parser.add_argument("--tensor-parallel", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=256, help="a multiple of 8")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    args = parser.parse_args()
    os.environ.update(cpu.ENVIRONMENT, OMP_NUM_THREADS="1")
    written = tables.Tables(args.csv)
    for size in args.tensor_parallel:
        with tempfile.TemporaryDirectory() as folder:
            given = size, folder, args.tokens, args.vocabulary, args.turns
            torch.multiprocessing.spawn(process, given, nprocs=size)
            found = {group: pd.read_csv(f"{folder}/{group}.csv", index_col=0) for group in ARMS}
        for group, table in found.items():
            shape = {"tensor_parallel": size, "tokens": args.tokens, "vocabulary": args.vocabulary, "turns": args.turns}
            title = f"{group}: {args.tokens} x {args.vocabulary:,} float32, tensor parallelism {size}"
            written.add(title, table, group=group, **shape)


if __name__ == "__main__":
    main()
