# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.axolotl in real Axolotl trainings of a tiny model; that the updates are ERA's, tests/llm/with_trl shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

pytest.importorskip("axolotl", reason="this needs the environment of make test-axolotl")

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/llm/with_trl")]
import tiny_grpo  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from axolotl.utils.dict import DictDefault  # noqa: E402
from axolotl.utils.schemas.config import AxolotlInputConfig  # noqa: E402
from llm_helpers import refused  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from era.axolotl import REFUSED, EraPlugin  # noqa: E402

PLUGIN = {"plugins": ["era.axolotl.EraPlugin"]}
FIELDS = {"era_enable": True, "era_low": 2.85, "era_high": 3.0}
ON = {**PLUGIN, **FIELDS}
LORA = {"adapter": "lora", "lora_r": 2, "lora_alpha": 4, "lora_target_modules": ["q_proj"]}
TRAINER = {"trainer_cls": "era.axolotl.EraAxolotlGRPOTrainer"}
FILE = {
    "base_model": "./model",
    "rl": "grpo",
    "trl": {"num_generations": 4, "max_completion_length": 8, "reward_funcs": ["answers.reward"]},
    "datasets": [{"path": "data.jsonl", "ds_type": "json", "type": "answers.prompts"}],
    "sequence_len": 64,
    "micro_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_steps": 3,
    "learning_rate": 0.01,
    "optimizer": "sgd",
    "lr_scheduler": "constant",
    "output_dir": "./out",
    "bf16": False,
    "logging_steps": 1,
    "seed": 5,
}
ANSWERS = """from tiny_grpo import reward as in_trl

def reward(prompts, completions, **_):
    return in_trl(completions)

def prompts(cfg, *args, **kwargs):
    return lambda example, tokenizer=None: {"prompt": example["prompt"]}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains with a file, once for each; gives the log and the weights, None where it saved no whole model.

    Axolotl finds the plug-in as in an environment in which this project was installed, unless `installed` is false.
    """
    folder, kept = tmp_path_factory.mktemp("axolotl"), {}
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["axolotl.plugins"]
    record = folder / "site/era_overlays-0.dist-info"
    record.mkdir(parents=True)
    lines = ["[axolotl.plugins]", *(f"{name} = {target}" for name, target in points.items())]
    (record / "entry_points.txt").write_text("\n".join(lines))
    tiny_grpo.write(folder / "model", torch.float32)
    tiny_grpo.tokenizer().save_pretrained(folder / "model")
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny_grpo.prompts()))
    (folder / "answers.py").write_text(ANSWERS)
    paths = os.pathsep.join([str(ROOT / "tests/llm/with_trl"), str(folder), tiny_grpo.ENVIRONMENT["PYTHONPATH"]])
    environment = {**tiny_grpo.ENVIRONMENT, "PYTHONPATH": paths, "AXOLOTL_DO_NOT_TRACK": "1"}

    def train(installed=True, **more):
        name = f"run{len(kept)}"
        text = yaml.safe_dump({**FILE, **more, "output_dir": name}, sort_keys=True)
        if (known := yaml.safe_dump([installed, more])) not in kept:
            (folder / f"{name}.yml").write_text(text)
            command = [sys.executable, "-m", "axolotl.cli.train", f"{name}.yml"]
            found = {"PYTHONPATH": f"{record.parent}{os.pathsep}{paths}"} if installed else {}
            environ = environment | found
            done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
            weights = folder / name / "model.safetensors"
            kept[known] = done.stdout + done.stderr, load_file(weights) if weights.exists() else None
        return kept[known]

    return train


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_with_era_logs_it_and_differs(trained):
    log, weights = trained(**ON)
    assert "ERA is on: EraConfig(enable=True, low=2.85" in log and "'era/scaled_token_fraction'" in log, log[-3000:]
    assert not same(weights, trained(installed=False)[1])
    assert same(weights, trained(**FIELDS)[1])  # whether the file lists the plug-in or not


WITHOUT = {"no key": {}, "off": {**PLUGIN, "era_enable": False}, "k = 1": {**ON, "era_k": 1.0}}


@pytest.mark.parametrize("without", WITHOUT)
def test_without_era_the_weights_are_axolotls_to_the_bit(trained, without):
    log, weights = trained(**WITHOUT[without])
    assert same(weights, trained(installed=False)[1]), log[-3000:]
    assert without != "no key" or "ERA is" not in log


