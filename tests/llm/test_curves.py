# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import json
import math

from demo.llm import config, curves

RIGHT, OTHER, WRONG = "+187+188+189+190", "-779-772+779-772", "-779-772+779-773"


def write(file, prompts):
    """prompts: the answers to each."""
    file.parent.mkdir(exist_ok=True)
    rows = [{"input": "86=", "output": text} for answers in prompts for text in answers]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_equal_prompts_stay_apart_and_a_right_answer_counts_once(tmp_path):
    dump = write(tmp_path / "1.jsonl", [[RIGHT, RIGHT, OTHER, WRONG], [OTHER, OTHER, WRONG, WRONG], [WRONG] * 4])
    found = curves.by_prompt(dump, 4, "chain")
    assert found["distinct"].tolist() == [2, 1, 0] and found["right"].tolist() == [0.75, 0.5, 0]


def test_answers_that_look_like_numbers_stay_texts(tmp_path):
    assert curves.by_prompt(write(tmp_path / "1.jsonl", [["+187", "0187"]]), 2, "chain")["right"].tolist() == [0]


def test_validations_in_the_order_of_their_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "VALIDATION_ANSWERS", 2)
    write(tmp_path / "validation/10.jsonl", [[RIGHT, OTHER], [WRONG, WRONG]])
    write(tmp_path / "validation/9.jsonl", [[RIGHT, WRONG], [RIGHT, RIGHT]])
    assert curves.validations(tmp_path, "chain").to_dict("records") == [
        {"step": 9, "pass_at_1": 0.75, "pass_at_2": 1.0, "distinct_right": 1.0},
        {"step": 10, "pass_at_1": 0.5, "pass_at_2": 0.5, "distinct_right": 1.0},
    ]


def test_steps_have_verls_metrics_without_the_validation_before_training(tmp_path):
    """verl writes null for NaN; a last line may be half written."""
    assert curves.metrics(tmp_path).empty
    step = dict.fromkeys(curves.METRICS.values(), 0.1) | {"era/rest_entropy": None}
    lines = [{"step": 0, "data": {"val-core/chain/reward/mean@32": 0.4}}, {"step": 3, "data": step}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / curves.METRICS_FILE).write_text(text + '{"step": 4, "da')
    write(tmp_path / "rollouts/3.jsonl", [[RIGHT]])
    (row,) = curves.steps(tmp_path, "chain").to_dict("records")
    assert (row["step"], row["reward"], row["distinct_right"]) == (3, 0.1, 1) and math.isnan(row["rest_entropy"])
