# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What a patched release, or a release with a plug-in, should do on a CPU, in the environment of its tree.

    python probes.py TREE UPSTREAM WHAT ...

starts these probes in the working folder, in this order, and writes outcomes.jsonl there. PYTHONPATH has the tree, this
project and the tests whose files are used here.
"""

import json
import math
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MIN_ENTROPY = 0.6  # nats, the paper's for 10 classes
LOG_PROBS, FACTORY = "verl/utils/torch_functional.py", "timm/models/_factory.py"
ACTOR = (LOG_PROBS, "verl/trainer/config/ppo_trainer.yaml", "verl/workers/actor/dp_actor.py")
FASTTD3 = ("fast_td3/hyperparams.py", "fast_td3/train.py")
TRAINS, STARTS, FAILS, NOT_TRIED = "trains", "starts", "fails", "not tried"  # outcomes
PROBES = []


class Probe(NamedTuple):
    """Something that is started in a tree.

    Attributes:
        success: the outcome, unless `run`, called with the tree, raises.
        files: of the tree, which must mention ERA; none for a plug-in.
    """

    upstream: str
    what: str
    success: str
    files: tuple[str, ...]
    run: Callable[[Path], None]


def probe(upstream: str, what: str, success: str, *files: str) -> Callable:
    """A decorator that makes a probe of the function."""
    return lambda run: PROBES.append(Probe(upstream, what, success, files, run)) or run


def outcome(chosen: Probe, tree: Path) -> tuple[str, str]:
    """The outcome, and the reason if the probe fails or was not tried."""
    for file in chosen.files:
        text = (tree / file).read_text() if (tree / file).exists() else ""
        if not re.search(r"\bera[_./]|[._/]era\b|\bERA\b", text):
            return NOT_TRIED, f"{file} has no ERA"
    try:
        chosen.run(tree)
    except Exception as error:
        traceback.print_exc()
        return FAILS, repr(error)[:300]
    return chosen.success, ""


def run(script: Path, *arguments: str) -> None:
    """Run a script. If it fails, raise RuntimeError with the line of its output that names the error."""
    command = [sys.executable, "-W", "ignore", script, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    print(done.stdout, flush=True)
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] or ["no output"]
        named = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception", "Exit"))]
        raise RuntimeError((named or lines)[-1])


# verl


@probe("verl", "log-probs", STARTS, LOG_PROBS)
def verl_log_probs(tree):
    import torch
    from verl.utils.torch_functional import logprobs_from_logits

    logits, labels = torch.randn(2, 5, 7, dtype=torch.double), torch.randint(7, (2, 5))
    scale = torch.tensor([0.5, 1.0, 2.0, 1.0, 2.0]).double().expand(2, 5)
    scaled = logprobs_from_logits(logits, labels, logit_scale=scale)
    expected = (logits * scale[..., None]).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(scaled, expected)


@probe("verl", "the actor's update", TRAINS, *ACTOR)
def verl_update(tree):
    """Make a policy update in fp64 by a script of the tests."""
    import torch
    from hydra import compose, initialize_config_dir
    from update_cases import BASE, ERA

    with initialize_config_dir(str(tree / "verl/trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=["actor_rollout_ref.actor.era.enable=True"])
    assert math.isfinite(config.actor_rollout_ref.actor.era.k)
    gspo = {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean"}
    Path("settings.json").write_text(json.dumps([{**BASE, "remove_padding": True, "era": ERA, **gspo}]))
    run(ROOT / "tests/llm/actor_step.py", "settings.json", "results.pt")
    (result,) = torch.load("results.pt", weights_only=True)
    assert "error" not in result, result["error"]
    (metrics,) = result["metrics"]
    assert any(name.startswith("era/") for name in metrics), f"no era/ among the metrics: {', '.join(metrics)}"
    moved = [name for name, start in result["start"].items() if (result["parameters"][name] != start).any()]
    assert moved, "the update moved no parameter"


# timm


def images(*flags: str) -> list[str]:
    """The flags of timm's scripts for a tiny model on images that are written here, and these flags."""
    from timm_runs import make_images

    if not Path("images").exists():
        make_images(Path("images"))
    model = ["--model=test_resnet", "--num-classes=10", "--img-size=32", "--batch-size=8", "--workers=1"]
    return ["--data-dir=images", *model, "--device=cpu", f"--era-min-entropy={MIN_ENTROPY}", *flags]


