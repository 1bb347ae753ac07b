# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.drift.examples VERL: which of verl's example scripts era.verl accepts, and why it refuses the others.

VERL is verl's repository, with examples/ and verl/trainer/config. This runs where verl 0.9 can be imported. Each script
runs in bash, in an empty folder, where commands that are not bash's own do nothing; that of main_ppo is kept.
hydra makes verl's configuration of them, and era.verl's rules are applied to it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from recipes.pages import table

ACCEPTED = "accepted"
ENTRY = "verl.trainer.main_ppo"  # whose place era.verl.main_ppo takes
KEPT = ("basename", "cat", "date", "dirname", "mkdir", "seq", "tee", "tr")  # what scripts make their settings with
# bash runs this before the script. A script that reads an environment of its cluster's goes on without it.
NOTHING_STARTS = r"""
command_not_found_handle() { [[ " $* " != *main_ppo* ]] || printf '%s\0' "$@" > "$ARGUMENTS"; }
source() { :; }
ulimit() { :; }
"""
LEFT_TO_THE_USER = {"INFER_BACKEND": "vllm"} | dict.fromkeys(
    ("HDFS_ROOT", "LORA_ADAPTER_PATH", "MODEL_PATH", "RAY_DATA_HOME"), "x"
)


def started(script: Path) -> list[str]:
    """The module named like main_ppo that a script ends with, and its arguments; none if it does not get there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        for command in KEPT:
            (folder / "bin" / command).symlink_to(shutil.which(command))
        (folder / "nothing_starts").write_text(NOTHING_STARTS)
        arguments = folder / "arguments"
        variables = LEFT_TO_THE_USER | {"PATH": f"{folder}/bin", "HOME": name, "ARGUMENTS": str(arguments)}
        variables["BASH_ENV"] = str(folder / "nothing_starts")
        bash = [shutil.which("bash"), script.resolve()]
        subprocess.run(bash, cwd=folder, env=variables, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
        words = arguments.read_text().split("\0")[:-1] if arguments.exists() else []
    module = next((i for i, word in enumerate(words) if "main_ppo" in word), len(words))
    return words[module:]


def composed(words: list[str], configs: Path):
    """verl's configuration of these arguments. --config-name=NAME is the only option that its examples have."""
    import hydra

    names = [word.partition("=")[2] for word in words if word.startswith("--config-name=")]
    # A key that some releases have and others lack may be set in all of them.
    keys = [re.sub(r"^\+(?!\+)", "++", word) for word in words if not word.startswith("-")]
    with hydra.initialize_config_dir(str(configs.resolve()), version_base=None):
        return hydra.compose((names or ["ppo_trainer"])[0].removesuffix(".yaml"), keys)


def refusals(script: Path, configs: Path) -> str:
    """ACCEPTED, or the settings that era.verl refuses with ERA at its defaults, separated by commas."""
    words = started(script)
    if not words:
        return "not read: it ends before it starts main_ppo"
    if words[0] != ENTRY:
        return f"not read: it starts {words[0]}, in place of {ENTRY}"
    from omegaconf import open_dict

    from era.verl.config import prepare

    try:
        config = composed(words[1:], configs)
    except Exception as error:  # of hydra's own kinds, and others from resolvers
        return f"not read: {type(error).__name__}: {str(error).splitlines()[0]}"
    try:
        with open_dict(config.actor_rollout_ref.actor) as actor:
            actor.era = {"enable": True}
        prepare(config)
    except ValueError as error:
        engine = config.actor_rollout_ref.actor.strategy
        keys = re.findall(r"^  - ([a-z_.0-9]+)=", str(error), re.MULTILINE)
        return f"{engine}: " + (", ".join(".".join(key.split(".")[-2:]) for key in keys) or str(error))
    return ACCEPTED


def page(outcomes: dict[str, str]) -> str:
    """How many scripts are accepted, and the table of the others by reason."""
    others: dict[str, list[str]] = {}
    for name, reason in outcomes.items():
        if reason != ACCEPTED:
            others.setdefault(reason, []).append(f"`{name}`")
    lines = table(("not accepted", "scripts"), [(reason, ", ".join(names)) for reason, names in sorted(others.items())])
    accepted = sum(reason == ACCEPTED for reason in outcomes.values())
    return f"{accepted} of {len(outcomes)} are accepted.\n\n{lines}"


def verl(repository: Path) -> str:
    """The page's part about verl."""
    scripts = sorted((repository / "examples").rglob("*.sh"))
    chosen = [script for script in scripts if "main_ppo" in script.read_text()]
    configs = repository / "verl/trainer/config"
    return page({str(script.relative_to(repository / "examples")): refusals(script, configs) for script in chosen})


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    print(verl(Path(sys.argv[1])))
