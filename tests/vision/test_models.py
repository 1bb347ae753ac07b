"""ERA as the output activation of timm's models: every family, and what timm and torch do with a model."""

import copy
import io
import json
import shutil

import numpy
import pytest
import torch
from families import FAMILIES, described
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from vision_helpers import entropy, onnx_model

H0 = 0.6
MODELS = {"test_resnet": {}, "test_vit": {"img_size": 32}}  # with and without BatchNorm
FEW_FAMILIES = ("convnext", "efficientnet", "mlp_mixer", "resnet", "vision_transformer")


@pytest.fixture(scope="module")
def timm(import_timm):
    import timm
    import timm.models
    import timm.optim
    import timm.utils

    return timm


@pytest.fixture(params=MODELS)
def pair(timm, request):
    """A model with ERA, and the same without."""
    torch.manual_seed(0)
    keywords = {"num_classes": 10, **MODELS[request.param]}
    model = timm.create_model(request.param, **keywords, era_min_entropy=H0)
    plain = timm.create_model(request.param, **keywords)
    plain.load_state_dict(model.state_dict())
    return model.eval(), plain.eval()


@pytest.fixture
def resnet(timm):
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10, era_min_entropy=H0).eval()


@pytest.fixture
def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def activated(logits, **setting):
    from timm.layers import EntropyRegularizingActivation

    return EntropyRegularizingActivation(logits.shape[-1], H0, **setting)(logits)


# Families


@pytest.fixture(scope="module")
def family_pair(import_timm):
    import family_pair

    return family_pair


def test_families_are_all_of_timm(family_pair, timm):
    """Every module that registers models, and its model is one of them."""
    assert set(family_pair.known()) == set(timm.models.list_modules())
    for family in family_pair.known():
        assert FAMILIES[family][0] in timm.list_models(module=family)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in FEW_FAMILIES else pytest.mark.search) for name in FAMILIES]
)
def test_family(family_pair, family, one_thread, say):
    """`make vision-models` runs all of them, and prints the rows of docs/vision/models.md."""
    if family not in family_pair.known():
        pytest.skip(f"this timm has no {family}")
    result = "fails"
    try:
        family_pair.compare(family)
        result = "pass"
    except pytest.skip.Exception as skipped:
        result = f"not checked: {skipped}"
        raise
    finally:
        say(f"| {family} | {described(family)} | {result} |")


# Copies, wrappers and conversions


@pytest.mark.parametrize("average", ["ModelEma", "ModelEmaV2", "ModelEmaV3"])
def test_moving_averages_have_era(timm, pair, images, average):
    model, plain = pair
    ema = getattr(timm.utils, average)(model, decay=0.5)
    ema.update(model)
    averaged = ema.ema if average == "ModelEma" else ema.module
    assert averaged.era is not model.era
    torch.testing.assert_close(averaged(images), activated(plain(images)))
    with timm.layers.raw_logits(averaged):
        assert not model.era.bypassed
        torch.testing.assert_close(averaged(images), plain(images))


@pytest.mark.parametrize("conversion", ["convert_splitbn_model", "convert_sync_batchnorm"])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_conversions(timm, pair, images, conversion, training):
    convert = getattr(timm.layers, conversion)
    model, plain = (convert(m).train(training) for m in pair)
    torch.manual_seed(2)
    expected = plain(images)
    torch.manual_seed(2)
    assert torch.equal(model(images), activated(expected))


def test_copies_and_pickles(timm, pair, images):
    model, plain = pair
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    with timm.layers.raw_logits(model):  # which does not apply to the copies
        copies = copy.deepcopy(model), torch.load(saved, weights_only=False)
    for copied in copies:
        assert copied.era is not model.era
        assert torch.equal(copied(images), activated(plain(images)))
        copied.reset_classifier(7)
        assert copied(images).shape == (4, 7) and model(images).shape == (4, 10)


