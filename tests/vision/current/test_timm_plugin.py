"""era.timm with the models of an installed timm. The activation itself is in ../test_activation.py."""

import copy
import importlib.util
import io
import json
import re

import pytest

if importlib.util.find_spec("timm") is None:
    pytest.skip("needs an installed timm: make test-timm", allow_module_level=True)

import timm
import torch
from family_pair import compare
from test_models import ddp_gradients
from timm.models import save_for_hf
from torch.nn.functional import cross_entropy
from vision_helpers import entropy, equation, onnx_model

import era.timm
from era.discrete import find_era, raw_logits

pytestmark = pytest.mark.usefixtures("one_thread")
H0 = 0.6
SETTING = {"era_min_entropy": 0.5, "era_tau": 5.0, "era_inverse": "exact"}
MODELS = {"test_resnet": {}, "test_vit": {"img_size": 32}}  # with and without BatchNorm


@pytest.fixture(params=MODELS)
def pair(request):
    """A model with ERA, and the same as timm has it."""
    torch.manual_seed(0)
    keywords = {"num_classes": 10, **MODELS[request.param]}
    model = era.timm.create_model(request.param, **keywords, era_min_entropy=H0)
    plain = timm.create_model(request.param, **keywords)
    plain.load_state_dict(model.state_dict())
    return model.eval(), plain.eval()


@pytest.fixture
def resnet():
    torch.manual_seed(0)
    return era.timm.create_model("test_resnet", num_classes=10, **SETTING).eval()


@pytest.fixture
def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def assert_era(output, logits, *setting, **tolerance):
    """Against the equation in fp64."""
    expected = equation(logits.double(), *(setting or (H0,))).float()
    torch.testing.assert_close(output, expected, **(tolerance or {"rtol": 1e-5, "atol": 1e-5}))


def setting_of(model):
    found = find_era(model)
    return found and {f"era_{name}": getattr(found, name) for name in ("min_entropy", "tau", "inverse")}


# Models


def test_it_is_the_equation_in_training_and_evaluation(pair, images):
    model, plain = pair
    assert entropy(model(100 * images)).min() >= model.era.floor - 1e-5
    assert_era(model(images), plain(images))
    with raw_logits(model):
        assert torch.equal(model(images), plain(images))
    torch.manual_seed(2)
    output = model.train()(images)
    torch.manual_seed(2)
    logits = plain.train()(images)
    assert_era(output, logits)
    cross_entropy(output, torch.arange(4)).backward()
    cross_entropy(equation(logits.double(), H0), torch.arange(4)).backward()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-5)


def test_attach_is_the_same(pair, images):
    model, plain = pair
    logits = plain(images)
    assert era.timm.attach(plain, min_entropy=H0) is plain
    assert torch.equal(plain(images), model(images))
    assert_era(era.timm.attach(plain, min_entropy=0.5, tau=5.0, inverse="exact")(images), logits, 0.5, 5.0, "exact")


def test_without_a_keyword_it_is_timms_own():
    torch.manual_seed(0)
    expected = timm.create_model("test_resnet", num_classes=10)
    torch.manual_seed(0)
    found = era.timm.create_model("test_resnet", num_classes=10, era_min_entropy=None)
    assert find_era(found) is None and not found._forward_hooks and found.pretrained_cfg == expected.pretrained_cfg
    for one, other in zip(found.state_dict().items(), expected.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["convnext", "efficientnet", "swin_transformer"])
def test_family(family):
    compare(family)


def test_refusals():
    with pytest.raises(ValueError, match="min_entropy=9 is not feasible for 10 classes"):
        era.timm.create_model("test_resnet", num_classes=10, era_min_entropy=9)
    with pytest.raises(ValueError, match="era_tau without era_min_entropy, which switches ERA on"):
        era.timm.create_model("test_resnet", era_tau=5.0)
    with pytest.raises(TypeError, match="ERA needs a classifier"):
        era.timm.create_model("test_resnet", features_only=True, era_min_entropy=H0)


