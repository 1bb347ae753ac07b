"""era.timm with the models of an installed timm: what only the plug-in promises, beside ../test_models.py."""

import argparse
import importlib.util
import runpy
import warnings

import pytest

if importlib.util.find_spec("timm") is None:
    pytest.skip("needs an installed timm: make test-timm", allow_module_level=True)

import timm as installed_timm
import torch
from timm.models import save_for_hf
from timm_models import MODELS, SETTING, setting_of
from vision_helpers import entropy, equation

import era.timm
from era.discrete import raw_logits

pytestmark = pytest.mark.usefixtures("one_thread")


def test_timm_alone_refuses_what_has_era(resnet, images, tmp_path):
    save_for_hf(resnet, tmp_path, safe_serialization=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'era_min_entropy'"):
        installed_timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    # the page's way to have them without ERA
    weights = {"file": f"{tmp_path}/model.safetensors", "num_classes": 10}
    keywords = {"pretrained": True, "pretrained_cfg_overlay": weights, "num_classes": 10}
    plain = installed_timm.create_model("test_resnet", **keywords).eval()
    with raw_logits(resnet):
        assert torch.equal(plain(images), resnet(images))


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_without_era_gives_what_timm_gives(name, tmp_path):
    torch.manual_seed(0)
    save_for_hf(installed_timm.create_model(name, num_classes=10, **MODELS[name]), tmp_path)
    keywords = {"img_size": 48} if name == "test_vit" else {}  # its position embedding is resampled
    expected, found = (
        package.create_model(f"local-dir:{tmp_path}", pretrained=True, **keywords)
        for package in (installed_timm, era.timm)
    )
    for attribute in ("pretrained_cfg", "pretrained_model_args", "_model_args", "_traits"):
        assert getattr(found, attribute, None) == getattr(expected, attribute, None)
    for one, other in zip(found.state_dict().items(), expected.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])


def test_a_checkpoint_that_says_era_gives_it_again(resnet, images, tmp_path):
    """Weights say it in their metadata; checkpoints of the patched train.py in their arguments."""
    file, state = tmp_path / "weights.pth", resnet.state_dict()
    arguments = argparse.Namespace(era_setting={name.removeprefix("era_"): value for name, value in SETTING.items()})

    def create(checkpoint, **given):
        torch.save(checkpoint, file)
        return era.timm.create_model("test_resnet", num_classes=10, checkpoint_path=str(file), **given).eval()

    for checkpoint in (state, {"state_dict": dict(state), "args": arguments}):
        assert torch.equal(create(checkpoint)(images), resnet(images))
        assert create(checkpoint, era_min_entropy=0.7).era.min_entropy == 0.7
    for without in (dict(state), {"state_dict": state, "args": argparse.Namespace(era_setting=None)}):
        assert era.discrete.find_era(create(without)) is None
    plain = installed_timm.create_model("test_resnet", num_classes=10)
    plain.load_state_dict(state)  # it has no key of ERA's
    assert era.discrete.find_era(create(plain.state_dict())) is None


def test_from_the_hub(resnet, images, tmp_path, monkeypatch):
    """From its cache: there is no network in tests."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached, commit = tmp_path / "models--somebody--era", "0" * 40
    save_for_hf(resnet, cached / "snapshots" / commit, safe_serialization=True)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit)
    model = era.timm.create_model("hf-hub:somebody/era", pretrained=True, cache_dir=tmp_path).eval()
    assert setting_of(era.discrete, model) == SETTING and torch.equal(model(images), resnet(images))


def test_the_config_of_an_era_model_gives_another_one(resnet):
    """And stays as it was."""
    model = era.timm.create_model("test_resnet", pretrained_cfg=resnet.pretrained_cfg, num_classes=10)
    assert setting_of(era.discrete, model) == SETTING and SETTING.items() <= resnet.pretrained_cfg.items()


def test_a_forgotten_keyword_is_said_and_none_is_not():
    with pytest.warns(UserWarning, match="made test_resnet without ERA: no era_min_entropy was given"):
        era.timm.create_model("test_resnet", num_classes=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for without in ({"era_min_entropy": None}, {"num_classes": 0}, {"features_only": True}):
            era.timm.create_model("test_resnet", **without)


def test_versions():
    with pytest.warns(UserWarning, match="tested with timm 1.0.20 to 1.0.31, found 1.1.0"):
        era.timm.check_version("1.1.0")


PAGE = "vision/plug-in.md"


def test_the_example_in_plain_torch_and_the_page_on_logits_before_era(project_root, tmp_path, monkeypatch, run_example):
    arguments = ["--model", "test_resnet", "--steps", "30", "--save", str(tmp_path / "classifier.pth")]
    monkeypatch.setattr("sys.argv", ["timm_classifier.py", *arguments])
    left = runpy.run_path(str(project_root / "examples/timm_classifier.py"))
    assert (left["logits"].argmax(-1) == left["labels"]).double().mean() > 0.9
    floor = left["model"].era.floor
    assert entropy(left["logits"]).min() > floor - 1e-5
    logits = run_example(PAGE, "Evaluating", **left)["logits"]
    assert entropy(logits).min() < floor
    torch.testing.assert_close(equation(logits.double()).softmax(-1).float(), left["logits"].softmax(-1))
    torch.testing.assert_close(left["again"].eval()(left["images"]), left["logits"])


def test_the_trainer_of_transformers_on_the_page(run_example):
    pytest.importorskip("transformers")
    left = run_example(PAGE, "The Trainer of transformers")
    logits = torch.from_numpy(left["logits"])
    assert entropy(logits).min() > left["net"].era.floor - 1e-5
    losses = [entry["loss"] for entry in left["trainer"].state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    again = left["again"].eval()
    images = torch.stack([example["pixel_values"] for example in left["data"]])
    torch.testing.assert_close(again(images), logits)
