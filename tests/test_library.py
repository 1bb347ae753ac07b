"""The library era/: the page's examples, and the package that `pip install .` makes."""

import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tools import check_dist
from tools.try_wheel import PYTHONS

pytestmark = pytest.mark.usefixtures("one_thread")


def softmax_entropy(logits):
    log_probs = logits.detach().double().log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def test_the_classifier_keeps_its_entropy_while_it_learns(run_example, capsys):
    left = run_example("library.md", "A classifier")
    smallest = softmax_entropy(left["logits"]).min()
    assert capsys.readouterr().out == f"smallest entropy {smallest:.3f}, floor {left['era'].floor:.3f}\n"
    assert (left["logits"].argmax(-1) == left["labels"]).double().mean() > 0.95
    assert softmax_entropy(left["logits"]).min() > left["era"].floor - 1e-5 > 0.6
    assert softmax_entropy(left["model"](left["features"])).min() < 0.1  # what it would be without ERA


def test_the_policy_keeps_its_entropy_although_noise_costs_reward(run_example, capsys):
    left = run_example("library.md", "A Gaussian policy")
    nats = (left["log_std"].detach().double() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    assert capsys.readouterr().out == f"smallest entropy {nats.min():.3f}, target -3\n"
    assert (left["mean"].tanh() - 0.5).abs().mean() < 0.2
    assert nats.min() > -3.0 - 1e-5
    assert left["policy"].entropy().mean() < -3.0  # the page: truncation takes some of it


# The package


@pytest.fixture(scope="module")
def release(project_root, tmp_path_factory):
    """The folder with the wheel and the source package, built offline with the setuptools of this environment."""
    setuptools = pytest.importorskip("setuptools", reason="the build backend; pip brings it where there is a network")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__}: pyproject.toml needs 77")
    folder = tmp_path_factory.mktemp("release")
    listing = subprocess.run(["git", "ls-files"], cwd=project_root, capture_output=True, text=True, check=True)
    for name in listing.stdout.splitlines():
        (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project_root / name, folder / "project" / name)
    build = "from setuptools import build_meta as b; b.build_sdist('../dist'); b.build_wheel('../dist')"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "project", capture_output=True, check=True)
    return folder / "dist"


def test_a_release_holds_the_library_and_says_what_it_is(release):
    assert check_dist.problems(release) == []
    assert check_dist.version_problems(final=False) == []


def test_the_readme_and_the_workflow_name_what_there_is(project_root):
    """The names of the readme's table are public ones, and a release is tried on each Python that it says it is for."""
    public = (project_root / "docs/api.md").read_text()
    table = re.findall(r"^\| \[.*", (project_root / "docs/library.md").read_text(), re.MULTILINE)
    names = re.findall(r"\bera\.(\w+)[.:](\w+)", "\n".join(table))
    assert len(names) > 8
    assert [f"era.{module}" for module, _ in names if f"`era.{module}`" not in public] == []
    assert [name for _, name in names if not re.search(rf"\b{name}`", public)] == []
    workflow = (project_root / ".github/workflows/release.yml").read_text()
    assert re.search(r"python: (\[.*\])", workflow)[1].replace('"', "'") == str(list(PYTHONS))


def test_what_is_wrong_with_a_release_is_named(release, tmp_path):
    (wheel,), (source,) = release.glob("*.whl"), release.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(tmp_path / wheel.name, "w") as changed:
        for name in archive.namelist():
            text = archive.read(name).decode().replace("era.axolotl.Era", "[Axolotl](llm/axolotl.md)")
            if name != "era/py.typed":
                changed.writestr(name, text.replace("Python :: 3.11", "Python :: 3.9"))
        changed.writestr("tests/test_era.py", "")
    with tarfile.open(source) as archive, tarfile.open(tmp_path / source.name, "w:gz") as changed:
        for member in archive:
            if not member.name.endswith("NOTICE"):
                changed.addfile(member, archive.extractfile(member))
    named = "\n".join(check_dist.problems(tmp_path))
    for problem in (
        "the wheel lacks era/py.typed",
        "the wheel has tests/test_era.py, which nobody needs",
        "the source package lacks NOTICE",
        "the Pythons of the classifiers: ['3.10', '3.9', '3.12', '3.13'], expected",
        "the readme does not say how era.axolotl is switched on",
        "the readme has a link that PyPI cannot follow: ",
    ):
        assert problem in named
    assert named.count("\n") == 5


def test_the_readme_of_a_release_has_links_once_the_project_has_an_address(project_root, tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(project_root / "docs/library.md", tmp_path / "docs")
    pyproject = (project_root / "pyproject.toml").read_text()
    addressed, count = re.subn(r"^# (Repository = ).*", r'\1"https://a.b/c"', pyproject, flags=re.MULTILINE)
    assert count == 1
    (tmp_path / "pyproject.toml").write_text(addressed)
    show = "import runpy, setuptools; setuptools.setup = lambda **fields: print(fields['long_description'])\n"
    show += f"runpy.run_path({str(project_root / 'setup.py')!r})"
    done = subprocess.run([sys.executable, "-c", show], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "[TRL](https://a.b/c/blob/main/docs/llm/trl.md)" in done.stdout


def test_the_source_package_installs_and_needs_torch_alone(release, tmp_path):
    (source,) = release.glob("*.tar.gz")
    site = tmp_path / "site"
    install = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", site, source]
    done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    use = "import sys; sys.modules.update(dict.fromkeys(['verl', 'timm', 'ray', 'numpy']))\n"
    use += "from era import continuous, discrete, language; print(language.__file__)\n"
    use += "from importlib import metadata; print(*metadata.requires('era-overlays'))"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, env=env, capture_output=True, text=True)
    file, requires = done.stdout.splitlines()
    assert file == str(site / "era/language.py") and requires.startswith("torch>=2.6 verl>=0.9;"), done.stderr