def check_floor(model, classifier, images) -> None:
    """Assert the floor of Eq. discrete_era where one logit is far above the others."""
    import torch

    classifier.bias.data[0] = 100.0
    entropy = torch.distributions.Categorical(logits=model.eval()(images)).entropy()
    assert (entropy >= MIN_ENTROPY).all(), f"entropy {entropy.min():.3f} nats, expected at least {MIN_ENTROPY}"


def check_classifier(model) -> None:
    """Check a training step of a classifier, and its floor."""
    import torch

    images = torch.randn(4, 3, 64, 64)
    torch.nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
    lacking = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not lacking, f"no finite gradients: {', '.join(lacking)}"
    check_floor(model, model.get_classifier(), images)


@probe("timm", "create_model", STARTS, FACTORY)
def timm_model(tree):
    from timm import create_model

    check_classifier(create_model("test_resnet", num_classes=10, era_min_entropy=MIN_ENTROPY))


@probe("timm", "train.py", TRAINS, FACTORY, "train.py")
def timm_train(tree):
    run(tree / "train.py", *images("--epochs=1", "--log-interval=1", "--output=out", "--experiment=era"))


@probe("timm", "validate.py", STARTS, FACTORY, "validate.py")
def timm_validate(tree):
    import torch
    from timm import create_model

    torch.save(create_model("test_resnet", num_classes=10).state_dict(), "model.pth")
    run(tree / "validate.py", *images("--split=validation", "--checkpoint=model.pth"))


@probe("timm", "test-time pooling", STARTS, FACTORY, "timm/layers/test_time_pool.py")
def timm_pool(tree):
    import torch
    from timm import create_model
    from timm.layers import apply_test_time_pool

    model = create_model("resnet18", num_classes=10, era_min_entropy=MIN_ENTROPY)
    pooled, is_pooled = apply_test_time_pool(model, {"input_size": (3, 320, 320)})
    assert is_pooled, "it is not pooled"
    check_floor(pooled, pooled.fc, torch.randn(1, 3, 320, 320))


@probe("timm", "era.timm", TRAINS)
def era_timm(tree):
    from timm import create_model

    import era.timm

    check_classifier(era.timm.create_model("test_resnet", num_classes=10, era_min_entropy=MIN_ENTROPY))
    attached = create_model("test_resnet", num_classes=10)
    era.timm.attach(attached, MIN_ENTROPY)
    check_classifier(attached)


# FastTD3


@probe("fasttd3", "train.py", TRAINS, *FASTTD3)
def fasttd3_train(tree):
    from reacher_runs import FLAGS, TASK

    flags = [f"--env_name={TASK}", "--agent=fastsac_era", "--no_use_wandb", "--render_interval=0"]
    run(tree / "fast_td3/train.py", *flags, *FLAGS)


@probe("fasttd3", "load_policy", STARTS, *FASTTD3, "fast_td3/fast_td3_deploy.py")
def fasttd3_deploy(tree):
    """Load the policy of the run before this one and let it act."""
    import torch
    from fast_td3 import load_policy

    checkpoints = list(Path("models").glob("*_final.pt"))
    assert checkpoints, "train.py left no checkpoint"
    actions = load_policy(str(checkpoints[0]))(torch.zeros(3, 11))  # Reacher's observations; it has two actions
    assert actions.shape == (3, 2) and actions.abs().max() <= 1, f"actions {actions}"


if __name__ == "__main__":
    tree, upstream, *whats = sys.argv[1:]
    with open("outcomes.jsonl", "w") as file:
        for chosen in PROBES:
            if chosen.upstream == upstream and chosen.what in whats:
                print(json.dumps([chosen.what, *outcome(chosen, Path(tree))]), file=file, flush=True)
