# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Links in the documents lead to files that git tracks, make has the targets that they name, and their tables are the
code's."""

import re
import subprocess

from helpers import runs_of

from tools import declared


def tracked(project_root):
    listing = subprocess.run(["git", "ls-files"], cwd=project_root, capture_output=True, text=True, check=True)
    return set(listing.stdout.splitlines())


def test_relative_links_lead_to_tracked_files(project_root):
    files = tracked(project_root)
    links = [
        (page, link)
        for page in files
        if page.endswith((".md", ".ipynb"))
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (project_root / page).read_text())
    ]
    assert len(links) > 20
    broken = [
        f"{page}: {link}"
        for page, link in links
        if str((project_root / page).parent.joinpath(link).resolve().relative_to(project_root)) not in files
    ]
    assert broken == []


def test_the_site_leads_to_every_page(project_root):
    named = re.findall(r": (\S+\.md)$", (project_root / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(
        page for page in tracked(project_root) if page.endswith(".md") and not page.startswith("records/")
    )


def test_make_has_every_target_that_the_documents_name(project_root):
    makefile = (project_root / "Makefile").read_text()
    known = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].replace("\\\n", " ").split())
    paper = (project_root / "recipes/paper.sh").read_text()
    known |= set(re.findall(r"(?:llm|vision|control)-[\w.-]+", makefile + paper))
    known |= {target for subject in ("llm", "vision", "control") for target in runs_of(subject)}
    named = [
        (page, target)
        for page in tracked(project_root)
        if page.endswith(".md") and page != "CHANGELOG.md"
        for code in re.findall(r"^```.*?^```|`[^`\n]+`", (project_root / page).read_text(), re.MULTILINE | re.DOTALL)
        for target in re.findall(r"(?:^|`|&& )make ([a-z][\w.-]*)", code, re.MULTILINE)
    ]
    assert len(named) > 50
    assert [f"{page}: make {target}" for page, target in named if target not in known and "..." not in target] == []


def test_the_tests_that_the_table_of_places_names_are_there(project_root):
    places = (project_root / "CONTRIBUTING.md").read_text().partition("## Where things are")[2]
    named = re.findall(r"`((?:[a-z0-9_]+/)*test_[a-z0-9_]+\.py)`", places)
    assert len(named) > 30 and [name for name in named if not (project_root / "tests" / name).exists()] == []


def test_the_pages_have_the_tables_that_the_code_declares():
    """If they do not, run python -m tools.declared."""
    for file, text in declared.pages().items():
        assert file.read_text() == text, file
