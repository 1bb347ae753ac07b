"""python probes.py NAME TREE: one thing that a patched release, or a release with a plug-in, should do.

Runs on a CPU, in a folder that it shares with the probes before it, with PYTHONPATH naming the tree. An error says that
the thing fails.
"""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIN_ENTROPY = 0.6  # nats, the paper's for 10 classes


def run(script: Path, *arguments: str) -> None:
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


# --- timm ---


def images(*flags: str) -> list[str]:
    from tiny_runs import write_images

    if not Path("images").exists():
        write_images(Path("images"))
    model = ["--model=test_resnet", "--num-classes=10", "--img-size=32", "--batch-size=8", "--workers=1"]
    return ["--data-dir=images", *model, "--device=cpu", f"--era-min-entropy={MIN_ENTROPY}", *flags]


def timm_train(tree: Path) -> None:
    run(tree / "train.py", *images("--epochs=1", "--log-interval=1", "--output=out", "--experiment=era"))


def timm_validate(tree: Path) -> None:
    import torch
    from timm import create_model

    torch.save(create_model("test_resnet", num_classes=10).state_dict(), "model.pth")
    run(tree / "validate.py", *images("--split=validation", "--checkpoint=model.pth"))


def check_classifier(model) -> None:
    """A training step, and the floor of Eq. discrete_era where every logit but one is far below."""
    import torch

    images = torch.randn(4, 3, 64, 64)
    torch.nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.get_classifier().bias.data[0] = 100.0
    entropy = torch.distributions.Categorical(logits=model.eval()(images)).entropy()
    assert (entropy >= MIN_ENTROPY).all(), f"entropy {entropy.min():.3f} nats, expected at least {MIN_ENTROPY}"


def timm_model(tree: Path) -> None:
    from timm import create_model

    check_classifier(create_model("test_resnet", num_classes=10, era_min_entropy=MIN_ENTROPY))


def timm_pool(tree: Path) -> None:
    import torch
    from timm import create_model
    from timm.layers import apply_test_time_pool

    model = create_model("resnet18", num_classes=10, era_min_entropy=MIN_ENTROPY)
    pooled, is_pooled = apply_test_time_pool(model, {"input_size": (3, 320, 320)})
    pooled.fc.bias.data[0] = 100.0
    entropy = torch.distributions.Categorical(logits=pooled.eval()(torch.randn(1, 3, 320, 320))).entropy()
    assert is_pooled and entropy >= MIN_ENTROPY, f"entropy {entropy.item():.3f} nats, expected at least {MIN_ENTROPY}"


def era_timm(tree: Path) -> None:
    from timm import create_model

    import era.timm

    check_classifier(era.timm.create_model("test_resnet", num_classes=10, era_min_entropy=MIN_ENTROPY))
    attached = create_model("test_resnet", num_classes=10)
    era.timm.attach(attached, MIN_ENTROPY)
    check_classifier(attached)


# --- FastTD3 ---


def fasttd3_train(tree: Path) -> None:
    from reacher_runs import FLAGS

    flags = ["--env_name=Gym-Reacher-v4", "--agent=fastsac_era", "--no_use_wandb", "--render_interval=0"]
    run(tree / "fast_td3/train.py", *flags, *FLAGS)


def fasttd3_deploy(tree: Path) -> None:
    """The policy of the run before this."""
    import torch
    from fast_td3 import load_policy

    (checkpoint,) = Path("models").glob("*_final.pt")
    actions = load_policy(str(checkpoint))(torch.zeros(3, 11))  # Reacher's observations; it has two actions
    assert actions.shape == (3, 2) and actions.abs().max() <= 1


# --- verl ---

UPDATE = {"model": "token", "bsz": 24, "micro_batch": 8, "remove_padding": True, "temperature": 1.0, "seed": 3}
# As in tests/llm/test_actor.py: bounds on the entropy between which some of the responses lie.
ERA = {"enable": True, "low": 2.75, "high": 2.8, "k": 2.0}


def update(script: str, **settings) -> None:
    """A policy update in fp64 by a script of the tests."""
    import torch

    Path("settings.json").write_text(json.dumps([{**UPDATE, "era": ERA, **settings}]))
    done = subprocess.run([sys.executable, "-W", "ignore", ROOT / "tests/llm" / script, "settings.json", "results.pt"])
    if done.returncode:
        raise SystemExit(done.returncode)  # it has said why
    (result,) = torch.load("results.pt", weights_only=False)
    if "error" in result:
        raise ValueError(result["error"])
    (metrics,) = result["metrics"]
    assert any(name.startswith("era/") for name in metrics), f"no era/ among the metrics: {', '.join(metrics)}"
    assert any((result["parameters"][name] != start).any() for name, start in result["start"].items())


def verl_update(tree: Path) -> None:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(tree / "verl/trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=["actor_rollout_ref.actor.era.enable=True"])
    assert math.isfinite(config.actor_rollout_ref.actor.era.k)
    update("actor_step.py", policy_loss={"loss_mode": "gspo"}, loss_agg_mode="seq-mean-token-mean")


def verl_log_probs(tree: Path) -> None:
    import torch
    from verl.utils.torch_functional import logprobs_from_logits

    logits, labels = torch.randn(2, 5, 7, dtype=torch.double), torch.randint(7, (2, 5))
    scale = torch.tensor([0.5, 1.0, 2.0, 1.0, 2.0]).double().expand(2, 5)
    found = logprobs_from_logits(logits, labels, logit_scale=scale)
    expected = (logits * scale[..., None]).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(found, expected)


def verl_file_logger(tree: Path) -> None:
    from verl.utils.tracking import Tracking

    Tracking("project", "experiment", default_backend=["file"]).log({"era/k": 2.0}, step=1)
    (file,) = Path().rglob("*.jsonl")
    assert json.loads(file.read_text())


def era_verl(tree: Path) -> None:
    update("current/worker_step.py")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
