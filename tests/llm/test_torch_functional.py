"""verl's logprobs_from_logits with the overlay, and the division that applies the scale in the actor."""

import pytest
import torch
from test_era import LargestOutput, plain_logprob


@pytest.fixture(scope="module")
def verl_F(import_verl):
    import verl.utils.torch_functional as verl_F

    return verl_F


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 50), (2, 3, 50)])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("top_k", [None, 20])
def test_logprobs_from_logits(verl_F, dtype, shape, scaled, top_k):
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape)).to(dtype)
    labels = logits.topk(5).indices[..., -1]
    scale = torch.tensor([2.0, 0.5, 1.0, 2.0, 0.5, 3.0]).view(labels.shape)
    got = verl_F.logprobs_from_logits(logits, labels, logit_scale=scale if scaled else None, top_k=top_k)
    factors = scale.flatten().tolist() if scaled else [1.0] * labels.numel()
    rows = zip(logits.reshape(-1, 50).tolist(), labels.flatten().tolist(), factors)
    expected = torch.tensor([plain_logprob(z, y, s, top_k) for z, y, s in rows]).view(labels.shape)
    plain_half = dtype == torch.bfloat16 and not scaled and top_k is None  # upstream's own path, in bf16
    torch.testing.assert_close(got.float(), expected, rtol=2e-2 if plain_half else 1e-5, atol=1e-5)


def test_neither_argument_is_upstream(verl_F):
    logits, labels = torch.randn(4, 30), torch.randint(30, (4,))
    assert torch.equal(verl_F.logprobs_from_logits(logits, labels), verl_F.logprobs_from_logits_v2(logits, labels))


def test_a_scale_that_is_no_tensor_is_named(verl_F):
    with pytest.raises(ValueError, match="logit_scale has type float; expected a tensor of shape"):
        verl_F.logprobs_from_logits(torch.randn(2, 5), torch.tensor([0, 1]), logit_scale=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "divisor", [[0.5, 1.0, 2.0, 1.0], [0.7 / 3, 0.7, 2.1, 0.7]], ids=["exact in bf16", "not exact in bf16"]
)
@pytest.mark.parametrize("shape", [(4, 1000), (2, 2, 1000)])
def test_division_needs_no_more_memory_than_upstreams(era, dtype, divisor, shape, monkeypatch):
    """One gradient tensor of the gradient's dtype, none of another dtype; values as fp64 gives them, rounded once."""
    monkeypatch.setattr(era, "_CHUNK_ELEMENTS", 3000)
    source = torch.randn(shape).to(dtype).requires_grad_()
    divisor = torch.tensor(divisor).view(*shape[:-1], 1)
    logits = source * 1
    before = logits.detach().double()
    with LargestOutput(logits.numel()) as forward:
        divided = era.divide_rows_(logits, divisor)
    assert forward.allocations == [] and divided.data_ptr() == logits.data_ptr()
    torch.testing.assert_close(
        logits.detach().double(), before / divisor.double(), rtol=2 * torch.finfo(dtype).eps, atol=0
    )
    upstream_gradient = torch.randn(shape).to(dtype)
    with LargestOutput(logits.numel()) as backward:
        (gradient,) = torch.autograd.grad(divided, source, upstream_gradient)
    assert gradient.dtype == dtype
    torch.testing.assert_close(
        gradient.double(), upstream_gradient.double() / divisor.double(), rtol=2 * torch.finfo(dtype).eps, atol=0
    )
    assert (
        all(shape_ == shape for _, shape_ in backward.allocations) and len(backward.allocations) <= 2
    )  # ours and that of `source * 1`


def test_division_of_views_and_of_other_layouts(era):
    """verl's packed logits are a view of the model's output."""
    for make in (lambda x: (x * 1).unsqueeze(0).squeeze(0), lambda x: (x * 1).t().contiguous().t()):
        source = torch.randn(5, 12, dtype=torch.double, requires_grad=True)
        divisor = torch.tensor([[0.5], [1.0], [2.0], [1.0], [3.0]], dtype=torch.double)
        logits = make(source)
        era.divide_rows_(logits, divisor)
        torch.testing.assert_close(logits, source / divisor)
        (gradient,) = torch.autograd.grad(logits.pow(2).sum(), source)
        torch.testing.assert_close(gradient, 2 * source / divisor**2)