def ddp_gradients(rank, folder):
    """Writes to gradients<rank> what a process with one half of the batch has after the backward pass."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.load(f"{folder}/model", weights_only=False).train())
    half = slice(2 * rank, 2 * rank + 2)
    cross_entropy(model(torch.load(f"{folder}/images")[half]), torch.arange(4)[half]).backward()
    torch.save([parameter.grad for parameter in model.parameters()], f"{folder}/gradients{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ddp_has_the_gradients_of_one_process(timm, images, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=32, num_classes=10, era_min_entropy=H0)
    torch.save(model, tmp_path / "model")
    torch.save(images, tmp_path / "images")
    torch.multiprocessing.spawn(ddp_gradients, (str(tmp_path),), nprocs=2)
    cross_entropy(model(images), torch.arange(4)).backward()
    for rank in (0, 1):
        for found, parameter in zip(torch.load(tmp_path / f"gradients{rank}"), model.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad)


# Compilers and exporters


@pytest.mark.parametrize("pair", ["test_resnet", pytest.param("test_vit", marks=pytest.mark.slow)], indirect=True)
def test_compile_without_graph_breaks(timm, pair, images):
    model, plain = pair
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(images), activated(plain(images)))
        with timm.layers.raw_logits(compiled) as activation:  # recompiles
            torch.testing.assert_close(compiled(images), plain(images))
            torch.testing.assert_close(activation(compiled(images)), activated(plain(images)))
    found, expected = compiled.train()(images), activated(plain.train()(images))
    for output in (found, expected):
        cross_entropy(output, torch.arange(4)).backward()
    for parameter, reference in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiled_model_follows_reset_classifier(resnet, images):
    torch._dynamo.reset()
    compiled = torch.compile(resnet, fullgraph=True, backend="eager")
    assert compiled(images).shape == (4, 10)
    resnet.reset_classifier(7)
    output = compiled(images)
    assert torch.equal(output, resnet(images)) and output.shape == (4, 7) and resnet.era.num_classes == 7


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch's inductor needs a C++ compiler"
)
def test_inductor(timm):
    """Values and gradients of a small classifier; a whole timm model takes inductor half a minute."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 10)
    model.num_classes = 10
    timm.layers.attach_era(model, H0, inverse="exact")
    gradients = []
    for forward in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        output = forward(5 * torch.randn(16, 8, generator=torch.Generator().manual_seed(1)))
        cross_entropy(output, torch.arange(16) % 10).backward()
        gradients.append((output.detach(), model.weight.grad.clone()))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_trace(pair, images):
    model, plain = pair
    model.reset_classifier(7)  # and no forward before the trace
    plain.reset_classifier(7)
    plain.load_state_dict(model.state_dict())
    traced = torch.jit.trace(model, images)
    torch.testing.assert_close(traced(images[:3]), activated(plain(images[:3])))


def test_export(pair, images):
    """Only with strict=False: otherwise torch 2.6's exporter takes a forward hook for a second graph."""
    model, plain = pair
    exported = torch.export.export(model, (images,), strict=False)
    torch.testing.assert_close(exported.module()(images), activated(plain(images)))


def test_script_is_refused(resnet, images):
    expected = resnet(images)
    with pytest.raises(TypeError, match="torch.jit.script cannot compile a model with ERA.*torch.jit.trace"):
        torch.jit.script(resnet)
    assert torch.equal(resnet(images), expected)


def test_onnx(pair, images, tmp_path):
    model, plain = pair
    exported = onnx_model(model, images, tmp_path / "model.onnx")
    for batch in (images, images[:1]):
        torch.testing.assert_close(exported(batch), activated(plain(batch)), rtol=1e-4, atol=1e-4)


# Checkpoints


def test_create_model_from_checkpoint_and_from_a_folder(timm, resnet, images, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "pytorch_model.bin")
    checkpoint = {"num_classes": 10, "checkpoint_path": str(tmp_path / "pytorch_model.bin")}
    model = timm.create_model("test_resnet", **checkpoint, era_min_entropy=H0)
    assert torch.equal(model.eval()(images), resnet(images))
    arguments = {"era_min_entropy": 0.5, "era_tau": 5.0, "era_inverse": "exact"}
    config = {"architecture": "test_resnet", "pretrained_cfg": {"num_classes": 10}, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config))
    era = timm.create_model(f"local-dir:{tmp_path}", num_classes=10).era
    assert (era.min_entropy, era.tau, era.inverse) == (0.5, 5.0, "exact")
    assert timm.create_model(f"local-dir:{tmp_path}", num_classes=10, era_min_entropy=0.7).era.min_entropy == 0.7


