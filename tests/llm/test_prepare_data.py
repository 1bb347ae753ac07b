"""prepare_data.py on small invented sets that have the columns and the file format of each real source."""

import csv
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_helpers import ROOT, load

datasets = pytest.importorskip("datasets")
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

FIXTURES = json.loads((Path(__file__).parent / "data_fixtures/rows.json").read_text())
SCRIPT = ROOT / "recipes/llm/prepare_data.py"
SETS = json.loads(SCRIPT.with_name("datasets.json").read_text())
MATH = ["aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"]
OOD = ["arc_c", "gpqa_diamond", "mmlu_pro"]


def write(file: Path, format_: str, rows: list[dict]) -> None:
    """Rows in the format of a source."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if format_ == "json":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif format_ == "csv":
        with open(file, "w", newline="") as opened:
            table = csv.DictWriter(opened, rows[0])
            table.writeheader()
            table.writerows(rows)
    elif format_ == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(file, table.schema) as stream:  # what Dataset.save_to_disk writes
            stream.write_table(table)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class World:
    """A folder of source files, pins for them, and the script's main with its output."""

    def __init__(self, folder: Path, monkeypatch, capsys):
        self.module = load(SCRIPT, "prepare_data")
        self.folder, self.capsys, self.out = folder, capsys, folder / "out"
        self.sources, self.sets = folder / "sources", json.loads(json.dumps(SETS))
        for name in self.sets:
            self.put(name, FIXTURES[name]["rows"])
        monkeypatch.setattr(self.module, "PINS", folder / "pins.json")
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))

    def source(self, name: str) -> Path:
        pin = self.sets[name]["pin"]
        return self.sources / (pin.get("hub") or pin["github"]) / pin["path"]

    def put(self, name: str, rows: list[dict]) -> None:
        """Writes a set's source file and pins its checksum and number of rows."""
        pin = self.sets[name]["pin"]
        write(self.source(name), pin["format"], rows)
        pin.update(sha256=sha256(self.source(name)), rows=len(rows))
        if "unique_rows" in pin:
            pin["unique_rows"] = len({row["extra_info"]["index"] for row in rows})

    def run(self, *names: str, local=True, more=("--offline",)) -> tuple[int, str]:
        (self.folder / "pins.json").write_text(json.dumps(self.sets))
        given = ["--local", str(self.sources)] if local else []
        try:
            code = self.module.main([*names, "--out", str(self.out), *given, *more])
        except SystemExit as stop:
            code = stop.code
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out + captured.err

    def rows(self, name: str) -> list[dict]:
        return pq.read_table(self.out / self.sets[name]["file"]).to_pylist()

    def target(self, name: str) -> Path:
        return self.out / self.sets[name]["file"]


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    return World(tmp_path, monkeypatch, capsys)


def answers(rows: list[dict]) -> list[str]:
    return [row["reward_model"]["ground_truth"] for row in rows]


# The pins


ROWS = {
    **{"dapo-math-17k": 1791700, "dapo-math-17k-unique": 1791700, "math-3to5": 8523, "aime-2024": 960},
    **{"aime24": 30, "aime25": 30, "amc23": 40, "math500": 500, "minerva": 272, "olympiadbench": 675},
    **{"arc_c": 1172, "gpqa_diamond": 198, "mmlu_pro": 12032},
}


def test_pins_are_whole(project_root):
    """And docs/llm/data.md has them."""
    assert {name: entry["pin"]["rows"] for name, entry in SETS.items()} == ROWS
    text = (project_root / "docs/llm/data.md").read_text()
    for name, entry in SETS.items():
        pin = entry["pin"]
        assert re.fullmatch("[0-9a-f]{40}", pin["revision"]) and re.fullmatch("[0-9a-f]{64}", pin["sha256"])
        assert ("hub" in pin) != ("github" in pin)
        assert entry["file"] == (f"eval/{name}.parquet" if name in MATH + OOD else f"{name}.parquet")
        made = pin.get("unique_rows", pin["rows"] - pin.get("without_answer", 0))
        known = {"the bytes": "read", "public records": "recorded"}[entry["checksum_from"]]
        source = f"hub: {pin['hub']}" if "hub" in pin else f"GitHub: {pin['github']}"
        assert f"| `{name}` | {made:,} | {source} | `{pin['revision'][:12]}` | {known} | {entry['license']} |" in text