# Copies, wrappers, conversions


def test_copies_and_moving_averages(pair, images):
    model, plain = pair
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    average = timm.utils.ModelEmaV3(model, decay=0.5)
    average.update(model)
    for copied in (copy.deepcopy(model), torch.load(saved, weights_only=False), average.module):
        assert copied.era is not model.era
        assert_era(copied(images), plain(images))


@pytest.mark.slow
def test_ddp_has_the_gradients_of_one_process(images, tmp_path):
    torch.manual_seed(0)
    model = era.timm.create_model("test_vit", img_size=32, num_classes=10, era_min_entropy=H0)
    torch.save(model, tmp_path / "model")
    torch.save(images, tmp_path / "images")
    torch.multiprocessing.spawn(ddp_gradients, (str(tmp_path),), nprocs=2)
    cross_entropy(model(images), torch.arange(4)).backward()
    for rank in (0, 1):
        for found, parameter in zip(torch.load(tmp_path / f"gradients{rank}"), model.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["test_vit"], indirect=True)
def test_compile(pair, images):
    model, plain = pair
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_era(compiled(images), plain(images))
    with raw_logits(compiled):
        torch.testing.assert_close(compiled(images), plain(images))


def test_onnx(pair, images, tmp_path):
    model, plain = pair
    exported = onnx_model(model, images, tmp_path / "model.onnx")
    assert_era(exported(images), plain(images), rtol=1e-4, atol=1e-4)


def test_reset_classifier(pair, images):
    model, plain = pair
    for classes in (7, 0):
        for m in pair:
            m.reset_classifier(classes)
        plain.load_state_dict(model.state_dict())
        if classes:
            assert_era(model(images), plain(images))
    assert torch.equal(model(images), plain(images))


def test_time_pooling(resnet):
    plain = timm.create_model("test_resnet", num_classes=10).eval()
    plain.load_state_dict(resnet.state_dict())
    same, applied = era.timm.apply_test_time_pool(resnet, {"input_size": (3, 64, 64)})
    assert not applied and same is resnet and len(resnet._forward_hooks) == 1
    config, images = {"input_size": (3, 256, 256)}, torch.randn(1, 3, 256, 256)
    pooled, applied = era.timm.apply_test_time_pool(resnet, config)
    expected, _ = timm.layers.apply_test_time_pool(plain, config)
    assert applied and pooled is not resnet
    assert_era(pooled(images), expected(images), 0.5, 5.0, "exact")


# Saved models


def test_saved_and_loaded_it_has_the_same_era(resnet, images, tmp_path):
    """By timm's own function, which push_to_hf_hub calls as well. 1.0.20 cannot load safetensors from a folder."""
    formats = {"pickle": False, "safetensors": True}
    for name, safe in list(formats.items())[: 1 if timm.__version__ == "1.0.20" else None]:
        save_for_hf(resnet, tmp_path / name, safe_serialization=safe)
        model = era.timm.create_model(f"local-dir:{tmp_path / name}", pretrained=True).eval()
        assert setting_of(model) == SETTING and torch.equal(model(images), resnet(images))
        save_for_hf(model, tmp_path / f"{name} again")
        again = era.timm.create_model(f"local-dir:{tmp_path / name} again", era_min_entropy=0.7, num_classes=7)
        assert setting_of(again) == {**SETTING, "era_min_entropy": 0.7} and again.era.num_classes == 7


def test_setting_in_model_args(tmp_path):
    """Where a config was written by hand, or for the patched timm."""
    save_for_hf(timm.create_model("test_resnet", num_classes=10), tmp_path, model_args=dict(SETTING))
    assert setting_of(era.timm.create_model(f"local-dir:{tmp_path}")) == SETTING


