"""timm's scripts with the overlay: train.py, validate.py, inference.py and onnx_export.py on 40 + 40 noisy images, on a CPU."""

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from safetensors.torch import save_file

CLASSES, H0 = 10, 0.6
DATA = [
    "--data-dir",
    "data",
    "--model",
    "test_resnet",
    "--num-classes",
    "10",
    "--input-size",
    "3",
    "32",
    "32",
    "--crop-pct",
    "1",
    "--device",
    "cpu",
]
DATA += ["-j", "1"]
TRAIN = ["train.py", *DATA, "--output", "out", "--log-interval", "1", "--warmup-epochs", "0"]
SHORT = ["-b", "20", "--epochs", "2", "--lr", "0.05"]
FULL = ["-b", "40", "--epochs", "2", "--lr", "0.05", "--no-aug"]  # every step sees all images: no order, no chance
ERA = ["--era-min-entropy", "0.6"]
# The paper's listings lst:train_with_aug and lst:train_without_aug, but for data set, model, batch, epochs and processes.
WITHOUT_AUG = ["-b", "20", "--sched", "cosine", "--epochs", "2", "--lr", "0.05", "--amp", "--dist-bn", "reduce"]
WITH_AUG = [
    "-b",
    "10",
    "--sched",
    "cosine",
    "--epochs",
    "2",
    "--lr",
    "0.05",
    "--amp",
    "--remode",
    "pixel",
    "--reprob",
    "0.6",
    "--aug-splits",
    "3",
    "--aa",
    "rand-m9-mstd0.5-inc1",
    "--resplit",
    "--split-bn",
    "--jsd",
    "--dist-bn",
    "reduce",
]
VALIDATE = ["validate.py", *DATA, "-b", "40"]
INFERENCE = [
    "inference.py",
    "--data-dir",
    "data/validation",
    *DATA[2:],
    "-b",
    "40",
    "--no-console-results",
    "--results-dir",
    ".",
]


def make_images(folder: Path) -> None:
    """Class means with noise on top, as PNG. The names are those that validate.py --real-labels knows."""
    rng = np.random.default_rng(0)
    means = rng.uniform(0, 255, (CLASSES, 32, 32, 3))
    for split in ("train", "validation"):
        for i in range(40):
            (folder / split / f"class{i % CLASSES}").mkdir(parents=True, exist_ok=True)
            pixels = (0.4 * means[i % CLASSES] + 0.6 * rng.uniform(0, 255, (32, 32, 3))).astype("uint8")
            Image.fromarray(pixels).save(
                folder / split / f"class{i % CLASSES}" / f"ILSVRC2012_val_{i + 1:08d}.JPEG", format="PNG"
            )


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    make_images(folder / "data")
    return folder


class Scripts:
    """Runs the scripts of one tree in the work folder."""

    def __init__(self, tree: Path, work: Path):
        self.tree, self.work, self.trained = tree, work, {}
        self.env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("script_server.py")],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script, *args, ok=True):
        out, err = self.work / "stdout.txt", self.work / "stderr.txt"
        job = {
            "argv": [str(self.tree / script), *map(str, args)],
            "cwd": str(self.work),
            "stdout": str(out),
            "stderr": str(err),
        }
        print(json.dumps(job), file=self.server.stdin, flush=True)
        result = SimpleNamespace(code=int(self.server.stdout.readline()), out=out.read_text(), err=err.read_text())
        assert not ok or result.code == 0, f"{script} {args}\n{result.out}\n{result.err}"
        return result

    def train(self, *flags) -> Path:
        """The output folder of train.py with these flags; a run of the same flags is made once."""
        if flags not in self.trained:
            name = f"{self.tree.parent.name}-{len(self.trained)}"
            result = self.run(*TRAIN, "--experiment", name, *flags)
            folder = self.work / "out" / name
            (folder / "stdout.txt").write_text(result.out)
            (folder / "stderr.txt").write_text(result.err)
            self.trained[flags] = folder
        return self.trained[flags]

    def validate(self, *flags):
        """(result, loss, log) of validate.py."""
        result = self.run(*VALIDATE, *flags)
        return (
            json.loads(result.out.split("--result")[1]),
            float(re.search(r"Loss: +\S+ \( *([\d.]+)\)", result.err)[1]),
            result.err,
        )

    def inference(self, *flags):
        """The rows of inference.py's csv."""
        self.run(*INFERENCE, "--results-file", "rows.csv", *flags)
        with open(self.work / "rows.csv") as file:
            return list(csv.DictReader(file))

    def refused(self, *command) -> str:
        """The message of a script that ends with exit code 2 and one line on stderr after its log, without a traceback."""
        result = self.run(*command, ok=False)
        assert result.code == 2, result.err
        assert "Traceback" not in result.err + result.out
        line = result.err.splitlines()[-1]
        assert line.startswith(f"{command[0]}: error: ")
        assert result.err.count("error:") == 1
        return line


