# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Download the paper's models, and make the folders that the runs train and evaluate.

    python -m recipes.llm.model [NAME ...] [--out DIR]

Qwen2.5-Math has 4,096 positions in its config.json, and the runs need 10,240. So there are two folders: NAME-original,
which is the pinned revision as it is on the hub, and NAME, which has links to its files and a config.json with 32,768
positions. A folder that is there is never changed. The same command again goes on with a download that was cut short.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from recipes.llm.preflight_model import QWEN_MATH_POSITIONS, positions

REVISIONS = {
    "Qwen2.5-Math-7B": "b101308fe89651ea5ce025f25317fea6fc07e96e",
    "Qwen2.5-Math-1.5B": "4a83ca6e4526a4f2da3aa259ec36c259f66b2ab2",
}


def download(name: str, folder: Path) -> None:
    """Download the pinned revision into `folder`, each file as the hub describes it there.

    Raises:
        ValueError: a file differs.
    """
    from huggingface_hub import HfApi, snapshot_download

    repository, revision = f"Qwen/{name}", REVISIONS[name]
    files = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings
    snapshot_download(repository, revision=revision, local_dir=folder)
    for file in files:
        path = folder / file.rfilename
        is_whole = path.is_file() and path.stat().st_size == file.size
        if not is_whole or digest(path, sha256=bool(file.lfs)) != (file.lfs.sha256 if file.lfs else file.blob_id):
            raise ValueError(
                f"{path} is not the file of revision {revision}. Delete it and run the same command again."
            )


def digest(path: Path, sha256: bool) -> str:
    """The SHA-256 of a large file; of another one git's id of its contents."""
    algorithm = hashlib.sha256() if sha256 else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as content:
        while part := content.read(2**24):
            algorithm.update(part)
    return algorithm.hexdigest()


def link(original: Path, folder: Path) -> None:
    """Make a folder of links to the files of `original`, beside it, whose config.json has more positions."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for path in original.iterdir():
        if path.name != "config.json" and not path.name.startswith("."):
            (part / path.name).symlink_to(Path("..", original.name, path.name))
    settings = json.loads((original / "config.json").read_text()) | {"max_position_embeddings": QWEN_MATH_POSITIONS}
    (part / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    part.rename(folder)


def make(name: str, out: Path) -> None:
    """Makes both folders of a model, unless the one that is trained is there.

    Raises:
        ValueError: that folder is something else, or a downloaded file differs.
    """
    folder, original = out / name, out / f"{name}-original"
    if folder.exists():
        file = folder / "config.json"
        has = positions(json.loads(file.read_text())) if file.is_file() else None
        if has != QWEN_MATH_POSITIONS:
            raise ValueError(
                f"{folder} is there, with {'no config.json' if has is None else f'{has:g} positions'}, and was not "
                f"changed. If it is the model as it was downloaded, rename it to {original.name}, which saves the "
                "download, and run the same command again."
            )
        print(f"{name}: {folder} is there")
        return
    out.mkdir(parents=True, exist_ok=True)
    download(name, original)
    link(original, folder)
    print(f"{name}: made {folder}, with {QWEN_MATH_POSITIONS} positions, of {original}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    default_out = Path(os.environ.get("RAY_DATA_HOME") or "~/verl").expanduser() / "models"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = f"{' or '.join(REVISIONS)}; default: both (18 GB)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    out = f"where the folders go; default: {default_out}, where the recipes look"
    parser.add_argument("--out", type=Path, default=default_out, metavar="DIR", help=out)
    parser.add_argument("--check", action="store_true", help="only look at the names")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.names if name not in REVISIONS]:
        parser.error(f"there is no {', '.join(unknown)} here. There are {' and '.join(REVISIONS)}.")
    if args.check:
        return 0
    failed = False
    for name in args.names or REVISIONS:
        try:
            make(name, args.out.expanduser())
        except (OSError, ValueError) as error:  # of the hub's client too
            failed = True
            advice = "HF_ENDPOINT names a mirror of the hub. Or copy both folders from a machine that has them."
            print(f"{name}: error: {error}{f'. {advice}' if isinstance(error, OSError) else ''}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
