"""The library era/: the page's examples, and the package that `pip install .` makes."""

import math
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
import torch

from era import __version__

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def example(project_root):
    """example(heading): the variables that the code under this heading of the page leaves."""

    def run(heading):
        page = (project_root / "docs/library.md").read_text()
        (code,) = re.findall(rf"^## {heading}\n\n```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        torch.manual_seed(0)
        left = {}
        exec(compile(code, f"docs/library.md, {heading}", "exec"), left)
        return left

    return run


def softmax_entropy(logits):
    log_probs = logits.detach().double().log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def test_the_classifier_keeps_its_entropy_while_it_learns(example, capsys):
    left = example("A classifier")
    smallest = softmax_entropy(left["logits"]).min()
    assert capsys.readouterr().out == f"smallest entropy {smallest:.3f}, floor {left['era'].floor:.3f}\n"
    assert (left["logits"].argmax(-1) == left["labels"]).double().mean() > 0.95
    assert softmax_entropy(left["logits"]).min() > left["era"].floor - 1e-5 > 0.6
    assert softmax_entropy(left["model"](left["features"])).min() < 0.1  # what it would be without ERA


def test_the_policy_keeps_its_entropy_although_noise_costs_reward(example, capsys):
    left = example("A Gaussian policy")
    nats = (left["log_std"].detach().double() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    assert capsys.readouterr().out == f"smallest entropy {nats.min():.3f}, target -3\n"
    assert (left["mean"].tanh() - 0.5).abs().mean() < 0.2
    assert nats.min() > -3.0 - 1e-5
    assert left["policy"].entropy().mean() < -3.0  # the page: truncation takes some of it


def test_the_grpo_step_takes_log_probs_of_the_papers_logits(example, capsys):
    """Eq. llm by its cases: kz, z, z / k."""
    left = example("A GRPO step")
    z, advantages = left["logits"].detach().double(), left["advantages"]
    h_resp = softmax_entropy(z).sort(-1).values[:, -3:].mean(-1, keepdim=True)  # a fifth of 16 tokens
    sharpened, flattened = (h_resp < 0.45) & (advantages > 0), (h_resp > 3) & (advantages > 0)
    assert sharpened.any() and ((advantages > 0) & ~sharpened).any()
    printed = f"H_resp {h_resp.mean():.3f}; {sharpened.double().mean():.0%} of the tokens sharpened\n"
    assert capsys.readouterr().out == printed
    transformed = torch.where(sharpened[..., None], 2 * z, torch.where(flattened[..., None], z / 2, z))
    expected = transformed.log_softmax(-1).gather(-1, left["labels"][..., None])[..., 0]
    torch.testing.assert_close(left["log_prob"].detach().double(), expected, rtol=1e-5, atol=1e-4)


# The package


def test_the_package_installs_from_its_source_package_and_holds_the_library_alone(project_root, tmp_path):
    """Offline, with the setuptools of this environment. What apply.py and the demos are made of stays out."""
    setuptools = pytest.importorskip("setuptools", reason="the build backend; pip brings it where there is a network")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__}: pyproject.toml needs 77")
    listing = subprocess.run(["git", "ls-files"], cwd=project_root, capture_output=True, text=True, check=True)
    tracked = listing.stdout.splitlines()
    for name in tracked:
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project_root / name, tmp_path / "project" / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('../dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path / "project", capture_output=True, check=True)
    (sdist,) = (tmp_path / "dist").iterdir()
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert folders == {"era", "docs", "era_overlays.egg-info"}

    site = tmp_path / "site"
    install = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", site, sdist]
    done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in site.iterdir()} == {"era", f"era_overlays-{__version__}.dist-info"}
    installed = {path.relative_to(site).as_posix() for path in (site / "era").rglob("*.*") if path.suffix != ".pyc"}
    assert installed == {name for name in tracked if name.startswith("era/") and not name.endswith("ruff.toml")}
    use = "import sys; sys.modules.update(dict.fromkeys(['verl', 'timm', 'ray', 'numpy']))\n"
    use += "from era import continuous, discrete, language; print(language.__file__)\n"
    use += "from importlib import metadata; print(*metadata.requires('era-overlays'))"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, env=env, capture_output=True, text=True)
    file, requires = done.stdout.splitlines()
    assert file == str(site / "era/language.py") and requires.startswith("torch>=2.6 verl>=0.9;"), done.stderr