def test_a_model_saved_for_the_hub_comes_back_with_era(timm, resnet, images, tmp_path):
    """timm's functions on both sides; a test of era.timm shows that an unpatched timm refuses the folder."""
    model, folder = timm.layers.attach_era(resnet, H0, tau=5.0, inverse="exact"), tmp_path / "era"
    timm.models.save_for_hf(model, folder, model_args={"drop_rate": 0.1})
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(again(images), model(images)) and again.drop_rate == 0.1
    assert timm.create_model(f"local-dir:{folder}", era_tau=4.0).era.tau == 4
    for features in ({"num_classes": 0}, {"features_only": True}):
        assert timm.layers.era.find_era(timm.create_model(f"local-dir:{folder}", **features)) is None

    model.reset_classifier(0)
    for name, without in (("features", model), ("plain", timm.create_model("test_resnet"))):
        timm.models.save_for_hf(without, tmp_path / name)
        assert timm.layers.era.find_era(timm.create_model(f"local-dir:{tmp_path / name}")) is None


# raw_logits, the number of classes, parts of a model


def test_raw_logits_follow_reset_classifier(timm, resnet, images):
    """Also where the first forward after it is inside raw_logits."""
    resnet.reset_classifier(7)
    with timm.layers.raw_logits(resnet) as activation:
        raw = resnet(images)
        output = activation(raw)
    assert torch.equal(output, activated(raw)) and torch.equal(output, resnet(images))


def test_raw_logits_within_raw_logits(timm, pair, images):
    model, plain = pair
    with timm.layers.raw_logits(model):
        with timm.layers.raw_logits(model):
            pass
        assert torch.equal(model(images), plain(images))
        with pytest.raises(ZeroDivisionError), timm.layers.raw_logits(model):
            1 / 0  # noqa: B018
        assert torch.equal(model(images), plain(images))
    assert torch.equal(model(images), activated(plain(images)))


def test_infeasible_after_reset_classifier(timm, resnet, images):
    timm.layers.attach_era(resnet, 1.2)
    resnet.reset_classifier(2)
    with pytest.raises(ValueError, match="min_entropy=1.2 is not feasible for 2 classes"):
        resnet(images)
    resnet.reset_classifier(20)
    assert resnet(images).shape == (4, 20) and resnet.era.num_classes == 20


def test_features_and_head_bypass_era(pair, images):
    """The activation comes after the whole model, not after its parts forward_features and forward_head."""
    model, plain = pair
    features = model.forward_features(images)
    assert torch.equal(features, plain.forward_features(images))
    assert torch.equal(model.forward_head(features), plain(images))
    assert torch.equal(model.forward_head(features, pre_logits=True), plain.forward_head(features, pre_logits=True))


def test_attaching_again_replaces(timm, pair, images):
    model, plain = pair
    assert timm.layers.attach_era(model, H0, tau=5.0, inverse="exact") is model
    assert torch.equal(model(images), activated(plain(images), tau=5.0, inverse="exact"))


