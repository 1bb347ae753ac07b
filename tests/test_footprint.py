"""What the overlays change in the upstreams' files, and what their own files need."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("train", "train_multigpu")  # FastTD3's two copies of its training script
TIMM = ("timm/layers/__init__.py", "timm/layers/test_time_pool.py", "timm/models/_factory.py")
FASTTD3 = (*SCRIPTS, "hyperparams", "fast_td3_deploy")
CHANGED = {
    "timm": {*TIMM, "train.py", "validate.py", "inference.py", "onnx_export.py"},
    "fasttd3": {f"fast_td3/{name}.py" for name in FASTTD3},
}
MOST_LINES = {"verl": 80, "timm": 60, "fasttd3": 80, "tdmpc2": 60}
VERSIONS = [path for name in MOST_LINES for path in sorted((ROOT / "patches" / name).iterdir())]
ACTIVATIONS = ("era/discrete_activation.py", "era/continuous.py", "era/language.py")


def changes(version: Path) -> dict[str, list[str]]:
    """By file, the lines that all patches add and remove, also those of files that a source package lacks."""
    found = {}
    for patch in version.glob("*.patch"):
        for part in patch.read_text().split("\ndiff --git ")[1:]:
            header, *lines = part.splitlines()
            lines = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- "))]
            found.setdefault(header.split(" b/")[1], []).extend(lines)
    return found


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_patches_change_few_lines_of_few_files(version):
    changed, upstream = changes(version), version.parent.name
    assert changed.keys() == CHANGED.get(upstream, changed.keys())
    assert 0 < sum(map(len, changed.values())) < MOST_LINES[upstream]


@pytest.mark.parametrize("version", [path for path in VERSIONS if path.parent.name == "fasttd3"], ids=lambda p: p.name)
def test_both_training_scripts_of_fasttd3_get_the_same_lines(version):
    changed = changes(version)
    one, other = (
        sorted(line[1:].strip().replace(", rank)", ")") for line in changed[f"fast_td3/{name}.py"] if line[0] == "+")
        for name in SCRIPTS
    )
    assert one == other


@pytest.mark.parametrize("file", ACTIVATIONS)
def test_the_activation_can_be_copied_into_other_trees(project_root, file):
    """With the files beside it, which it imports relatively."""
    tree = ast.parse((project_root / file).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imports = [node for node in imports if getattr(node, "level", 0) == 0]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.split(".")[0] for module in modules} - sys.stdlib_module_names == {"torch"}
