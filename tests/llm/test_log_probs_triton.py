# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era/log_probs_triton.py in Triton's interpreter against fp64 autograd, and compiled for GPUs that are not here."""

import importlib.util
import math
import sys

import pytest
import torch
from log_prob_rows import BOUNDS, EQUAL, errors
from plain_log_probs import error, plain_terms, rows

from era import log_probs
from era.log_probs import branch_log_probs, policy_terms

triton = pytest.importorskip("triton", reason="Triton has no wheel for this platform")

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:Conversion of an array")]


@pytest.fixture(scope="module")
def kernels():
    """Interpreted: Triton and the kernels are imported anew, beside those of the process, with the interpreter on."""
    imported = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "triton"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name in imported:
            if not name.startswith("triton._C"):  # the library, which cannot be loaded twice
                patch.delitem(sys.modules, name)
        spec = importlib.util.find_spec("era.log_probs_triton")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name in [name for name in sys.modules if name.split(".")[0] == "triton" and name not in imported]:
            del sys.modules[name]
    return module


@pytest.fixture
def interpreter(kernels, monkeypatch):
    """Lets the interpreted kernels read every tensor, in several blocks a row."""
    monkeypatch.setattr(kernels, "BLOCK", 256)
    monkeypatch.setattr(log_probs, "_kernels", lambda logits, compile: kernels if compile else None)


# The interpreter cuts bf16 off where a GPU rounds: one unit in the last place instead of half of one.
GRADIENT = {torch.float32: 2e-6, torch.bfloat16: torch.finfo(torch.bfloat16).eps}
ASKED = [{}, {"original": True}, {"original": True, "entropy": True}, {"top_k": 5, "entropy": True}]


@pytest.mark.parametrize("dtype", GRADIENT)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("vocabulary, spread, temperature", [(1001, 3.0, 1.0), (256, 0.01, 0.7), (255, 300.0, 0.7)])
def test_terms_and_gradients_equal_fp64_autograd(interpreter, dtype, asked, vocabulary, spread, temperature):
    logits, labels, scale = rows(9, vocabulary, spread)
    logits = logits.to(dtype)
    if "top_k" in asked and logits.topk(6).values.diff().eq(0).any():
        pytest.skip("of equal logits at the border either may be kept")
    mask = torch.arange(9) != 4
    leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    leaf.data[4] = math.nan  # not even read
    expected = plain_terms(exact, labels, scale.double(), temperature, asked.get("top_k"))
    gradients = []
    for inplace in (False, True):
        made = leaf * 1
        found = policy_terms(made, labels, scale, temperature, mask=mask, inplace_backward=inplace, **asked)
        pairs = [(ours, theirs) for ours, theirs in zip(found, expected) if ours is not None]
        for (ours, theirs), bound in zip(pairs, (5e-7, 5e-7, 5e-6)):
            assert error(ours[mask], theirs[mask]) < bound and ours[4] == 0
        (gradient,) = torch.autograd.grad(sum(ours.sum() * (i + 1) for i, (ours, _) in enumerate(pairs)), made)
        gradients.append(gradient)
        assert (gradient.data_ptr() == made.data_ptr()) == inplace and (made._version > 0) == inplace
    assert torch.equal(*gradients)
    sum((theirs * mask).sum() * (i + 1) for i, (_, theirs) in enumerate(pairs)).backward()
    largest = exact.grad.abs().amax(-1, keepdim=True) + 1
    rounding = GRADIENT[dtype] * (2 if "top_k" in asked else 1)  # the sparse part is added to what was rounded
    assert ((gradients[0].double() - exact.grad).abs() / largest).max() < rounding


