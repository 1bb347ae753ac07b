# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes.llm.data on small invented sets that have the columns and the file format of each real source."""

import copy
import csv
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

datasets = pytest.importorskip("datasets")
import huggingface_hub  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from recipes.llm import data  # noqa: E402

FIXTURES = json.loads((Path(__file__).parent / "data_fixtures/rows.json").read_text())
MATH = ["aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"]
OOD = ["arc_c", "gpqa_diamond", "mmlu_pro"]
TRAIN = ["dapo-math-17k", "math-3to5", "aime-2024"]


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


class World:
    """The hub and GitHub as a folder of small files, pins for these, and the command with its output."""

    def __init__(self, folder: Path, monkeypatch, capsys):
        self.folder, self.out, self.capsys = folder, folder / "out", capsys
        self.sets, self.downloads = copy.deepcopy(data.SETS), []
        for name in self.sets:
            self.put(name, FIXTURES[name]["rows"])
        monkeypatch.setattr(data, "SETS", self.sets)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.from_hub)
        upstream = datasets.DownloadManager.download

        def download(manager, urls):  # load_dataset "downloads" local files with it, too
            return self.from_github(urls) if isinstance(urls, str) else upstream(manager, urls)

        monkeypatch.setattr(datasets.DownloadManager, "download", download)

    def from_hub(self, repository: str, path: str, *, repo_type: str, revision: str) -> Path:
        assert repo_type == "dataset"
        return self.source(repository, revision, path)

    def from_github(self, url: str) -> Path:
        owner, name, revision, path = url.removeprefix("https://raw.githubusercontent.com/").split("/", 3)
        return self.source(f"{owner}/{name}", revision, path)

    def source(self, *place: str) -> Path:
        file = self.folder.joinpath("sources", *place)
        self.downloads.append(file)
        if not file.exists():
            raise FileNotFoundError(f"404: {'/'.join(place)}")
        return file

    def source_of(self, name: str) -> Path:
        pin = self.sets[name]["pin"]
        return self.folder / "sources" / (pin.get("hub") or pin["github"]) / pin["revision"] / pin["path"]

    def put(self, name: str, rows: list[dict]) -> None:
        """Writes a set's source file and pins its checksum."""
        pin = self.sets[name]["pin"]
        write(self.source_of(name), pin["format"], rows)
        pin["sha256"] = hashlib.sha256(self.source_of(name).read_bytes()).hexdigest()

    def run(self, *words: str) -> tuple[int, str]:
        code = data.main([*words, "--out", str(self.out)])
        captured = self.capsys.readouterr()
        return code, captured.out + captured.err

    def target(self, name: str) -> Path:
        return self.out / self.sets[name]["file"]

    def rows(self, name: str) -> list[dict]:
        return pq.read_table(self.target(name)).to_pylist()

    def made(self) -> list[str]:
        return [name for name in self.sets if self.target(name).exists()]


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
    assert {name: entry["pin"]["rows"] for name, entry in data.SETS.items()} == ROWS
    text = (project_root / "docs/llm/data.md").read_text()
    for name, entry in data.SETS.items():
        pin = entry["pin"]
        assert re.fullmatch("[0-9a-f]{40}", pin["revision"]) and re.fullmatch("[0-9a-f]{64}", pin["sha256"])
        assert ("hub" in pin) != ("github" in pin)
        assert entry["checksum_from"] == ("the bytes" if name in MATH else "public records")
        assert entry["file"] == (f"eval/{name}.parquet" if name in MATH + OOD else f"{name}.parquet")
        made = pin.get("unique_rows", pin["rows"] - pin.get("without_answer", 0))
        source = f"hub: {pin['hub']}" if "hub" in pin else f"GitHub: {pin['github']}"
        assert f"| `{name}` | {made:,} | {source} | {entry['license']} |" in text


# What is made


