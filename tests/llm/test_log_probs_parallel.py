# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Log-probs of logits whose vocabulary is split over two processes, against fp64 arithmetic on the whole rows."""

import functools
import itertools
import math
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from era.log_probs import OUTSIDE_TOP_K_LOG_PROB, policy_terms

ROWS, WIDTHS = 37, (23, 41)  # of the two ranks
ASKED = [dict(zip(("original", "entropy"), both)) for both in itertools.product((False, True), repeat=2)]
TOP_K = 5, 30  # 30 is more than one of the ranks has


def whole_rows(seed, rows=ROWS, widths=WIDTHS, dtype=torch.float32):
    """Sharp, flat and masked rows, the largest logit on either rank, labels also at the border of the parts."""
    make, size = torch.Generator().manual_seed(seed), sum(widths)
    sharpness = torch.logspace(-2, 2, rows).unsqueeze(-1)
    z = torch.randn(rows, size, generator=make) * sharpness
    z[0], z[1, : widths[0]], z[2, widths[0] :] = 3.0, -math.inf, -math.inf  # equal; one part alone has any logits
    z[3, ::2], z[4, 0], z[5, -1], z[6] = -math.inf, 500.0, 500.0, z[6] - 1e4
    labels = torch.randint(size, (rows,), generator=make)
    border = [widths[0] - 1, widths[0], 0, size - 1]
    labels[:7] = torch.tensor([border[0], border[1], border[2], border[1] | 1, border[1], border[0], border[3]])
    labels[7:11] = torch.tensor(border)
    scale = torch.tensor([1.0, 2.0, 0.5, 1.7])[torch.arange(rows) % 4]
    temperature = torch.tensor([1.0, 0.7, 1.3])[torch.arange(rows) % 3]
    mask = torch.rand(rows, generator=make) < 0.8
    labels[~mask] = -100
    return z.to(dtype).double(), labels, scale, temperature, mask, torch.randn(3, rows, generator=make)


def arithmetic(z, labels, scale, temperature, mask, weights, asked):
    """Terms and the gradient of their weighted sum, in fp64."""
    z = z.clone().requires_grad_()
    index = labels.clamp(min=0).unsqueeze(-1)
    at = z / temperature.double().unsqueeze(-1)
    log_p = at.log_softmax(-1)
    p_log_p = log_p.exp() * log_p.clamp(min=-1e30)  # 0 where p is 0, as is its gradient
    scaled = at * scale.double().unsqueeze(-1)
    if asked.get("top_k"):
        scaled = scaled.masked_fill(z < z.topk(asked["top_k"]).values[:, -1:], -math.inf)
    terms = [scaled.log_softmax(-1).gather(-1, index).squeeze(-1)]
    if asked.get("top_k"):
        terms[0] = terms[0].where(scaled.gather(-1, index).squeeze(-1) > -math.inf, OUTSIDE_TOP_K_LOG_PROB)
    terms += [log_p.gather(-1, index).squeeze(-1), -p_log_p.sum(-1)]
    kept = [terms[0], *(t for t, name in zip(terms[1:], ("original", "entropy")) if asked[name])]
    weights = [w for w, is_asked in zip(weights, (True, asked["original"], asked["entropy"])) if is_asked]
    loss = sum((w.double() * t)[mask].sum() for w, t in zip(weights, kept))
    (gradient,) = torch.autograd.grad(loss, z)
    return [t.detach().where(mask, 0) for t in terms], gradient


def differences(rank, seed, dtype, asked, inplace, compile, rows, widths):
    z, labels, scale, temperature, mask, weights = whole_rows(seed, rows, widths, dtype)
    if "top_k" in asked:  # of equal logits any may be kept
        mask &= z.topk(asked["top_k"] + 1).values.diff()[:, -1] != 0
        labels = z.topk(7).indices[:, -1].where(torch.arange(rows) % 2 == 0, labels)
        assert mask.sum() > 10
    wanted, gradient = arithmetic(z, labels, scale, temperature, mask, weights, asked)
    part = slice(0, widths[0]) if rank == 0 else slice(widths[0], None)
    own = z[:, part].to(dtype).requires_grad_()
    settings = {**asked, "mask": mask, "inplace_backward": inplace, "compile": compile}
    terms = policy_terms(own * 1, labels, scale, temperature, group=dist.group.WORLD, **settings)
    found = [(w, t, x) for w, t, x in zip(weights, terms, wanted) if t is not None]
    sum((w * t).sum() for w, t, _ in found).backward()
    errors = [((t - x).abs() / (1 + x.abs()))[mask].max().item() for _, t, x in found]
    assert all((t[~mask] == 0).all() for _, t, _ in found)
    gradient = gradient[:, part]
    relative = (own.grad - gradient).abs() / (1 + gradient.abs().amax(-1, keepdim=True))
    return errors, relative.max().item(), [t.detach() for _, t, _ in found]


