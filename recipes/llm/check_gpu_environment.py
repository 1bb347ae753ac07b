# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python check_gpu_environment.py FRAMEWORK: does this environment have what it needs on GPUs?

FRAMEWORK is verl, verl-0.9, timm or fasttd3. Exit code 0 if it does, else a line on what it lacks. Only installed
versions are read; nothing is imported, but for torch by unsupported_gpus. The check before an LLM run asks the same
(recipes/llm/preflight.py); for that, a patched checkout of verl has copies of this file and of the requirements.

What is needed stands in FRAMEWORK-gpu.in of requirements/, and for flash-attn in FRAMEWORK-gpu-flash-attn.txt: the
requirements with the comment "accepts", which is followed by "any" or by bounds. They are those of verl's, FastTD3's
and HumanoidBench's own requirements. timm has none; torch below 2.4 lacks names that its overlay uses.
"""

import re
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A patched checkout has the requirements beside this file.
REQUIREMENTS = HERE if (HERE / "verl-gpu.in").is_file() else HERE.parent.parent / "requirements"


def needed(framework: str) -> dict[str, str]:
    """The bounds of each package, such as ">=2.6,<2.7" or "any"."""
    files = REQUIREMENTS / f"{framework}-gpu.in", REQUIREMENTS / f"{framework}-gpu-flash-attn.txt"
    text = "".join(file.read_text() for file in files if file.exists())
    return dict(re.findall(r"^([\w-]+).*# accepts ([^\s:;]+)", text, re.MULTILINE))


def parse(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.match(r"\d+(\.\d+)*", version).group().split("."))


def problems(framework: str, unused: Collection[str] = ()) -> list[str]:
    """What is missing or of another version, without the packages that the run does not use."""
    found = []
    for name, bounds in needed(framework).items():
        if name in unused:
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
            continue
        for sign, bound in re.findall(r"(>=|<)([\d.]+)", bounds):
            if sign == ">=" and parse(version) < parse(bound):
                found.append(f"{name} {version}, at least {bound} needed")
            if sign == "<" and parse(version) >= parse(bound):
                found.append(f"{name} {version}, below {bound} needed")
    return found


def unsupported_gpus() -> list[str]:
    """A sentence for each kind of GPU here that the installed torch has no kernels for.

    Kernels run on GPUs of their own major architecture, from their minor one on, and PTX (compute_XY) on all that are
    newer. torch itself only warns, and its first kernel fails.
    """
    import torch

    kernels = torch.cuda.get_arch_list()  # [] without a GPU
    built = [(name.partition("_")[0], int(re.search(r"\d+", name).group())) for name in kernels]
    found = []
    try:
        for index in range(torch.cuda.device_count() if kernels else 0):
            major, minor = torch.cuda.get_device_capability(index)
            older = [(kind, number) for kind, number in built if number <= 10 * major + minor]
            if not any(kind == "compute" or number // 10 == major for kind, number in older):
                found.append(f"the {torch.cuda.get_device_name(index)} (sm_{major}{minor})")
    except RuntimeError as error:
        return [f"torch cannot use the GPUs here: {str(error).splitlines()[0]}"]
    only = f"torch {torch.__version__} has kernels for {' '.join(kernels)}, and none for"
    return [f"{only} {gpu}. Take other GPUs, or a torch that has them." for gpu in sorted({*found})]


if __name__ == "__main__":
    framework = sys.argv[1]
    title = re.match("# (.*) on GPUs", (REQUIREMENTS / f"{framework}-gpu.in").read_text()).group(1)
    if found := problems(framework):
        print(f"The active environment ({sys.prefix}) is not what {title} needs: {'; '.join(found)}.")
    sys.exit(bool(found))
