# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What era.verl needs of the environment and of verl, checked without importing either.

verl's internal interfaces change between releases. A release that this was not tested with is named at start, and so is
each symbol that differs, before a worker or a GPU is touched.
"""

import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

TESTED = ("0.9.0", "0.9.1")
INSTALL = "pip install 'verl==0.9.1' 'TransferQueue>=0.1.10' 'tensordict==0.10.0' 'numpy>=2'"

# File below verl/ -> symbol -> its parameters, where ERA calls or overrides it; None where only its name matters.
SYMBOLS = {
    "models/transformers/dense_common.py": {"forward_base_model": None},
    "trainer/main_ppo.py": {
        "run_ppo": "config, task_runner_class",
        "TaskRunnerV1.run": "self, config",
        "main": "config",
    },
    "trainer/ppo/core_algos.py": {
        "agg_loss": "loss_mat, loss_mask, loss_agg_mode, dp_size, batch_num_tokens, global_batch_size, "
        "loss_scale_factor",
        "kl_penalty": "logprob, ref_logprob, kl_penalty",
    },
    "trainer/ppo/utils.py": {"need_critic": "config", "need_reference_policy": "config", "Role": None},
    "trainer/ppo/v1/trainer_base.py": {
        "register_trainer": "name",
        "PPOTrainer.__init__": "self, config",
        "PPOTrainer._init_resource_pool_mgr": "self",
        "PPOTrainer._update_actor": "self, batch, metrics",
        "PPOTrainer._compute_old_log_prob": "self, batch, metrics",
    },
    "trainer/ppo/v1/trainer_sync.py": {"PPOTrainerSync": None},
    "utils/config.py": {"validate_config": "config, use_reference_policy, use_critic"},
    "utils/device.py": {"auto_set_device": "config", "get_device_name": ""},
    "utils/metric/utils.py": {"Metric.__init__": "self, aggregation, value"},
    "utils/tensordict_utils.py": {
        "assign_non_tensor": "tensor_dict, **kwargs",
        "get": "tensordict, key, default",
        "get_non_tensor_data": "data, key, default",
    },
    "utils/ulysses.py": {
        "ulysses_pad_and_slice_inputs": "input_ids_rmpad, position_ids_rmpad, sp_size, skip_position_ids_rmpad, "
        "pad_value",
    },
    "workers/config/actor.py": {
        "FSDPActorConfig.__post_init__": "self",
        "McoreActorConfig.__post_init__": "self",
        "VeOmniActorConfig.__post_init__": "self",
    },
    "workers/engine/base.py": {
        "EngineRegistry.register": "cls, model_type, backend, device, vendor",
        "EngineRegistry.get_engine_cls": "cls, model_type, backend",
        "BaseEngine.infer_batch": "self, data, loss_function",
    },
    "workers/engine/fsdp/transformer_impl.py": {
        "FSDPEngine._get_packed_pad_size": "self, packed_length",
        "FSDPEngine._gather_and_unpad_packed": "self, tensor, pad_size",
        "FSDPEngineWithLMHead.prepare_model_inputs": "self, micro_batch",
        "FSDPEngineWithLMHead.prepare_model_outputs": "self, output, output_args, micro_batch, logits_processor_func",
    },
    "workers/engine/megatron/transformer_impl.py": {"MegatronEngineWithLMHead": None},
    "workers/engine/utils.py": {"pad_packed_inputs": "input_ids_rmpad, position_ids_rmpad, pad_size, pad_value"},
    "workers/engine/veomni/transformer_impl.py": {"VeOmniEngineWithLMHead": None},
    "workers/engine_workers.py": {
        "TrainingWorker.__init__": "self, config",
        "TrainingWorker.set_loss_fn": "self, loss_fn",
        "TrainingWorker.train_mini_batch": "self, data",
        "ActorRolloutRefWorker.actor_worker_cls": None,
    },
    "workers/utils/losses.py": {"ppo_loss": "config, model_output, data, dp_group"},
    "workers/utils/padding.py": {
        "no_padding_2_padding": "tensor, data",
        "response_from_nested": "tensor, response_mask",
        "response_to_nested": "tensor, response_mask",
    },
}


def problems(verl: Path | None = None) -> list[str]:
    """What stands in the way of a start, a line each; empty if nothing does.

    Args:
        verl: the folder of the package verl; by default the one that `import verl` would find.
    """
    found = []
    if sys.version_info >= (3, 13):
        version = ".".join(map(str, sys.version_info[:2]))
        found.append(f"Python {version}: verl 0.9 needs 3.10 to 3.12. Make an environment with Python 3.12.")
    for module, package in {"numpy": "numpy", "transfer_queue": "TransferQueue"}.items():
        if importlib.util.find_spec(module) is None:
            found.append(f"{package} is not installed, which verl's trainer imports. {INSTALL}")
    if importlib.util.find_spec("numpy") and importlib.metadata.version("numpy").startswith("1."):
        found.append(f"numpy {importlib.metadata.version('numpy')}: verl 0.9 needs numpy 2. pip install 'numpy>=2'")
    if verl is None:
        spec = importlib.util.find_spec("verl")
        if spec is None:
            return [*found, f"verl is not installed. {INSTALL}"]
        verl = Path(spec.submodule_search_locations[0])
    differences = list(differing_symbols(verl))
    if differences:
        version = version_of(verl)
        found.append(
            f"verl {version} in {verl} differs from {' and '.join(TESTED)}, for which era.verl is made:\n  - "
            + "\n  - ".join(differences)
            + f"\n{INSTALL}"
        )
    return found


def version_of(verl: Path) -> str:
    file = verl / "version" / "version"
    return file.read_text().strip() if file.is_file() else "of unknown version"


def differing_symbols(verl: Path) -> Iterator[str]:
    """Each symbol of SYMBOLS that this verl lacks, or that takes other parameters."""
    for name, symbols in SYMBOLS.items():
        if not (verl / name).is_file():
            yield f"{name} is missing ({', '.join(symbols)})"
            continue
        tree = ast.parse((verl / name).read_text())
        for symbol, expected in symbols.items():
            node = _find(tree, symbol.split("."))
            if node is None:
                yield f"{name}: {symbol} is missing"
            elif expected is not None and (actual := _parameters(node)) != expected:
                yield f"{name}: {symbol}({actual}), expected ({expected})"


def _find(node: ast.AST, names: list[str]) -> ast.AST | None:
    for child in node.body:
        targets = child.targets if isinstance(child, ast.Assign) else [child]
        if names[0] in [getattr(target, "name", getattr(target, "id", None)) for target in targets]:
            return child if len(names) == 1 else _find(child, names[1:])
    return None


def _parameters(node: ast.AST) -> str:
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(names)
