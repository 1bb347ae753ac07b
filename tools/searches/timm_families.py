"""One model of every family of timm, with and without ERA.

    python -m tools.searches.timm_families CHECKOUT [--out docs/vision/models.md]

prints the table as Markdown. CHECKOUT has timm with the overlay, or timm as it is: then ERA is era.timm's. A family is
a module of timm.models that registers models; its model is one of the smallest that can be built without a download.
Image sizes are the smallest that the model accepts, or nearly so.
"""

import argparse
import multiprocessing
import os
import platform
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

FAMILIES = {  # module of timm.models: model, side of its square images, arguments that make a large model smaller
    "beit": ("beit_base_patch16_224", 32, {"depth": 1}),
    "byoanet": ("eca_botnext26ts_256", 64),
    "byobnet": ("test_byobnet", 32),
    "cait": ("cait_xxs24_224", 32),
    "coat": ("coat_lite_tiny", 32),
    "convit": ("convit_tiny", 32),
    "convmixer": ("convmixer_768_32", 32),
    "convnext": ("test_convnext", 32),
    "crossvit": ("crossvit_tiny_240", 240),
    "csatv2": ("csatv2", 64),
    "cspnet": ("cs3darknet_s", 64),
    "davit": ("davit_tiny", 64),
    "deit": ("deit_tiny_patch16_224", 32),
    "densenet": ("densenet121", 32),
    "dla": ("dla46x_c", 64),
    "dpn": ("dpn48b", 64),
    "edgenext": ("edgenext_small", 64),
    "efficientformer": ("efficientformer_l1", 224),
    "efficientformer_v2": ("efficientformerv2_s0", 32),
    "efficientnet": ("test_efficientnet", 32),
    "efficientvit_mit": ("efficientvit_b0", 64),
    "efficientvit_msra": ("efficientvit_m0", 32),
    "eva": ("eva02_tiny_patch14_224", 28),
    "fasternet": ("fasternet_t0", 64),
    "fastvit": ("fastvit_t8", 64),
    "focalnet": ("focalnet_tiny_srf", 64),
    "gcvit": ("gcvit_tiny", 32),
    "gemma4_vit": ("gemma4_vit_167m", 48, {"depth": 1}),
    "ghostnet": ("ghostnet_050", 64),
    "hardcorenas": ("hardcorenas_a", 64),
    "hgnet": ("hgnetv2_b0", 64),
    "hiera": ("hiera_tiny_224", 64),
    "hieradet_sam2": ("sam2_hiera_tiny", 64),
    "hrnet": ("hrnet_w18_small", 64),
    "inception_next": ("inception_next_atto", 64),
    "inception_resnet_v2": ("inception_resnet_v2", 96),
    "inception_v3": ("inception_v3", 96),
    "inception_v4": ("inception_v4", 96),
    "levit": ("levit_128s", 32),
    "mambaout": ("test_mambaout", 32),
    "maxxvit": ("coatnet_pico_rw_224", 64),
    "metaformer": ("poolformerv2_s12", 64),
    "mlp_mixer": ("gmlp_ti16_224", 32),
    "mobilenetv3": ("lcnet_035", 32),
    "mobilenetv5": ("mobilenetv5_base", 64, {"channel_multiplier": 0.25}),
    "mobilevit": ("mobilevitv2_050", 64),
    "mvitv2": ("mvitv2_tiny", 64),
    "naflexvit": ("naflexvit_base_patch16_gap", 32, {"depth": 1}),
    "nasnet": ("nasnetalarge", 64),
    "nest": ("nest_tiny", 32),
    "nextvit": ("nextvit_small", 64),
    "nfnet": ("test_nfnet", 32),
    "pit": ("pit_ti_224", 64),
    "pnasnet": ("pnasnet5large", 64),
    "pvt_v2": ("pvt_v2_b0", 64),
    "rdnet": ("rdnet_tiny", 64),
    "regnet": ("regnetx_002", 32),
    "repghost": ("repghostnet_050", 32),
    "repvit": ("repvit_m1", 64),
    "res2net": ("res2next50", 64),
    "resnest": ("resnest14d", 64),
    "resnet": ("test_resnet", 32),
    "resnetv2": ("resnetv2_18", 32),
    "rexnet": ("rexnet_100", 32),
    "selecsls": ("selecsls42", 64),
    "senet": ("legacy_seresnet18", 32),
    "sequencer": ("sequencer2d_s", 32),
    "shvit": ("shvit_s1", 64),
    "sknet": ("skresnet18", 32),
    "starnet": ("starnet_s050", 32),
    "swiftformer": ("swiftformer_xs", 32),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 56),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", 64),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 64),
    "tiny_vit": ("tiny_vit_5m_224", 64),
    "tnt": ("tnt_s_patch16_224", 64),
    "tresnet": ("tresnet_m", 64, {"width_factor": 0.25}),
    "twins": ("twins_svt_small", 32),
    "vgg": ("vgg11", 32, {"mlp_ratio": 0.125}),
    "visformer": ("visformer_tiny", 64),
    "vision_transformer": ("test_vit", 32),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 32),
    "vision_transformer_relpos": ("vit_srelpos_small_patch16_224", 32),
    "vision_transformer_sam": ("samvit_base_patch16_224", 32, {"depth": 2, "global_attn_indexes": (1,)}),
    "vitamin": ("vitamin_small_224", 64),
    "volo": ("volo_d1_224", 32),
    "vovnet": ("ese_vovnet19b_slim_dw", 64),
    "xception": ("legacy_xception", 32),
    "xception_aligned": ("xception41p", 64),
    "xcit": ("xcit_nano_12_p8_224", 32),
}
CLASSES = 10
MIN_ENTROPY = 0.6

