"""python check_gpu_environment.py: exit code 0 if this environment has what verl v0.4.1 needs on GPUs, else a line on what it lacks.

The bounds are those of verl's own setup.py; torch and vllm go together, vllm 0.8 with torch 2.6. Nothing is imported.
"""

import re
import sys
from importlib import metadata

# package: (least version, first version that is too new)
NEEDED = {
    "torch": ((2, 6), (2, 7)),
    "vllm": ((0, 8), (0, 9)),
    "flash-attn": ((2, 4, 3), None),  # cross_entropy_loss returns a tuple since
    "ray": ((2, 41), None),
    "tensordict": ((0,), (0, 6, 3)),
    "pyarrow": ((19,), None),
    **{name: ((0,), None) for name in "transformers accelerate peft torchdata hydra-core codetiming datasets pandas dill pylatexenc tensorboard".split()},
}


def parse(version):
    return tuple(int(number) for number in re.match(r"\d+(\.\d+)*", version).group().split("."))


def problems():
    for name, (least, too_new) in NEEDED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"no {name}"
            continue
        if parse(version) < least:
            yield f"{name} {version}, at least {'.'.join(map(str, least))} needed"
        if too_new and parse(version) >= too_new:
            yield f"{name} {version}, below {'.'.join(map(str, too_new))} needed"


if __name__ == "__main__":
    found = list(problems())
    if found:
        print(f"The active environment ({sys.prefix}) is not what verl v0.4.1 needs: {'; '.join(found)}.")
    sys.exit(bool(found))
