"""The command line: what was asked for, which verb does it, and how its end is told."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import signal
import sys
from pathlib import Path

from engine.apply import verb_apply
from engine.checkout import Checkout, Run
from engine.common import (
    INTERRUPTED,
    LOCAL,
    OK,
    SOURCE,
    USAGE,
    Stop,
    absolute,
    call,
    command,
    fcntl,
    scratch,
    screen,
    some,
    sweep_scratch,
    unfinished,
)
from engine.drift import verb_drift
from engine.export import verb_export
from engine.git import GitFailed, check_git
from engine.port import verb_port
from engine.project import ROOT, Upstream, read_upstreams
from engine.sources import Cache, wished_kind
from engine.verbs import verb_diff, verb_fetch, verb_revert, verb_status

VERBS = {
    "fetch": verb_fetch,
    "apply": verb_apply,
    "status": verb_status,
    "diff": verb_diff,
    "revert": verb_revert,
    "export": verb_export,
    "port": verb_port,
    "drift": verb_drift,
}
# Options that only some verbs know; the others are for all.
ONLY = {
    "stat": ("diff",),
    "local": ("diff",),
    "keep_edits": ("revert",),
    "check": ("export",),
    "onto": ("port",),
    "out": ("drift",),
    "source": ("fetch", "apply", "port", "drift"),
    "version": ("fetch", "apply", "status", "port"),
    "dry_run": ("fetch", "apply", "revert", "export"),
}

HELP = """\
verbs (apply when none is given; NAME: all upstreams when none is given, those
on request only where they have a checkout):
  fetch    bring the pinned source into the cache and verify it
  apply    build the patched tree, verify it, switch the checkout to it
  status   absent, clean, applied, stale, modified, wrong-base or interrupted
  diff     the overlay as git diff shows it: diff NAME [PATH ...] [--stat] [--local]
  revert   back to the pinned upstream, byte for byte
  export   make patches/ and overlays/ anew from an edited checkout
  port     try every patch on another upstream revision: port NAME --onto REF
  drift    try every patch on every release since the pinned one, and print a table

exit codes:
  0 done, or nothing to do      4 conflict
  1 drift found                 5 local edits (or the file system) in the way
  2 usage                       6 source unavailable
  3 wrong base or hash          7 interrupted; apply completes it
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apply.py",
        usage="python apply.py [VERB] [NAME ...] [options]",
        description="Put the ERA overlays onto pinned upstream sources, and take them off again.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="VERB NAME", help=argparse.SUPPRESS)
    add("--version", metavar="V", help="a version from upstreams.json instead of the default")
    add(
        "--source",
        metavar="git|pypi|PATH",
        help="where upstream comes from: its repository, its source package, or a local clone or .tar.gz",
    )
    add("--offline", action="store_true", help="never touch the network")
    add(
        "--checkouts", metavar="DIR", default=None, help="where the checkouts are (default: checkouts/ beside apply.py)"
    )
    add("--checkout", metavar="PATH", help="your own clone of the one upstream named")
    add("--cache", metavar="DIR", help="default: era-overlays in the user's cache folder")
    add("--dry-run", action="store_true", help="say what would be done, and do not do it")
    add("--json", action="store_true", help="one JSON object on stdout; lines for people go to stderr")
    add("-v", "--verbose", action="store_true", help="show the git commands")
    add("--stat", action="store_true", help="diff: the summary only")
    add("--local", action="store_true", help="diff: your own edits on top of the overlay")
    add("--keep-edits", metavar="FILE", help="revert: save local edits as a patch first")
    add("--check", action="store_true", help="export: change nothing, exit 1 when patches/ or overlays/ differ")
    add("--onto", metavar="REF", help="port: a version, tag, branch or commit")
    add("--out", metavar="FOLDER", help="drift: write the table there, as drift.md and drift.json")
    return parser


def default_cache() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return absolute(os.environ["XDG_CACHE_HOME"]) / "era-overlays"
    try:
        home = Path.home().absolute()
    except RuntimeError:  # a user id in a container that no file knows
        raise Stop(
            USAGE,
            "there is no place for the cache: HOME is not set, and this user has no home folder",
            "name one with --cache DIR",
        ) from None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "era-overlays"


