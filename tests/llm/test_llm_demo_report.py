"""The findings, table and picture of the demo follow the curves, whatever these are."""

import json

import pytest

from demo.llm import chain, report
from demo.llm.config import Settings

INFO = {
    "seconds": 60.0,
    "peak_memory_bytes": 3e9,
    "machine": {"cpu": "none", "cores": 2, "system": "none", "versions": {}},
}


def arm(entropies, scaled=None, reward=0.9, distinct=2.0):
    scaled = scaled or [0.0] * len(entropies)
    steps = [
        dict(step=i, response_entropy=h, reward=reward, distinct_right=distinct, scaled_token_fraction=s)
        for i, (h, s) in enumerate(zip(entropies, scaled), 1)
    ]
    validations = [dict(step=len(steps), pass_at_1=0.9, pass_at_32=1.0, distinct_right=4.0)]
    return report.Arm(steps, validations, INFO)


def falling(to: float, steps: int = 40) -> list[float]:
    return [2.2 + (to - 2.2) * min(1.0, i / (steps / 2)) for i in range(steps)]


ACTED = [0.0] * 20 + [0.3] * 20


@pytest.mark.parametrize(
    "grpo_end, era_end, scaled, says, does_not_say",
    [
        (0.1, 0.7, ACTED, "above omega_low", "does not appear"),
        (0.1, 0.5, ACTED, "did not hold omega_low", "above omega_low"),
        (0.1, 0.1, ACTED, "does not appear", "above omega_low"),
        (0.1, 0.05, ACTED, "does not appear", "above omega_low"),
        (1.5, 1.6, ACTED, "no collapse", "fell from"),
        (1.5, 1.5, None, "nothing about ERA yet: leave STEPS out for the usual 150", "fell from"),
    ],
)
def test_findings_follow_the_curves(grpo_end, era_end, scaled, says, does_not_say):
    text = " ".join(report.findings(Settings(steps=40), arm(falling(grpo_end)), arm(falling(era_end), scaled)))
    assert says in text and does_not_say not in text
    if scaled:
        assert "step 21" in text and "does not show that ERA raises the reward" in text


@pytest.mark.parametrize("task", chain.TASKS)
def test_findings_know_every_task(task):
    assert report.findings(Settings(task, steps=40), arm(falling(0.1)), arm(falling(0.7), ACTED))


def test_findings_quote_the_last_steps_not_the_last_step():
    grpo, era = arm(falling(0.1)), arm([*falling(0.7)[:-1], 9.9], ACTED)
    assert "1.62" in report.findings(Settings(steps=40), grpo, era)[0]  # (9 x 0.7 + 9.9) / 10


def test_table_has_a_row_per_quantity_and_averages_the_steps_there_are():
    lines = report.table({"grpo": arm(falling(0.1)), "era": arm(falling(0.7), ACTED)}).splitlines()
    assert lines[0].split() == ["GRPO", "ERA"] and len({len(line) for line in lines}) == 1
    assert next(line for line in lines if "entropy, last 10" in line).split()[-2:] == ["0.100", "0.700"]
    short = arm([2.0, 1.0])
    assert short.last("response_entropy") == 1.5 and short.around("response_entropy", 1) == 2.0
    assert "last 2 steps" in report.table({"grpo": short, "era": short})


def test_summary_is_json_and_keeps_to_the_steps_there_are():
    arms = {"grpo": arm(falling(0.1)), "era": arm(falling(0.7), ACTED)}
    summary = json.loads(json.dumps(report.summary(Settings(steps=40), arms, ["a"])))
    assert summary["omega_low"] == Settings().omega_low
    assert list(summary["arms"]["era"]["response entropy at step"]) == ["1"]