HEAD = """# ERA on every family of timm

`make vision-models` writes this page. {passed} of {all} families pass (timm {timm}, torch {torch}, Python {python},
CPU, fp32). A family is a module of `timm.models` that registers models; of each, one of the smallest is tested, with
random weights.

The model comes from `create_model(name, num_classes=10, era_min_entropy=0.6)` and is compared with the same model
without ERA, on the same weights, 2 images of noise and random state. The family passes if the model with ERA

- has the same keys in its state_dict and loads the other's, while the model without `era_min_entropy` has no ERA;
- returns ERA of the other's logits, bit for bit and in fp32, in training and in evaluation, with an entropy of at least
  the floor;
- returns the other's logits, bit for bit, within `raw_logits`;
- has the same gradients, bit for bit and all finite, as cross-entropy of ERA of the other's logits;
- returns ERA of 7 classes after `reset_classifier(7)`, and the other's features after `reset_classifier(0)`.

"Side" is the images' height and width in pixels. Models of a fixed image size were built for this one; arguments after
a model's name make a large model smaller.

| family | model | side | result |
|---|---|---|---|"""


class UpstreamFails(Exception):
    """A model without ERA fails in the same place."""


def check(family):
    """'pass', or why the family's model does not, with the timm that `import timm` finds."""
    import torch

    torch.set_num_threads(1)  # as many processes as cores
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    try:
        _compare(*FAMILIES[family])
    except UpstreamFails as failure:
        return f"not checked: fails without ERA too: {failure}"
    except Exception as error:
        return " ".join(f"FAIL: {type(error).__name__}: {error}".split())
    return "pass"


def _library():
    """create_model, and the module of the activation: the overlay's, or of a timm as it is the package era's."""
    import timm

    if hasattr(timm.layers, "attach_era"):
        return timm.create_model, timm.layers
    import era.discrete
    import era.timm

    return era.timm.create_model, era.discrete


class Pair:
    """A model without and one with ERA, with the same weights, and two images of noise."""

    def __init__(self, name, side, smaller=None):
        import timm
        import torch
        from timm.models import get_pretrained_cfg_value

        self.images = torch.randn(2, 3, side, side)
        keywords = {"num_classes": CLASSES, **(smaller or {})}
        fixed_size = get_pretrained_cfg_value(name, "fixed_input_size")
        if fixed_size and get_pretrained_cfg_value(name, "input_size")[-1] != side:
            keywords["img_size"] = side
        self.plain = timm.create_model(name, **keywords)
        self.model = _library()[0](name, **keywords, era_min_entropy=MIN_ENTROPY)

    def both(self, call):
        """call(model) without and with ERA, from the same random state."""
        import torch

        torch.manual_seed(1)
        try:
            expected = call(self.plain)
        except Exception as error:
            raise UpstreamFails(f"{type(error).__name__}: {error}") from error
        torch.manual_seed(1)
        return expected, call(self.model)


