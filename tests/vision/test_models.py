"""ERA as the output activation of timm's models: every family, and what timm and torch do with a model.

The same tests run through both doors: the patched timm in `make test`, and era.timm with an installed one in
`make test-timm`.
"""

import copy
import io
import json
import shutil

import pytest
import torch
from families import FAMILIES
from timm_models import FEW_FAMILIES, H0, MODELS, SETTING, assert_era, compare, setting_of
from torch.nn.functional import cross_entropy
from vision_helpers import entropy, equation, onnx_model

# Families


def test_families_are_all_of_timm(door, timm):
    """Every module that registers models has one here; v1.0.20 has no csatv2 and no gemma4_vit."""
    if not door.is_patched:
        pytest.skip("the list is that of the patched versions")
    known = timm.models.list_modules()
    assert set(known) <= set(FAMILIES)
    for family in known:
        assert FAMILIES[family][0] in timm.list_models(module=family)


MARKS = {**dict.fromkeys(FEW_FAMILIES, ()), "swin_transformer": pytest.mark.slow}


@pytest.mark.parametrize("family", [pytest.param(name, marks=MARKS.get(name, pytest.mark.search)) for name in FAMILIES])
def test_family(door, timm, family, one_thread, say):
    """`make vision-models` runs all of them, and prints a row for each."""
    if family not in timm.models.list_modules():
        pytest.skip(f"this timm has no {family}")
    name, side, *smaller = FAMILIES[family]
    result = "fails"
    try:
        compare(door, timm, name, side, *smaller)
        result = "pass"
    except pytest.skip.Exception as skipped:
        result = f"not checked: {skipped}"
        raise
    finally:
        arguments = [f"{keyword}={value}" for each in smaller for keyword, value in each.items()]
        say(f"| {family} | {', '.join([name, *arguments])} | {side} | {result} |")


# Models, their copies, wrappers and conversions


def test_without_a_keyword_it_is_timms_own(door, timm):
    torch.manual_seed(0)
    expected = timm.create_model("test_resnet", num_classes=10)
    torch.manual_seed(0)
    found = door.create_model("test_resnet", num_classes=10, era_min_entropy=None)  # timm drops None
    assert type(found) is type(expected) and found.pretrained_cfg == expected.pretrained_cfg
    assert door.find_era(found) is None
    for one, other in zip(found.state_dict().items(), expected.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])


def test_copies_pickles_and_moving_averages(door, timm, pair, images):
    model, plain = pair
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    with door.raw_logits(model):  # which does not apply to the copies
        copies = [copy.deepcopy(model), torch.load(saved, weights_only=False)]
    for name in ("ModelEma", "ModelEmaV2", "ModelEmaV3"):
        average = getattr(timm.utils, name)(model, decay=0.5)
        average.update(model)
        copies.append(average.ema if name == "ModelEma" else average.module)
    for copied in copies:
        assert copied.era is not model.era
        assert_era(copied(images), plain(images))
        with door.raw_logits(copied):
            assert not model.era.bypassed
            torch.testing.assert_close(copied(images), plain(images))
        copied.reset_classifier(7)
        assert copied(images).shape == (4, 7) and model(images).shape == (4, 10)


def test_calls_that_run_no_hooks_have_era(door, timm, resnet, images):
    """forward itself, and what torch.fx traces of the model alone or within another one."""
    with door.raw_logits(resnet):
        logits = resnet(images)
    traced, within = torch.fx.symbolic_trace(resnet), torch.fx.symbolic_trace(torch.nn.Sequential(resnet))
    for call in (resnet.forward, traced, within, copy.deepcopy(traced)):
        assert_era(call(images), logits, 0.5, 5.0, "exact")
    with door.raw_logits(traced):
        assert torch.equal(traced(images), logits)
    assert isinstance(resnet, timm.models.ResNet) and type(resnet).__name__ == "ResNet"


@pytest.mark.parametrize("conversion", ["convert_splitbn_model", "convert_sync_batchnorm"])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_conversions(timm, pair, images, conversion, training):
    convert = getattr(timm.layers, conversion)
    model, plain = (convert(m).train(training) for m in pair)
    torch.manual_seed(2)
    expected = plain(images)
    torch.manual_seed(2)
    assert_era(model(images), expected)


