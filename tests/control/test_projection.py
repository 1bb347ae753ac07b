"""The critic's projection of upstream, of both versions, beside the definition in fp64 (docs/deviations.md)."""

import pytest
import torch
from helpers import importable

ATOMS, V_MIN, V_MAX = 9, -2.0, 2.0
SUPPORT = torch.linspace(V_MIN, V_MAX, ATOMS)  # multiples of 0.5
REWARDS = torch.tensor([0.0, 0.5, 0.3, -5.0, 5.0, 1.0, -0.7])
CONTINUES = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
DISCOUNT = 0.5  # maps atoms to multiples of 0.25, half of which are atoms


def weights(on_both_sides: bool) -> torch.Tensor:
    """Of each atom in the mass of each target, in fp64: (B, atoms of the next state, atoms).

    A target's mass goes to the two atoms beside it, in proportion to its nearness. on_both_sides: a target on an inner
    atom gives all of its mass to each neighbour of that atom.
    """
    support = SUPPORT.double()
    targets = REWARDS.double()[:, None] + CONTINUES.double()[:, None] * DISCOUNT * support
    distance = (targets.clamp(V_MIN, V_MAX)[:, :, None] - support).abs() / (support[1] - support[0])
    nearness = (1 - distance).clamp(min=0)
    if not on_both_sides:
        return nearness
    inner = torch.nn.functional.pad(distance[:, :, 1:-1] == 0, (1, 1))
    neighbours = (inner.roll(1, -1) | inner.roll(-1, -1)).double()
    return torch.where(inner.any(-1, keepdim=True), neighbours, nearness)


@pytest.mark.parametrize("version", ["2d83b6a", "229ed59"])
def test_projection(trees_of, version):
    """Targets between atoms, on inner atoms, at the ends and beyond them. Upstream's 7acc3a3 mended the inner atoms."""
    torch.manual_seed(0)
    simnorm = {} if version == "2d83b6a" else {"sim_type": "", "sim_dimension": 4, "seq_len": 2}
    with importable(trees_of("fasttd3", version)[1] / "fast_td3", "fast_td3") as found:
        critic = found.fast_td3.DistributionalQNetwork(3, 2, ATOMS, V_MIN, V_MAX, hidden_dim=16, **simnorm)
    obs, actions, discount = torch.randn(7, 3), torch.randn(7, 2), torch.full((7,), DISCOUNT)
    with torch.no_grad():
        shares = critic(obs, actions).double().softmax(-1)
        projected = critic.projection(obs, actions, REWARDS, CONTINUES, discount, SUPPORT, torch.device("cpu"))
    expected = torch.einsum("bn,bna->ba", shares, weights(on_both_sides=version == "2d83b6a"))
    assert torch.allclose(projected.double(), expected, atol=1e-6)
    mass = projected.sum(-1)
    assert torch.allclose(mass[:2], torch.full((2,), 2.0 if version == "2d83b6a" else 1.0))
