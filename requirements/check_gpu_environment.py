"""python check_gpu_environment.py FRAMEWORK: does this environment have what it needs on GPUs?

FRAMEWORK is verl, verl-0.9, timm or fasttd3. Exit code 0 if it does, else a line on what it lacks. Only installed
versions are read; nothing is imported.

The bounds for verl are those of its setup.py; torch and vllm go together, vllm 0.8 with torch 2.6. verl 0.9 runs with
tensordict 0.10.0 alone of those that it allows. timm sets no bounds; torch below 2.4 lacks names that the ERA overlay
uses. The bounds for FastTD3 are those of its and HumanoidBench's requirements.
"""

import re
import sys
from importlib import metadata

ANY = ((0,), None)


def any_version(*names):
    return dict.fromkeys(names, ANY)


# package: (lowest version, first version that is too new)
NEEDED = {
    "verl v0.4.1": {
        "torch": ((2, 6), (2, 7)),
        "vllm": ((0, 8), (0, 9)),
        "flash-attn": ((2, 4, 3), None),  # from here on cross_entropy_loss returns a tuple
        "ray": ((2, 41), None),
        "tensordict": ((0,), (0, 6, 3)),
        "pyarrow": ((19,), None),
        **any_version("transformers", "accelerate", "peft", "torchdata", "hydra-core", "codetiming", "datasets"),
        **any_version("pandas", "dill", "pylatexenc", "tensorboard"),
    },
    "verl-0.9": {
        "verl": ((0, 9), (0, 10)),
        "vllm": ((0, 18), None),
        "numpy": ((2,), None),
        "pyarrow": ((19,), None),
        "ray": ((2, 41), None),
        "tensordict": ((0, 10), (0, 10, 1)),
        "transferqueue": ((0, 1, 10), None),
        "transformers": ((5, 5, 3), (5, 11)),
        **any_version("torch", "flash-attn", "accelerate", "peft", "torchdata", "hydra-core", "codetiming", "datasets"),
        **any_version("pandas", "dill", "pylatexenc", "tensorboard"),
    },
    "timm v1.0.20": {
        "torch": ((2, 4), None),
        "safetensors": ((0, 2), None),
        **any_version("torchvision", "pyyaml", "huggingface-hub", "numpy", "pillow"),
    },
    "fasttd3 2d83b6a": {
        "torch": ((2, 6), None),
        "tensordict": ((0, 7), None),
        "numpy": ((1, 22), (2,)),
        "gymnasium": ((0, 29), (1,)),
        "mujoco": ((3, 1), (3, 2)),
        "dm-control": ((1, 0, 20), (1, 0, 21)),
        **any_version("stable-baselines3", "jax", "tyro", "wandb", "moviepy", "imageio", "tqdm", "loguru"),
    },
}


def parse(version):
    return tuple(int(number) for number in re.match(r"\d+(\.\d+)*", version).group().split("."))


def problems(needed):
    for name, (lowest, too_new) in needed.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"no {name}"
            continue
        if parse(version) < lowest:
            yield f"{name} {version}, at least {'.'.join(map(str, lowest))} needed"
        if too_new and parse(version) >= too_new:
            yield f"{name} {version}, below {'.'.join(map(str, too_new))} needed"


if __name__ == "__main__":
    framework = next(name for name in NEEDED if name.split()[0] == sys.argv[1])
    found = list(problems(NEEDED[framework]))
    if found:
        print(f"The active environment ({sys.prefix}) is not what {framework} needs: {'; '.join(found)}.")
    sys.exit(bool(found))
