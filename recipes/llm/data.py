# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Make the parquet files that the LLM recipes train on and that evaluate.py reads.

    python -m recipes.llm.data [SET ...] [--out DIR]

datasets.json beside this file says for every set where its source is, at which revision and with which checksum. A
file that is there is kept. A set that fails does not stop the others; the exit code is 1 then.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from recipes.llm.grading import boxes

SETS = json.loads(Path(__file__).with_name("datasets.json").read_text())
GITHUB = "https://raw.githubusercontent.com"

# DAPO-Math-17k's prompt, word for word: verl's math_dapo reads what follows the last "Answer:".
TRAIN_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
TRAIN_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
MATH_AFTER = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
CHOICE_AFTER = "\n\nPlease reason step by step, and put the letter of the correct option within \\boxed{}."

GPQA_ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


# Rows: for each kind of source a function of one of its rows, the pin, the set's name and the row's position


def verl_row(data_source: str, prompt: str, ability: str, answer: str, extra_info: dict) -> dict:
    """One row in verl's schema. `data_source` names verl's scoring function."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": extra_info,
    }


def evaluation_row(name: str, index: int, prompt: str, answer: str, options: int = 0) -> dict:
    kind = "choice" if options else "math"
    extra_info = {"benchmark": name, "index": index, "kind": kind, "choices": options}
    # A name that verl's own scoring refuses: as "aime24" it would be scored by its "Answer:" line,
    # which is not asked for.
    return verl_row(f"era_eval/{name}", prompt, kind.upper(), answer, extra_info)


def last_boxed(solution: str) -> str:
    r"""What the last \boxed{...} of a solution holds, without dollars; empty without a box."""
    found = boxes(solution)
    return found[-1][2].replace("$", "") if found else ""


ANSWER_FORMS: dict[str, Callable] = {
    "integer": lambda answer: str(int(float(answer))),  # 27.0 is 27, "025" is 25
    "latex": str,
    "boxed": last_boxed,
    "list": lambda answers: ", ".join(answers).replace("$", ""),  # OlympiadBench: all right values
}


def problem_and_answer(source: dict, pin: dict) -> tuple[str, str]:
    """The problem and its answer, both stripped; an empty answer where the source has none."""
    answer = source[pin["answer"]]
    return source[pin["problem"]].strip(), ANSWER_FORMS[pin["answer_form"]](answer).strip() if answer else ""


def math_row(source: dict, pin: dict, name: str, index: int) -> dict:
    problem, answer = problem_and_answer(source, pin)
    return evaluation_row(name, index, problem + MATH_AFTER, answer)


def train_row(source: dict, pin: dict, name: str, index: int) -> dict:
    r"""A row for math_dapo, which compares strings: one line per answer, \dfrac is not \frac."""
    problem, answer = problem_and_answer(source, pin)
    answer = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", " ".join(answer.split()))
    extra_info = {"index": index, "set": name}
    return verl_row("math_dapo", TRAIN_BEFORE + problem + TRAIN_AFTER, "MATH", answer, extra_info)


def choice_row(name: str, index: int, question: str, options: list[str], right: int) -> dict:
    """A row for a question with options. right: the position of the right one, from 0."""
    lines = "\n".join(f"{chr(65 + i)}. {option.strip()}" for i, option in enumerate(options))
    prompt = f"{question.strip()}\n\n{lines}{CHOICE_AFTER}"
    return evaluation_row(name, index, prompt, chr(65 + right), len(options))


def arc_row(source: dict, pin: dict, name: str, index: int) -> dict:
    choices = source["choices"]  # labelled A to E, in some questions 1 to 4
    return choice_row(name, index, source["question"], choices["text"], choices["label"].index(source["answerKey"]))


def gpqa_row(source: dict, pin: dict, name: str, index: int) -> dict:
    """A row of GPQA, whose source has each answer in its own column; hashes of seed, question and column order them."""

    def place(column: str) -> str:
        return hashlib.sha256(f"{pin['option_seed']}\n{source['Question']}\n{column}".encode()).hexdigest()

    order = sorted(GPQA_ANSWERS, key=place)
    options = [source[column] for column in order]
    return choice_row(name, index, source["Question"], options, order.index("Correct Answer"))


def mmlu_pro_row(source: dict, pin: dict, name: str, index: int) -> dict:
    """A row of MMLU-Pro, where the letter counts, as in the authors' evaluation.

    A published revision has an answer_index that differs (question 3983).
    """
    return choice_row(name, index, source["question"], source["options"], ord(source["answer"]) - 65)


ROWS: dict[str, Callable] = {
    "math": math_row,
    "train": train_row,
    "arc": arc_row,
    "gpqa": gpqa_row,
    "mmlu_pro": mmlu_pro_row,
}


# Files


def source_file(pin: dict) -> Path:
    """The pinned file, downloaded into the cache of huggingface_hub or, from GitHub, of datasets.

    Raises:
        ValueError: its checksum is not the pinned one.
    """
    if "hub" in pin:
        from huggingface_hub import hf_hub_download

        file = hf_hub_download(pin["hub"], pin["path"], repo_type="dataset", revision=pin["revision"])
    else:
        from datasets import DownloadManager

        file = DownloadManager().download(f"{GITHUB}/{pin['github']}/{pin['revision']}/{pin['path']}")
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    if digest != pin["sha256"]:
        raise ValueError(
            f"{file} has sha256 {digest}, the pinned one is {pin['sha256']}. Delete it and run the same command "
            "again; if it stays so, the source has changed."
        )
    return Path(file)


def write_unique(file: Path, target: Path) -> None:
    """The first row of each extra_info.index."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    first = {}
    for position, problem in enumerate(pc.struct_field(table["extra_info"], "index").to_pylist()):
        first.setdefault(problem, position)
    pq.write_table(table.take(list(first.values())), target)


