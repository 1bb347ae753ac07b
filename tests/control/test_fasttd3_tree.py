"""The overlay's footprint in FastTD3's files."""

import ast
import subprocess
import sys

SCRIPTS = ("train", "train_multigpu")  # two copies of upstream's training script
CHANGED = {
    f"fast_td3/{name}.py" for name in (*SCRIPTS, "hyperparams", "fast_td3_deploy", "environments/mujoco_playground_env")
}


def changes(project_root) -> dict:
    """By file, the lines that the patches add and remove."""
    found = {}
    for patch in (project_root / "patches/fasttd3").glob("*/*.patch"):
        for part in patch.read_text().split("\ndiff --git ")[1:]:
            header, *lines = part.splitlines()
            lines = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- "))]
            found.setdefault(header.split(" b/")[1], []).extend(lines)
    return found


def test_patches_change_few_lines_of_few_files(project_root):
    changed = changes(project_root)
    assert changed.keys() == CHANGED and 0 < sum(map(len, changed.values())) < 80


def test_both_training_scripts_get_the_same_lines(project_root):
    changed = changes(project_root)
    one, other = (
        sorted(line[1:].strip().replace(", rank)", ")") for line in changed[f"fast_td3/{name}.py"] if line[0] == "+")
        for name in SCRIPTS
    )
    assert one == other


def test_the_activation_can_be_copied_into_other_trees(project_root):
    tree = ast.parse((project_root / "overlays/fasttd3/fast_td3/era.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.split(".")[0] for module in modules} - sys.stdlib_module_names == {"torch"}


def test_patches_and_overlay_files_are_what_the_checkout_holds(patched_fasttd3, project_root):
    command = [sys.executable, project_root / "apply.py", "export", "fasttd3", "--check"]
    done = subprocess.run([*command, "--checkouts", patched_fasttd3.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
