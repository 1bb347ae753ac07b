"""The overlay's footprint in upstream's files."""

import ast
import py_compile
import subprocess
import sys

HOOKED = {
    f"fast_td3/{name}.py"
    for name in ("hyperparams", "train", "train_multigpu", "fast_td3_deploy", "environments/mujoco_playground_env")
}


def git(tree, *args) -> str:
    return subprocess.run(["git", "-C", tree, *args], capture_output=True, text=True, check=True).stdout


def test_upstream_lines_changed(project_root):
    lines = [
        line
        for patch in (project_root / "patches/fasttd3").glob("*/*.patch")
        for line in patch.read_text().splitlines()
    ]
    changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- "))]
    assert 0 < len(changed) < 80
    assert {line.split(" b/")[1] for line in lines if line.startswith("diff --git")} == HOOKED


def test_upstreams_other_files_are_untouched(patched_fasttd3, upstream_fasttd3):
    for path in upstream_fasttd3.rglob("*"):
        name = str(path.relative_to(upstream_fasttd3))
        if path.is_file() and name not in HOOKED:
            assert (patched_fasttd3 / name).read_bytes() == path.read_bytes(), name


def test_new_files_are_the_overlays(patched_fasttd3, project_root):
    overlay = project_root / "overlays/fasttd3"
    expected = {
        str(path.relative_to(overlay))
        for path in overlay.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert (
        set(git(patched_fasttd3, "diff", "--name-only", "--diff-filter=A", "upstream/2d83b6a", "era").split())
        == expected
    )
    assert (
        set(git(patched_fasttd3, "diff", "--name-only", "--diff-filter=MDR", "upstream/2d83b6a", "era").split())
        == HOOKED
    )


def test_patched_files_compile(patched_fasttd3, tmp_path):
    for name in HOOKED:
        py_compile.compile(str(patched_fasttd3 / name), cfile=str(tmp_path / "compiled"), doraise=True)


def test_the_activation_stands_alone(project_root):
    """era.py is to be copied into other trees: torch and the standard library are all that it imports."""
    tree = ast.parse((project_root / "overlays/fasttd3/fast_td3/era.py").read_text())
    imported = {
        name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    imported |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - sys.stdlib_module_names == {"torch"}


def hooks(tree, script) -> list:
    added = git(tree, "diff", "-U0", "upstream/2d83b6a", "era", "--", f"fast_td3/{script}")
    return sorted(
        line[1:].strip().replace(", rank)", ")")
        for line in added.splitlines()
        if line.startswith("+") and not line.startswith("+++")
    )


def test_both_training_scripts_have_the_same_hooks(patched_fasttd3):
    """Upstream keeps two copies of the script."""
    assert hooks(patched_fasttd3, "train.py") == hooks(patched_fasttd3, "train_multigpu.py")


def test_patches_and_overlay_files_are_what_the_checkout_holds(patched_fasttd3, project_root):
    command = [
        sys.executable,
        project_root / "apply.py",
        "export",
        "fasttd3",
        "--check",
        "--checkouts",
        patched_fasttd3.parent,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
