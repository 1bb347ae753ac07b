"""The two versions of verl that the demo trains with."""

from dataclasses import dataclass
from pathlib import Path

from demo.runner.command import Needs
from demo.runner.environment import ROOT

_PACKAGES = ("torch", "ray", "transformers", "hydra", "pyarrow", "matplotlib", "psutil")
_MEGABYTES = 300  # the results take about 10 MB, Ray's files and its object store the rest
_SHARED_CODE = ("chain.py", "config.py", "cpu_trainer.py", "curves.py", "models.py", "warmup.py")


@dataclass(frozen=True)
class Version:
    """checkout, out: default folders of verl and of the results.

    trainer: the module that is the training process. code: what its results depend on, besides verl.
    packages: whose versions they depend on. needs: what must be there. start: how long the process takes to begin.
    """

    checkout: str
    out: str
    trainer: str
    code: tuple[Path, ...]
    packages: tuple[str, ...]
    needs: Needs
    start: str


def _code(*names: str) -> tuple[Path, ...]:
    return tuple(Path(__file__).parent / name for name in (*_SHARED_CODE, *names))


VERSIONS = {
    "0.4.1": Version(
        checkout="checkouts/verl",
        out="results/demo",
        trainer="demo.llm.cpu_trainer",
        code=_code("cpu_worker.py"),
        packages=("torch", "ray", "transformers", "tensordict", "numpy"),
        needs=Needs("demo", _PACKAGES, _MEGABYTES, "verl", ("verl/trainer/main_ppo.py", "verl/utils/era.py")),
        start="half a minute",
    ),
    "0.9.1": Version(
        checkout=".venv/verl-sources/verl-0.9.1",
        out="results/demo-verl-0.9.1",
        trainer="demo.llm.verl_0_9.trainer",
        code=(
            *_code("verl_0_9/__init__.py", "verl_0_9/cpu.py", "verl_0_9/sampling.py", "verl_0_9/trainer.py"),
            *sorted((ROOT / "era").rglob("*.py")),
        ),
        packages=("torch", "ray", "transformers", "tensordict", "TransferQueue", "numpy"),
        needs=Needs("demo VERL=0.9.1", (*_PACKAGES, "transfer_queue"), _MEGABYTES, "verl", (), "verl-0.9-cpu"),
        start="a minute",
    ),
}