def split_words(words: list[str], upstreams: dict[str, Upstream]) -> tuple[str, list[str], list[str]]:
    """Verb, names and (for diff) paths."""
    verb, rest = (words[0], words[1:]) if words and words[0] in VERBS else ("apply", words)
    names = []
    while rest and rest[0] in upstreams:
        names.append(rest.pop(0))
    if rest and (verb != "diff" or not names):
        known = [*upstreams, *(VERBS if not names and words[0] == rest[0] else ())]
        close = difflib.get_close_matches(rest[0], known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise Stop(
            USAGE,
            f"there is no upstream {rest[0]!r}",
            f"{hint}known upstreams: {', '.join(upstreams)}; verbs: {', '.join(VERBS)}",
        )
    return verb, list(dict.fromkeys(names)), rest


def read_arguments(argv: list[str]) -> Run:
    parser = make_parser()
    after = argv[argv.index("--") + 1 :] if "--" in argv else []
    options = parser.parse_intermixed_args(argv[: argv.index("--")] if "--" in argv else argv)
    screen.verbose, screen.json = options.verbose, options.json
    refuse_empty(options)
    remember_places(options)
    upstreams = read_upstreams()
    verb, named, paths = split_words(options.words, upstreams)
    checkouts = absolute(options.checkouts) if options.checkouts else ROOT / "checkouts"
    names = named or [
        name
        for name, up in upstreams.items()
        if not up.on_request or Checkout(name, checkouts / name, given=False).exists
    ]
    if after and verb != "diff":
        raise Stop(USAGE, f"{verb} takes no paths after --")
    for option, verbs in ONLY.items():
        if getattr(options, option) and verb not in verbs:
            raise Stop(USAGE, f"--{option.replace('_', '-')} does not go with {verb}", f"it is for {', '.join(verbs)}")
    if options.checkout and len(names) != 1:
        raise Stop(USAGE, "--checkout needs exactly one upstream", f"for example: {command(verb, names[0])}")
    if options.checkout and wished_kind(options.source) == "pypi":
        raise Stop(
            USAGE,
            "--source with a source package does not go with --checkout",
            "a clone stands on the commit of its repository",
        )
    if verb == "port" and not options.onto:
        raise Stop(USAGE, "port needs --onto REF", f"for example: {command('port', names[0], '--onto', 'main')}")
    if options.keep_edits and len(names) != 1:
        raise Stop(
            USAGE,
            "--keep-edits needs exactly one upstream",
            f"for example: {command('revert', names[0], '--keep-edits', 'FILE')}",
        )
    call.only = names[0] if options.checkout else ""
    for name in names:
        if options.version:
            upstreams[name].version(options.version)
    cache = Cache(absolute(options.cache) if options.cache else default_cache(), options.offline)
    scratch.root = cache.root / "tmp"
    checkout = absolute(options.checkout) if options.checkout else None
    where = (cache, checkouts, checkout)
    return Run(
        verb,
        upstreams,
        names,
        bool(named),
        [*paths, *after],
        *where,
        options.version,
        options.source,
        options.dry_run,
        options,
    )


def refuse_empty(options: argparse.Namespace) -> None:
    """An empty value is an unset variable in somebody's script, not a wish for the default."""
    for option in ("version", "source", "checkouts", "checkout", "cache", "keep_edits", "onto", "out"):
        if getattr(options, option) == "":
            raise Stop(
                USAGE,
                f"--{option.replace('_', '-')} is empty",
                "give a value, or leave the option out; nothing was changed",
            )


def remember_places(options: argparse.Namespace) -> None:
    """The options that a hint has to repeat, so that following it works on the same folders."""
    given = [(f"--{option}", getattr(options, option)) for option in ("checkouts", "checkout", "cache")]
    call.where = [word for option, value in given if value for word in (option, value)]


def show_stop(code: int, lines: tuple[str, ...]) -> int:
    print("error: " + "\n       ".join(lines), file=sys.stderr, flush=True)
    return code


def show_left_out(run: Run) -> None:
    ready = [name for name in run.names if name not in run.left_out]
    for name, stop in run.left_out.items():
        others = f"the others are ready: {some(ready)}" if ready and not run.dry_run else unfinished.truth
        show_stop(stop.code, (*stop.lines, f"it was left out, {others}", f"to try it again: {command(run.verb, name)}"))


def open_streams() -> None:
    """Streams that were closed before the start (`>&-`) lead nowhere; a file opened later must not take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")


def perform(argv: list[str]) -> int:
    run = read_arguments(argv)
    sweep_scratch()
    check_git()
    code = VERBS[run.verb](run)
    if run.options.json:
        print(json.dumps(run.result, indent=2, sort_keys=True), flush=True)
    show_left_out(run)
    return code


def main(argv: list[str]) -> int:
    """One call. Ctrl-C is let in only where its end is told; whoever calls from apply.py holds it back around this."""
    unfinished.clear()
    open_streams()
    if fcntl is None:
        return show_stop(USAGE, ("apply.py needs a POSIX system: Linux, macOS, or WSL on Windows",))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        try:
            with interrupts_kept():
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                return perform(argv)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except Stop as stop:
        if unfinished.advice and stop.code != INTERRUPTED:
            return show_stop(INTERRUPTED, (*stop.lines, unfinished.advice))
        if isinstance(stop, GitFailed) and stop.git_dir and scratch.root.parent in stop.git_dir.parents:
            stop.lines = (*stop.lines, f"if the cache is damaged, `{command('fetch')}` mends it")
        open_end = stop.code == SOURCE or isinstance(
            stop, GitFailed
        )  # these come from rooms that cannot tell what was changed before
        return show_stop(stop.code, (*stop.lines, unfinished.truth) if open_end else stop.lines)
    except KeyboardInterrupt:
        return tell_interrupted()
    except BrokenPipeError:  # the reader of our output went away, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return show_stop(
            INTERRUPTED if unfinished.advice else LOCAL,
            (what, f"the file system did not let apply.py go on; {unfinished.truth}"),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def interrupts_kept():
    """Python prints and drops what is raised in a destructor (Popen has one), also Ctrl-C: here it comes again at once."""

    def again(unraisable) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        else:
            report(unraisable)

    report, sys.unraisablehook = sys.unraisablehook, again
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = report


def tell_interrupted() -> int:
    """After Ctrl-C: 130 where nothing was changed, 0 where all was done, 7 where only a part was."""
    if unfinished.advice:
        return show_stop(INTERRUPTED, ("stopped half-way", unfinished.advice))
    if unfinished.done:
        print(f"stopped by Ctrl-C, but {unfinished.done}", file=sys.stderr, flush=True)
        return unfinished.code
    return show_stop(130, (f"stopped; {unfinished.truth}",))
