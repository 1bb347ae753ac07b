"""The overlay's footprint in timm's files."""

import ast
import subprocess
import sys

CHANGED = {
    *("timm/layers/__init__.py", "timm/layers/test_time_pool.py", "timm/models/_factory.py"),
    *("train.py", "validate.py", "inference.py", "onnx_export.py"),
}


def test_patches_change_few_lines_of_few_files(project_root):
    """Counted over all patches, also those of files that a source package lacks."""
    patches = [path.read_text().splitlines() for path in (project_root / "patches/timm").glob("*/*.patch")]
    lines = [line for patch in patches for line in patch]
    changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- "))]
    assert 0 < len(changed) < 60
    assert {line.split(" b/")[1] for line in lines if line.startswith("diff --git")} == CHANGED


def test_the_activation_can_be_copied_into_other_trees(project_root):
    tree = ast.parse((project_root / "overlays/timm/timm/layers/era.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.split(".")[0] for module in modules} - sys.stdlib_module_names == {"torch"}


def test_patches_and_overlay_files_are_what_the_checkout_holds(patched_timm, project_root):
    command = [sys.executable, project_root / "apply.py", "export", "timm", "--check"]
    done = subprocess.run([*command, "--checkouts", patched_timm.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
