"""The overlay's footprint in upstream's files."""

import ast
import subprocess
import sys

HOOKED = {
    "timm/layers/__init__.py",
    "timm/layers/test_time_pool.py",
    "timm/models/_factory.py",
    "train.py",
    "validate.py",
    "inference.py",
    "onnx_export.py",
}


def test_upstream_lines_changed(project_root):
    """Added and removed lines of all patches, also of those that a source package has no files for."""
    lines = [
        line for patch in (project_root / "patches/timm").glob("*/*.patch") for line in patch.read_text().splitlines()
    ]
    changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- "))]
    assert 0 < len(changed) < 60
    assert {line.split(" b/")[1] for line in lines if line.startswith("diff --git")} == HOOKED


def test_the_checkout_is_the_overlay(patched_timm):
    changed = subprocess.run(
        ["git", "-C", patched_timm, "diff", "--name-only", "--diff-filter=MD", "upstream/v1.0.20", "era"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(changed.split()) == {path for path in HOOKED if (patched_timm / path).exists()}


def test_the_activation_stands_alone(project_root):
    """timm/layers/era.py is to be copied into other trees: torch and the standard library are all that it imports."""
    tree = ast.parse((project_root / "overlays/timm/timm/layers/era.py").read_text())
    imported = {
        name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    imported |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"contextlib", "math", "numbers", "torch", "typing"}


def test_patches_and_overlay_files_are_what_the_checkout_holds(patched_timm, project_root):
    command = [
        sys.executable,
        project_root / "apply.py",
        "export",
        "timm",
        "--check",
        "--checkouts",
        patched_timm.parent,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
