"""The documents point at files that a clone has."""

import re
import subprocess


def test_relative_links_lead_to_tracked_files(project_root):
    tracked = set(
        subprocess.run(
            ["git", "ls-files"], cwd=project_root, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    )
    pages = [name for name in tracked if name.endswith(".md")]
    links = [
        (name, link)
        for name in pages
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (project_root / name).read_text())
    ]
    targets = {
        (name, link): str((project_root / name).parent.joinpath(link).resolve().relative_to(project_root.resolve()))
        for name, link in links
    }
    assert len(links) > 20
    assert [link for link, target in targets.items() if target not in tracked] == []