# Compilers and exporters


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["test_resnet", "test_vit"], indirect=True)
def test_compile_without_graph_breaks(door, pair, images):
    model, plain = pair
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert_era(compiled(images), plain(images))
        with door.raw_logits(compiled) as activation:  # recompiles
            torch.testing.assert_close(compiled(images), plain(images))
            assert_era(activation(compiled(images)), plain(images))
    cross_entropy(compiled.train()(images), torch.arange(4)).backward()
    cross_entropy(equation(plain.train()(images), H0), torch.arange(4)).backward()
    for parameter, reference in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-3, atol=1e-5)
    model.eval().reset_classifier(7)
    assert torch.equal(compiled(images), model(images)) and model(images).shape == (4, 7)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch's inductor needs a C++ compiler"
)
def test_inductor(door):
    """Values and gradients of a small classifier; a whole timm model takes inductor half a minute."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 10)
    model.num_classes = 10
    door.attach_era(model, H0, inverse="exact")
    gradients = []
    for forward in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        output = forward(5 * torch.randn(16, 8, generator=torch.Generator().manual_seed(1)))
        cross_entropy(output, torch.arange(16) % 10).backward()
        gradients.append((output.detach(), model.weight.grad.clone()))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_traced_exported_and_onnx(pair, images, tmp_path):
    model, plain = pair
    model.reset_classifier(7)  # and no forward before the trace
    plain.reset_classifier(7)
    plain.load_state_dict(model.state_dict())
    assert_era(torch.jit.trace(model, images)(images[:3]), plain(images[:3]))
    for strict in (False, True):
        assert_era(torch.export.export(model, (images,), strict=strict).module()(images), plain(images))
    exported = onnx_model(model, images, tmp_path / "model.onnx")
    for batch in (images, images[:1]):
        assert_era(exported(batch), plain(batch), tolerance=1e-4)


def test_script_is_refused(resnet, images):
    expected = resnet(images)
    with pytest.raises(TypeError, match="torch.jit.script cannot compile"):
        torch.jit.script(resnet)
    assert torch.equal(resnet(images), expected)


# Checkpoints


def test_create_model_from_checkpoint_and_from_a_folder(door, resnet, images, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "pytorch_model.bin")
    checkpoint = {"num_classes": 10, "checkpoint_path": str(tmp_path / "pytorch_model.bin")}
    assert torch.equal(door.create_model("test_resnet", **checkpoint, **SETTING).eval()(images), resnet(images))
    config = {"architecture": "test_resnet", "pretrained_cfg": {"num_classes": 10}, "model_args": SETTING}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in ({}, {"era_min_entropy": 0.7}):
        model = door.create_model(f"local-dir:{tmp_path}", num_classes=10, **given)
        assert setting_of(door, model) == {**SETTING, **given}


def test_a_model_saved_for_the_hub_comes_back_with_era(door, timm, resnet, images, tmp_path):
    """timm's functions on both sides. 1.0.20 cannot load safetensors from a folder."""
    for safe in (False,) if timm.__version__ == "1.0.20" else (False, True):
        folder = tmp_path / f"era {safe}"
        timm.models.save_for_hf(resnet, folder, model_args={"drop_rate": 0.1}, safe_serialization=safe)
        again = door.create_model(f"local-dir:{folder}", pretrained=True).eval()
        assert torch.equal(again(images), resnet(images)) and again.drop_rate == 0.1
        other = door.create_model(f"local-dir:{folder}", era_tau=4.0, num_classes=7)
        assert setting_of(door, other) == {**SETTING, "era_tau": 4.0} and other.era.num_classes == 7
    for features in ({"num_classes": 0}, {"features_only": True}):
        assert door.find_era(door.create_model(f"local-dir:{folder}", **features)) is None

    resnet.reset_classifier(0)
    for name, without in (("features", resnet), ("plain", timm.create_model("test_resnet"))):
        timm.models.save_for_hf(without, tmp_path / name)
        assert door.find_era(door.create_model(f"local-dir:{tmp_path / name}")) is None


# raw_logits, the number of classes, parts of a model


def test_raw_logits_follow_reset_classifier(door, resnet, images):
    """Also where the first forward after the reset is inside raw_logits. With 0 classes the output is features."""
    resnet.reset_classifier(7)
    with door.raw_logits(resnet) as activation:
        raw = resnet(images)
        output = activation(raw)
    assert_era(output, raw, 0.5, 5.0, "exact")
    assert torch.equal(output, resnet(images))
    resnet.reset_classifier(0)
    features = resnet(images)
    with door.raw_logits(resnet):
        assert torch.equal(resnet(images), features)


def test_raw_logits_within_raw_logits(door, pair, images):
    model, plain = pair
    with door.raw_logits(model):
        with door.raw_logits(model):
            pass
        assert torch.equal(model(images), plain(images))
        with pytest.raises(ZeroDivisionError), door.raw_logits(model):
            1 / 0  # noqa: B018
        assert torch.equal(model(images), plain(images))
    assert_era(model(images), plain(images))


def test_features_and_head_bypass_era(pair, images):
    """The activation comes after the whole model, not after its parts forward_features and forward_head."""
    model, plain = pair
    features = model.forward_features(images)
    assert torch.equal(features, plain.forward_features(images))
    assert torch.equal(model.forward_head(features), plain(images))
    assert torch.equal(model.forward_head(features, pre_logits=True), plain.forward_head(features, pre_logits=True))