@pytest.fixture(scope="session")
def ours(timm_scripts, work):
    scripts = Scripts(timm_scripts, work)
    yield scripts
    scripts.server.stdin.close()
    scripts.server.wait(timeout=900)


@pytest.fixture(scope="session")
def upstream(timm_scripts, upstream_timm, work):
    scripts = Scripts(upstream_timm, work)
    yield scripts
    scripts.server.stdin.close()
    scripts.server.wait(timeout=900)


def load(folder: Path, name: str = "last") -> dict:
    return torch.load(folder / f"{name}.pth.tar", weights_only=False)


def tensors(value, path=()):
    """All leaves of nested dicts and lists, by their path."""
    if isinstance(value, dict):
        value = value.items()
    elif isinstance(value, (list, tuple)):
        value = enumerate(value)
    else:
        return {path: value}
    return {p: leaf for key, inner in value for p, leaf in tensors(inner, (*path, key)).items()}


def assert_identical(one: dict, other: dict) -> None:
    one, other = tensors(one), tensors(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        assert torch.equal(value, other[path]) if isinstance(value, torch.Tensor) else value == other[path], path


def optimizer_state(state_dict: dict) -> dict[str, torch.Tensor]:
    """The moments of all parameters in one tensor, by their name."""
    states = state_dict["state"].values()
    names = {
        name for state in states for name, value in state.items() if isinstance(value, torch.Tensor) and value.dim()
    }
    return {name: torch.cat([state[name].flatten() for state in states]) for name in names}


def summary(folder: Path) -> list[dict]:
    with open(folder / "summary.csv") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def read_images(work: Path, split: str):
    """Images as the loaders give them to test_resnet, in the order of the files, and labels."""
    files = sorted((work / "data" / split).glob("*/*"))
    x = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files]).permute(0, 3, 1, 2)
    return (x.float() - 127.5) / 127.5, torch.tensor([int(file.parent.name.removeprefix("class")) for file in files])


def make_model(state_dict=None):
    import timm

    model = timm.create_model("test_resnet", num_classes=CLASSES)
    if state_dict is not None:
        model.load_state_dict(state_dict)
    return model.eval()


def listing(z: torch.Tensor, h0: float = H0, tau: float = 4.0) -> torch.Tensor:
    """The activation, written anew from the paper's equation and listing."""
    kappa, n = math.log(tau) / tau, z.shape[-1]
    h = kappa + (math.exp(h0 - 1) - n * kappa) * (1 - z.softmax(-1)) / (n - 1)
    u = -1 - h.log()
    return -1 - (2 * u).sqrt() - 0.75 * u


def entropy(z: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=z.double()).entropy()


def raw_logits(folder: Path, work: Path, name: str = "last", key: str = "state_dict"):
    """(logits without ERA, labels) of the validation images for a checkpoint."""
    x, y = read_images(work, "validation")
    with torch.no_grad():
        return make_model(load(folder, name)[key])(x), y


FLOOR = entropy(
    listing(torch.tensor([1e3] + [0.0] * (CLASSES - 1), dtype=torch.float64))
).item()  # one-hot probabilities


# --- off is upstream


@pytest.mark.parametrize("flags", [SHORT, WITH_AUG], ids=["plain", "with_aug"])
def test_training_without_era_is_upstream_to_the_bit(ours, upstream, flags):
    mine, theirs = ours.train(*flags), upstream.train(*flags)
    one, other = load(mine), load(theirs)
    assert_identical({k: v for k, v in one.items() if k != "args"}, {k: v for k, v in other.items() if k != "args"})
    assert (mine / "summary.csv").read_text() == (theirs / "summary.csv").read_text()
    assert (mine / "stdout.txt").read_text() == (theirs / "stdout.txt").read_text()
    assert one["args"].era is None and not hasattr(other["args"], "era")


