"""What the engine is shot at: a world with a project, a cache and a clone that can be put back as it was.

A world is looked at with plain git and plain reads only, never with the engine's own code.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

from kit import Project, branch, content, git, replace_in

HERE = Path(__file__).resolve().parent
SAVED = ("project", "cache", "clone", "kept")  # what a run may change
MINE = "mine, and nobody else's\n"
PORTED = "era-port/other"


@dataclasses.dataclass(frozen=True)
class Scene:
    """A verb in a situation, which `prepare` makes. `argv` is the run that is shot at."""

    title: str
    argv: tuple[str, ...]
    names: tuple[str, ...] = ("alpha", "beta")
    given: bool = False  # alpha is the user's own clone
    code: int = 0  # of a run that nothing disturbs


ALPHA = ("alpha",)
SCENES = (
    Scene("fetch from git", ("fetch", "alpha", "--source", "git"), ALPHA),
    Scene("fetch of a source package", ("fetch", "alpha", "--source", "{index}/alpha-1.0.tar.gz"), ALPHA),
    Scene("apply, no checkout yet", ("apply", "--offline")),
    Scene("apply, stale, with edits", ("apply", "--offline")),
    Scene("apply, own clone", ("apply", "alpha", "--offline"), ALPHA, given=True),
    Scene("revert", ("revert",)),
    Scene(
        "revert, own clone, edits kept", ("revert", "alpha", "--keep-edits", "{kept}/edits.patch"), ALPHA, given=True
    ),
    Scene("export", ("export", "alpha"), ALPHA),
    Scene("port", ("port", "alpha", "--onto", "other"), ALPHA, code=4),
    Scene("port --write", ("port", "alpha", "--onto", "other", "--write", "--offline"), ALPHA, code=4),
)


def prepare(world: World, scene: Scene) -> None:
    project, kind = world.project, scene.title
    if kind.startswith("fetch"):
        return
    project.run("fetch")
    if kind == "port":  # one patch, which conflicts: git am makes calls enough of it
        project.patch(2).unlink()
        branch(project, "other", replace_in("src/core.py", "line 20 of", "line 20, another, of"))
    if kind == "port --write":  # the first patch fits there, the second does not
        branch(project, "other", replace_in("src/core.py", "line 40 of", "line 40, another, of"))
    if kind in ("apply, no checkout yet", "port"):
        return
    if scene.given:
        world.make_clone()
    if kind == "apply, own clone":
        return
    project.run("apply", *(("alpha", *world.place(scene)) if scene.given else ()))
    checkout = world.checkout("alpha", scene)
    if kind == "port --write":
        project.run("port", "alpha", "--onto", "other", code=4)
    if kind in ("apply, stale, with edits", "port --write"):
        world.write(checkout / "README.md")
        world.write(checkout / "notes.txt")
    if kind == "apply, stale, with edits":
        make_stale(project.root / "overlays")
        git(checkout, "add", "README.md")
        git(checkout, "branch", "side", "upstream/v1")
    if kind == "revert, own clone, edits kept":
        world.write(checkout / "notes.txt")
        (checkout / "src/util.py").write_text(MINE)
        (checkout / "src/old.py").unlink()
    if kind == "export":
        (checkout / "README.md").write_text(MINE)
        (checkout / "src/util.py").write_text(MINE)
        (checkout / "src/era.py").unlink()
        (checkout / "src/era2.py").write_text(MINE)
        world.keep.update({checkout / name: MINE.encode() for name in ("README.md", "src/util.py", "src/era2.py")})
        project.commit()


def make_stale(overlays: Path) -> None:
    """The overlay has changed since: files changed, added, removed."""
    (overlays / "alpha/src/era.py").write_text("ERA = 2\n" * 500)
    (overlays / "alpha/deep/er").mkdir(parents=True)
    (overlays / "alpha/deep/er/new.py").write_text("x = 1\n")
    (overlays / "alpha/tools/go.sh").unlink()
    (overlays / "beta").mkdir(exist_ok=True)
    (overlays / "beta/new.py").write_text("y = 1\n")


class World:
    """A folder with a project, its cache, a user's clone and the patches that were kept; `reset` puts it back."""

    def __init__(self, project: Project, scene: Scene):
        self.project, self.scene = project, scene
        self.folder = project.root.parent
        self.keep: dict[Path, bytes] = {}  # the user's files, which no verb may touch
        (self.folder / "kept").mkdir()
        prepare(self, scene)
        project.run("status", *scene.names, *self.place(scene), code=None)  # writes the lists a last time
        project.pinning = False
        self.saved = self.folder / "saved"
        for name in SAVED:
            if (self.folder / name).exists():
                shutil.copytree(self.folder / name, self.saved / name, symlinks=True)
        self.runner = subprocess.Popen(
            [sys.executable, str(HERE / "supervisor.py"), str(project.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.before, self.told_before = self.picture(), self.status()
        done = self.shoot(None, 0)
        assert done["code"] == scene.code, done
        self.calls, self.said = done["calls"], done["out"]
        self.after, self.told_after = self.picture(), self.status()
        self.reset()

    def close(self) -> None:
        self.runner.stdin.close()
        self.runner.wait()
        self.runner.stdout.close()

    def make_clone(self) -> None:
        clone = self.folder / "clone"
        git(self.folder, "clone", "-q", str(self.project.up / "alpha"), str(clone))
        git(clone, "checkout", "-q", "-b", "mine", self.project.ids["v1"])
        (clone / "stashed").write_text("x")
        git(clone, "add", "stashed")
        git(clone, "stash", "-q")
        git(clone, "update-index", "--assume-unchanged", "README.md")
        self.write(clone / "own.txt")

    def write(self, path: Path) -> None:
        path.write_text(MINE)
        self.keep[path] = MINE.encode()

    def place(self, scene: Scene) -> tuple[str, ...]:
        return ("--checkout", str(self.folder / "clone")) if scene.given else ()

    def checkout(self, name: str, scene: Scene) -> Path:
        return self.folder / "clone" if scene.given else self.project.checkout(name)

    def argv(self) -> list[str]:
        words = [word.format(index=self.project.index, kept=self.folder / "kept") for word in self.scene.argv]
        return [*words, *self.place(self.scene)]

    def reset(self) -> None:
        for name in SAVED:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if (self.saved / name).exists():
                shutil.copytree(self.saved / name, self.folder / name, symlinks=True)

    def shoot(self, fault: str | None, at: int, more: object = None) -> dict:
        argv = ["--cache", str(self.project.cache), *self.argv()]
        order = {"argv": argv, "env": self.project.env, "fault": fault, "at": at, "more": more}
        self.runner.stdin.write(json.dumps(order) + "\n")
        self.runner.stdin.flush()
        return json.loads(self.runner.stdout.readline())

    def status(self) -> dict | None:
        """What status says of each upstream; None where it refuses, as the project's own lists are half-written."""
        done = self.project.run("status", *self.scene.names, *self.place(self.scene), "--json", code=None)
        if done.code == 2 and self.scene.title == "export":
            assert "patches/" in done.err or "overlays/" in done.err, done.err
            return None
        assert done.code in (0, 1), done.text
        return done.json

    def picture(self) -> dict:
        """What verbs can change: patches and overlays, kept patches, and each checkout's files and git state."""
        root = self.project.root
        found = {
            "project": {**content(root / "patches"), **content(root / "overlays")},
            "kept": content(self.folder / "kept"),
        }
        found["project"]["upstreams.json"] = (root / "upstreams.json").read_bytes()
        for name in self.scene.names:
            checkout = self.checkout(name, self.scene)
            found[name] = {"files": content(checkout), **git_parts(checkout)} if checkout.exists() else None
        if self.scene.title == "port --write":
            ported = self.project.checkouts / "alpha-other"
            there = ported.exists() and git(ported, "rev-parse", "HEAD^{tree}", check=False)
            found["ported"] = {"files": content(ported), "tree": there} if there else None
        return found

    def leftovers(self) -> list[str]:
        """Files of apply.py's own that must not stay behind a run that completes."""
        found = [path for path in self.folder.rglob(".era-new-*") if self.saved not in path.parents]
        found += self.project.checkouts.glob(".*.new-*")
        found += (self.project.cache / "tmp").glob("*")
        for name in self.scene.names:
            found += (self.checkout(name, self.scene) / ".git").rglob("*.lock")
            found += (self.checkout(name, self.scene) / ".git/era").glob("journal.json")
        return [str(path.relative_to(self.folder)) for path in found]


def git_parts(checkout: Path) -> dict[str, str]:
    refs = git(checkout, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return {
        "refs": "\n".join(line for line in refs if f"refs/heads/{PORTED}" not in line),
        "head": (checkout / ".git/HEAD").read_text(),
        "index": git(checkout, "ls-files", "-v", "--stage"),
        "config": (checkout / ".git/config").read_text(),
        "stash": git(checkout, "stash", "list"),
    }