def test_attaching_to_a_model_and_again(door, pair, images):
    model, plain = pair
    logits = plain(images)
    assert door.attach_era(plain, H0) is plain and torch.equal(plain(images), model(images))
    for m in pair:
        assert_era(door.attach_era(m, 0.5, tau=5.0, inverse="exact")(images), logits, 0.5, 5.0, "exact")


def test_time_pooling_keeps_era(door, timm, resnet):
    """Pooling builds another model from the old one's parts."""
    plain = timm.create_model("test_resnet", num_classes=10).eval()
    plain.load_state_dict(resnet.state_dict())
    same, applied = door.apply_test_time_pool(resnet, {"input_size": (3, 64, 64)})
    assert not applied and same is resnet
    config, images = {"input_size": (3, 256, 256)}, torch.randn(1, 3, 256, 256)
    (pooled, applied), (expected, _) = (
        pool(m, config) for pool, m in ((door.apply_test_time_pool, resnet), (timm.layers.apply_test_time_pool, plain))
    )
    assert applied and pooled is not resnet
    logits = expected(images)
    assert_era(pooled(images), logits, 0.5, 5.0, "exact")
    with door.raw_logits(pooled):
        assert torch.equal(pooled(images), logits)
    assert_era(door.attach_era(pooled, H0)(images), logits)
    assert sum(isinstance(m, door.EntropyRegularizingActivation) for m in pooled.modules()) == 1


# Refusals


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "efficientformerv2_s0"])
def test_two_heads_in_distillation_are_refused(door, images, name):
    model = door.create_model(name, num_classes=10, era_min_entropy=H0, img_size=32)
    model.set_distilled_training(True)
    with pytest.raises(TypeError, match="one tensor of logits .*returned a tuple"):
        model.train()(images)
    assert entropy(model.eval()(images)).min() >= model.era.floor - 1e-5  # of the mean of both heads


class Other(torch.nn.Module):
    """Not a timm model: `part` is a child, `output` turns ten numbers per image into what forward returns."""

    num_classes = 10

    def __init__(self, output=None, part=None):
        super().__init__()
        self.output, self.part = output, part

    def forward(self, images):
        return self.output(images.flatten(1)[:, :10])


@pytest.mark.parametrize(
    "output, error",
    [
        (lambda logits: (logits,), TypeError),
        (lambda logits: {"logits": logits}, TypeError),
        (lambda logits: logits[:, :5], ValueError),
        (lambda logits: logits[0, 0], ValueError),
    ],
)
def test_outputs_other_than_logits_are_refused(door, images, output, error):
    with pytest.raises(error, match="logits"):
        door.attach_era(Other(output), H0)(images)


def test_other_models_are_refused(door, timm, resnet):
    with pytest.raises(TypeError, match="A part of this Other already has ERA"):
        door.attach_era(Other(part=resnet), H0)
    wrapped = [torch.compile(resnet), torch.nn.DataParallel(resnet), timm.utils.ModelEmaV3(resnet)]
    traced, patched = torch.fx.symbolic_trace(resnet), timm.create_model("test_resnet", num_classes=10)
    traced.num_classes, patched.forward = 10, lambda images: images
    for model in (*wrapped, traced, patched, torch.nn.Linear(3, 10), H0):
        cls = type(model)
        with pytest.raises(TypeError, match="Nothing was attached"):
            door.attach_era(model, H0)
        assert type(model) is cls
    for name in MODELS:
        with pytest.raises(TypeError, match="ERA needs a classifier"):
            door.create_model(name, features_only=True, era_min_entropy=H0)


def test_refused_values_leave_the_model_as_it_was(door, pair, images):
    model, plain = pair
    for m, expected in ((plain, plain(images)), (model, model(images))):
        for value in (9, -9, "0.6", None):
            with pytest.raises((ValueError, TypeError)):
                door.attach_era(m, value)
        assert torch.equal(m(images), expected)
    assert door.find_era(plain) is None and model.era.min_entropy == H0
    door.attach_era(model, 1.2).reset_classifier(2)
    with pytest.raises(ValueError, match="min_entropy=1.2 is not feasible for 2 classes"):
        model(images)
    model.reset_classifier(20)
    assert model(images).shape == (4, 20) and model.era.num_classes == 20


@pytest.mark.parametrize("keyword", ["era_floor", "era_min_entropi", "ERA_min_entropy", "min_entropy", "era"])
def test_keywords_that_are_not_eras_are_refused(door, keyword):
    with pytest.raises((ValueError, TypeError), match=f"no keyword {keyword};|unexpected keyword argument '{keyword}'"):
        door.create_model("test_resnet", **{keyword: 0.6})


def test_settings_without_the_switch_are_refused(door):
    for setting in ({"era_tau": 5.0}, {"era_inverse": "exact"}):
        with pytest.raises(ValueError, match="without era_min_entropy, which switches ERA on"):
            door.create_model("test_resnet", **setting)
