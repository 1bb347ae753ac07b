"""What the pages of docs/rivals/ show is what the records say."""

import pytest
from scipy import stats

from rivals import control, records, report


def test_the_pages_have_the_tables_of_the_records():
    """Else: python -m rivals.report."""
    for file, text in report.pages().items():
        assert file.read_text() == text, file


def test_a_table_without_a_place_is_an_error():
    page = "before\n<!-- table one -->\nold\n<!-- end -->\nafter\n"
    assert report.filled(page, {"one": "| new |"}) == "before\n<!-- table one -->\n| new |\n<!-- end -->\nafter\n"
    with pytest.raises(ValueError, match="two"):
        report.filled(page, {"one": "", "two": ""})


def test_control_arms(tmp_path, monkeypatch):
    """Means over the last ten evaluations of each seed, and Welch's interval of PPO-ERA's difference."""
    returns = {"ppo": [1000.0, 2000.0], "ppo_era": [5000.0, 5600.0]}
    for agent, seeds in returns.items():
        for seed, end in enumerate(seeds, start=1):
            folder = tmp_path / f"records/control-ppo/HalfCheetah-v4-{agent}-seed{seed}"
            folder.mkdir(parents=True)
            rows = [f"{step},{0 if step < 5 else end + step - 9.5},{-0.3 * seed},0.25\n" for step in range(15)]
            (folder / "train.csv").write_text("".join(["global_step,eval_avg_return,entropy_per_dim,clipped\n", *rows]))
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    found = stats.ttest_ind(returns["ppo_era"], returns["ppo"], equal_var=False).confidence_interval()
    difference = f"**+3,800 ({found.low:+,.0f} to {found.high:+,.0f})**"
    table = control.ppo_table("sigma", {"ppo": "PPO", "ppo_constant": "no runs yet", "ppo_era": "ERA"})
    assert table.splitlines()[2:] == [
        f"| PPO | 1,000, 2,000 | 1,500 | {difference} | -0.30, -0.60 | 25 %, 25 % |",
        "| ERA | 5,000, 5,600 | 5,300 | - | -0.30, -0.60 | 25 %, 25 % |",
    ]
