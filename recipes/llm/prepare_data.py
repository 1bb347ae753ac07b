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
"""Make the parquet files that the recipe trains on and that evaluate.py reads.

    python recipe/era/prepare_data.py [NAME ...|all|train|math|ood] [--out DIR]
                                      [--local PATH ...] [--offline]
    python recipe/era/prepare_data.py --list

datasets.json beside this file says for every set where it comes from, at which revision, with which
checksum and how many rows; a source file that differs is refused. Beside every file made lies
FILE.lock.json with its checksum and the pin it was made from: while both match, the file is kept,
otherwise it is made again.

Exit code 0: all that was asked for is there; 1: something is not, the last lines say what and why;
2: wrong arguments.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PINS = Path(__file__).resolve().with_name("datasets.json")
GROUPS = ("train", "math", "ood")
FORMAT = 1  # raise it when the same source makes other rows: earlier files are then made again
GITHUB = "https://raw.githubusercontent.com"
HUB = "https://huggingface.co"

# DAPO-Math-17k's prompt, word for word: verl's math_dapo reads what follows the last "Answer:".
TRAIN_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
TRAIN_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
MATH_AFTER = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
CHOICE_AFTER = "\n\nPlease reason step by step, and put the letter of the correct option within \\boxed{}."


class Problem(Exception):
    """Why a set cannot be made: what is wrong, where, what was expected and what to do."""


# Rows


def row(data_source: str, prompt: str, ability: str, answer: str, extra_info: dict) -> dict:
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
    return row(f"era_eval/{name}", prompt, kind.upper(), answer, extra_info)


def integer(answer) -> str:
    """AIME and AMC answers as whole numbers: 27.0 is 27, "025" is 25."""
    number = float(answer)
    if not number.is_integer():
        raise ValueError(f"the answer {answer!r} is not a whole number")
    return str(int(number))


def boxed(solution: str) -> str:
    r"""What the last \boxed{...} of a solution holds, without dollars; empty without a box."""
    _, _, tail = solution.rpartition("\\boxed{")
    depth = 1
    for end, character in enumerate(tail if tail != solution else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return tail[:end].replace("$", "")
    return ""


def listed(answers: list[str]) -> str:
    """OlympiadBench: all right values, which the source has in dollars, each or together."""
    return ", ".join(answers).replace("$", "")


ANSWER_FORMS: dict[str, Callable] = {
    "integer": integer,
    "latex": str,
    "boxed": boxed,
    "list": listed,
}


def problem_and_answer(source: dict, pin: dict) -> tuple[str, str]:
    """Both stripped; an empty answer where the source has none."""
    answer = source[pin["answer"]]
    return source[pin["problem"]].strip(), "" if answer in (None, "", []) else ANSWER_FORMS[pin["answer_form"]](
        answer
    ).strip()


def math_row(source: dict, pin: dict, name: str, index: int) -> dict:
    problem, answer = problem_and_answer(source, pin)
    return evaluation_row(name, index, problem + MATH_AFTER, answer)


def train_row(source: dict, pin: dict, name: str, index: int) -> dict:
    r"""A row for math_dapo, which compares strings: one line per answer, \dfrac is not \frac."""
    problem, answer = problem_and_answer(source, pin)
    answer = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", " ".join(answer.split()))
    return row(
        "math_dapo",
        TRAIN_BEFORE + problem + TRAIN_AFTER,
        "MATH",
        answer,
        {"index": index, "set": name},
    )


def choice_row(name: str, index: int, question: str, options: list[str], right: int | None) -> dict:
    """`right`: position of the right option, from 0; None where the source names none of them."""
    if right is not None and not 0 <= right < len(options):
        raise ValueError(f"the answer is option {right + 1} of {len(options)}")
    lines = "\n".join(f"{chr(65 + i)}. {option.strip()}" for i, option in enumerate(options))
    answer = "" if right is None else chr(65 + right)
    return evaluation_row(name, index, f"{question.strip()}\n\n{lines}{CHOICE_AFTER}", answer, len(options))


def arc_row(source: dict, pin: dict, name: str, index: int) -> dict:
    labels = list(source["choices"]["label"])  # A to E, in some questions 1 to 4
    right = labels.index(source["answerKey"]) if source["answerKey"] in labels else None
    return choice_row(name, index, source["question"], list(source["choices"]["text"]), right)


def gpqa_row(source: dict, pin: dict, name: str, index: int) -> dict:
    """Upstream each answer has its own column; hashes of seed, question, column order them."""
    columns = COLUMNS["gpqa"][1:]
    order = sorted(
        columns,
        key=lambda column: hashlib.sha256(f"{pin['option_seed']}\n{source['Question']}\n{column}".encode()).hexdigest(),
    )
    right = order.index("Correct Answer") if source["Correct Answer"] else None
    return choice_row(name, index, source["Question"], [source[column] or "" for column in order], right)


def mmlu_pro_row(source: dict, pin: dict, name: str, index: int) -> dict:
    """The letter counts, as in the authors' evaluation.

    A published revision has an answer_index that differs (question 3983).
    """
    right = ord(source["answer"]) - 65 if source["answer"] else None
    return choice_row(name, index, source["question"], list(source["options"]), right)


ROWS: dict[str, Callable] = {
    "math": math_row,
    "train": train_row,
    "arc": arc_row,
    "gpqa": gpqa_row,
    "mmlu_pro": mmlu_pro_row,
}
VERL = ("data_source", "prompt", "ability", "reward_model", "extra_info")
COLUMNS = {
    "published": VERL,
    "unique": VERL,
    "arc": ("question", "choices", "answerKey"),
    "gpqa": (
        "Question",
        "Correct Answer",
        "Incorrect Answer 1",
        "Incorrect Answer 2",
        "Incorrect Answer 3",
    ),
    "mmlu_pro": ("question", "options", "answer"),
}


# Source files


def checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def address(pin: dict) -> str:
    if "hub" in pin:
        return f"{HUB}/datasets/{pin['hub']}/resolve/{pin['revision']}/{pin['path']}"
    return f"{GITHUB}/{pin['github']}/{pin['revision']}/{pin['path']}"


def local_file(name: str, pin: dict, given: list[Path]) -> Path | None:
    """The file with the pinned checksum, None where there is none.

    Any file given counts, and in folders those called as at the source or as the set.

    Raises:
        Problem: a file that must be meant (FOLDER/FILE as at the source, or NAME.*) differs.
    """
    source = Path(pin.get("hub") or pin["github"], pin["path"])
    wrong = []
    for path in given:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if not file.is_file() or (file != path and file.name != source.name and file.stem != name):
                continue
            found = checksum(file)
            if found == pin["sha256"]:
                return file
            if file.stem == name or file.resolve().parts[-2:] == source.parts[-2:]:
                wrong.append(f"{file} has {found}")
    if wrong:
        raise Problem(f"the sha256 pinned for it is {pin['sha256']}, but {', '.join(wrong)}. Get {address(pin)} again.")
    return None


def why_no_download(error: BaseException, pin: dict) -> str:
    """Why the clients' `error` ended the download.

    Its first cause decides: the clients wrap it in a FileNotFoundError even without a network.
    """
    while cause := error.__cause__ or error.__context__:
        error = cause
    status = getattr(error, "status", None)  # aiohttp's; requests' is in its response
    status = status or getattr(getattr(error, "response", None), "status_code", None)
    if status == 404 or isinstance(error, FileNotFoundError):
        return (
            f"its server says that there is no {address(pin)} (404). Get the file with sha256 "
            f"{pin['sha256']} elsewhere and pass it with --local."
        )
    said = str(error).partition("\n")[0].replace(address(pin), "it")
    return (
        f"{address(pin)} could not be reached or stored ({type(error).__name__}: {said}). Run the "
        "same command again when there is a network, or get it where there is one and pass it with "
        "--local."
    )


def why_not_offline(pin: dict) -> str:
    cache = ", nor has the hub's cache" if "hub" in pin else ""
    return (
        f"--offline, and --local gave no file with the sha256 pinned for it, {pin['sha256']}"
        f"{cache}: get {address(pin)} where there is a network and pass it with --local."
    )


def download(pin: dict, offline: bool) -> Path:
    """The source file in the cache of huggingface_hub; GitHub's small files in that of datasets."""
    if offline and "hub" not in pin:
        raise Problem(why_not_offline(pin))
    from datasets import DownloadManager
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError

    try:
        if "hub" in pin:
            file = hf_hub_download(
                pin["hub"],
                pin["path"],
                repo_type="dataset",
                revision=pin["revision"],
                local_files_only=offline,
            )
        else:
            file = DownloadManager().download(address(pin))
    except GatedRepoError:
        raise Problem(
            f"{pin['hub']} is gated. Open {HUB}/datasets/{pin['hub']}, log in and accept its "
            "conditions; then log in here with `huggingface-cli login` or set HF_TOKEN, and run "
            "the same command again."
        ) from None
    except Exception as error:  # these clients have no common base class for what a network can do
        raise Problem(why_not_offline(pin) if offline else why_no_download(error, pin)) from None
    found = checksum(file)
    if found != pin["sha256"]:
        raise Problem(
            f"{address(pin)} has sha256 {found}, the pin says {pin['sha256']}. It is not "
            f"used. Delete {file} and run the same command again; if it stays so, the source "
            "has changed."
        )
    return Path(file)


