# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The evaluation of the authors' release, ERA-LLM/eval: its prompts and sampling settings, and its grader.

Its own math_eval.py runs, in an environment of its own and with an engine that samples nothing (stored_texts/vllm.py):
once to write down the prompts and settings that it would sample with, and once on the texts that were drawn with them.
An answer has its three seconds, of the processor (stored_texts/pebble.py), and counts as wrong after them.
Nothing of it is copied here but the options that its sh/eval.sh gives.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from recipes.llm.data import ANSWER_FORMS, SETS

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"minerva": "minerva_math", "arc_c": "arc", "gpqa_diamond": "gpqa"}  # others have our names there
BENCHMARKS = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench", "arc_c", "gpqa_diamond")
# sh/eval.sh. It has the six mathematical sets; the others are greedy here.
MAX_TOKENS = 3000
SAMPLED = {"samples": 16, "temperature": 0.7, "top_p": 0.95}
GREEDY = {"samples": 1, "temperature": 0.0, "top_p": 1.0}
# Its extraction, which has no time limit, takes a minute for as many characters. 8,192 tokens of Qwen2.5 have no more.
LONGEST_TEXT = 2**20
# What of a model's folder its tokenizer is.
TOKENIZER = ("tokenizer*", "vocab*", "merges*", "special_tokens_map*", "added_tokens*", "chat_template*", "config.json")


def sampling_of(name: str) -> dict:
    return SAMPLED if name in ("aime24", "aime25", "amc23") else GREEDY


class Answered(NamedTuple):
    """What math_eval.py made of a benchmark.

    request: the prompts, each repeated for its samples, and the settings of vLLM's SamplingParams.
    problems: of each problem its idx, gt (ground truth as graded), and of each sample the pred and score.
    metrics: acc, in percent, is the mean over samples of each one's accuracy, which is rounded to a decimal before.
    """

    request: dict[str, Any]
    problems: list[dict[str, Any]]
    metrics: dict[str, Any]


class Release(NamedTuple):
    """A checkout of era-release, and the Python of the environment requirements/era-release.txt."""

    checkout: Path
    python: str

    def refuse_another_checkout(self) -> None:
        """End the command unless the checkout is as apply.py makes it. What else it lacks its first answer says."""
        command = [sys.executable, "apply.py", "status", "era-release", "--json"]
        found = subprocess.run(
            [*command, "--checkouts", self.checkout.absolute().parent], cwd=ROOT, capture_output=True, text=True
        )
        try:
            state = json.loads(found.stdout)["era-release"]["state"]
        except (ValueError, KeyError):
            raise SystemExit(f"error: the state of {self.checkout} is not known: {found.stderr.strip()}") from None
        if state != "applied":
            raise SystemExit(
                f"error: {self.checkout} is {state}, so its scores would not be the release's. `python3 apply.py apply "
                "era-release` makes it; `python3 apply.py diff era-release` shows what it should differ in."
            )

    @property
    def folder(self) -> Path:
        return self.checkout.absolute() / "ERA-LLM/eval"

    def _environment(self, **more: object) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        path = f"{ROOT / 'recipes/llm/stored_texts'}:{self.folder / 'latex2sympy'}"
        fixed = {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **fixed, "HF_HUB_OFFLINE": "1", **{key: str(value) for key, value in more.items()}}

    def answer(self, name: str, tokenizer: Path, options: dict, texts: list[str] | None = None) -> Answered:
        """Runs math_eval.py on a benchmark.

        Args:
            tokenizer: folder of the model's tokenizer; its path decides which ids of tokens end a text.
            options: samples, temperature, top_p, max_tokens, and limit: the number of problems, or None.
            texts: all samples of the first problem, then of the next; None asks for the request alone.
        """
        with tempfile.TemporaryDirectory(prefix="era-") as scratch:
            folder, stored = Path(scratch), {}
            if texts is not None:
                # An empty text ends math_eval.py with an error where its ground truth is empty (one of MATH500).
                given = [text if text.strip() and len(text) <= LONGEST_TEXT else "." for text in texts]
                (folder / "texts.json").write_text(json.dumps(given))
                stored["ERA_TEXTS"] = folder / "texts.json"
            words = {
                "model_name_or_path": tokenizer.absolute(),
                "data_names": NAMES.get(name, name),
                "output_dir": folder / "out",
                "split": "test",
                "prompt_type": "shepherd",
                "num_test_sample": options["limit"] or -1,
                "max_tokens_per_call": options["max_tokens"],
                "seed": 0,
                "temperature": options["temperature"],
                "n_sampling": options["samples"],
                "top_p": options["top_p"],
                "start": 0,
                "end": -1,
            }
            arguments = [word for key, value in words.items() for word in (f"--{key}", str(value))]
            said = ""
            try:
                done = subprocess.run(
                    [os.path.abspath(self.python), "-u", "math_eval.py", *arguments]
                    + ["--use_vllm", "--overwrite", "--save_outputs", "--apply_chat_template"],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    env=self._environment(ERA_REQUEST=folder / "request.json", **stored),
                    capture_output=True,
                    text=True,
                    errors="replace",
                )
                said = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
                (metrics,) = folder.glob("out/*/*_metrics.json")
                samples = metrics.with_name(metrics.name.replace("_metrics.json", ".jsonl"))
                lines = samples.read_text(encoding="utf-8").split("\n")[:-1]
                request = json.loads((folder / "request.json").read_text())
                return Answered(request, [json.loads(line) for line in lines], json.loads(metrics.read_text()))
            except (OSError, ValueError) as error:
                raise SystemExit(
                    f"error: the release's math_eval.py, by {self.python}, ended without scores of {name}: "
                    f"{said or error}. `make .venv/era-release/installed` sets up what it needs; the protocol and "
                    "grader `strict` do without."
                ) from None

    def ground_truths(self, name: str) -> dict[int, str] | None:
        """For each idx the ground truth in the form of data.py; None for multiple choice, with letters and digits."""
        pin = SETS[name]["pin"]
        if pin["make"] != "math":
            return None
        file = self.folder / "data" / NAMES.get(name, name) / "test.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        # Its AIME 2025 is another file than ours, in which one answer has degrees.
        key, form = ("answer", "latex") if name == "aime25" else (pin["answer"], pin["answer_form"])
        return {row.get("idx", i): ANSWER_FORMS[form](row[key]).strip() for i, row in enumerate(rows)}


def keep_tokenizer(model: Path, out: Path) -> Path:
    """Copies a model's tokenizer into `out`, so that its texts can be graded without the model.

    The folder is named after the kind of model, such as qwen2: math_eval.py looks for that in the path, which in the
    authors' runs has it, to end texts at Qwen's tokens.
    """
    kind = json.loads((model / "config.json").read_text()).get("model_type", "model")
    folder = out / "tokenizer" / kind
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in TOKENIZER:
        for file in model.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    return folder