def refused_by_one(rank):
    """What rank 1 alone refuses, and what each rank says; then terms once more, which no earlier call disturbs."""
    z, y, ones = torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), torch.ones(3)
    wrong = {
        "no column": {"logits": z[:, :0]},
        "whole numbers": {"logits": z.long()},
        "labels": {"labels": y[:2]},
        "a label": {"labels": y + 8},
        "no label": {"labels": y - 100},
        "dtypes": {"logits": z.bfloat16()},
        "rows": {"logits": torch.zeros(4, 4), "labels": torch.zeros(4, dtype=torch.long)},
        "scale": {"scale": -ones},
        "temperature": {"temperature": math.nan},
        "mask": {"mask": ones[:2]},
        "another error": {"mask": ones.to("meta")},
        "top_k": {"top_k": 0},
        "inplace_backward": {"logits": z.clone().requires_grad_(), "inplace_backward": True},
    }
    said = {}
    for name, arguments in wrong.items():
        with pytest.raises(Exception) as error:
            policy_terms(**{"logits": z, "labels": y, **(arguments if rank else {})}, group=dist.group.WORLD)
        said[name] = type(error.value).__name__, str(error.value)
    return said, policy_terms(z, y, group=dist.group.WORLD).scaled


def process(rank, folder, work):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(work(rank), f"{folder}/{rank}")
    dist.barrier()
    # Not by destroy_process_group(): it waits for gloo's threads with the interpreter's lock, which they may be waiting
    # for to free what they were given.
    os._exit(0)


def on_two_processes(folder, work):
    torch.multiprocessing.spawn(process, (str(folder), work), nprocs=2)
    return [torch.load(folder / str(rank)) for rank in range(2)]


def all_differences(rank, cases):
    return {case: differences(rank, *settings) for case, settings in cases.items()}


# Those of one process (tests/llm/test_log_probs.py) for fp32; bf16's gradients are rounded to bf16.
BOUNDS = {torch.float64: (1e-13, 1e-13), torch.float32: (5e-7, 1.5e-6), torch.bfloat16: (5e-7, 2**-8)}


def test_terms_and_gradients_are_those_of_the_whole_rows(tmp_path):
    cases = {
        (str(dtype), *asked.values(), inplace): (seed, dtype, asked, inplace, True, ROWS, WIDTHS)
        for seed, (dtype, asked, inplace) in enumerate(itertools.product(BOUNDS, ASKED, (False, True)))
    }
    # Large enough for compiled kernels on each rank.
    for compile in (True, False):
        cases["large", compile] = (99, torch.float32, ASKED[-1], True, compile, 1100, (4000, 4100))
    for top_k, (dtype, asked) in itertools.product(TOP_K, itertools.product(BOUNDS, ASKED)):
        settings = dtype, {**asked, "top_k": top_k}, True, True, ROWS, WIDTHS
        cases[(str(dtype), *asked.values(), top_k)] = (top_k, *settings)
    first, second = on_two_processes(tmp_path, functools.partial(all_differences, cases=cases))
    for case in cases:
        assert all(map(torch.equal, first[case][2], second[case][2])), "both ranks have the same terms, to the bit"
    for of_rank in first, second:
        for case, (errors, gradient, _) in of_rank.items():
            of_terms, of_gradient = BOUNDS[cases[case][1]]
            bounds = [of_terms, *[of_terms] * cases[case][2]["original"], *[4e-6] * cases[case][2]["entropy"]]
            assert all(e <= b for e, b in zip(errors, bounds)) and gradient <= of_gradient, (case, errors, gradient)


def odd_rows(rank):
    """Equal logits on both ranks, of which top_k keeps any; and NaN on one."""
    z, labels = torch.zeros(8, 4), torch.arange(8)
    own = z.clone().requires_grad_()
    log_p = policy_terms(own, labels, top_k=3, group=dist.group.WORLD).scaled
    log_p[log_p > OUTSIDE_TOP_K_LOG_PROB].sum().backward()
    z[5, 1 + rank] = (math.nan, 1.0)[rank]
    terms = policy_terms(z, labels, torch.full((8,), 2.0), original=True, entropy=True, group=dist.group.WORLD)
    return log_p.detach(), own.grad, torch.stack(terms)


def test_equal_logits_and_nan(tmp_path):
    (log_p, *own), (same, *others) = on_two_processes(tmp_path, odd_rows)
    kept = log_p > OUTSIDE_TOP_K_LOG_PROB
    assert torch.equal(log_p, same) and kept.sum() == 3
    torch.testing.assert_close(log_p[kept], torch.full((3,), -math.log(3)))
    gradient = torch.cat([own[0], others[0]], -1)  # each of the three rows has 1 - 1/3 at its label, -1/3 at the others
    torch.testing.assert_close(gradient[kept][:, kept], torch.eye(3) - 1 / 3)
    assert gradient.count_nonzero() == 9
    for terms in own[1], others[1]:
        assert terms[:, 5].isnan().all() and terms[:, [0, 1, 2, 3, 4, 6, 7]].isfinite().all()


OF_BOTH = {  # what must be the same on all ranks
    "a label": "a label is 8; expected 0 to 7",
    "no label": "a label is -100",
    "dtypes": "['torch.float32', 'torch.bfloat16']",
    "rows": "[3, 4] rows",
}


def test_what_one_rank_refuses_ends_the_call_of_both(tmp_path):
    (first, terms), (second, same) = on_two_processes(tmp_path, refused_by_one)
    assert terms.tolist() == same.tolist() == [pytest.approx(-math.log(8))] * 3
    for name, (kind, message) in first.items():
        assert kind == "ValueError"
        if name in OF_BOTH:
            assert message == second[name][1] and OF_BOTH[name] in message
        else:
            assert "Rank 1 of the group's 2 has raised an error" in message and "Rank" not in second[name][1]
    assert [name for name, (kind, _) in second.items() if kind != "ValueError"] == ["another error"]