def test_list_shows_every_pin(world):
    code, text = world.run("--list")
    assert code == 0
    for name, entry in world.sets.items():
        pin = entry["pin"]
        for word in (name, entry["file"], entry["for"], pin["revision"], pin["sha256"], entry["license"]):
            assert word in text
    assert not world.out.exists()


# What is made


def test_all_sets(world):
    code, text = world.run("all", "dapo-math-17k-unique")
    assert code == 0, text
    for name in world.sets:
        rows = world.rows(name)
        if FIXTURES[name]["answers"]:
            assert answers(rows) == FIXTURES[name]["answers"], name
        lock = json.loads((world.out / (world.sets[name]["file"] + ".lock.json")).read_text())
        expected = len(rows), sha256(world.target(name)), world.sets[name]["pin"]
        assert (lock["rows"], lock["sha256"], lock["pin"]) == expected
        for row in rows:
            assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
            assert [message["role"] for message in row["prompt"]] == ["user"]
    assert not list(world.out.rglob("*.part"))
    for name in ("dapo-math-17k", "aime-2024"):
        assert world.target(name).read_bytes() == world.source(name).read_bytes(), "published files keep every byte"
    assert world.rows("dapo-math-17k-unique") == FIXTURES["dapo-math-17k"]["rows"][:2]
    assert "rows [1, 4] of the source have no answer" in text
    assert [row["extra_info"]["index"] for row in world.rows("math-3to5")] == [0, 2, 3, 5]


@pytest.mark.parametrize("name", MATH + OOD)
def test_evaluation_rows(world, import_verl, name):
    """verl refuses to score them: its functions look for "Answer:", which these prompts do not ask for."""
    from verl.utils.reward_score import default_compute_score

    assert world.run(name)[0] == 0
    for index, (row, source) in enumerate(zip(world.rows(name), FIXTURES[name]["rows"], strict=True)):
        prompt = row["prompt"][0]["content"]
        options = re.findall(r"^([A-J])\. (.*)$", prompt, flags=re.M)
        kind = "math" if name in MATH else "choice"
        assert row["extra_info"] == {"benchmark": name, "index": index, "kind": kind, "choices": len(options)}
        assert "\\boxed{}" in prompt and "Answer:" not in prompt
        question = source.get("problem") or source.get("question") or source["Question"]
        assert prompt.startswith(question + "\n\n")
        if kind == "choice":
            assert [letter for letter, _ in options] == [chr(65 + i) for i in range(len(options))]
            right = dict(options)[row["reward_model"]["ground_truth"]]
            if name == "arc_c":
                assert right == dict(zip(source["choices"]["label"], source["choices"]["text"]))[source["answerKey"]]
            elif name == "mmlu_pro":
                assert [text for _, text in options] == source["options"]
                assert right == source["options"][ord(source["answer"]) - 65]
            else:
                assert right == source["Correct Answer"].strip()
                answers = [value.strip() for key, value in source.items() if "Answer" in key]
                assert Counter(text for _, text in options) == Counter(answers)
        with pytest.raises(Exception, match="Reward function is not implemented"):
            default_compute_score(row["data_source"], "Answer: 1", "1")


def test_gpqa_order_depends_only_on_seed_and_question(world):
    source = [{**FIXTURES["gpqa_diamond"]["rows"][2], "Question": f"How long is toy {i}?"} for i in range(60)]
    orders = []
    for rows, seed in ((source, 0), (source[::-1], 0), (source, 1)):
        world.put("gpqa_diamond", rows)
        world.sets["gpqa_diamond"]["pin"]["option_seed"] = seed
        assert world.run("gpqa_diamond")[0] == 0
        rows = world.rows("gpqa_diamond")
        orders.append({row["prompt"][0]["content"]: row["reward_model"]["ground_truth"] for row in rows})
    assert orders[0] == orders[1] and orders[0] != orders[2]
    assert set(orders[0].values()) == set("ABCD")


