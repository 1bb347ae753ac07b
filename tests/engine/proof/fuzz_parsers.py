"""Coverage-guided fuzzing of the parsers that are our own, with atheris: what the random tests assert, on inputs it finds itself.

python tests/engine/proof/fuzz_parsers.py TARGET FOLDER [libFuzzer's options, such as -runs=1000 -seed=1]

FOLDER is for scratch files; FOLDER/counts holds `completed refused`. A broken property ends it with a traceback.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["engine", "tarfile", "json.decoder"]):
    from kit import HEADER, PROJECT, load_engine

    engine = load_engine(PROJECT)
from mutations import make_tar, mutate_json, mutate_patch
from properties import PatchBench, check_archive, check_number, check_upstreams, in_words
from test_proof_inputs import KIT, kit_files, seeds_of, written

counts: collections.Counter = collections.Counter()


def patches(folder: Path):
    """PatchReader.read and apply_diff, against git apply."""
    bench = PatchBench(engine, folder / "bench", kit_files())
    mail = HEADER.format(subject="x").encode()
    seeds = seeds_of(folder, bench)
    real = [path.read_bytes() for path in sorted((PROJECT / "patches").glob("*/*/*.patch"))]

    def mutate(data: bytes, limit: int, number: int) -> bytes:
        if number % 2:
            return atheris.Mutate(data, limit)
        return mutate_patch(data or seeds[0], random.Random(number), seeds)[:limit]

    return (
        lambda data: bench.check(data if data.startswith(b"From ") else mail + data),
        [*seeds, *(raw[:20_000] for raw in real)],
        mutate,
    )


def upstreams(folder: Path):
    """read_upstreams, against git check-ref-format and git config."""

    def mutate(data: bytes, limit: int, number: int) -> bytes:
        try:
            return (
                mutate_json(json.loads(data), random.Random(number))[:limit]
                if number % 2
                else atheris.Mutate(data, limit)
            )
        except (
            ValueError,
            RecursionError,
            IndexError,
            AttributeError,
            TypeError,
        ):  # no JSON any more, or none with places in it
            return atheris.Mutate(data, limit)

    return (
        lambda data: check_upstreams(engine, folder, data),
        [json.dumps(KIT).encode(), (PROJECT / "upstreams.json").read_bytes()],
        mutate,
    )


def numbers(folder: Path):
    """replace_number on any JSON, against json."""

    def check(data: bytes) -> str:
        try:
            text = data.decode()
            json.loads(text, object_pairs_hook=engine.project.reject_duplicates)
        except (ValueError, RecursionError, engine.common.Stop):  # it is only ever called on what read_upstreams took
            return "refused"
        return check_number(engine, text, ("alpha", "versions", "v1", "patches"), 77)

    seeds = [json.dumps(KIT, indent=2).encode(), *(written(KIT, random.Random(n)).encode() for n in range(6))]
    return check, seeds, None


def archives(folder: Path):
    """unpack, against GNU tar. The data is the archive before gzip, so that a mutation is one of a header."""
    path = folder / "p-1.0.tar.gz"

    def check(data: bytes) -> str:
        path.write_bytes(data[1:] if data[:1] == b"z" else gzip.compress(data, 1, mtime=0))
        return check_archive(engine, path, folder / "scratch")

    tars = [make_tar(random.Random(n)) for n in range(30)]
    return check, [*(raw.rstrip(b"\0") + bytes(1536) for raw in tars), b"z" + gzip.compress(tars[0])], None


def words(folder: Path):
    """split_words on words that are separated by newlines."""
    known = dict.fromkeys(["alpha", "beta"])

    def check(data: bytes) -> str:
        given = os.fsdecode(data).split("\n")
        try:
            verb, names, paths = engine.cli.split_words(list(given), known)
        except engine.common.Stop as stop:
            return in_words(stop, (2,))
        rest = given[1:] if given[0] in engine.cli.VERBS else given
        assert verb == (given[0] if given[0] in engine.cli.VERBS else "apply") and set(names) <= set(known)
        assert not paths or (verb == "diff" and names and rest[len(rest) - len(paths) :] == paths)
        return "completed"

    return check, [b"apply\nalpha\nbeta", b"diff\nalpha\nsrc/x", b"alpha", b"status", b"diff\nalpah", b""], None


def explanations(folder: Path):
    """explain and nearest: a hunk that does not fit is told in words, whatever the file holds. Data: old, new and file, by NUL."""

    def check(data: bytes) -> str:
        old, new, file = (data.split(b"\0") + [b"", b""])[:3]
        lines = [engine.patches.split_lines(part) for part in (old, new)]
        hunk = engine.patches.Hunk(1, max(1, len(new) % 50), *lines, 0, 0, 1)
        try:
            engine.patches.apply_hunks("f", file, [hunk])
            return "completed"
        except engine.patches.Conflict as conflict:
            assert conflict.lines and all(isinstance(line, str) and line for line in conflict.lines)
            return "refused"

    return check, [b"a\nb\nc\0a\nx\nc\0a\nb\nd\n", b"one\n\0two\n\0on e\n", b"\n\n\0\n\0x"], None


TARGETS = {target.__name__: target for target in (patches, upstreams, numbers, archives, words, explanations)}


def main(name: str, folder: Path, options: list[str]) -> None:
    check, seeds, mutate = TARGETS[name](folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, raw in enumerate(seeds):
        (corpus / f"{number:03d}").write_bytes(raw)

    told = os.open(folder / "counts", os.O_WRONLY | os.O_CREAT)

    def one(data: bytes) -> None:
        counts[check(data)] += 1
        os.pwrite(
            told, b"%d %d\n" % (counts["completed"], counts["refused"]), 0
        )  # libFuzzer ends the process by itself

    more = {"custom_mutator": mutate} if mutate else {}
    atheris.Setup(
        [sys.argv[0], "-max_len=32768", "-timeout=60", "-rss_limit_mb=4096", "-verbosity=0", *options, str(corpus)],
        one,
        **more,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