def test_validating_and_inference_without_era_are_upstream(ours, upstream):
    checkpoint = upstream.train(*SHORT) / "last.pth.tar"
    flags = ["--checkpoint", checkpoint, "--metrics-avg", "macro"]
    assert ours.validate(*flags)[:2] == upstream.validate(*flags)[:2]
    for flags in (
        ["--topk", "0"],
        ["--topk", "3", "--include-index", "--fullname"],
        ["--test-pool", "--input-size", "3", "192", "192", "--label-type", "name"],
    ):
        assert ours.inference("--checkpoint", checkpoint, *flags) == upstream.inference(
            "--checkpoint", checkpoint, *flags
        )


def test_logging_entropy_changes_no_weight(ours, work, import_timm):
    plain, logged = ours.train(*SHORT), ours.train(*SHORT, "--log-entropy")
    for key in ("state_dict", "optimizer", "metric"):
        assert_identical({key: load(plain)[key]}, {key: load(logged)[key]})
    for without, row in zip(summary(plain), summary(logged)):
        assert without.items() <= row.items()
        assert row.keys() - without.keys() == {
            f"{part}_entropy_{what}" for part in ("train", "eval") for what in ("mean", "min")
        }
    own = entropy(raw_logits(logged, work)[0])
    assert row["eval_entropy_mean"] == pytest.approx(own.mean().item(), abs=2e-6)
    assert row["eval_entropy_min"] == pytest.approx(own.min().item(), abs=2e-6)


# --- what is trained


