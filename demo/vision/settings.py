"""The settings of the runs, and the flags of timm's train.py they turn into."""

from dataclasses import dataclass
from pathlib import Path

MODEL = "test_resnet"  # timm's smallest ResNet, 0.4 million parameters
CLASSES = 10
IMAGE_SIZE = 32

# What differs from train.py's defaults, and label smoothing, which is its default and so the paper's.
FLAGS = {
    "model": MODEL,
    "num-classes": CLASSES,
    "img-size": IMAGE_SIZE,
    "crop-pct": 1.0,
    "batch-size": 16,
    "validation-batch-size": 350,
    "smoothing": 0.1,
    "opt": "adamw",
    "lr": 3e-3,
    "sched": "cosine",
    "warmup-epochs": 2,
    "workers": 1,  # with 0 v1.0.20 raises
    "checkpoint-hist": 1,
    "device": "cpu",
}
SWITCHES = ("no-aug", "log-entropy")

ARMS = {"baseline": "baseline", "era": "ERA"}  # name: as it is printed


@dataclass(frozen=True)
class Run:
    """min_entropy: H0 of ERA in nats, None for a baseline."""

    min_entropy: float | None
    seed: int
    epochs: int

    @property
    def length(self) -> str:
        return f"{self.epochs} epochs"

    @property
    def arm(self) -> str:
        return "baseline" if self.min_entropy is None else "era"

    @property
    def label(self) -> str:
        return f"{ARMS[self.arm]}, seed {self.seed}"

    @property
    def folder(self) -> str:
        h0 = "" if self.min_entropy is None else f"{self.min_entropy!r}"
        return f"{self.arm}{h0}-epochs{self.epochs}-seed{self.seed}"

    def flags(self) -> list[str]:
        """All but those that name folders."""
        values = {**FLAGS, "epochs": self.epochs, "seed": self.seed}
        if self.min_entropy is not None:
            values["era-min-entropy"] = self.min_entropy
        return [f"--{name}={value}" for name, value in values.items()] + [f"--{name}" for name in SWITCHES]


def command(run: Run, script: Path, data: Path, output: Path) -> list[str]:
    """The script with its arguments. Its results are written to output / run.folder."""
    return [str(script), f"--data-dir={data}", f"--output={output}", f"--experiment={run.folder}", *run.flags()]
