"""python -m era: which frameworks are installed here, and which of them have ERA.

It reads installed versions and looks for files; it imports neither torch nor a framework. apply.py
is in a clone of this project.
"""

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Optional

from era import __version__
from era.verl.compatibility import TESTED

# By name in apply.py: the package, the versions that have an integration, its file, its switch.
INTEGRATIONS = {
    "verl": ("verl", "v0.4.1", "utils/era.py", "actor_rollout_ref.actor.era.enable=True"),
    "timm": ("timm", "v1.0.20 and v1.0.28", "layers/era.py", "era_min_entropy=0.6 in create_model"),
    "fasttd3": ("fast_td3", "2d83b6a and 229ed59", "fastsac_era.py", "--agent fastsac_era"),
}
# Some have a plug-in too: the versions of its tests, those that it fits, its name, where ERA is.
ALSO_PLUGINS = {
    "verl": (TESTED, " and ".join(TESTED), "era.verl", "python -m era.verl.main_ppo"),
    "timm": (("1.0.20", "1.0.28", "1.0.31"), "1.0.20 to 1.0.31", "era.timm", "era.timm"),
}
# By name in the Python index: the versions that the tests ran with, the plug-in.
PLUGINS = {
    "stable-baselines3": ("2.9", "era.stable_baselines3"),
    "sbx-rl": ("0.28", "era.sbx"),
    "rsl-rl-lib": ("5.5", "era.rsl_rl"),
}


def installed(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def with_era(package: str, file: str) -> Optional[Path]:
    """The folder that `import package` would take, if it has the file."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    return next((Path(folder) for folder in folders if (Path(folder) / file).is_file()), None)


def main() -> None:
    lines = [f"era {__version__}, torch {installed('torch') or 'not installed: pip install torch'}"]
    for name, (package, fits, file, switch) in INTEGRATIONS.items():
        folder, version = with_era(package, file), installed(package)
        tested, versions, plugin, where = ALSO_PLUGINS.get(name, ((), "", "", ""))
        if folder:
            lines.append(f"{name}: with ERA, in {folder}; switch it on with {switch}")
        elif version in tested:
            lines.append(f"{name}: {version}; ERA is in {where}")
        else:
            state = f"{version}, without ERA" if version else "not installed"
            also = f"; {plugin} fits {versions}" if plugin else ""
            lines.append(
                f"{name}: {state}; the integration fits {fits} (apply.py apply {name}){also}"
            )
    for name, (fits, module) in PLUGINS.items():
        version = installed(name)
        if version and version.startswith(f"{fits}."):
            lines.append(f"{name}: {version}; ERA is in {module}")
        else:
            lines.append(f"{name}: {version or 'not installed'}; {module} fits {fits}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
