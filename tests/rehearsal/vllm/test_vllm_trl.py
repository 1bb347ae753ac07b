# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.trl with answers that the real vLLM samples, in TRL's two modes: in the trainer's process, and by a server."""

import functools
import os
import shutil
import signal
import subprocess
import sys

import pytest

vllm = pytest.importorskip("vllm", reason="this needs the environment of make rehearse-vllm")

import plain_grpo  # noqa: E402
import tiny_grpo  # noqa: E402
import torch  # noqa: E402
from trl.generation import vllm_client, vllm_generation  # noqa: E402
from vllm.utils.network_utils import get_open_port  # noqa: E402

pytestmark = pytest.mark.rehearsal
# Between these lie some responses of the model below; the others are scaled, some by k and some by 1/k.
ERA = {"era_enable": True, "era_low": 3.5, "era_high": 3.58, "era_k": 2.0}
ROUNDING = 1e-5  # of a log-prob in fp32, whose logits are below 10


@pytest.fixture
def start(tmp_path):
    """A folder with a tiny model in fp32, with the smallest heads that vLLM has on a CPU."""
    folder = tiny_grpo.write(tmp_path / "start", torch.float32, hidden_size=128, sharpness=4)
    tiny_grpo.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def server(start, tmp_path):
    """The address of `trl vllm-serve`, and the folder of its model."""
    port, log, folder = get_open_port(), tmp_path / "server.log", shutil.copytree(start, tmp_path / "served")
    words = ["--model", folder, "--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--max_model_len", 64]
    command = [sys.executable, "-m", "trl.scripts.vllm_serve", *map(str, words)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}", folder
    finally:
        print(log.read_text()[-5000:])
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@pytest.fixture
def settings(request, start, monkeypatch):
    """TRL's settings of a mode, and what makes up for the GPU in it."""
    if request.param == "colocate":
        # TRL leaves the type to vLLM, which takes 16 bits for a model of 32.
        monkeypatch.setattr(vllm_generation, "LLM", functools.partial(vllm.LLM, dtype="float32"))
        return {"vllm_mode": "colocate", "vllm_max_model_length": 64}

    address, folder = request.getfixturevalue("server")

    def from_disk(client, metadata, parameters):
        from safetensors.torch import save_file

        save_file(dict(parameters), folder / "model.safetensors")
        client._post(f"{client.base_url}/collective_rpc", json={"method": "reload_weights"})

    given = {"vllm_mode": "server", "vllm_server_base_url": address, "vllm_server_timeout": 600}
    # NCCL takes the weights to the server, and TRL says that it needs a GPU.
    with pytest.raises(NotImplementedError, match="needs a CUDA device, got 'cpu'"):
        tiny_grpo.build(tiny_grpo.Era, tiny_grpo.load(start), use_vllm=True, **given, **ERA)
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", lambda *args, **kwargs: None)
    monkeypatch.setattr(vllm_client.VLLMClient, "update_named_params", from_disk)
    return given


def largest(difference, mask):
    return (difference.abs() * mask).max().item()


# The server first: with "colocate" TRL leaves the variables of torch's launcher behind, which a server would inherit.
@pytest.mark.parametrize("settings", ["server", "colocate"], indirect=True)
def test_era_with_the_sampler(settings, start, say, request):
    trainer, first = tiny_grpo.train(tiny_grpo.Era, tiny_grpo.load(start), use_vllm=True, **settings, **ERA)
    batches = trainer.seen
    masks = [plain_grpo.mask_of(batch) for batch in batches]
    # The sampler's log-probs are those of the trainer's own pass, in the first step and after updates ...
    found = [
        largest(batch["sampling_per_token_logps"] - batch["era_original_old_log_probs"], mask)
        for batch, mask in zip(batches, masks)
    ]
    ratios = torch.cat([batch["importance_sampling_ratio"].flatten() for batch in batches])
    off = (ratios - 1).abs().max().item()
    # ... which changed them: with the first weights they would be others.
    args, model = trainer.args, first.double()
    with torch.no_grad():
        logits = [plain_grpo.logits_of(model, batch, args) for batch in batches]
    before = [plain_grpo.chosen(z.log_softmax(-1), batch) for z, batch in zip(logits, batches)]
    moved = [largest(batch["sampling_per_token_logps"] - old, mask) for batch, old, mask in zip(batches, before, masks)]
    # ERA's scales and its log-probs are those of the equations, and so are the updates, of which nothing knows vLLM.
    wanted, scales = plain_grpo.trained(first, [batches], args, trainer.era_config)
    error = plain_grpo.error(tiny_grpo.weights(trainer), wanted, first)
    in_first = plain_grpo.decide(
        plain_grpo.entropy_of(logits[0]),
        batches[0]["advantages"].double().unsqueeze(-1).expand(masks[0].shape),
        masks[0],
        trainer.era_config,
    )
    scaled = plain_grpo.transformed(logits[0], in_first, batches[0], trainer.era_config)
    of_era = largest(batches[0]["old_per_token_logps"] - scaled, masks[0])
    shares = [(torch.cat(scales) == one).double().mean().item() for one in (2.0, 0.5)]
    say(
        f"{request.node.callspec.id}: sampler's log-probs differ from the trainer's by at most {max(found):.1e}, "
        f"ratios from 1 by {off:.1e}; after updates from the first weights' by {moved[1]:.3f} and {moved[2]:.3f}; "
        f"scaled by k {shares[0]:.0%} and by 1/k {shares[1]:.0%} of tokens, whose log-probs differ from the "
        f"equations' by {of_era:.1e}, and the updates by {error:.1e} of a step"
    )
    assert len(batches) == 3 and max(found) < ROUNDING > moved[0] and min(moved[1:]) > 100 * ROUNDING
    assert off < 8 * ROUNDING  # TRL's ratio is of a response, of at most eight tokens
    for batch, mask, scale in zip(batches, masks, scales):
        assert torch.equal(batch["era_logit_scale"][mask.bool()].double(), scale)
    assert sum(shares) > 0 and of_era < ROUNDING  # the server's answers differ from run to run, and so do the shares
    assert error < 1e-4  # fp32 rounds weights of 1 by 6e-8 in each step, whose largest is about 1e-2