# Making


def expect_columns(found: Iterable[str], pin: dict) -> None:
    wanted = COLUMNS.get(pin["make"]) or (pin["problem"], pin["answer"])
    missing = [column for column in wanted if column not in found]
    if missing:
        raise Problem(
            f"{pin['path']} has no column {', '.join(missing)}; it has {', '.join(found)}. Nothing was made of it."
        )


def expect_rows(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise Problem(f"{what}: {found} rows, expected {wanted}. Nothing was made of it.")


@contextlib.contextmanager
def reading(file: Path, pin: dict) -> Iterator[None]:
    """A Problem for what the libraries raise about a file's format; system errors stay."""
    import datasets
    import pyarrow

    try:
        yield
    except (
        datasets.exceptions.DatasetsError,
        pyarrow.ArrowException,
        ValueError,
        OSError,
    ) as error:
        if getattr(error, "errno", None):  # pyarrow's own OSError has no number
            raise
        raise Problem(
            f"{file} cannot be read as {pin['format']}: "
            f"{str(error.__cause__ or error).rstrip('.')}. Nothing was made of it."
        ) from None


def rows_made(pin: dict) -> int:
    return pin.get("unique_rows", pin["rows"] - pin.get("without_answer", 0))


def check_published(file: Path, pin: dict) -> None:
    import pyarrow.parquet as pq

    with reading(file, pin):
        parquet = pq.ParquetFile(file)
    expect_columns(parquet.schema_arrow.names, pin)
    expect_rows(parquet.metadata.num_rows, pin["rows"], pin["path"])


def write_unique(file: Path, pin: dict, part: Path) -> None:
    """The first row of each extra_info.index."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with reading(file, pin):
        table = pq.read_table(file)
    first = {}
    for position, problem in enumerate(pc.struct_field(table["extra_info"], "index").to_pylist()):
        first.setdefault(problem, position)
    expect_rows(len(first), rows_made(pin), f"{pin['path']}, each problem once")
    pq.write_table(table.take(list(first.values())), part)


def made_rows(name: str, file: Path, pin: dict) -> tuple[list[dict], list[str]]:
    """The rows of a set that is not in verl's schema yet, and what is worth knowing about them."""
    import datasets

    datasets.disable_progress_bars()  # two per set flash by; a download from the hub has its own
    # "None" and "NA" can be answers.
    options = {"keep_default_na": False} if pin["format"] == "csv" else {}
    with tempfile.TemporaryDirectory() as cache:
        with reading(file, pin):
            source = datasets.load_dataset(
                pin["format"], data_files=str(file), split="train", cache_dir=cache, **options
            )
        expect_columns(source.column_names, pin)
        expect_rows(len(source), pin["rows"], pin["path"])
        source = source.to_list()
    rows, places, empty = [], {}, []
    for index, item in enumerate(source):
        try:
            made = ROWS[pin["make"]](item, pin, name, index)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise Problem(f"{pin['path']}, row {index} (from 0): {error}. Nothing was made of it.") from None
        if made["reward_model"]["ground_truth"]:
            rows.append(made)
            places.setdefault(made["prompt"][0]["content"], []).append(index)
        else:
            empty.append(index)
    wanted = pin.get("without_answer", 0)
    if len(empty) != wanted:
        raise Problem(
            f"{pin['path']}: {len(empty)} rows have no answer, expected {wanted}; they are "
            f"{empty} (from 0). Nothing was made of it."
        )
    notes = [f"{name}: rows {empty} of the source have no answer and are left out"] if empty else []
    twice = [indices for indices in places.values() if len(indices) > 1]
    if twice:
        notes.append(
            f"{name}: {len(twice)} prompts are in several rows, all kept: "
            f"{', '.join(map(str, twice[:5]))}{' ...' * (len(twice) > 5)}"
        )
    return rows, notes


def make(name: str, set_: dict, file: Path, target: Path) -> list[str]:
    """Write `target` and its lock file, each under a temporary name first. Returns notes."""
    import datasets

    pin, notes = set_["pin"], []
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if pin["make"] in ("published", "unique"):
            check_published(file, pin)
            shutil.copyfile(file, part) if pin["make"] == "published" else write_unique(file, pin, part)
        else:
            rows, notes = made_rows(name, file, pin)
            datasets.Dataset.from_list(rows).to_parquet(str(part))
        lock = {
            "file": set_["file"],
            "rows": rows_made(pin),
            "sha256": checksum(part),
            "format": FORMAT,
            "pin": pin,
        }
        os.replace(part, target)
        write_lock(target, lock)
    finally:
        part.unlink(missing_ok=True)
    return notes


def lock_of(target: Path) -> Path:
    return target.with_name(target.name + ".lock.json")


def write_lock(target: Path, lock: dict) -> None:
    part = lock_of(target).with_name(lock_of(target).name + ".part")
    part.write_text(json.dumps(lock, indent=2) + "\n")
    os.replace(part, lock_of(target))


def why_make(target: Path, pin: dict) -> str:
    """Why `target` is to be made; empty where it is finished."""
    if not target.exists():
        return "new"
    try:
        lock = json.loads(lock_of(target).read_text())
        made_from, recorded = (lock["format"], lock["pin"]), lock["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return "made again, no readable lock file lay beside it"
    if made_from != (FORMAT, pin):
        return "made again, it came from another pin"
    return "" if checksum(target) == recorded else "made again, the old one was damaged"


# Contamination


def bare(prompt: str) -> str:
    """A problem without its instructions, as lower-case letters and digits only."""
    prompt = prompt.removeprefix(TRAIN_BEFORE).removesuffix(TRAIN_AFTER).removesuffix(MATH_AFTER)
    return re.sub(r"[\W_]+", "", prompt).lower()


def bare_problems(file: Path) -> set[str]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    prompts = set()
    for batch in pq.ParquetFile(file).iter_batches(columns=["prompt"]):
        prompts.update(pc.unique(batch["prompt"].flatten().field("content")).to_pylist())
    return {bare(prompt) for prompt in prompts}


def overlaps(sets: dict, out: Path) -> list[str]:
    """Notes on benchmark problems that a training file, where both exist, holds word for word."""
    there = {name: out / entry["file"] for name, entry in sets.items() if (out / entry["file"]).is_file()}
    training = {name: file for name, file in there.items() if sets[name].get("trains")}
    held_out = {name: bare_problems(file) for name, file in there.items() if training and sets[name]["group"] == "math"}
    notes = []
    for file in training.values():
        problems = bare_problems(file)
        for benchmark, wanted in held_out.items():
            if shared := len(problems & wanted):
                notes.append(
                    f"contamination: {file.name} holds {shared} of the {len(wanted)} "
                    f"problems of {benchmark} word for word"
                )
    return notes


# Command


def listing(sets: dict) -> str:
    lines = []
    for name, entry in sets.items():
        pin = entry["pin"]
        lines += [
            f"{name}  ({entry['group']})  {entry['for']}",
            f"    {entry['file']}, {rows_made(pin):,} rows; licence: {entry['license']}",
            f"    {pin.get('hub') or pin['github']} at {pin['revision']}",
            f"    {address(pin)}",
            f"    sha256 {pin['sha256']}, known from {entry['checksum_from']}",
        ]
    return "\n".join(lines)


def chosen(names: list[str], sets: dict) -> list[str]:
    """Names and groups as names, each once, in the order of datasets.json."""
    wanted = set()
    for name in names:
        groups = GROUPS if name == "all" else (name,)
        wanted.update(key for key, entry in sets.items() if key == name or entry["group"] in groups)
    return [name for name in sets if name in wanted]


def prepare(names: list[str], sets: dict, out: Path, given: list[Path], offline: bool) -> dict[str, str]:
    """Make what is not finished; one set's failure does not stop the others.

    Returns:
        What is wrong, by name.
    """
    failed, changed = {}, False
    wanted = {sets[name]["pin"]["sha256"] for name in names}
    notes = [
        f"--local: {path} has {found}, the sha256 of none of the sets asked for. It is not used."
        for path in given
        if path.is_file() and (found := checksum(path)) not in wanted
    ]
    for name in names:
        pin, target = sets[name]["pin"], out / sets[name]["file"]
        try:
            why = why_make(target, pin)
            if why:
                file = local_file(name, pin, given) or download(pin, offline)
                notes += make(name, sets[name], file, target)
                changed = True
            print(
                f"{name}: {target}, {rows_made(pin):,} rows ({why or 'kept, checksum and pin match'})",
                flush=True,
            )
        except (Problem, OSError) as error:
            failed[name] = str(error)
            print(f"{name}: failed, see below", flush=True)
    for note in notes + (overlaps(sets, out) if changed else []):
        print(f"note: {note}")
    return failed


def existing(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no {path}")
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be read")
    return path


def make_parser(sets: dict) -> argparse.ArgumentParser:
    default_out = Path(os.environ.get("RAY_DATA_HOME") or "~/verl").expanduser() / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    groups = f"all, {', '.join(GROUPS)}"
    names = f"sets ({', '.join(sets)}) or groups: {groups}; default: all"
    add("names", nargs="*", metavar="NAME", default=["all"], help=names)
    out = f"where the files go; default: {default_out}, where the scripts look"
    add("--out", type=Path, default=default_out, metavar="DIR", help=out)
    local = "source files, or folders with them at any depth; told apart by name and checksum"
    given = {"nargs": "+", "action": "extend", "default": [], "metavar": "PATH"}
    add("--local", type=existing, **given, help=local)
    offline = "no network: finished files, --local and the hub's cache only"
    add("--offline", action="store_true", help=offline)
    listed = "show every set with its source, revision, checksum and rows, and stop"
    add("--list", action="store_true", help=listed)
    return parser


def main(arguments: list[str] | None = None) -> int:
    sets = json.loads(PINS.read_text())
    parser = make_parser(sets)
    args = parser.parse_args(arguments)
    unknown = [name for name in args.names if name not in sets and name not in ("all", *GROUPS)]
    if unknown:
        parser.error(
            f"unknown: {', '.join(unknown)}. There are {', '.join(sets)}, and the groups all, {', '.join(GROUPS)}."
        )
    if args.list:
        try:
            print(listing(sets), flush=True)
        except BrokenPipeError:  # --list | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if importlib.util.find_spec("datasets") is None:
        parser.error(f"{sys.executable} has no package `datasets`. Use the Python that trains. Nothing was changed.")
    out = args.out.expanduser()
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        parser.error(f"--out {out} cannot be written to: {error.strerror}. Nothing was changed.")
    names = chosen(args.names, sets)
    try:
        failed = prepare(names, sets, out, args.local, args.offline)
    except KeyboardInterrupt:
        print("Stopped. Finished files stay; run the same command again.", file=sys.stderr)
        return 130
    if failed:
        print(f"Not made: {len(failed)} of {len(names)}; what is made stays.", file=sys.stderr)
        print("\n".join(f"  - {name}: {why}" for name, why in failed.items()), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