def test_timm_alone_refuses_what_has_era(resnet, images, tmp_path):
    save_for_hf(resnet, tmp_path, safe_serialization=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'era_min_entropy'"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    weights = {"file": f"{tmp_path}/model.safetensors", "num_classes": 10}  # the page's way to have them without ERA
    plain = timm.create_model("test_resnet", pretrained=True, pretrained_cfg_overlay=weights, num_classes=10).eval()
    with raw_logits(resnet):
        assert torch.equal(plain(images), resnet(images))


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_without_era_gives_what_timm_gives(name, tmp_path):
    torch.manual_seed(0)
    save_for_hf(timm.create_model(name, num_classes=10, **MODELS[name]), tmp_path)
    keywords = {"img_size": 48} if name == "test_vit" else {}  # its position embedding is resampled
    expected, found = (
        package.create_model(f"local-dir:{tmp_path}", pretrained=True, **keywords) for package in (timm, era.timm)
    )
    for attribute in ("pretrained_cfg", "pretrained_model_args", "_model_args", "_traits"):
        assert getattr(found, attribute, None) == getattr(expected, attribute, None)
    for one, other in zip(found.state_dict().items(), expected.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])


def test_from_the_hub(resnet, images, tmp_path, monkeypatch):
    """From its cache: there is no network in tests."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached, commit = tmp_path / "models--somebody--era", "0" * 40
    save_for_hf(resnet, cached / "snapshots" / commit, safe_serialization=True)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit)
    model = era.timm.create_model("hf-hub:somebody/era", pretrained=True, cache_dir=tmp_path).eval()
    assert setting_of(model) == SETTING and torch.equal(model(images), resnet(images))


def test_a_damaged_setting_is_named(resnet, tmp_path):
    save_for_hf(resnet, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for value, said in (("much", "min_entropy='much': a number is needed"), (None, "min_entropy=None")):
        config["pretrained_cfg"]["era_min_entropy"] = value
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=said):
            era.timm.create_model(f"local-dir:{tmp_path}")
    with pytest.raises(ValueError, match="has a pretrained_cfg of its own"):
        era.timm.create_model(f"local-dir:{tmp_path}", pretrained_cfg=resnet.pretrained_cfg)


def test_the_config_of_an_era_model_gives_another_one(resnet):
    """And stays as it was."""
    model = era.timm.create_model("test_resnet", pretrained_cfg=resnet.pretrained_cfg, num_classes=10)
    assert setting_of(model) == SETTING and SETTING.items() <= resnet.pretrained_cfg.items()


# Versions


def test_versions():
    with pytest.raises(ImportError, match=r"1.0.20 or newer, found 1.0.19.dev0. pip install 'timm>=1.0.20"):
        era.timm.check_version("1.0.19.dev0")
    with pytest.warns(UserWarning, match="tested with timm 1.0.20 to 1.0.31, found 1.1.0"):
        era.timm.check_version("1.1.0")


# The page


@pytest.fixture
def example(project_root, tmp_path, monkeypatch):
    """example(heading): the variables that the code under this heading leaves, beside those given."""

    def run(heading, **given):
        page = (project_root / "docs/vision/plug-in.md").read_text()
        section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        exec(compile(code, f"docs/vision/plug-in.md, {heading}", "exec"), given)
        return given

    return run


def test_plain_torch_on_the_page(example):
    left = example("A training loop in torch")
    assert (left["probabilities"].argmax(-1) == left["labels"]).double().mean() > 0.9
    floor = left["model"].era.floor
    assert torch.special.entr(left["probabilities"].double()).sum(-1).min() > floor - 1e-5
    logits = example("Evaluating", **left)["logits"]
    assert entropy(logits).min() < floor
    torch.testing.assert_close(equation(logits.double()).softmax(-1).float(), left["probabilities"])


def test_the_trainer_of_transformers_on_the_page(example):
    pytest.importorskip("transformers")
    left = example("The Trainer of transformers")
    logits = torch.from_numpy(left["logits"])
    assert entropy(logits).min() > left["net"].era.floor - 1e-5
    losses = [entry["loss"] for entry in left["trainer"].state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    again = left["again"].eval()
    images = torch.stack([example["pixel_values"] for example in left["data"]])
    torch.testing.assert_close(again(images), logits)