def _compare(name, side, smaller=None):
    EntropyRegularizingActivation = _library()[1].EntropyRegularizingActivation
    pair = Pair(name, side, smaller)
    without = not any(isinstance(module, EntropyRegularizingActivation) for module in pair.plain.modules())
    assert without, "ERA although it was not asked for"
    assert list(pair.model.state_dict()) == list(pair.plain.state_dict()), "other keys in state_dict"
    pair.model.load_state_dict(pair.plain.state_dict())
    activation = EntropyRegularizingActivation(CLASSES, MIN_ENTROPY)
    _compare_in_evaluation(pair, activation)
    _compare_in_training(pair, activation)
    _compare_after_reset(pair)


def _compare_in_evaluation(pair, activation):
    import torch

    raw_logits = _library()[1].raw_logits
    with torch.no_grad():
        logits, output = pair.both(lambda m: m.eval()(pair.images))
        is_era = output.dtype == torch.float32 and torch.equal(output, activation(logits))
        assert is_era, "eval: the output is not ERA of the logits"
        assert _entropy(output).min() >= activation.floor - 1e-6, "eval: entropy below the floor"
        with raw_logits(pair.model):
            same = torch.equal(*pair.both(lambda m: m(pair.images)))
            assert same, "raw_logits differ from the model without ERA"


def _compare_in_training(pair, activation):
    import torch
    from torch.nn.functional import cross_entropy

    logits, output = pair.both(lambda m: m.train()(pair.images))
    assert torch.equal(output, activation(logits)), "train: the output is not ERA of the logits"
    assert _entropy(output).min() >= activation.floor - 1e-6, "train: entropy below the floor"
    for result in (activation(logits), output):
        cross_entropy(result, torch.tensor([0, 1])).backward()
    for (parameter, expected), found in zip(pair.plain.named_parameters(), pair.model.parameters()):
        assert (expected.grad is None) == (found.grad is None), f"train: only one model has a gradient of {parameter}"
        if found.grad is not None:
            assert found.grad.isfinite().all(), f"train: a gradient of {parameter} is not finite"
            assert torch.equal(found.grad, expected.grad), f"train: another gradient of {parameter}"


def _compare_after_reset(pair):
    import torch

    EntropyRegularizingActivation = _library()[1].EntropyRegularizingActivation
    with torch.no_grad():
        for classes in (7, 0):
            pair.both(lambda m: m.eval().reset_classifier(classes))
            pair.model.load_state_dict(pair.plain.state_dict())
            expected, found = pair.both(lambda m: m(pair.images))
            if classes:
                followed = found.shape == (2, classes) and pair.model.era.num_classes == classes
                assert followed, "the classes do not follow reset_classifier"
                expected = EntropyRegularizingActivation(classes, MIN_ENTROPY)(expected)
            assert torch.equal(found, expected), f"another output after reset_classifier({classes})"


def _entropy(logits):
    import torch

    return torch.special.entr(logits.double().softmax(dim=-1)).sum(dim=-1)


def _prepare(checkout):
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, checkout)


def families():
    """Those of FAMILIES that this timm has: v1.0.20 has no csatv2 and no gemma4_vit."""
    from timm.models import list_modules

    return [family for family in FAMILIES if family in list_modules()]


def run(checkout):
    """{family: 'pass' or why not} for this checkout, whose timm this process imports."""
    context = multiprocessing.get_context("spawn")  # without this process's threads and modules
    settings = {"mp_context": context, "initializer": _prepare, "initargs": (str(checkout),)}
    with ProcessPoolExecutor(os.cpu_count(), **settings) as pool:
        return dict(zip(families(), pool.map(check, families())))


def _described(name, side, smaller=None):
    return ", ".join([name, *(f"{keyword}={value}" for keyword, value in (smaller or {}).items())]) + f" | {side}"


def page(results):
    """docs/vision/models.md."""
    import timm
    import torch

    rows = "\n".join(f"| {family} | {_described(*FAMILIES[family])} | {result} |" for family, result in results.items())
    versions = {"timm": timm.__version__, "torch": torch.__version__, "python": platform.python_version()}
    passed = sum(result == "pass" for result in results.values())
    return f"{HEAD.format(**versions, passed=passed, all=len(results))}\n{rows}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", help="a folder with timm, patched or not")
    parser.add_argument("--out", type=Path, help="write the page there instead of printing it")
    args = parser.parse_args()
    _prepare(args.checkout)
    results = run(args.checkout)
    text = page(results)
    if args.out:
        args.out.write_text(text)
        print(f"{args.out}: {text.count('| pass |')} of {len(results)} families pass")
    else:
        print(text, end="")
    sys.exit(any(result.startswith("FAIL") for result in results.values()))


if __name__ == "__main__":
    main()