braced = st.recursive(
    st.text("ab\\ ^12", max_size=4),
    lambda inner: st.lists(inner.map("{{{}}}".format) | inner, max_size=3).map("".join),
    max_leaves=8,
)


@settings(deadline=None)
@given(before=st.text("a}{$\\", max_size=8), content=braced, after=st.text("a}{$ ", max_size=8))
def test_boxed_is_what_was_boxed_last(boxed, before, content, after):
    assert boxed(f"{before}\\boxed{{1}} {before}\\boxed{{{content}}}{after}") == content
    assert boxed(before + after) == "" and boxed("\\boxed{" + "{" + content) == ""


@pytest.fixture(scope="module")
def boxed():
    return load(SCRIPT, "prepare_data").boxed


# In verl


@pytest.fixture
def tokenizer(tmp_path):
    """Bytes as tokens, so that decoding gives back every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "<eos>"])}, []))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<eos>", pad_token="<eos>", chat_template=template
    )


@pytest.mark.parametrize("name", ["dapo-math-17k", "dapo-math-17k-unique", "math-3to5", "aime-2024"])
def test_verl_reads_and_rewards_the_training_files(world, import_verl, tokenizer, name):
    """RLHFDataset and the dapo reward manager: right and wrong answers, and the acc that the group filter looks at."""
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
    from verl.workers.reward_manager.dapo import DAPORewardManager

    assert world.run(name)[0] == 0
    config = OmegaConf.create(
        {"cache_dir": str(world.folder / "cache"), "max_prompt_length": 1024, "filter_overlong_prompts_workers": 1}
    )
    data = RLHFDataset(data_files=str(world.target(name)), tokenizer=tokenizer, config=config)
    batch = collate_fn([data[i] for i in range(len(data))])
    assert len(data) == len(FIXTURES[name]["answers"])
    manager = DAPORewardManager(
        tokenizer, num_examine=0, max_resp_len=64, overlong_buffer_cfg=OmegaConf.create({"enable": False})
    )

    def rewards(form: str) -> list[bool]:
        texts = ["Thus.\n" + form.format(answer) for answer in FIXTURES[name]["answers"]]
        responses = tokenizer(texts, padding=True, return_tensors="pt", padding_side="right")
        tensors = {"prompts": batch["input_ids"], "responses": responses["input_ids"]}
        tensors["attention_mask"] = torch.cat([batch["attention_mask"], responses["attention_mask"]], dim=1)
        others = {key: batch[key] for key in ("data_source", "reward_model")}
        result = manager(DataProto.from_dict(tensors=tensors, non_tensors=others), return_dict=True)
        assert result["reward_tensor"].sum(1).tolist() == [
            1.0 if acc else -1.0 for acc in result["reward_extra_info"]["acc"]
        ]
        return result["reward_extra_info"]["acc"]

    assert all(rewards("Answer: {}")) and all(rewards("Answer: ${}$")) and all(rewards("Answer: \\boxed{{{}}}"))
    assert not any(rewards("Answer: {}7")) and not any(rewards("{}")) and not any(rewards("\\boxed{{{}}}"))


# Finished, damaged, changed


def test_finished_files_are_kept_without_any_source(world):
    assert world.run()[0] == 0

    def contents():
        return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in world.out.rglob("*") if file.is_file()}

    before = contents()
    code, text = world.run(local=False)
    assert code == 0 and text.count("kept, checksum and pin match") == 12 and contents() == before


def test_a_stopped_run_goes_on_where_it_was(world, monkeypatch):
    make = world.module.make

    def stop_at_math500(name, *rest):
        if name == "math500":
            raise KeyboardInterrupt
        return make(name, *rest)

    monkeypatch.setattr(world.module, "make", stop_at_math500)
    code, text = world.run("math")
    assert code == 130 and "Finished files stay" in text and world.target("amc23").exists()
    monkeypatch.setattr(world.module, "make", make)
    code, text = world.run("math")
    assert code == 0 and text.count("kept") == 3 and text.count("(new)") == 3


@pytest.mark.parametrize(
    "harm, said",
    [
        (lambda target, lock: target.write_bytes(target.read_bytes()[:-1] + b"?"), "damaged"),
        (lambda target, lock: lock.unlink(), "no readable lock file"),
        (lambda target, lock: lock.write_text(lock.read_text().replace('"format": 1', '"format": 0')), "another pin"),
    ],
)
def test_what_is_not_whole_is_made_again(world, harm, said):
    assert world.run("amc23")[0] == 0
    good = world.rows("amc23")
    harm(world.target("amc23"), world.target("amc23").with_name("amc23.parquet.lock.json"))
    code, text = world.run("amc23")
    assert code == 0 and said in text and world.rows("amc23") == good
    assert "kept" in world.run("amc23", local=False)[1]


def test_a_new_pin_makes_the_file_again_and_a_failure_leaves_the_old_one(world):
    assert world.run("amc23")[0] == 0
    old = world.target("amc23").read_bytes()
    world.put("amc23", [{**row, "answer": 5.0} for row in FIXTURES["amc23"]["rows"]])
    code, text = world.run("amc23", local=False)
    assert code == 1 and "--offline" in text and world.target("amc23").read_bytes() == old
    code, text = world.run("amc23")
    assert code == 0 and "another pin" in text and answers(world.rows("amc23")) == ["5", "5"]


# What goes wrong


def test_one_failure_does_not_stop_the_others(world):
    world.sets["amc23"]["pin"]["rows"] = 41
    world.sets["dapo-math-17k-unique"]["pin"]["unique_rows"] = 3
    world.source("minerva").unlink()
    code, text = world.run("math", "dapo-math-17k-unique")
    assert code == 1 and "Not made: 3 of 7" in text and "each problem once: 2 rows, expected 3" in text
    assert "evaluation/data/amc23/test.jsonl: 2 rows, expected 41" in text and "minerva: --offline" in text
    assert [name for name in MATH if world.target(name).exists()] == ["aime24", "aime25", "math500", "olympiadbench"]
    assert not list(world.out.rglob("*.part"))


def test_a_source_with_another_checksum_is_refused(world):
    world.source("aime24").write_text(world.source("aime24").read_text().replace("081", "082"))
    code, text = world.run("aime24")
    assert code == 1 and not world.target("aime24").exists()
    source = world.source("aime24")
    wanted = world.sets["aime24"]["pin"]["sha256"]
    for word in (wanted, str(source), sha256(source), "https://raw.githubusercontent.com/QwenLM/"):
        assert word in text


@pytest.mark.parametrize("name, column", [("dapo-math-17k", "reward_model"), ("gpqa_diamond", "Incorrect Answer 3")])
def test_a_missing_column_is_named_with_those_found(world, name, column):
    rows = FIXTURES[name]["rows"]
    world.put(name, [{"renamed" if key == column else key: value for key, value in row.items()} for row in rows])
    code, text = world.run(name)
    assert code == 1 and f"has no column {column}; it has " in text and "renamed" in text
    assert not world.target(name).exists()


EMPTY = {
    "aime24": {"answer": ""},
    "amc23": {"answer": None},
    "minerva": {"solution": "No box."},
    "olympiadbench": {"final_answer": []},
    "arc_c": {"answerKey": "Z"},
    "mmlu_pro": {"answer": ""},
    "math-3to5": {"answer": ""},
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_row_without_an_answer_is_named(world, name):
    rows = [dict(row) for row in FIXTURES[name]["rows"]]
    rows[0] |= EMPTY[name]
    world.put(name, rows)
    code, text = world.run(name)
    count, where, wanted = (3, "[0, 1, 4]", 2) if name == "math-3to5" else (1, "[0]", 0)
    assert code == 1 and f"{count} rows have no answer, expected {wanted}; they are {where}" in text
    assert not world.target(name).exists()


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("amc23", {"answer": 2.5}, "2.5 is not a whole number"),
        ("aime24", {"answer": "many"}, "many"),
        ("mmlu_pro", {"answer": "K"}, "option 11 of 10"),
        ("mmlu_pro", {"answer": "AB"}, "row 0"),
        ("math500", {"problem": None}, "row 0"),
    ],
)
def test_a_bad_row_is_named(world, name, change, said):
    rows = [dict(row) for row in FIXTURES[name]["rows"]]
    rows[0] |= change
    world.put(name, rows)
    code, text = world.run(name)
    assert code == 1 and "row 0 (from 0)" in text and said in text


@pytest.mark.parametrize("name", ["math500", "gpqa_diamond", "math-3to5", "arc_c"])
def test_a_file_in_another_format(world, name):
    """As when a pin names a page that explains why the file is missing. The other sets are made."""
    world.source(name).write_bytes(b"\0\xff" * 500)
    world.sets[name]["pin"]["sha256"] = sha256(world.source(name))
    code, text = world.run(name, "aime24")
    assert code == 1 and f"{world.source(name)} cannot be read as {world.sets[name]['pin']['format']}: " in text
    assert world.target("aime24").exists() and not world.target(name).exists()


def test_a_problem_that_is_there_twice_is_noted(world):
    rows = FIXTURES["math500"]["rows"]
    world.put("math500", [*rows, {**rows[0], "unique_id": "again"}])
    code, text = world.run("math500")
    assert code == 0 and "math500: 1 prompts are in several rows, all kept: [0, 2]" in text
    assert len(world.rows("math500")) == 3


def test_unknown_names_are_all_named(world):
    code, text = world.run("aime24", "aime26", "options")
    assert code == 2 and "unknown: aime26, options." in text and "gpqa_diamond" in text and not world.out.exists()


def test_python_without_datasets(world, monkeypatch):
    monkeypatch.setattr(world.module.importlib.util, "find_spec", lambda name: None)
    code, text = world.run("aime24")
    assert code == 2 and "has no package `datasets`" in text and not world.out.exists()


def test_out_that_cannot_be_written(world):
    world.out.write_text("a file")
    code, text = world.run("aime24")
    assert code == 2 and f"--out {world.out} cannot be written to" in text and "Nothing was changed" in text
    assert world.out.read_text() == "a file"


def test_offline_without_any_file(world):
    code, text = world.run(local=False)
    assert code == 1 and "Not made: 12 of 12" in text
    for name, entry in world.sets.items():
        if entry["group"] != "option":
            assert world.module.address(entry["pin"]) in text, name


def test_groups(world):
    chosen = functools.partial(world.module.chosen, sets=world.sets)
    assert chosen(["math"]) == MATH and chosen(["ood"]) == OOD
    assert chosen(["train"]) == ["dapo-math-17k", "math-3to5", "aime-2024"]
    everything = [name for name in SETS if name != "dapo-math-17k-unique"]
    assert chosen(["ood", "all", "arc_c"]) == chosen(["train", "math", "ood"]) == everything


def test_local_files_by_checksum_or_by_the_sets_name(world):
    world.source("aime24").rename(world.folder / "whatever.dat")
    world.source("amc23").rename(world.sources / "amc23.jsonl")
    world.source("minerva").rename(world.sources / "test.jsonl")
    more = ("--offline", "--local", str(world.folder / "whatever.dat"))
    code, text = world.run("aime24", "amc23", "minerva", more=more)
    assert code == 0, text


def test_a_file_that_is_named_is_never_passed_over_silently(world):
    name, other = "aime24", world.folder / "test.jsonl"
    other.write_text("{}")
    code, text = world.run(name, local=False, more=("--offline", "--local", str(other)))
    *_, note, head, failure = text.splitlines()
    assert code == 1 and head.startswith("Not made: 1 of 1") and world.sets[name]["pin"]["sha256"] in failure
    assert note.startswith(f"note: --local: {other} has {sha256(other)}") and "not used" in note
    code, text = world.run(name, more=("--offline", "--local", str(other), str(world.source(name))))
    assert code == 0 and str(other) in text and str(world.source(name)) not in text
    code, text = world.run(name, local=False, more=("--offline", "--local", str(world.source("minerva"))))
    assert code == 0 and f"{world.source('minerva')} has " in text  # a source, but of a set that was not asked for


# Contamination


def test_a_benchmark_problem_in_a_training_set_is_noted(world):
    taken = "Find   the least toy prime ."
    world.put("math-3to5", [*FIXTURES["math-3to5"]["rows"], {**FIXTURES["math-3to5"]["rows"][0], "problem": taken}])
    code, text = world.run("math-3to5", "math", "aime-2024")
    assert code == 0
    assert [line for line in text.splitlines() if "contamination" in line] == [
        "note: contamination: math-3to5.parquet holds 1 of the 2 problems of aime24 word for word"
    ]


# Downloads, from a server on this machine


@pytest.fixture
def server():
    """Serves `files` (path to bytes) as GitHub and, under /datasets/, the hub do; /datasets/Idavidrein is gated."""
    files = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path.partition("?")[0])
            gated = self.path.startswith("/datasets/Idavidrein") or self.path.startswith("/api/datasets/Idavidrein")
            self.send_response(401 if gated else 200 if body is not None else 404)
            if gated:
                self.send_header("X-Error-Code", "GatedRepo")
            elif body is not None and "/resolve/" in self.path:
                self.send_header("X-Repo-Commit", self.path.split("/resolve/")[1].split("/")[0])
                self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", files
    http.shutdown()
    http.server_close()


def test_download_from_github(world, server, monkeypatch):
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", world.folder / "downloads")
    url, files = server
    monkeypatch.setattr(world.module, "GITHUB", url)
    pin = world.sets["aime24"]["pin"]
    place = f"/{pin['github']}/{pin['revision']}/{pin['path']}"
    code, text = world.run("aime24", local=False, more=())
    assert code == 1 and "(404)" in text and pin["sha256"] in text and text.count(f"{url}{place}") == 1
    files[place] = world.source("aime24").read_bytes()[:-9]
    code, text = world.run("aime24", local=False, more=())
    assert code == 1 and pin["sha256"] in text and "It is not used. Delete " in text
    assert not world.target("aime24").exists()
    Path(re.search(r"Delete (\S+) and run", text)[1]).unlink()
    files[place] = world.source("aime24").read_bytes()
    code, text = world.run("aime24", local=False, more=())
    assert code == 0 and answers(world.rows("aime24")) == ["81", "2"], text


@pytest.mark.parametrize("name", ["aime24", "arc_c"])
def test_no_network(world, monkeypatch, name):
    """A port where nobody listens: the message does not call the file gone, and has its address once."""
    import huggingface_hub

    nobody = "http://127.0.0.1:1"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(world.module, "GITHUB", nobody)
    monkeypatch.setattr(world.module, "HUB", nobody)
    download = functools.partial(huggingface_hub.hf_hub_download, endpoint=nobody, cache_dir=world.folder / "hub")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    code, text = world.run(name, local=False, more=())
    assert code == 1 and "could not be reached or stored (ConnectionRefusedError: " in text
    assert "when there is a network" in text and "404" not in text and "FileNotFound" not in text
    assert text.count(world.module.address(world.sets[name]["pin"])) == 1


@pytest.mark.slow
def test_download_from_the_hub(world, server):
    """In a process of its own: the hub's address is read when its library is imported."""
    url, files = server
    pin = world.sets["arc_c"]["pin"]
    files[f"/datasets/{pin['hub']}/resolve/{pin['revision']}/{pin['path']}"] = world.source("arc_c").read_bytes()
    (world.folder / "prepare_data.py").write_bytes(SCRIPT.read_bytes())
    (world.folder / "datasets.json").write_text(json.dumps(world.sets))
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    env |= {"HF_ENDPOINT": url, "HF_HOME": str(world.folder / "home"), "HF_HUB_DISABLE_XET": "1"}

    def run(*names):
        command = [sys.executable, world.folder / "prepare_data.py", *names, "--out", world.out]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)

    result = run("arc_c", "gpqa_diamond", "mmlu_pro")
    assert result.returncode == 1 and "Not made: 2 of 3" in result.stderr and "Traceback" not in result.stderr
    assert answers(world.rows("arc_c")) == ["B", "C", "E"]
    gated = ("Idavidrein/gpqa is gated", "accept its conditions", "huggingface-cli login", "HF_TOKEN")
    for word in (*gated, "mmlu_pro: its server says that there is no"):
        assert word in result.stderr
    world.target("arc_c").unlink()
    again = run("arc_c", "--offline")
    assert again.returncode == 0, "from the hub's cache: " + again.stderr