def test_all_sets(world):
    code, text = world.run("all", "dapo-math-17k-unique")
    assert code == 0 and world.made() == list(world.sets), text
    for name in world.sets:
        rows = world.rows(name)
        if FIXTURES[name]["answers"]:
            assert answers(rows) == FIXTURES[name]["answers"], name
        for row in rows:
            assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
            assert [message["role"] for message in row["prompt"]] == ["user"]
    for name in ("dapo-math-17k", "aime-2024"):
        assert world.target(name).read_bytes() == world.source_of(name).read_bytes(), "published files keep every byte"
    assert world.rows("dapo-math-17k-unique") == FIXTURES["dapo-math-17k"]["rows"][:2]
    assert [row["extra_info"]["index"] for row in world.rows("math-3to5")] == [0, 2, 3, 5], "two have no answer"


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
                given = [value.strip() for key, value in source.items() if "Answer" in key]
                assert Counter(text for _, text in options) == Counter(given)
        with pytest.raises(Exception, match="Reward function is not implemented"):
            default_compute_score(row["data_source"], "Answer: 1", "1")


def test_gpqa_order_depends_only_on_seed_and_question(world):
    source = [{**FIXTURES["gpqa_diamond"]["rows"][2], "Question": f"How long is toy {i}?"} for i in range(60)]
    orders = []
    for rows, seed in ((source, 0), (source[::-1], 0), (source, 1)):
        world.put("gpqa_diamond", rows)
        world.sets["gpqa_diamond"]["pin"]["option_seed"] = seed
        world.target("gpqa_diamond").unlink(missing_ok=True)
        assert world.run("gpqa_diamond")[0] == 0
        rows = world.rows("gpqa_diamond")
        orders.append({row["prompt"][0]["content"]: row["reward_model"]["ground_truth"] for row in rows})
    assert orders[0] == orders[1] and orders[0] != orders[2]
    assert set(orders[0].values()) == set("ABCD")


# In verl


@pytest.fixture
def tokenizer():
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
    examples = RLHFDataset(data_files=str(world.target(name)), tokenizer=tokenizer, config=config)
    batch = collate_fn([examples[i] for i in range(len(examples))])
    assert len(examples) == len(FIXTURES[name]["answers"])
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
        right = result["reward_extra_info"]["acc"]
        assert result["reward_tensor"].sum(1).tolist() == [1.0 if acc else -1.0 for acc in right]
        return right

    assert all(rewards("Answer: {}")) and all(rewards("Answer: ${}$")) and all(rewards("Answer: \\boxed{{{}}}"))
    assert not any(rewards("Answer: {}7")) and not any(rewards("{}")) and not any(rewards("\\boxed{{{}}}"))


# The command


def test_groups():
    """dapo-math-17k-unique is an option: `all` leaves it out. A name that is not a set ends the command."""
    groups = {"train": TRAIN, "math": MATH, "ood": OOD, "all": TRAIN + MATH + OOD, "amc23": ["amc23"]}
    for group, names in groups.items():
        assert data.sets_named(group) == names
    with pytest.raises(SystemExit):
        data.main(["aime26"])


def test_files_that_are_there_are_kept(world):
    assert world.run("amc23")[0] == 0
    first, world.downloads = world.target("amc23").read_bytes(), []
    world.put("amc23", [{**row, "answer": 5.0} for row in FIXTURES["amc23"]["rows"]])
    assert world.run("amc23")[0] == 0 and world.target("amc23").read_bytes() == first and world.downloads == []
    world.target("amc23").unlink()
    assert world.run("amc23")[0] == 0 and answers(world.rows("amc23")) == ["5", "5"]


def test_a_failure_stops_no_other_set_and_leaves_no_file(world, monkeypatch):
    """A source that is not there, one whose bytes are not the pinned ones, and one that cannot be written whole."""
    world.source_of("amc23").unlink()
    world.source_of("minerva").write_bytes(world.source_of("minerva").read_bytes() + b"\n")
    whole = datasets.Dataset.to_parquet

    def to_parquet(rows, file):
        if "math500" not in file:
            return whole(rows, file)
        Path(file).write_bytes(b"PAR1")
        raise OSError("No space left on device")

    monkeypatch.setattr(datasets.Dataset, "to_parquet", to_parquet)
    code, text = world.run("math")
    assert code == 1 and world.made() == ["aime24", "aime25", "olympiadbench"]
    for said in ("404: QwenLM", world.sets["minerva"]["pin"]["sha256"], "No space left"):
        assert said in text