def test_naflexvit_takes_its_own_input(timm):
    """Patches as a dict."""
    torch.manual_seed(0)
    keywords = {"depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 10}
    model = timm.create_model("naflexvit_base_patch16_gap", **keywords, era_min_entropy=H0).eval()
    coordinates = torch.cartesian_prod(torch.arange(2), torch.arange(3)).expand(2, 6, 2)
    valid = torch.ones(2, 6, dtype=torch.bool)
    patches = {"patches": torch.randn(2, 6, 768), "patch_coord": coordinates, "patch_valid": valid}
    with timm.layers.raw_logits(model) as activation:
        expected = activation(model(patches))
    assert torch.equal(model(patches), expected)
    assert not torch.equal(model(patches).logsumexp(-1), expected.new_zeros(2))


def test_time_pooling_keeps_era(timm, resnet):
    """It builds another model from the old one's parts."""
    plain = timm.create_model("test_resnet", num_classes=10).eval()
    plain.load_state_dict(resnet.state_dict())
    size = {"input_size": (3, 256, 256)}
    (pooled, applied), (expected, _) = (timm.layers.apply_test_time_pool(m, size) for m in (resnet, plain))
    images = torch.randn(1, 3, 256, 256)
    assert applied
    assert torch.equal(pooled(images), activated(expected(images)))
    with timm.layers.raw_logits(pooled):
        assert torch.equal(pooled(images), expected(images))
    assert torch.equal(timm.layers.attach_era(pooled, H0, tau=5.0)(images), activated(expected(images), tau=5.0))
    activations = [m for m in pooled.modules() if isinstance(m, timm.layers.EntropyRegularizingActivation)]
    assert len(activations) == 1


# Refusals


@pytest.mark.parametrize(
    "name", ["deit_tiny_distilled_patch16_224", "levit_128s", "pit_ti_distilled_224", "efficientformerv2_s0"]
)
def test_two_heads_in_distillation_are_refused(timm, images, name):
    model = timm.create_model(name, num_classes=10, era_min_entropy=H0, img_size=32)
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
    "output, found",
    [
        (lambda logits: (logits,), "tuple"),
        (lambda logits: {"logits": logits}, "dict"),
        (lambda logits: logits[:, :5], r"tensor of shape \(4, 5\)"),
        (lambda logits: logits[0, 0], r"tensor of shape \(\)"),
    ],
)
def test_outputs_other_than_logits_are_refused(timm, images, output, found):
    with pytest.raises(TypeError, match=rf"one tensor of logits \(\.\.\., 10\); Other returned a {found}"):
        timm.layers.attach_era(Other(output), H0)(images)


def test_other_models_are_refused(timm, resnet):
    with pytest.raises(TypeError, match="A part of this Other already has ERA"):
        timm.layers.attach_era(Other(part=resnet), H0)
    wrapped = [torch.compile(resnet), torch.nn.DataParallel(resnet), timm.utils.ModelEmaV3(resnet)]
    for model in (*wrapped, torch.nn.Linear(3, 10)):
        with pytest.raises(TypeError, match="Nothing was attached"):
            timm.layers.attach_era(model, H0)
        assert not model._forward_hooks
    for name in MODELS:
        with pytest.raises(TypeError, match="ERA needs a classifier.*Feature.*is not one"):
            timm.create_model(name, features_only=True, era_min_entropy=H0)


@pytest.mark.parametrize("num_classes", [True, 0])
def test_refused_values_leave_the_model_as_it_was(timm, pair, images, num_classes):
    model, plain = pair
    for m, expected in ((plain, plain(images)), (model, model(images))):
        with pytest.raises(ValueError, match="min_entropy=9 is not feasible for 10 classes"):
            timm.layers.attach_era(m, 9)
        m.num_classes = num_classes
        with pytest.raises(ValueError, match="an integer of at least 2"):
            timm.layers.attach_era(m, H0)
        m.num_classes = 10
        assert torch.equal(m(images), expected)
    assert timm.layers.era.find_era(plain) is None and not plain._forward_hooks
    assert model.era.min_entropy == H0


def test_settings_without_the_switch_are_refused(timm):
    for setting in ({"era_tau": 5.0}, {"era_inverse": "exact"}):
        with pytest.raises(ValueError, match="without era_min_entropy, which switches ERA on"):
            timm.create_model("test_resnet", **setting)
    model = timm.create_model("test_resnet", era_min_entropy=None, era_tau=None, era_inverse=None)  # timm drops None
    assert timm.layers.era.find_era(model) is None


def test_numbers_of_other_types(timm):
    model = timm.create_model("test_resnet", num_classes=numpy.int64(10))
    assert timm.layers.attach_era(model, numpy.float32(1)).era.min_entropy == 1
    for wrong in ("0.6", None, True, torch.tensor(0.6)):
        with pytest.raises(ValueError, match="a number is needed"):
            timm.layers.attach_era(model, wrong)
