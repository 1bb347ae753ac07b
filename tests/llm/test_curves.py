import json
import math

from demo.llm import curves
from demo.runner.tables import write_csv


def answer(output, right=1.0):
    return {"output": output, "right": right}


def test_distinct_right_counts_each_right_answer_once():
    assert curves.distinct_right([answer("a"), answer("a"), answer("b"), answer("c", 0.0)]) == 2
    assert curves.distinct_right([answer("a", 0.0)]) == 0


def test_groups_keep_two_prompts_apart_that_ask_the_same(tmp_path):
    dump = tmp_path / "1.jsonl"
    texts = ["+187+188+189+190", "+187+188+189+190", "-779-772+779-772", "-779-772+779-773"]
    dump.write_text("".join(json.dumps({"input": "86=", "output": text}) + "\n" for text in texts))
    assert [curves.distinct_right(group) for group in curves.groups(dump, 2, "chain")] == [1, 1]


def test_validation_row():
    row = curves.validation_row(7, [[answer("a"), answer("b")], [answer("a", 0.0), answer("b", 0.0)]])
    assert row == {"step": 7, "pass_at_1": 0.5, "pass_at_32": 0.5, "distinct_right": 1.0}


def test_validation_before_training_is_not_a_step(tmp_path):
    assert curves.step_row(tmp_path, {"step": 0, "data": {"val-core/chain/reward/mean@32": 0.4}}, "chain") is None


def test_a_step_without_a_number_is_nan(tmp_path):
    """The metrics file has null for NaN, which a diverged run logs."""
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts/3.jsonl").write_text(json.dumps({"input": "86=", "output": "+187+188+189+190"}) + "\n")
    data = dict.fromkeys(curves._METRICS.values(), 0.5) | {"era/rest_entropy": None}
    row = curves.step_row(tmp_path, {"step": 3, "data": data}, "chain")
    assert (row["step"], row["reward"], row["distinct_right"]) == (3, 0.5, 1)
    write_csv(tmp_path / "a.csv", [row])
    [again] = curves.read_csv(tmp_path / "a.csv")
    assert math.isnan(again.pop("rest_entropy")) and math.isnan(row.pop("rest_entropy")) and again == row
