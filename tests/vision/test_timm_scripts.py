"""timm's scripts with the overlay: train.py, validate.py, inference.py and onnx_export.py on a CPU."""

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import TIMM, assert_identical, need_scripts
from safetensors.torch import save_file
from timm_runs import (
    CLASSES,
    INFERENCE,
    MODEL,
    TRAIN,
    VALIDATE,
    Scripts,
    load,
    make_images,
    make_model,
    raw_logits,
    read_images,
    summary,
)
from vision_helpers import entropy, equation

SHORT = shlex.split("-b 20 --epochs 2 --lr 0.05")
FULL = shlex.split("-b 40 --epochs 2 --lr 0.05 --no-aug")  # every step sees all images, in whatever order
ERA = ["--era-min-entropy", "0.6"]
# The paper's listings lst:train_with_aug and lst:train_without_aug, but for data, model, batch, epochs and processes.
# And amp's type: a convolution in fp16, its default, takes a CPU 500 times as long as one in bf16.
WITHOUT_AUG = shlex.split("-b 20 --sched cosine --epochs 2 --lr 0.05 --amp --amp-dtype bfloat16 --dist-bn reduce")
WITH_AUG = shlex.split("-b 10 --sched cosine --epochs 2 --lr 0.05 --amp --amp-dtype bfloat16 --remode pixel")
WITH_AUG += shlex.split("--reprob 0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd")
WITH_AUG += ["--dist-bn", "reduce"]
ONNX_EXPORT = shlex.split(f"{MODEL} --img-size 32 --batch-size 40")
# One-hot probabilities, as nearly as fp64 has them.
FLOOR = entropy(equation(torch.tensor([1e3] + [0.0] * (CLASSES - 1), dtype=torch.float64))).item()

NEWEST = "v1.0.28"
VERSIONS = sorted({TIMM, NEWEST})  # the cheapest contracts are tested on both
on_all = pytest.mark.parametrize("timm_version", VERSIONS, indirect=True)
on_newest = pytest.mark.parametrize("timm_version", [NEWEST], indirect=True)


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    make_images(folder / "data")
    return folder


@pytest.fixture(scope="session")
def scripts(work):
    """scripts(tree): those of a timm, in one server for all tests."""
    made = {}

    def of(tree: Path) -> Scripts:
        need_scripts(tree)
        if tree not in made:
            made[tree] = Scripts(tree, work)
        return made[tree]

    yield of
    for one in made.values():
        one.stop()


@pytest.fixture
def timm_version(request) -> str:
    """The version of the scripts. A test imports the timm of version TIMM even where the scripts have another."""
    return getattr(request, "param", TIMM)


@pytest.fixture
def ours(scripts, trees_of, timm_version) -> Scripts:
    return scripts(trees_of("timm", timm_version)[0])


@pytest.fixture
def upstream(scripts, trees_of, timm_version) -> Scripts:
    return scripts(trees_of("timm", timm_version)[1])


def assert_entropies(row: dict, part: str, logits: torch.Tensor, abs=2e-6) -> None:
    """A row of summary.csv has the mean and the smallest entropy of these predictions."""
    own = entropy(logits)
    found = row[f"{part}_entropy_mean"], row[f"{part}_entropy_min"]
    assert found == pytest.approx((own.mean().item(), own.min().item()), abs=abs)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor):
    """The cross-entropy as validate.py prints it, with four digits."""
    return pytest.approx(F.cross_entropy(logits, labels).item(), abs=6e-5)


def optimizer_state(state_dict: dict) -> dict[str, torch.Tensor]:
    """The moments of all parameters in one tensor, by their names."""
    states = state_dict["state"].values()
    names = {name for state in states for name, value in state.items() if torch.is_tensor(value) and value.dim()}
    return {name: torch.cat([state[name].flatten() for state in states]) for name in names}


# Off is upstream


@pytest.mark.parametrize(
    "timm_version, flags",
    [
        (TIMM, SHORT),
        pytest.param(NEWEST, SHORT, marks=pytest.mark.slow),
        pytest.param(TIMM, WITH_AUG, marks=pytest.mark.slow),
    ],
    indirect=["timm_version"],
)
def test_training_without_era_is_upstream_to_the_bit(ours, upstream, flags):
    mine, theirs = ours.train(*flags), upstream.train(*flags)
    one, other = load(mine), load(theirs)
    own_args, args = one.pop("args"), other.pop("args")
    assert_identical(one, other)
    for name in ("summary.csv", "stdout.txt"):
        assert (mine / name).read_text() == (theirs / name).read_text()
    assert own_args.era_setting is None and not hasattr(args, "era_setting")


