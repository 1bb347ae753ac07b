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
"""The samples of an evaluation on disk: what they were made with, and how to continue them."""

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from evaluation.inputs import Benchmark, Stop


def sha256_of(parts: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def model_checksum(model: Path) -> str:
    """Over names and contents of the configuration, the tokenizer and the weights.

    The weights too, because two checkpoints of one run differ in nothing else.
    """

    def parts() -> Iterator[bytes]:
        for file in sorted(model.iterdir()):
            if file.suffix in (".json", ".jinja", ".txt", ".model", ".safetensors", ".bin"):
                yield f"\0{file.name}\0{file.stat().st_size}\0".encode()
                with file.open("rb") as stream:
                    while block := stream.read(2**24):
                        yield block

    return sha256_of(parts())


def settings_of(benchmark: Benchmark, model_sha256: str, args: argparse.Namespace) -> dict:
    """What makes a sample what it is; a run is continued only under equal ones."""
    data = json.dumps([problem._asdict() for problem in benchmark.problems], sort_keys=True)
    return {
        "model_sha256": model_sha256,
        "engine": args.engine,
        "dtype": args.dtype,
        "max_tokens": args.max_tokens,
        "prompt": args.prompt,
        "seed": args.seed,
        "benchmark": benchmark.name,
        "problems": len(benchmark.problems),
        "data_sha256": sha256_of(iter([data.encode()])),
        **benchmark.protocol._asdict(),
    }


SHARED_SETTINGS = ("model_sha256", "engine", "dtype", "max_tokens", "prompt", "seed")


def earlier_settings(out: Path) -> dict[str, dict]:
    """The settings of every benchmark in the folder. Raises Stop for one that cannot be read."""
    found = {}
    for file in sorted(out.glob("*.settings.json")):
        try:
            settings = json.loads(file.read_text())["settings"]
            found[settings["benchmark"]] = settings
        except (ValueError, KeyError, TypeError) as error:
            raise Stop(
                f"out: {file} is damaged. Nothing was changed. Give another --out, or remove "
                "this file and the samples beside it."
            ) from error
    return found


def difference(key: str, before, now) -> str:
    if key.endswith("_sha256"):
        before, now = f"{before}"[:12], f"{now}"[:12]
    return f"{key} {before!r} there, {now!r} now" + (" (another --limit, or other data)" if key == "problems" else "")


def settings_problems(out: Path, now: dict[str, dict], before: dict[str, dict]) -> Iterator[str]:
    for name, settings in before.items():
        keys = settings.keys() | now[name].keys() if name in now else SHARED_SETTINGS
        current = now.get(name, next(iter(now.values())))
        differing = {key for key in keys if settings.get(key) != current.get(key)}
        if differing & {"problems", "prompt"}:
            differing.discard("data_sha256")  # it is over these, so it says nothing more
        if differing:
            differences = (difference(key, settings.get(key), current.get(key)) for key in sorted(differing))
            yield (
                f"out: {out} holds {name} under other settings: {'; '.join(differences)}. Give "
                f"another --out, or the settings of {out / f'{name}.settings.json'}."
            )
    for name in now.keys() - before.keys():
        if (out / f"{name}.samples.jsonl").exists():
            yield (
                f"out: {out / f'{name}.samples.jsonl'} has no {name}.settings.json beside it, so "
                "nothing says what it was made with. Give another --out."
            )


def sample_seed(seed: int, benchmark: str, index: int, sample: int) -> int:
    """In [0, 2**31), the same whatever else is sampled."""
    digest = hashlib.sha256(f"{seed}/{benchmark}/{index}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


FIELDS = {
    "benchmark": str,
    "index": int,
    "sample": int,
    "seed": int,
    "text": str,
    "finish_reason": str,
    "tokens": int,
    "ground_truth": str,
    "extracted": (str, type(None)),
    "correct": bool,
    "status": str,
}


def read_samples(file: Path, settings: dict) -> tuple[list[dict], list[str]]:
    """The good samples of a file, and what is wrong with its other lines.

    Good is the first line of a sample that an evaluation under these settings makes.
    """
    samples, wrong, seen = [], [], set()
    if not file.exists():
        return samples, wrong
    lines = file.read_bytes().split(b"\n")
    if lines[-1]:
        wrong.append("the last line is cut off")
    for number, line in enumerate(lines[:-1], 1):
        try:
            sample = json.loads(line)
            bad = [name for name, kind in FIELDS.items() if not isinstance(sample[name], kind)]
        except (ValueError, KeyError, TypeError, RecursionError):
            wrong.append(f"line {number} is not a sample")
            continue
        key = (sample["index"], sample["sample"])
        if (
            bad
            or sample["benchmark"] != settings["benchmark"]
            or not 0 <= key[1] < settings["samples"]
            or sample["seed"] != sample_seed(settings["seed"], settings["benchmark"], *key)
        ):
            wrong.append(f"line {number} is not a sample of this run")
        elif key in seen:
            wrong.append(f"line {number} repeats a sample")
        else:
            seen.add(key)
            samples.append(sample)
    return samples, wrong


def write_whole(file: Path, text: str) -> None:
    """Beside its place, then renamed: a kill leaves the old file or the new one."""
    new = file.with_name(file.name + ".new")
    new.write_text(text)
    new.replace(file)


def continue_samples(file: Path, settings: dict) -> tuple[list[dict], str | None]:
    """The samples that are there, and a notice.

    Bad lines are taken out; a copy is kept if there is more than an end that a kill cut off.
    """
    samples, wrong = read_samples(file, settings)
    if not wrong:
        return samples, None
    kept = ""
    if wrong != ["the last line is cut off"]:
        copy = file.with_name(file.name + ".damaged")
        copy.write_bytes(file.read_bytes())
        kept = f" The file as it was is now {copy}."
    write_whole(file, "".join(json.dumps(sample) + "\n" for sample in samples))
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return (
        samples,
        f"{file}: {'; '.join(wrong[:3])}{more}. {len(samples)} good samples stay, the others are made again.{kept}",
    )
