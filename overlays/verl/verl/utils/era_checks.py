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
"""What RayPPOTrainer checks of the configuration before any worker starts."""

from typing import Any, Mapping

from verl.trainer.ppo import gspo
from verl.utils import era, forking_tokens


def validate_trainer_config(config: Mapping[str, Any]) -> None:
    """Check the settings that the overlay adds, against each other and against verl's.

    Args:
        config: verl's trainer configuration.

    Raises:
        ValueError: bad values and settings that do not go together, all of them; the full key, the
            value and what was expected.
    """
    actor = config["actor_rollout_ref"]["actor"]
    checks = (
        (forking_tokens.validate_actor_config, actor),
        (gspo.validate_actor_config, actor),
        (era.validate_trainer_config, config),
    )
    problems = []
    for validate, settings in checks:
        try:
            validate(settings)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
