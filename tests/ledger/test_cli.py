# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The command line: list, collect and report; `run` has its own file."""

import subprocess
import sys

import pytest
import synthetic

from ledger import cli
from ledger.paper import ROOT


def call(capsys, *words):
    code = cli.main(list(map(str, words)))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_list_has_a_line_for_each_row(paper, places, capsys):
    code, printed, _ = call(capsys, "list")
    rows = {entry.row for entry in paper.entries.values()}
    assert code == 0 and f"{len(rows)} rows, 324 entries. Nothing has been collected yet" in printed
    assert {line.split()[0] for line in printed.splitlines()[:-2]} == rows
    assert any(line.split()[:3] == ["hb-fasttd3", "x", "8"] for line in printed.splitlines())


def test_list_chooses(paper, places, capsys):
    _, printed, _ = call(capsys, "list", "--place", "main_results", "--domain", "vision")
    assert "cifar10-gain" in printed and "main-era" not in printed
    _, printed, _ = call(capsys, "list", "--state", "cannot run")
    assert {line.split()[0] for line in printed.splitlines()[:-2]} == {"eapo", "mnse", "obac", "obac-era"}
    _, printed, _ = call(capsys, "list", "--place", "teaser")
    assert "fig:teaser_llm: the same as tab:main_results" in printed
    code, _, errors = call(capsys, "list", "--place", "foo")
    assert code == 2 and "no table or figure has 'foo'" in errors
    for wrong in (["list", "--state", "foo"], ["run", "ppo", "--dry-run", "--seeds", "1", "-2"]):
        with pytest.raises(SystemExit):
            call(capsys, *wrong)


def test_list_of_one_says_all_about_it(paper, places, capsys):
    _, printed, _ = call(capsys, "list", "main-era")
    for words in (
        "tab:main_results",
        "aime24 37.5",
        "average within the tolerance",
        "make llm-stage1",
        "main-era: not",
    ):
        assert words in " ".join(printed.split())
    _, printed, _ = call(capsys, "list", "ppo-era/Ant-v4")
    assert "claim ppo-era: ppo-era higher than ppo." in printed and "TASKS=Ant-v4 make control-ppo" in printed
    assert call(capsys, "list", "ppo-er")[0] == 2


def test_collect_says_what_it_found_and_list_shows_the_states(paper, places, capsys):
    folder = places / "results/control"
    for seed in range(1, 6):
        synthetic.control_run(folder / f"Ant-v4-ppo-seed{seed}")
        synthetic.control_run(folder / f"Ant-v4-ppo_era-seed{seed}", as_paper=seed != 5)
    code, printed, errors = call(capsys, "collect")
    assert code == 0 and "10 results, 9 used" in printed and "Ant-v4-ppo_era-seed5: was not trained as" in errors
    _, printed, _ = call(capsys, "list", "ppo-era")
    assert "ppo-era/Ant-v4: partial" in printed and "ppo-era/Hopper-v4: not run" in printed
    _, printed, _ = call(capsys, "list", "--state", "partial")
    assert "3 not run, 1 partial" in printed


def test_report_collects_and_writes_the_pages(paper, places, capsys, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("copies")
    synthetic.timm_run(elsewhere / "cifar10-seed42")
    code, printed, _ = call(capsys, "report", elsewhere)
    assert code == 0 and "results/report/index.html" in printed
    assert "3 partial" in printed  # the row, its gain, and a baseline of a figure
    assert (places / "results/report/index.html").is_file() and (places / "results/report/report.md").is_file()


def test_the_results_that_came_with_the_repository_are_collected(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "COLLECTED", tmp_path / "results/collected.csv")
    monkeypatch.setenv("HOME", str(tmp_path))
    code, printed, _ = call(capsys, "collect")
    assert code == 0 and "7 partial" in printed


def test_a_folder_that_is_not_there_is_named(places, capsys, tmp_path):
    code, _, errors = call(capsys, "collect", tmp_path / "none")
    assert code == 2 and errors == f"error: not a folder: {tmp_path}/none\n"


def test_a_full_disk_is_a_sentence(places, capsys):
    (places / "results").write_text("a file in the way")
    code, _, errors = call(capsys, "collect")
    assert code == 2 and errors.startswith("error: ") and "Traceback" not in errors


@pytest.mark.parametrize("words", [["list", "main-era"], ["run", "main-era", "--dry-run"], ["--help"]])
def test_list_and_run_need_the_standard_library_alone(words):
    """They run on the login node of a cluster."""
    code = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'pandas', 'scipy', 'matplotlib', 'jinja2')))\n"
    code += "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-c", code, str(ROOT / "reproduce.py"), *words]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0 and answer.stdout, answer.stderr