def test_validating_and_inference_without_era_are_upstream(ours, upstream):
    checkpoint = ["--checkpoint", upstream.train(*SHORT) / "last.pth.tar"]
    flags = [*checkpoint, "--metrics-avg", "macro"]
    assert ours.validate(*flags)[:2] == upstream.validate(*flags)[:2]
    pooled = "--test-pool --input-size 3 192 192 --label-type name"
    for flags in ("--topk 0", "--topk 3 --include-index --fullname", pooled):
        assert ours.inference(*checkpoint, *flags.split()) == upstream.inference(*checkpoint, *flags.split())


def test_logging_entropy_changes_no_weight(ours, work, import_timm):
    plain, logged = ours.train(*SHORT), ours.train(*SHORT, "--log-entropy")
    for key in ("state_dict", "optimizer", "metric"):
        assert_identical({key: load(plain)[key]}, {key: load(logged)[key]})
    entropies = {f"{part}_entropy_{what}" for part in ("train", "eval") for what in ("mean", "min")}
    for without, row in zip(summary(plain), summary(logged)):
        assert without.items() <= row.items() and row.keys() - without.keys() == entropies
    assert_entropies(row, "eval", raw_logits(logged, work)[0])


# What is trained


@pytest.mark.parametrize("opt", ["sgd", pytest.param("adahessian", marks=pytest.mark.slow)])
def test_step_of_training_goes_through_the_activation(ours, work, import_timm, opt):
    """Loss, entropies and weights after one step, against plain operations. adahessian differentiates twice."""
    from timm.optim import create_optimizer_v2
    from timm.utils import random_seed

    flags = FULL if opt == "sgd" else [*FULL, "--opt", opt]
    folder = ours.train(*flags, *ERA)
    x, y = read_images(work, "train")
    random_seed(42, 0)
    model = make_model().train()
    optimizer = create_optimizer_v2(model, opt=opt, lr=0.05, weight_decay=2e-5, momentum=0.9)
    output = equation(model(x))
    loss = F.cross_entropy(output, y, label_smoothing=0.1)
    loss.backward(create_graph=opt == "adahessian")
    optimizer.step()

    row = summary(folder)[0]
    assert row["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert_entropies(row, "train", output, abs=1e-5)
    # The optimizer's state after one step is the gradient, for adahessian also the square of the Hessian's diagonal.
    expected = optimizer_state(optimizer.state_dict())
    runs = ours.train(*flags, *ERA), ours.train(*flags)
    trained, without = (optimizer_state(load(run, "checkpoint-0")["optimizer"]) for run in runs)
    assert expected.keys() == {"momentum_buffer"} if opt == "sgd" else {"exp_avg", "exp_hessian_diag_sq"}
    for name, value in expected.items():
        assert (trained[name] - value).norm() < 0.01 * value.norm()  # images in another order: a ReLU near 0 may flip
        assert (without[name] - value).norm() > 0.3 * value.norm()


@on_all
def test_log_and_saved_setting_are_the_checkpoints(ours, work, import_timm):
    folder = ours.train(*SHORT, *ERA)
    setting = load(folder)["args"].era_setting
    assert setting.pop("floor") == pytest.approx(FLOOR, abs=1e-6) and 0.78 < setting.pop("max_probability") < 0.79
    assert setting == {"num_classes": CLASSES, "min_entropy": 0.6, "tau": 4.0, "inverse": "approx"}
    for epoch, row in enumerate(summary(folder)):
        z, y = raw_logits(folder, work, f"checkpoint-{epoch}")
        assert_entropies(row, "eval", equation(z.double()))
        assert row["eval_loss"] == pytest.approx(F.cross_entropy(equation(z), y).item(), abs=2e-6)
    log = (folder / "stderr.txt").read_text().splitlines()
    last = [line for line in log if line.startswith("Test:")][-1]
    assert last.endswith(f"Entropy: {row['eval_entropy_mean']:.4f} (min {row['eval_entropy_min']:.4f})")


@pytest.mark.slow
@pytest.mark.parametrize("command", [WITHOUT_AUG, WITH_AUG], ids=["without_aug", "with_aug"])
def test_printed_commands_in_two_processes(ours, work, import_timm, command):
    """./distributed_train.sh. Upstream's train.py cannot run it on a CPU: see cpu_ddp/sitecustomize.py."""
    name = f"two-{len(command)}"
    outputs = work / f"outputs-{name}"
    outputs.mkdir()
    env = {
        **ours.env,
        "PYTHONPATH": f"{Path(__file__).with_name('cpu_ddp')}{os.pathsep}{ours.tree}",
        "DDP_OUTPUTS": str(outputs),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "localhost:0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    flags = ["--data-dir", work / "data", *TRAIN[3:], "--output", work / "out", *command, "--epochs", "1", *ERA]
    launch = ["bash", "./distributed_train.sh", "2", *flags, "--experiment", name]
    result = subprocess.run(launch, cwd=ours.tree, env=env, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr.count("0.9825 nats (floor)") == 1  # only one process logs it
    row = summary(work / "out" / name)[0]
    each = [torch.load(outputs / f"{rank}.pt") for rank in range(2)]
    assert entropy(each[0]).min() != entropy(each[1]).min()
    assert_entropies(row, "train", torch.cat(each))
    assert min(row["train_entropy_min"], row["eval_entropy_min"]) >= FLOOR - 1e-6
    if "--split-bn" not in command:  # amp evaluates in bf16, hence the looser bound
        assert_entropies(row, "eval", equation(raw_logits(work / "out" / name, work)[0]), abs=2e-3)


# Reading the setting back


@on_all
def test_validate_reads_the_setting_back(ours, upstream, work, import_timm):
    folder, other = ours.train(*SHORT, *ERA), upstream.train(*SHORT)
    z, y = raw_logits(folder, work)
    assert F.cross_entropy(equation(z), y) != cross_entropy(z, y)
    checkpoint = ["--checkpoint", folder / "last.pth.tar"]

    result, loss, log = ours.validate(*checkpoint)
    assert loss == cross_entropy(equation(z), y) and "0.9825 nats (floor)" in log and "WARNING" not in log
    off, loss, log = ours.validate(*checkpoint, "--no-era")
    assert loss == cross_entropy(z, y) and "ERA with" not in log
    assert "trained with --era-min-entropy 0.6 --era-tau 4 --era-inverse approx, and is used with no ERA flag" in log
    assert off == result  # accuracies: ERA keeps the order

    _, loss, log = ours.validate(*checkpoint, "--era-min-entropy", "1", "--era-tau", "5")
    assert loss == cross_entropy(equation(z, 1.0, 5.0), y)
    assert "is used with --era-min-entropy 1 --era-tau 5" in log and log.count("WARNING") == 1
    assert "WARNING" not in ours.validate(*checkpoint, *ERA)[2]

    _, loss, log = ours.validate("--checkpoint", other / "last.pth.tar", *ERA)
    assert loss == cross_entropy(equation(raw_logits(other, work)[0]), y)
    assert "was trained with no ERA flag, and is used with --era-min-entropy 0.6" in log


@pytest.mark.slow
def test_validate_with_labels_and_pooling_of_its_own(ours, work, import_timm):
    folder = ours.train(*SHORT, *ERA)
    checkpoint = ["--checkpoint", folder / "last.pth.tar"]
    z, y = raw_logits(folder, work)

    (work / "labels.txt").write_text("\n".join(map(str, range(CLASSES - 1, -1, -1))))
    loss = ours.validate(*checkpoint, "--valid-labels", "labels.txt")[1]
    assert loss == cross_entropy(equation(z).flip(1), y)

    files = sorted((work / "data/validation").glob("*/*"))
    third_guess = dict(zip((file.name for file in files), z.argsort(dim=1, descending=True)[:, 2].tolist()))
    (work / "real.json").write_text(json.dumps([[third_guess[name]] for name in sorted(third_guess)]))
    result = ours.validate(*checkpoint, "--real-labels", "real.json")[0]
    assert (result["top1"], result["top5"]) == (0, 100)

    pooled = [*checkpoint, *shlex.split("--test-pool --input-size 3 192 192 -b 40")]
    (on, loss, log), (off, raw_loss, _) = ours.validate(*pooled), ours.validate(*pooled, "--no-era")
    assert "test time pooling" in log and "0.9825 nats (floor)" in log
    assert abs(loss - raw_loss) > 1e-4 and on == off


def test_files_of_other_forms(ours, work, import_timm):
    """The weights alone, with and without their metadata; arguments that were rewritten to a dict."""
    folder = ours.train(*SHORT, *ERA)
    z, y = raw_logits(folder, work)
    checkpoint = load(folder)
    state = checkpoint["state_dict"]
    torch.save(dict(state), work / "dict.pth")
    save_file(state, work / "bare.safetensors")
    said = "holds no ERA setting, so the model is used without ERA"
    for name in ("dict.pth", "bare.safetensors"):
        _, loss, log = ours.validate("--checkpoint", name)
        assert loss == cross_entropy(z, y) and log.count(f"{name} {said}") == 1 and "WARNING" not in log
    _, loss, log = ours.validate("--checkpoint", "bare.safetensors", *ERA)
    assert loss == cross_entropy(equation(z), y) and "WARNING" not in log and said not in log
    assert said not in ours.validate("--checkpoint", "dict.pth", "--no-era")[2]
    torch.save(state, work / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({**checkpoint, "args": None}, work / "none.pth")
    torch.save({**checkpoint, "args": vars(checkpoint["args"])}, work / "args.pth")
    for name in ("old.pth", "none.pth", "args.pth"):
        _, loss, log = ours.validate("--checkpoint", name)
        assert loss == cross_entropy(equation(z), y) and "WARNING" not in log and said not in log


def test_inference_and_onnx(ours, work, import_timm):
    import onnxruntime

    def numbers(rows, key):
        return torch.tensor([[float(number) for number in row[key].strip("[]").split()] for row in rows])

    folder = ours.train(*SHORT, *ERA)
    checkpoint = ["--checkpoint", folder / "last.pth.tar"]
    z, _ = raw_logits(folder, work)
    rows = ours.inference(*checkpoint, "--topk", "3", "--include-index")
    probs, index = equation(z).softmax(-1).topk(3)
    torch.testing.assert_close(numbers(rows, "prob"), probs, atol=1e-6, rtol=1e-5)
    assert torch.equal(numbers(rows, "index"), index.float())
    rows = ours.inference(*checkpoint, "--topk", "0", "--output-type", "logit", "--no-era")
    torch.testing.assert_close(numbers(rows, "logit"), z, atol=1e-5, rtol=1e-5)

    x, _ = read_images(work, "validation")
    for flags, expected in (([], equation(z)), (["--no-era"], z)):
        log = ours.run("onnx_export.py", "era.onnx", *ONNX_EXPORT, *checkpoint, *flags).err
        assert ("0.9825 nats (floor)" in log) == (not flags)
        session = onnxruntime.InferenceSession(work / "era.onnx", providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), expected, atol=1e-4, rtol=1e-4)


def accuracy(index: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of images, in percent, whose label is among the classes of index (images, k)."""
    return 100 * (index == labels[:, None]).any(1).float().mean().item()


def save_huge(folder: Path, work: Path, target: Path) -> None:
    """A copy of a checkpoint with logits in the thousands, whose top-5 accuracy would differ if ERA's output ranked.

    With such logits ERA's output ties all classes but the first.
    """
    checkpoint = load(folder)
    model = make_model(checkpoint["state_dict"]).train()
    for module in model.modules():  # statistics of BatchNorm that an epoch over the same images does not move
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(read_images(work, "train")[0])
    state = checkpoint["state_dict"] = model.state_dict()
    target.mkdir()
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        state["fc.weight"] = 1e5 * torch.randn(state["fc.weight"].shape, generator=generator)
        torch.save(checkpoint, target / "last.pth.tar")
        z, y = raw_logits(target, work)
        if abs(accuracy(equation(z).topk(5).indices, y) - accuracy(z.topk(5).indices, y)) > 1:
            return
    raise AssertionError("both rankings have the same accuracy, so the test could not fail")


def test_ranking_is_by_raw_logits(ours, work, import_timm):
    save_huge(ours.train(*SHORT, *ERA), work, work / "huge")
    z, y = raw_logits(work / "huge", work)
    top5 = z.topk(5).indices
    expected = accuracy(top5[:, :1], y), accuracy(top5, y)
    flags = ["--checkpoint", "huge/last.pth.tar"]
    on, off = ours.validate(*flags)[0], ours.validate(*flags, "--no-era")[0]
    assert on == off and (on["top1"], on["top5"]) == pytest.approx(expected, abs=1e-3)

    rows = ours.inference(*flags, "--topk", "5", "--include-index")
    assert [[int(i) for i in row["index"].strip("[]").split()] for row in rows] == top5.tolist()

    # train.py's own evaluation, in an epoch that changes nothing
    flags = shlex.split("-b 40 --epochs 1 --lr 1e-30 --no-aug --initial-checkpoint huge/last.pth.tar")
    row = summary(ours.train(*flags, *ERA))[0]
    assert (row["eval_top1"], row["eval_top5"]) == pytest.approx(expected)
    assert row["eval_top5"] == summary(ours.train(*flags))[0]["eval_top5"]
    assert row["eval_entropy_min"] == pytest.approx(FLOOR, abs=1e-5)


# Resume and configuration


@pytest.mark.parametrize("flags", [pytest.param([], marks=pytest.mark.slow), ERA], ids=["baseline", "era"])
def test_resume_is_the_uninterrupted_run(ours, flags):
    whole = ours.train(*FULL, *flags)
    resumed = ours.train(*FULL, *flags, "--resume", str(whole / "checkpoint-0.pth.tar"))
    torch.testing.assert_close(load(resumed)["state_dict"], load(whole)["state_dict"], rtol=1e-3, atol=1e-5)
    assert summary(resumed)[0]["train_loss"] == pytest.approx(summary(whole)[1]["train_loss"], rel=1e-5)
    with_era, without = (load(ours.train(*FULL, *era))["state_dict"] for era in (ERA, []))
    with pytest.raises(AssertionError):  # otherwise the two could be equal by chance
        torch.testing.assert_close(without, with_era, rtol=1e-3, atol=1e-5)


def test_resume_with_another_setting_is_refused(ours, upstream):
    era_run, base_run = ours.train(*FULL, *ERA) / "checkpoint-0.pth.tar", ours.train(*FULL) / "checkpoint-0.pth.tar"
    command = [*TRAIN, *FULL, "--experiment", "refused", "--resume"]
    saved = "trained with --era-min-entropy 0.6 --era-tau 4 --era-inverse approx"
    for flags in ([], ["--era-min-entropy", "0.7"], [*ERA, "--era-tau", "5"], [*ERA, "--era-inverse", "exact"]):
        assert saved in ours.refused(*command, era_run, *flags)
    for without in (base_run, upstream.train(*SHORT) / "last.pth.tar"):
        assert "trained with no ERA flag" in ours.refused(*command, without, *ERA)
    assert not (ours.work / "out/refused").exists()


@pytest.mark.slow
def test_resume_that_is_accepted(ours, work):
    floor = ours.train(*FULL, "--era-floor", "0.9")
    assert load(floor)["args"].era_setting["floor"] == pytest.approx(0.9, abs=1e-6)
    assert summary(floor)[-1]["train_entropy_min"] >= 0.9 - 1e-6
    last = str(floor / "checkpoint-0.pth.tar")
    ours.train(*FULL, "--era-floor", "0.9", "--resume", last)
    ours.train(*FULL, "--era-min-entropy", f"{load(floor)['args'].era_setting['min_entropy']:.9g}", "--resume", last)
    torch.save(load(floor)["state_dict"], work / "weights.pth")
    assert "trained with --era-min-entropy" in ours.refused(*TRAIN, *FULL, *ERA, "--resume", "weights.pth")
    torch.save(dict(load(floor)["state_dict"]), work / "weights.pth")  # which does not say
    ours.train(*FULL, *ERA, "--resume", "weights.pth")
    assert load(ours.train(*FULL, "--initial-checkpoint", last))["args"].era_setting is None


@pytest.mark.slow
def test_configuration_files(ours, work):
    run = ours.train(*SHORT, *ERA, "--era-inverse", "exact")
    again = ours.train("-c", str(run / "args.yaml"))  # the flag --experiment wins over the file
    assert_identical({"state_dict": load(run)["state_dict"]}, {"state_dict": load(again)["state_dict"]})
    assert load(again)["args"].era_setting == load(run)["args"].era_setting
    (work / "text.yaml").write_text('era_min_entropy: "0.6"\nera_inverse: exact\n')
    assert load(ours.train(*SHORT, "-c", "text.yaml"))["args"].era_setting == load(run)["args"].era_setting
    assert "both set H0" in ours.refused(*TRAIN, *SHORT, "-c", "text.yaml", "--era-floor", "1")


# Refusals and other flags


RANGE = "strictly between -0.0597 and 2.2429 nats"
REFUSED = {
    "--era-min-entropy 0.6 --bce-loss": "--bce-loss",
    "--era-min-entropy 0.6 --era-floor 1": "both set H0",
    "--era-tau 4": "--era-tau without --era-min-entropy or --era-floor",
    "--era-inverse exact": "--era-inverse without --era-min-entropy or --era-floor",
    "--era-min-entropy 2.3": RANGE,
    "--era-min-entropy 0.6 --era-tau 2": "at least e",
    "--era-floor 0": "strictly between 0.0000 and 2.3026",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_train_refuses(ours, flags):
    assert REFUSED[flags] in ours.refused(*TRAIN, *SHORT, "--experiment", "refused", *flags.split())
    assert not (ours.work / "out/refused").exists()


@pytest.mark.parametrize("key", ["era_min_entropi", "ERA_min_entropy", "era-floor", "era"])
def test_train_refuses_keys_like_eras_in_a_configuration(ours, key):
    (ours.work / "like.yaml").write_text(f"{key}: 0.6\n")
    assert f"--config sets {key}, which" in ours.refused(*TRAIN, *SHORT, "--experiment", "refused", "-c", "like.yaml")


@on_newest
def test_train_refuses_a_teacher(ours):
    """Also where ERA comes with the model's configuration."""
    config = {"architecture": "test_resnet", "pretrained_cfg": {}, "model_args": {"era_min_entropy": 0.6}}
    (ours.work / "with_era").mkdir()
    (ours.work / "with_era/config.json").write_text(json.dumps(config))
    command = [*TRAIN, *SHORT, "--experiment", "refused", "--kd-model-name", "test_vit"]
    for flags in (ERA, ["--model", "local-dir:with_era"]):
        assert "ERA does not work with --kd-model-name" in ours.refused(*command, *flags)


@on_all
def test_nothing_is_unpickled_for_era(ours, upstream):
    """Only v1.0.20 itself unpickles what a checkpoint holds beside numbers and text."""
    checkpoint = load(ours.train(*SHORT, *ERA))
    foreign = {**vars(checkpoint["args"]), "home": Path.home()}
    torch.save({**checkpoint, "args": foreign}, ours.work / "foreign.pth")
    assert "foreign.pth holds pathlib.PosixPath beside weights" in ours.refused(
        *TRAIN, *SHORT, "--resume", "foreign.pth"
    )
    validate = [*VALIDATE, "--checkpoint", "foreign.pth"]
    if upstream.run(*validate, ok=False).code:
        assert ours.run(*validate, ok=False).code == 1
    else:
        assert "Say how it was trained: --era-min-entropy" in ours.refused(*validate)
        for flags in (ERA, ["--no-era"]):
            ours.run(*validate, *flags)


def test_evaluating_scripts_refuse(ours):
    checkpoint = ["--checkpoint", ours.train(*SHORT, *ERA) / "last.pth.tar"]
    for script in (VALIDATE, INFERENCE, ["onnx_export.py", "refused.onnx", *ONNX_EXPORT]):
        assert "--no-era contradicts" in ours.refused(*script, *checkpoint, "--no-era", *ERA)
    assert "--era-tau without" in ours.refused(*VALIDATE, *checkpoint, "--era-tau", "5")
    assert RANGE in ours.refused(*VALIDATE, *checkpoint, "--era-min-entropy", "3")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--mixup 0.2 --cutmix 0.5",
        "--smoothing 0",
        "--grad-accum-steps 2 --clip-grad 1",
        "--model-dtype bfloat16",
        "--amp --amp-dtype bfloat16 --channels-last",
        "--model-ema --model-ema-force-cpu --grad-checkpointing",
        "--tta 2 --no-prefetcher",
        "--era-inverse exact --era-tau 2.718281828459045",
    ],
)
def test_other_flags_work_with_era(ours, flags):
    folder = ours.train(*SHORT, "--epochs", "1", *ERA, *flags.split())
    row, floor = summary(folder)[0], load(folder)["args"].era_setting["floor"]
    assert all(math.isfinite(value) for value in row.values())
    assert min(row["train_entropy_min"], row["eval_entropy_min"]) >= floor - 1e-6
