# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""timm's scripts on 40 + 40 noisy images and a CPU: running them, and reading what they write."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

CLASSES = 10
MODEL = "--model test_resnet --num-classes 10"
DATA = shlex.split(f"{MODEL} --input-size 3 32 32 --crop-pct 1 --device cpu -j 1")
TRAIN = ["train.py", "--data-dir", "data", *DATA, *shlex.split("--output out --log-interval 1 --warmup-epochs 0")]
VALIDATE = ["validate.py", "--data-dir", "data", *DATA, "-b", "40"]
INFERENCE = ["inference.py", "--data-dir", "data/validation", *DATA]
INFERENCE += shlex.split("-b 40 --no-console-results --results-dir .")


def make_images(folder: Path) -> None:
    """Write class means with noise on top, as PNG. The names are those that validate.py --real-labels expects."""
    rng = np.random.default_rng(0)
    means = rng.uniform(0, 255, (CLASSES, 32, 32, 3))
    for split in ("train", "validation"):
        for i in range(40):
            file = folder / split / f"class{i % CLASSES}" / f"ILSVRC2012_val_{i + 1:08d}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = (0.4 * means[i % CLASSES] + 0.6 * rng.uniform(0, 255, (32, 32, 3))).astype("uint8")
            Image.fromarray(pixels).save(file, format="PNG")


class Scripts:
    """Runs the scripts of one tree in the work folder, in forks of one server process."""

    def __init__(self, tree: Path, work: Path):
        self.tree, self.work, self.trained = tree, work, {}
        self.env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, Path(__file__).with_name("script_server.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen(command, env=self.env, text=True, **pipes)

    def stop(self) -> None:
        self.server.stdin.close()
        self.server.wait(timeout=900)

    def run(self, script, *args, ok=True):
        out, err = self.work / "stdout.txt", self.work / "stderr.txt"
        argv = [str(self.tree / script), *map(str, args)]
        job = {"argv": argv, "cwd": str(self.work), "stdout": str(out), "stderr": str(err)}
        print(json.dumps(job), file=self.server.stdin, flush=True)
        result = SimpleNamespace(code=int(self.server.stdout.readline()), out=out.read_text(), err=err.read_text())
        assert not ok or result.code == 0, f"{script} {args}\n{result.out}\n{result.err}"
        return result

    def train(self, *flags) -> Path:
        """The output folder of train.py with these flags. The same flags are run once."""
        if flags not in self.trained:
            name = f"{self.tree.parent.name}-{self.tree.name}-{len(self.trained)}"
            result = self.run(*TRAIN, "--experiment", name, *flags)
            folder = self.work / "out" / name
            (folder / "stdout.txt").write_text(result.out)
            (folder / "stderr.txt").write_text(result.err)
            self.trained[flags] = folder
        return self.trained[flags]

    def validate(self, *flags):
        """(result, loss, log) of validate.py."""
        result = self.run(*VALIDATE, *flags)
        loss = float(re.search(r"Loss: +\S+ \( *([\d.]+)\)", result.err)[1])
        return json.loads(result.out.split("--result")[1]), loss, result.err

    def inference(self, *flags):
        """The rows of inference.py's CSV file."""
        self.run(*INFERENCE, "--results-file", "rows.csv", *flags)
        with open(self.work / "rows.csv") as file:
            return list(csv.DictReader(file))

    def refused(self, *command) -> str:
        """The last line on stderr of a script that ends with exit code 2 and one error message, without a traceback."""
        result = self.run(*command, ok=False)
        assert result.code == 2, result.err
        assert "Traceback" not in result.err + result.out
        line = result.err.splitlines()[-1]
        assert line.startswith(f"{command[0]}: error: ") and result.err.count("error:") == 1
        return line


def load(folder: Path, name: str = "last") -> dict:
    """The checkpoint of this name in the folder of a run."""
    return torch.load(folder / f"{name}.pth.tar", weights_only=False)


def summary(folder: Path) -> list[dict]:
    """The rows of a run's summary.csv."""
    with open(folder / "summary.csv") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def read_images(work: Path, split: str):
    """Images as the loaders give them to test_resnet, in the order of the files, and labels."""
    files = sorted((work / "data" / split).glob("*/*"))
    x = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files]).permute(0, 3, 1, 2)
    return (x.float() - 127.5) / 127.5, torch.tensor([int(file.parent.name.removeprefix("class")) for file in files])


def make_model(state_dict=None):
    """test_resnet without ERA, in evaluation mode."""
    import timm

    model = timm.create_model("test_resnet", num_classes=CLASSES)
    if state_dict is not None:
        model.load_state_dict(state_dict)
    return model.eval()


def raw_logits(folder: Path, work: Path, name: str = "last", key: str = "state_dict"):
    """(logits without ERA, labels) of the validation images for a checkpoint."""
    x, y = read_images(work, "validation")
    with torch.no_grad():
        return make_model(load(folder, name)[key])(x), y