def write_rows(name: str, file: Path, pin: dict, target: Path) -> None:
    """The rows that have an answer, in verl's schema."""
    import datasets

    datasets.disable_progress_bars()  # two per set flash by; a download has its own
    # "None" and "NA" can be answers.
    options = {"keep_default_na": False} if pin["format"] == "csv" else {}
    with tempfile.TemporaryDirectory() as cache:
        source = datasets.load_dataset(pin["format"], data_files=str(file), split="train", cache_dir=cache, **options)
        rows = [ROWS[pin["make"]](row, pin, name, index) for index, row in enumerate(source.to_list())]
    rows = [row for row in rows if row["reward_model"]["ground_truth"]]
    datasets.Dataset.from_list(rows).to_parquet(str(target))


def make(name: str, target: Path) -> None:
    pin = SETS[name]["pin"]
    file = source_file(pin)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if pin["make"] == "published":  # in verl's schema already: every byte stays
        shutil.copyfile(file, part)
    elif pin["make"] == "unique":
        write_unique(file, part)
    else:
        write_rows(name, file, pin, part)
    part.replace(target)


# Command


def sets_named(text: str) -> list[str]:
    names = [
        name
        for name, entry in SETS.items()
        if text in (name, entry["group"]) or text == "all" and entry["group"] != "option"
    ]
    if not names:
        raise argparse.ArgumentTypeError(
            f"there is no set {text}. There are {', '.join(SETS)}, and the groups train, math, ood and all"
        )
    return names


def main(arguments: list[str] | None = None) -> int:
    default_out = Path(os.environ.get("RAY_DATA_HOME") or "~/verl").expanduser() / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = f"{', '.join(SETS)}, or a group: train, math, ood; default: all"
    parser.add_argument("sets", nargs="*", type=sets_named, default=[sets_named("all")], metavar="SET", help=names)
    out = f"where the files go; default: {default_out}, where the recipes look"
    parser.add_argument("--out", type=Path, default=default_out, metavar="DIR", help=out)
    args = parser.parse_args(arguments)
    failed = False
    for name in dict.fromkeys(name for names in args.sets for name in names):
        target = args.out.expanduser() / SETS[name]["file"]
        try:
            if target.exists():
                print(f"{name}: {target} is there", flush=True)
            else:
                make(name, target)
                print(f"{name}: made {target}", flush=True)
        except (OSError, ValueError) as error:  # of the hub's and GitHub's clients too
            failed = True
            advice = f"Try again, or copy {target.name} into {target.parent} from a machine that has it."
            print(f"{name}: error: {type(error).__name__}: {error}. {advice}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
