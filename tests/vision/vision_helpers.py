"""The paper's classifier activation, written again from its equation: what the overlay's code is compared with."""

import math
import os

import pytest
import torch
from scipy.special import lambertw

# For tensors this small, threads and processes cost more than they save.
torch.set_num_threads(1)
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def entropy_range(classes: int, tau: float) -> tuple[float, float]:
    """The open interval of feasible H0, in nats."""
    kappa = math.log(tau) / tau
    return 1 + math.log(kappa), 1 + math.log(classes * kappa)


class LambertInverse(torch.autograd.Function):
    """ln q with -q ln q = h, by scipy: y exp(y) = -h, y <= -1."""

    @staticmethod
    def forward(ctx, h):
        y = torch.from_numpy(lambertw(-h.detach().numpy(), -1).real)
        ctx.save_for_backward(h, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        h, y = ctx.saved_tensors
        return grad * y / (h * (1 + y))


def equation(logits: torch.Tensor, min_entropy: float = 0.6, tau: float = 4.0, inverse: str = "approx") -> torch.Tensor:
    """z' of Eq. discrete_era for logits (..., n)."""
    classes, kappa, constant = logits.shape[-1], math.log(tau) / tau, math.exp(min_entropy - 1)
    h = kappa + (constant - classes * kappa) / (classes - 1) * (1 - logits.softmax(dim=-1))
    h = h.clamp(min=0)
    if inverse == "exact":
        return LambertInverse.apply(h)
    return -1 / 4 - torch.sqrt(2 * (-1 - torch.log(h))) + 3 / 4 * torch.log(h)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of softmax(logits), (..., n) -> (...), in nats and fp64."""
    return torch.special.entr(logits.double().softmax(dim=-1)).sum(dim=-1)


def onnx_model(model, images, file):
    """A function from images to the output of the model as timm exports it, by onnxruntime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from timm.utils.onnx import onnx_export

    onnx_export(model, str(file), example_input=images)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"input0": images.numpy()})[0])