@pytest.mark.parametrize("opt", ["sgd", "adahessian"])
def test_a_step_of_training_is_one_through_the_activation(ours, work, import_timm, opt):
    """Loss, entropies and weights after one step, against plain operations. adahessian differentiates twice."""
    from timm.optim import create_optimizer_v2
    from timm.utils import random_seed

    flags = FULL if opt == "sgd" else [*FULL, "--opt", opt]
    folder = ours.train(*flags, *ERA)
    x, y = read_images(work, "train")
    random_seed(42, 0)
    model = make_model().train()
    optimizer = create_optimizer_v2(model, opt=opt, lr=0.05, weight_decay=2e-5, momentum=0.9)
    output = listing(model(x))
    loss = F.cross_entropy(output, y, label_smoothing=0.1)
    loss.backward(create_graph=opt == "adahessian")
    optimizer.step()

    row = summary(folder)[0]
    assert row["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert row["train_entropy_mean"] == pytest.approx(entropy(output).mean().item(), rel=1e-5)
    assert row["train_entropy_min"] == pytest.approx(entropy(output).min().item(), rel=1e-5)
    # The optimizer's state after one step is the gradient, and for adahessian also the square of the Hessian's diagonal.
    expected = optimizer_state(optimizer.state_dict())
    trained, without = (
        optimizer_state(load(ours.train(*flags, *era), "checkpoint-0")["optimizer"]) for era in (ERA, [])
    )
    assert expected.keys() == {"momentum_buffer"} if opt == "sgd" else {"exp_avg", "exp_hessian_diag_sq"}
    for name, value in expected.items():
        assert (trained[name] - value).norm() < 0.01 * value.norm()  # images in another order: a ReLU near 0 may flip
        assert (without[name] - value).norm() > 0.3 * value.norm()


@pytest.mark.parametrize("command", [WITHOUT_AUG, WITH_AUG], ids=["without_aug", "with_aug"])
def test_printed_commands(ours, work, import_timm, command):
    baseline, folder = ours.train(*command), ours.train(*command, *ERA)
    assert summary(baseline)[0]["train_loss"] != summary(folder)[0]["train_loss"]
    assert "entropy" not in (baseline / "summary.csv").read_text() + (baseline / "stderr.txt").read_text()
    setting = load(folder)["args"].era
    assert setting["floor"] == pytest.approx(FLOOR, abs=1e-6)
    assert {name: setting[name] for name in ("num_classes", "min_entropy", "tau", "inverse")} == {
        "num_classes": CLASSES, "min_entropy": H0, "tau": 4.0, "inverse": "approx"
    }  # fmt: skip
    rows = summary(folder)
    assert len(rows) == 2
    for row in rows:
        for part in ("train", "eval"):
            assert FLOOR - 1e-5 <= row[f"{part}_entropy_min"] <= row[f"{part}_entropy_mean"] <= math.log(CLASSES)
    log = (folder / "stderr.txt").read_text()
    assert "H0 = 0.6 nats, tau 4, approx inverse, 10 classes" in log and "0.9825 nats (floor)" in log
    lines = [line for line in log.splitlines() if line.startswith(("Train:", "Test:"))]
    assert len(lines) == 2 * (len(re.findall(r"^Train: 0", log, re.M)) + len(re.findall(r"^Test:", log, re.M)) // 2)
    assert all(re.search(r"  Entropy: \d\.\d{4} \(min \d\.\d{4}\)$", line) for line in lines)
    last = [line for line in lines if line.startswith("Test:")][-1]
    assert last.endswith(f"Entropy: {row['eval_entropy_mean']:.4f} (min {row['eval_entropy_min']:.4f})")
    assert f'"entropy_min": {row["eval_entropy_min"]}' in (folder / "stdout.txt").read_text()


def test_logged_entropies_are_those_of_the_checkpoint(ours, work, import_timm):
    folder = ours.train(*SHORT, *ERA)
    for epoch, row in enumerate(summary(folder)):
        z, y = raw_logits(folder, work, f"checkpoint-{epoch}")
        own = entropy(listing(z.double()))
        assert row["eval_entropy_mean"] == pytest.approx(own.mean().item(), abs=2e-6)
        assert row["eval_entropy_min"] == pytest.approx(own.min().item(), abs=2e-6)
        assert row["eval_loss"] == pytest.approx(F.cross_entropy(listing(z), y).item(), abs=2e-6)


@pytest.mark.parametrize("command", [WITHOUT_AUG, WITH_AUG], ids=["without_aug", "with_aug"])
def test_printed_commands_in_two_processes(ours, work, import_timm, command):
    """./distributed_train.sh. Upstream's train.py cannot run it on a CPU: see cpu_ddp/sitecustomize.py."""
    name = f"two-{len(command)}"
    outputs = work / f"outputs-{name}"
    outputs.mkdir()
    shim = Path(__file__).with_name("cpu_ddp")
    env = {
        **ours.env, "PYTHONPATH": f"{shim}{os.pathsep}{ours.tree}", "DDP_OUTPUTS": str(outputs), "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "localhost:0", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    data = ["--data-dir", str(work / "data"), *TRAIN[3:], "--output", str(work / "out")]
    result = subprocess.run(
        ["bash", "./distributed_train.sh", "2", *data, *command, "--epochs", "1", *ERA, "--experiment", name],
        cwd=ours.tree, env=env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr.count("0.9825 nats (floor)") == 1  # of one process only
    row = summary(work / "out" / name)[0]
    each = [entropy(torch.load(outputs / f"{rank}.pt")) for rank in range(2)]
    assert each[0].min() != each[1].min()
    assert row["train_entropy_min"] == pytest.approx(torch.cat(each).min().item(), abs=2e-6)
    assert row["train_entropy_mean"] == pytest.approx(torch.cat(each).mean().item(), abs=2e-6)
    assert min(row["train_entropy_min"], row["eval_entropy_min"]) >= FLOOR - 1e-6
    if "--split-bn" not in command:  # amp computes the evaluation in fp16, hence the looser bound
        own = entropy(listing(raw_logits(work / "out" / name, work)[0]))
        assert row["eval_entropy_mean"] == pytest.approx(own.mean().item(), abs=2e-3)
        assert row["eval_entropy_min"] == pytest.approx(own.min().item(), abs=2e-3)


# --- reading it back


def test_validate_reads_the_setting_back(ours, upstream, work, import_timm):
    folder, other = ours.train(*SHORT, *ERA), upstream.train(*SHORT)
    z, y = raw_logits(folder, work)
    with_era, without = F.cross_entropy(listing(z), y).item(), F.cross_entropy(z, y).item()
    assert abs(with_era - without) > 1e-3
    checkpoint = ["--checkpoint", folder / "last.pth.tar"]

    result, loss, log = ours.validate(*checkpoint)
    assert loss == pytest.approx(with_era, abs=6e-5) and "0.9825 nats (floor)" in log and "WARNING" not in log
    for flag in ("--torchcompile=eager", "--aot-autograd", "--channels-last"):
        assert ours.validate(*checkpoint, flag)[:2] == (result, loss)

    off, loss, log = ours.validate(*checkpoint, "--no-era")
    assert loss == pytest.approx(without, abs=6e-5) and "ERA with" not in log
    assert "was trained with ERA (H0 0.6 nats, tau 4, approx inverse), and is used without ERA" in log
    assert off == result  # accuracies: ERA keeps the order

    _, loss, log = ours.validate(*checkpoint, "--era-min-entropy", "1", "--era-tau", "5")
    assert loss == pytest.approx(F.cross_entropy(listing(z, 1.0, 5.0), y).item(), abs=6e-5)
    assert "is used with ERA (H0 1 nats, tau 5, approx inverse)" in log and log.count("WARNING") == 1
    assert "WARNING" not in ours.validate(*checkpoint, *ERA)[2]

    _, loss, log = ours.validate("--checkpoint", other / "last.pth.tar", *ERA)
    assert loss == pytest.approx(F.cross_entropy(listing(raw_logits(other, work)[0]), y).item(), abs=6e-5)
    assert "was trained without ERA, and is used with ERA" in log


def test_validate_with_labels_and_pooling_of_its_own(ours, work, import_timm):
    folder = ours.train(*SHORT, *ERA)
    checkpoint = ["--checkpoint", folder / "last.pth.tar"]
    z, y = raw_logits(folder, work)

    (work / "labels.txt").write_text("\n".join(map(str, range(CLASSES - 1, -1, -1))))
    assert ours.validate(*checkpoint, "--valid-labels", "labels.txt")[1] == pytest.approx(
        F.cross_entropy(listing(z).flip(1), y).item(), abs=6e-5
    )

    ranks = z.argsort(dim=1, descending=True)
    files = sorted((work / "data/validation").glob("*/*"), key=lambda file: file.name)
    order = [sorted((work / "data/validation").glob("*/*")).index(file) for file in files]
    (work / "real.json").write_text(json.dumps([[int(ranks[i, 2])] for i in order]))  # the third guess is right
    result = ours.validate(*checkpoint, "--real-labels", "real.json")[0]
    assert (result["top1"], result["top5"]) == (0, 100)

    pooled = [*checkpoint, "--test-pool", "--input-size", "3", "192", "192", "-b", "40"]
    (on, loss, log), (off, raw_loss, _) = ours.validate(*pooled), ours.validate(*pooled, "--no-era")
    assert "test time pooling" in log and "0.9825 nats (floor)" in log
    assert abs(loss - raw_loss) > 1e-4 and on == off


def test_averaged_weights(ours, work, import_timm):
    folder = ours.train(*SHORT, *ERA, "--model-ema", "--model-ema-decay", "0.5", "--torchcompile", "eager")
    z, y = raw_logits(folder, work, key="state_dict_ema")
    own = entropy(listing(z))
    row = summary(folder)[-1]
    assert row["eval_entropy_mean"] == pytest.approx(own.mean().item(), abs=2e-6)
    assert row["eval_entropy_min"] == pytest.approx(own.min().item(), abs=2e-6)
    loss = ours.validate("--checkpoint", folder / "last.pth.tar", "--use-ema")[1]
    assert loss == pytest.approx(F.cross_entropy(listing(z), y).item(), abs=6e-5)
    plain = {name.removeprefix("_orig_mod."): value for name, value in load(folder)["state_dict"].items()}
    assert (
        ours.validate("--checkpoint", folder / "last.pth.tar")[1] != loss
        and plain.keys() == make_model().state_dict().keys()
    )


def test_files_without_a_setting(ours, work, import_timm):
    folder = ours.train(*SHORT, *ERA)
    z, y = raw_logits(folder, work)
    state = load(folder)["state_dict"]
    torch.save(state, work / "bare.pth")
    torch.save({"model": state}, work / "other.pth")
    torch.save(state, work / "old.pth", _use_new_zipfile_serialization=False)
    save_file(state, work / "bare.safetensors")
    for name in ("bare.pth", "other.pth", "old.pth", "bare.safetensors"):
        assert ours.validate("--checkpoint", name)[1] == pytest.approx(F.cross_entropy(z, y).item(), abs=6e-5)
    _, loss, log = ours.validate("--checkpoint", "bare.safetensors", *ERA)
    assert loss == pytest.approx(F.cross_entropy(listing(z), y).item(), abs=6e-5) and "WARNING" not in log


def test_settings_of_rewritten_checkpoints(ours, import_timm, tmp_path, capsys):
    """People rewrite args, to a dict for instance, so that torch.load takes the file with weights_only."""
    from timm.utils import era

    checkpoint = torch.load(ours.train(*SHORT, *ERA) / "last.pth.tar", weights_only=False)
    setting, path = checkpoint["args"].era, tmp_path / "rewritten.pth.tar"

    def saved(args):
        torch.save({**checkpoint, "args": args}, path)
        return era.saved_setting(str(path))

    assert setting and saved(vars(checkpoint["args"])) == setting
    assert saved(None) == era.UNKNOWN and saved({}) is None
    for broken in ({"min_entropy": 0.6}, "yes"):
        with pytest.raises(SystemExit):
            saved({"era": broken})
        assert "rewritten.pth.tar: its args.era is" in capsys.readouterr().err


def test_unreadable_checkpoints_give_the_error_of_timm(ours, upstream, work):
    (work / "corrupt.pth").write_bytes(b"not a checkpoint")
    whole = (ours.train(*SHORT, *ERA) / "last.pth.tar").read_bytes()
    (work / "short.pth").write_bytes(whole[: len(whole) // 2])
    for script in ([*VALIDATE, "--checkpoint"], [*INFERENCE, "--checkpoint"], [*TRAIN, *SHORT, "--resume"]):
        for name in ("corrupt.pth", "short.pth", "missing.pth"):
            mine, theirs = ours.run(*script, name, ok=False), upstream.run(*script, name, ok=False)
            assert mine.code == theirs.code == 1
            assert mine.err.splitlines()[-1] == theirs.err.splitlines()[-1]


def test_a_folder_of_checkpoints(ours, work, import_timm):
    era_run, base_run = ours.train(*SHORT, *ERA), ours.train(*SHORT)
    folder = work / "folder"
    folder.mkdir()
    for name, run in (("1-base", base_run), ("2-era", era_run), ("3-base", base_run)):
        shutil.copy(run / "last.pth.tar", folder / f"{name}.pth.tar")
    log = ours.run(*VALIDATE, "--checkpoint", folder).err
    losses = [float(loss) for loss in re.findall(r"Test: .*Loss: +([\d.]+)", log)]
    (z_base, y), (z_era, _) = raw_logits(base_run, work), raw_logits(era_run, work)
    base = F.cross_entropy(z_base, y).item()
    assert losses == pytest.approx([base, F.cross_entropy(listing(z_era), y).item(), base], abs=6e-5)
    assert log.count("nats (floor)") == 1


def test_inference_and_onnx(ours, work, import_timm):
    import onnxruntime

    folder = ours.train(*SHORT, *ERA)
    z, _ = raw_logits(folder, work)
    expected = listing(z)
    rows = ours.inference("--checkpoint", folder / "last.pth.tar", "--topk", "3", "--include-index")
    probs, index = expected.softmax(-1).topk(3)
    numbers = lambda row, key: [float(number) for number in row[key].strip("[]").split()]  # noqa: E731
    torch.testing.assert_close(torch.tensor([numbers(row, "prob") for row in rows]), probs, atol=1e-6, rtol=1e-5)
    assert [numbers(row, "index") for row in rows] == index.tolist()
    rows = ours.inference("--checkpoint", folder / "last.pth.tar", "--topk", "0", "--output-type", "logit", "--no-era")
    torch.testing.assert_close(torch.tensor([numbers(row, "logit") for row in rows]), z, atol=1e-5, rtol=1e-5)

    x, _ = read_images(work, "validation")
    for flags, output in (([], expected), (["--no-era"], z)):
        command = [
            "onnx_export.py",
            "era.onnx",
            "--model",
            "test_resnet",
            "--num-classes",
            "10",
            "--img-size",
            "32",
            "--batch-size",
            "40",
        ]
        log = ours.run(*command, "--checkpoint", folder / "last.pth.tar", *flags).err
        assert ("0.9825 nats (floor)" in log) == (not flags)
        session = onnxruntime.InferenceSession(work / "era.onnx", providers=["CPUExecutionProvider"])
        torch.testing.assert_close(
            torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]),
            output,
            atol=1e-4,
            rtol=1e-4,
        )


def test_ranking_is_by_raw_logits(ours, work, import_timm):
    """With logits in the thousands, ERA's output ties all classes but the first: by it, top-5 would be wrong."""
    folder = ours.train(*SHORT, *ERA)
    checkpoint = load(folder)
    model = make_model(checkpoint["state_dict"]).train()
    for module in model.modules():  # statistics of BatchNorm that an epoch over the same images does not move
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(read_images(work, "train")[0])
    checkpoint["state_dict"] = model.state_dict()
    (work / "huge").mkdir()
    hits = lambda index: 100 * (index == y[:, None]).any(1).float().mean().item()  # noqa: E731
    for seed in range(100):  # until the two rankings have other accuracies: else this test could not fail
        checkpoint["state_dict"]["fc.weight"] = 1e5 * torch.randn(
            checkpoint["state_dict"]["fc.weight"].shape, generator=torch.Generator().manual_seed(seed)
        )
        torch.save(checkpoint, work / "huge/last.pth.tar")
        z, y = raw_logits(work / "huge", work)
        by_logits, by_output = z.topk(5).indices, listing(z).topk(5).indices
        if abs(hits(by_output) - hits(by_logits)) > 1:
            break
    assert abs(hits(by_output) - hits(by_logits)) > 1

    flags = ["--checkpoint", "huge/last.pth.tar"]
    on, off = ours.validate(*flags)[0], ours.validate(*flags, "--no-era")[0]
    assert on == off
    assert (on["top1"], on["top5"]) == pytest.approx((hits(by_logits[:, :1]), hits(by_logits)), abs=1e-3)

    rows = ours.inference(*flags, "--topk", "5", "--include-index")
    assert [[int(i) for i in row["index"].strip("[]").split()] for row in rows] == by_logits.tolist()

    # train.py's own evaluation: an epoch that changes nothing
    flags = ["-b", "40", "--epochs", "1", "--lr", "1e-30", "--no-aug", "--initial-checkpoint", "huge/last.pth.tar"]
    row = summary(ours.train(*flags, *ERA))[0]
    assert row["eval_top1"] == pytest.approx(hits(by_logits[:, :1]))
    assert row["eval_top5"] == summary(ours.train(*flags))[0]["eval_top5"] == pytest.approx(hits(by_logits))
    assert row["eval_entropy_min"] == pytest.approx(FLOOR, abs=1e-5)


# --- resume and configuration


@pytest.mark.parametrize("flags", [[], ERA], ids=["baseline", "era"])
def test_resume_is_the_uninterrupted_run(ours, flags):
    whole = ours.train(*FULL, *flags)
    resumed = ours.train(*FULL, *flags, "--resume", str(whole / "checkpoint-0.pth.tar"))
    torch.testing.assert_close(load(resumed)["state_dict"], load(whole)["state_dict"], rtol=1e-3, atol=1e-5)
    assert summary(resumed)[0]["train_loss"] == pytest.approx(summary(whole)[1]["train_loss"], rel=1e-5)
    with pytest.raises(AssertionError):  # else the two could be the same by chance
        torch.testing.assert_close(
            load(ours.train(*FULL))["state_dict"], load(ours.train(*FULL, *ERA))["state_dict"], rtol=1e-3, atol=1e-5
        )


def test_resume_with_another_setting_is_refused(ours, upstream):
    era_run, base_run = ours.train(*FULL, *ERA) / "checkpoint-0.pth.tar", ours.train(*FULL) / "checkpoint-0.pth.tar"
    command = [*TRAIN, *FULL, "--experiment", "refused", "--resume"]
    message = ours.refused(*command, era_run)
    assert "--era-min-entropy 0.6 --era-tau 4.0 --era-inverse approx" in message and "without ERA" in message
    assert "no ERA flag" in ours.refused(*command, base_run, *ERA)
    assert "no ERA flag" in ours.refused(*command, upstream.train(*SHORT) / "last.pth.tar", *ERA)
    assert "H0 0.7 nats" in ours.refused(*command, era_run, "--era-min-entropy", "0.7")
    assert "tau 5" in ours.refused(*command, era_run, *ERA, "--era-tau", "5")
    assert "exact inverse" in ours.refused(*command, era_run, *ERA, "--era-inverse", "exact")
    assert not (ours.work / "out/refused").exists()


def test_resume_that_is_accepted(ours, work):
    floor = ours.train(*FULL, "--era-floor", "0.9")
    assert load(floor)["args"].era["floor"] == pytest.approx(0.9, abs=1e-6)
    assert summary(floor)[-1]["train_entropy_min"] >= 0.9 - 1e-6
    last = str(floor / "checkpoint-0.pth.tar")
    ours.train(*FULL, "--era-floor", "0.9", "--resume", last)
    ours.train(*FULL, "--era-min-entropy", repr(load(floor)["args"].era["min_entropy"]), "--resume", last)
    torch.save(load(floor)["state_dict"], work / "weights.pth")
    ours.train(*FULL, *ERA, "--resume", "weights.pth")
    new = ours.train(*FULL, "--initial-checkpoint", last)
    assert load(new)["args"].era is None


def test_configuration_files(ours, work):
    run = ours.train(*SHORT, *ERA, "--era-inverse", "exact")
    again = ours.train("-c", str(run / "args.yaml"))  # the flag --experiment wins over the file
    assert_identical({"state_dict": load(run)["state_dict"]}, {"state_dict": load(again)["state_dict"]})
    assert load(again)["args"].era == load(run)["args"].era
    (work / "text.yaml").write_text('era_min_entropy: "0.6"\nera_inverse: exact\n')
    assert load(ours.train(*SHORT, "-c", "text.yaml"))["args"].era == load(run)["args"].era
    assert "--config" in ours.refused(*TRAIN, *SHORT, "-c", "text.yaml", "--era-floor", "1")
    for value, expected in (("[0.6]", "not a number"), ("true", "not a number")):
        (work / "wrong.yaml").write_text(f"era_min_entropy: {value}\n")
        assert expected in ours.refused(*TRAIN, *SHORT, "-c", "wrong.yaml")
    (work / "wrong.yaml").write_text("era_min_entropy: 0.6\nera_inverse: precise\n")
    assert "expected 'approx' or 'exact'" in ours.refused(*TRAIN, *SHORT, "-c", "wrong.yaml")
    (work / "wrong.yaml").write_text(yaml.safe_dump({"era_min_entropy": 0.6, "bce_loss": True}))
    assert "--bce-loss" in ours.refused(*TRAIN, *SHORT, "-c", "wrong.yaml")


# --- refusals and other flags


RANGE = "strictly between -0.0597 and 2.2429 nats"
REFUSED = {
    "--era-min-entropy 0.6 --bce-loss": "--bce-loss",
    "--era-min-entropy 0.6 --torchscript": "--torchscript",
    "--era-min-entropy 0.6 --era-floor 1": "both set H0",
    "--era-tau 4": "--era-tau without --era-min-entropy or --era-floor",
    "--era-inverse exact": "--era-inverse without --era-min-entropy or --era-floor",
    "--era-min-entropy nan": RANGE,
    "--era-min-entropy inf": RANGE,
    "--era-min-entropy 2.3": RANGE,
    "--era-min-entropy=-0.06": RANGE,
    "--era-min-entropy 0.6 --era-tau 2": "at least e",
    "--era-min-entropy 0.6 --era-tau nan": "at least e",
    "--era-floor 0": "strictly between 0 and ln(10) = 2.3026",
    "--era-floor nan": "strictly between 0 and ln(10) = 2.3026",
    "--model-kwargs era_min_entropy=0.6": "--era-min-entropy",
    "--era-min-entropy 0.6 --num-classes 1": "at least 2",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_train_refuses(ours, flags):
    assert REFUSED[flags] in ours.refused(*TRAIN, *SHORT, "--experiment", "refused", *flags.split())
    assert not (ours.work / "out/refused").exists()


@pytest.mark.parametrize("flags", [flags for flags in REFUSED if "bce" not in flags and "--num-classes" not in flags])
def test_validate_refuses(ours, flags):
    checkpoint = ours.train(*SHORT) / "last.pth.tar"
    assert REFUSED[flags] in ours.refused(*VALIDATE, "--checkpoint", checkpoint, *flags.split())


def test_evaluating_scripts_refuse(ours):
    checkpoint = ["--checkpoint", ours.train(*SHORT, *ERA) / "last.pth.tar"]
    for script in (
        VALIDATE,
        INFERENCE,
        ["onnx_export.py", "refused.onnx", "--model", "test_resnet", "--num-classes", "10"],
    ):
        assert "--no-era contradicts" in ours.refused(*script, *checkpoint, "--no-era", *ERA)
        assert RANGE in ours.refused(*script, *checkpoint, "--era-min-entropy", "3")
    for script in (VALIDATE, INFERENCE):
        assert "--torchscript" in ours.refused(*script, *checkpoint, "--torchscript")
    ours.run(*VALIDATE, *checkpoint, "--torchscript", "--no-era")
    ours.run(*TRAIN, *SHORT, "--epochs", "1", "--torchscript", "--bce-loss", "--experiment", "baseline")


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
def test_goes_with(ours, flags):
    folder = ours.train(*SHORT, "--epochs", "1", *ERA, *flags.split())
    row, floor = summary(folder)[0], load(folder)["args"].era["floor"]
    assert all(math.isfinite(value) for value in row.values())
    assert min(row["train_entropy_min"], row["eval_entropy_min"]) >= floor - 1e-6


def test_number_of_classes_of_the_model(ours):
    """Without --num-classes: the 1000 of the model."""
    command = [flag for flag in TRAIN if flag not in ("--num-classes", "10")]
    ours.run(*command, *SHORT, "--epochs", "1", "--era-floor", "2", "--experiment", "thousand")
    setting = load(ours.work / "out/thousand")["args"].era
    assert setting["num_classes"] == 1000 and setting["floor"] == pytest.approx(2, abs=1e-6)
