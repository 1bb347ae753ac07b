"""python check_gpu_environment.py FRAMEWORK: exit code 0 if this environment has what verl v0.4.1, timm v1.0.20 or FastTD3 2d83b6a needs on GPUs, else a line on what it lacks.

The bounds for verl are those of its own setup.py; torch and vllm go together, vllm 0.8 with torch 2.6. timm asks for no
version; below torch 2.4 the names that the ERA overlay uses are not all there. The bounds for FastTD3, with the tasks of
HumanoidBench, are those of both projects' requirements. Nothing is imported.
"""

import re
import sys
from importlib import metadata

# package: (least version, first version that is too new)
NEEDED = {
    "verl v0.4.1": {
        "torch": ((2, 6), (2, 7)),
        "vllm": ((0, 8), (0, 9)),
        "flash-attn": ((2, 4, 3), None),  # cross_entropy_loss returns a tuple since
        "ray": ((2, 41), None),
        "tensordict": ((0,), (0, 6, 3)),
        "pyarrow": ((19,), None),
        **{
            name: ((0,), None)
            for name in [
                "transformers",
                "accelerate",
                "peft",
                "torchdata",
                "hydra-core",
                "codetiming",
                "datasets",
                "pandas",
                "dill",
                "pylatexenc",
                "tensorboard",
            ]
        },
    },
    "timm v1.0.20": {
        "torch": ((2, 4), None),
        "safetensors": ((0, 2), None),
        **{name: ((0,), None) for name in ["torchvision", "pyyaml", "huggingface-hub", "numpy", "pillow"]},
    },
    "fasttd3 2d83b6a": {
        "torch": ((2, 6), None),
        "tensordict": ((0, 7), None),
        "numpy": ((1, 22), (2,)),
        "gymnasium": ((0, 29), (1,)),
        "mujoco": ((3, 1), (3, 2)),
        "dm-control": ((1, 0, 20), (1, 0, 21)),
        **{
            name: ((0,), None)
            for name in ["stable-baselines3", "jax", "tyro", "wandb", "moviepy", "imageio", "tqdm", "loguru"]
        },
    },
}


def parse(version):
    return tuple(int(number) for number in re.match(r"\d+(\.\d+)*", version).group().split("."))


def problems(needed):
    for name, (least, too_new) in needed.items():
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
    framework = next(name for name in NEEDED if name.split()[0] == sys.argv[1])
    found = list(problems(NEEDED[framework]))
    if found:
        print(f"The active environment ({sys.prefix}) is not what {framework} needs: {'; '.join(found)}.")
    sys.exit(bool(found))