@pytest.mark.parametrize("more", ({"rl": "gdpo"}, LORA), ids=("gdpo", "lora"))
def test_eras_settings_beside_axolotls(trained, more):
    log, _ = trained(**ON, **more)
    assert "'era/scaled_token_fraction'" in log, log[-3000:]


@pytest.mark.parametrize(
    "file, reason",
    [
        ({**FIELDS, **TRAINER, "installed": False}, "Axolotl has not loaded era.axolotl.EraPlugin"),
        ({**ON, "trainer_cls": "trl.GRPOTrainer"}, "era_enable=True in the arguments of a trainer without ERA"),
    ],
    ids=("no plug-in", "another trainer"),
)
def test_a_training_that_would_be_without_era_ends_with_the_reason(trained, file, reason):
    log, weights = trained(**file)
    assert weights is None and reason in log, log[-3000:]


@pytest.mark.parametrize(
    "file, reason",
    [
        ({"ear_low": 0.5}, "ear_low would be ignored"),  # ../test_config.py has more of them
        ({"era_low": True}, "era_low: expected a number"),
        ({"era_k": 0.5}, "era_k is 0.5"),
        ({"era_k": "two"}, "era_k"),
        ({"trl": {"era_low": 0.5}}, "trl.era_low would be ignored"),
        ({"datasets": [{"omega_low": 0.5}]}, "datasets.omega_low would be ignored"),
        ({"plugins": 2 * PLUGIN["plugins"]}, "more than once"),
        ({"era_enable": None}, "era_enable is None; expected true or false"),
        ({"era_hold": None}, "era_hold is None; expected true or false"),
        ({"era_hodl": True}, "era_hodl would be ignored"),
        ({"era_enable": False}, "era_low without era_enable=True"),
        ({"sequence_parallel_degree": 2}, "sequence_parallel_degree=2"),
        ({"context_parallel": {"size": 2}}, "context_parallel.size=2"),
        ({"low": 1, "era_k": 0.5, "rl": "dpo"}, r"(?s)low would be .*era_k is 0.5.*is not supported.*rl=dpo"),
    ],
)
def test_refuses_what_axolotl_would_drop_or_train_otherwise(file, reason):
    with pytest.raises(ValueError, match=reason):
        EraPlugin().register(DictDefault({**FILE, **ON, **file}))


@pytest.mark.parametrize(
    "file, reason",
    [
        (TRAINER, "era_enable is missing"),
        ({"ear_enable": True}, "ear_enable would be ignored"),
        ({**FIELDS, "low": 0.5}, "low would be ignored"),
    ],
)
def test_a_file_that_does_not_list_the_plug_in_is_refused_as_one_that_does(file, reason):
    with pytest.raises(ValueError, match=reason):
        EraPlugin().register(DictDefault({**FILE, **file}))


@pytest.mark.parametrize(
    "listed", ({}, {"plugins": ["axolotl.integrations.liger.LigerPlugin"]}), ids=("none", "another")
)
def test_a_file_without_era_is_left_alone_whatever_key_of_axolotls_it_has(listed):
    keys = {name: {"size": 2, "low": 1} for name in AxolotlInputConfig.model_fields if name != "plugins"}
    file = DictDefault({**keys, **FILE, **listed, "rl": None, "low": 1})
    plugin, before = EraPlugin(), dict(file)
    plugin.register(file)
    assert dict(file) == before
    ways = (plugin.get_input_args(), plugin.get_training_args_mixin(), plugin.get_training_args(file))
    assert ways == (None, None, None) and plugin.post_trainer_create(file, None) is None


def test_the_plug_in_itself_does_not_import_what_needs_a_fitting_trl():
    code = "import sys, era.axolotl; sys.exit('era.trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=tiny_grpo.ENVIRONMENT).returncode == 0


BREAKS = {  # by refusal, how it is shown, and what breaks it and no other
    "rl": ("rl=dpo", {"rl": "dpo"}),
    "context parallelism": ("context_parallel_size=2", {"context_parallel_size": 2}),
    "async_prefetch": ("trl.async_prefetch", {"trl": {"async_prefetch": True}}),
    "use_data_producer": ("trl.use_data_producer", {"trl": {"use_data_producer": True}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_whatever_is_declared_is_refused(name):
    shown, file = BREAKS[name]
    with refused(REFUSED[name], shown):
        EraPlugin().register(DictDefault({**FILE, **ON, **file}))


def test_an_option_that_axolotl_forgets_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/axolotl", "train", "file.yml", "--launcher", "python", "--era-k", "4"])
    with pytest.raises(ValueError, match="--era-k: set it in the file"):
        EraPlugin().register(DictDefault({**FILE, **ON}))
