"""Links in the documents lead to files that git tracks."""

import re
import subprocess


def test_relative_links_lead_to_tracked_files(project_root):
    listing = subprocess.run(["git", "ls-files"], cwd=project_root, capture_output=True, text=True, check=True)
    tracked = set(listing.stdout.splitlines())
    links = [
        (page, link)
        for page in tracked
        if page.endswith(".md")
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (project_root / page).read_text())
    ]
    assert len(links) > 20
    broken = [
        f"{page}: {link}"
        for page, link in links
        if str((project_root / page).parent.joinpath(link).resolve().relative_to(project_root)) not in tracked
    ]
    assert broken == []