@pytest.mark.parametrize("k", [2.0, 1.7, 4.0])
@pytest.mark.parametrize("top_k", [None, 5])
def test_branches_equal_torchs(interpreter, k, top_k):
    logits, labels, _ = rows(9, 1001, 3.0)
    temperature = torch.linspace(0.6, 1, 9)
    found = branch_log_probs(logits, labels, k, temperature, top_k=top_k)
    for ours, theirs in zip(found, branch_log_probs(logits, labels, k, temperature, top_k=top_k, compile=False)):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_infinite_and_missing_logits_stay_in_their_rows(interpreter):
    logits, labels, scale = rows(5, 1001, 3.0)
    logits[0, :600] = -math.inf  # the first blocks have nothing
    logits[1, 300] = math.nan
    logits[2, 700:] = -math.inf
    labels[0], labels[2] = 800, 100
    found, gradients = [], []
    for use in (True, False):
        leaf = logits.clone().requires_grad_()
        terms = policy_terms(leaf, labels, scale, original=True, entropy=True, compile=use)
        sum(term.sum() for term in terms).backward()
        found.append(torch.stack([*terms, *branch_log_probs(logits, labels, 2.0, compile=use).scaled.unbind(-1)]))
        gradients.append(leaf.grad)
    for values in (*found, gradients[0].t()):
        assert values[:, 1].isnan().all() and values[:, [0, 2, 3, 4]].isfinite().all()
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_a_label_of_another_part_of_the_vocabulary_is_in_no_column(kernels):
    logits, labels, _ = rows(4, 300, 3.0)
    labels[1:3] = -1
    gradient = log_probs.GradientRows(
        active=torch.ones(4, 1, dtype=torch.bool),
        labels=labels.unsqueeze(-1),
        at_label=torch.full((4, 1), 7.0),
        largest=logits.amax(-1, keepdim=True) + torch.arange(4).unsqueeze(-1),  # that of another shard
        factors=torch.tensor([[1.0, 2.0]]).expand(4, 2),
        coefficients=torch.randn(4, 2),
        d_coefficient=torch.randn(4, 1),
    )
    found, expected = torch.empty_like(logits), logits.clone()
    kernels.write_gradient(found, logits, *gradient)
    log_probs._write_gradient(expected, *gradient, False)
    torch.testing.assert_close(found, expected)
    assert (found == 7).sum(-1).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_compiles_for_nvidia(capability, dtype, monkeypatch, tmp_path):
    """Rows of a multiple of 16 words are read 16 bytes at a time."""
    from triton.backends.compiler import AttrsDescriptor, GPUTarget
    from triton.compiler import ASTSource

    from era import log_probs_triton as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"LOGITS": f"*{dtype}", "OUT": f"*{dtype}", "LABELS": "*i64", "ACTIVE": "*i32"}
    types |= {"TOTALS": "*fp64", "MEAN": "*fp64"}
    for kernel, constants in [
        (kernels._sums, {"N": 1, "WITH_MEAN": False, "SQUARES": False}),
        (kernels._sums, {"N": 2, "WITH_MEAN": True, "SQUARES": False}),
        (kernels._sums, {"N": 3, "WITH_MEAN": True, "SQUARES": True}),
        (kernels._write_gradient, {"N": 1, "WITH_D": False}),
        (kernels._write_gradient, {"N": 2, "WITH_D": True}),
    ]:
        constants["BLOCK"] = kernels.BLOCK
        names = [name for name in kernel.arg_names if name not in constants]
        signature = {name: types.get(name, "*fp32" if name.isupper() else "i32") for name in names}
        divisible = AttrsDescriptor.from_hints({i: 16 for i in range(len(names))})
        source = ASTSource(kernel, signature=signature, constants=constants, attrs=divisible)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
        assert compiled.asm["cubin"] and "ld.global.v4.b32" in compiled.asm["ptx"]


def test_which_logits_triton_reads():
    assert log_probs._kernels(torch.zeros(2, 3), True) is None
    assert log_probs.backend("cpu", compile=False) == log_probs.backend("cuda", compile=False) == "torch"


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [row for row in EQUAL if row["scale"] == 1], ids=lambda row: f"T {row['temperature']:.3g}"
)
def test_rows_of_many_equal_logits(kernels, monkeypatch, row):
    """At the width of a vocabulary, which takes the interpreter seconds. The branches have all three scales."""
    monkeypatch.setattr(log_probs, "_kernels", lambda logits, compile: kernels)
    for quantity, found in errors(row, 151_936).items():
        assert found <= BOUNDS["triton"][quantity], quantity
