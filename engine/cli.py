"""The command line: reading the arguments, calling the verb, and reporting how the run ended."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import sys
from pathlib import Path

from engine.checkout import Checkout
from engine.context import Context
from engine.errors import INTERRUPTED, LOCAL, OK, SOURCE, STOPPED, USAGE, GitFailed, Stop, some
from engine.files import absolute
from engine.git import check_git
from engine.project import ROOT, Upstream, read_upstreams
from engine.run import Run
from engine.source import Cache, requested_kind
from engine.verbs.apply import verb_apply
from engine.verbs.diff import verb_diff
from engine.verbs.export import verb_export
from engine.verbs.fetch import verb_fetch
from engine.verbs.port import verb_port
from engine.verbs.revert import verb_revert
from engine.verbs.status import verb_status

VERBS = {
    "fetch": verb_fetch,
    "apply": verb_apply,
    "status": verb_status,
    "diff": verb_diff,
    "revert": verb_revert,
    "export": verb_export,
    "port": verb_port,
}
# Options that only some verbs have; all others go with every verb.
ONLY = {
    "stat": ("diff",),
    "local": ("diff",),
    "keep_edits": ("revert",),
    "check": ("export",),
    "onto": ("port",),
    "write": ("port",),
    "source": ("fetch", "apply", "port"),
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
  export   write patches and overlay files from an edited checkout
  port     try every patch on another upstream revision: port NAME --onto REF;
           with --write, carry them there in a worktree of their own

exit codes:
  0 done, or nothing to do      4 conflict
  1 drift found                 5 local edits (or the file system) in the way
  2 usage                       6 source unavailable
  3 wrong base or hash          7 interrupted; apply completes it
130 stopped by Ctrl-C before anything was changed
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
    source = "where upstream comes from: its repository, its source package, or a local clone or .tar.gz"
    add("--source", metavar="git|pypi|PATH", help=source)
    add("--offline", action="store_true", help="never touch the network")
    add("--checkouts", metavar="DIR", help="where the checkouts are (default: checkouts/ beside apply.py)")
    add("--checkout", metavar="PATH", help="your own clone of the one upstream named")
    add("--cache", metavar="DIR", help="default: era-overlays in the user's cache folder")
    add("--dry-run", action="store_true", help="say what would be done, and do not do it")
    add("--json", action="store_true", help="one JSON object on stdout; lines for people go to stderr")
    add("-v", "--verbose", action="store_true", help="show the git commands")
    add("--stat", action="store_true", help="diff: the summary only")
    add("--local", action="store_true", help="diff: your own edits on top of the overlay")
    add("--keep-edits", metavar="FILE", help="revert: save local edits as a patch first")
    add("--check", action="store_true", help="export: change nothing, exit 1 when patches or overlay files differ")
    add("--onto", metavar="REF", help="port: a version, tag, branch or commit (default with --checkout: its HEAD)")
    add("--write", action="store_true", help="port: make a worktree with the patches on a branch of its own")
    return parser


def default_cache() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return absolute(os.environ["XDG_CACHE_HOME"]) / "era-overlays"
    try:
        home = Path.home().absolute()
    except RuntimeError:  # a user id without an entry in the user database, as in a container
        problem = "cannot tell where to put the cache: HOME is not set, and this user has no home folder"
        raise Stop(USAGE, problem, "name one with --cache DIR") from None
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
        lists = f"known upstreams: {', '.join(upstreams)}; verbs: {', '.join(VERBS)}"
        raise Stop(USAGE, f"there is no upstream {rest[0]!r}", hint + lists)
    return verb, list(dict.fromkeys(names)), rest


def read_arguments(context: Context, argv: list[str]) -> Run:
    after = argv[argv.index("--") + 1 :] if "--" in argv else []
    options = make_parser().parse_intermixed_args(argv[: argv.index("--")] if "--" in argv else argv)
    context.verbose, context.json = options.verbose, options.json
    refuse_empty(options)
    given = [(f"--{option}", getattr(options, option)) for option in ("checkouts", "checkout", "cache")]
    context.places = [word for option, value in given if value for word in (option, value)]
    upstreams = read_upstreams()
    verb, named, paths = split_words(options.words, upstreams)
    checkouts = absolute(options.checkouts) if options.checkouts else ROOT / "checkouts"
    names = named or [
        name
        for name, up in upstreams.items()
        if not up.on_request or Checkout(context, name, checkouts / name, given=False).exists
    ]
    context.only = names[0] if options.checkout else ""
    refuse_unfit(context, options, verb, names, after)
    for name in names:
        if options.version:
            upstreams[name].version(options.version)
    cache = Cache(context, absolute(options.cache) if options.cache else default_cache(), options.offline)
    context.scratch = cache.root / "tmp"
    checkout = absolute(options.checkout) if options.checkout else None
    return Run(context, verb, upstreams, names, bool(named), [*paths, *after], cache, checkouts, checkout, options)


def refuse_empty(options: argparse.Namespace) -> None:
    """An empty value is an unset variable in somebody's script, not a request for the default."""
    for option in ("version", "source", "checkouts", "checkout", "cache", "keep_edits", "onto"):
        if getattr(options, option) == "":
            advice = "give a value, or leave the option out; nothing was changed"
            raise Stop(USAGE, f"--{option.replace('_', '-')} is empty", advice)


def refuse_unfit(context: Context, options: argparse.Namespace, verb: str, names: list[str], after: list[str]) -> None:
    """Options that do not go with the verb, or with each other."""
    if after and verb != "diff":
        raise Stop(USAGE, f"{verb} takes no paths after --")
    for option, verbs in ONLY.items():
        if getattr(options, option) and verb not in verbs:
            raise Stop(USAGE, f"--{option.replace('_', '-')} does not go with {verb}", f"it is for {', '.join(verbs)}")
    example = context.command(verb, names[0])
    if options.checkout and len(names) != 1:
        raise Stop(USAGE, "--checkout needs exactly one upstream", f"for example: {example}")
    if options.checkout and requested_kind(options.source) == "pypi":
        advice = "a clone is based on a commit of its repository, never on the package"
        raise Stop(USAGE, "--source with a source package does not go with --checkout", advice)
    if verb == "port" and not options.onto and not options.checkout:
        advice = f"for example: {context.command('port', names[0], '--onto', 'main')}"
        raise Stop(USAGE, "port needs --onto REF, or --checkout PATH", advice)
    if options.keep_edits and len(names) != 1:
        advice = f"for example: {context.command('revert', names[0], '--keep-edits', 'FILE')}"
        raise Stop(USAGE, "--keep-edits needs exactly one upstream", advice)


# --- how a run ends ---


def show_stop(code: int, lines: tuple[str, ...]) -> int:
    print("error: " + "\n       ".join(lines), file=sys.stderr, flush=True)
    return code


def show_left_out(run: Run) -> None:
    ready = [name for name in run.names if name not in run.left_out]
    for name, stop in run.left_out.items():
        changed = ready and not run.options.dry_run
        others = f"the others are ready: {some(ready)}" if changed else run.context.left
        again = f"to try it again: {run.context.command(run.verb, name)}"
        show_stop(stop.code, (*stop.lines, f"it was left out, {others}", again))


def open_streams() -> None:
    """Streams that were closed before the start (`>&-`) go to /dev/null, lest a file opened later take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open for the whole run
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")


def perform(context: Context, argv: list[str]) -> int:
    run = read_arguments(context, argv)
    context.sweep_scratch()
    check_git()
    code = VERBS[run.verb](run)
    if context.json:
        print(json.dumps(run.result, indent=2, sort_keys=True), flush=True)
    show_left_out(run)
    return code


def main(argv: list[str]) -> int:
    """One call. SIGINT is blocked for all of it, so Ctrl-C takes effect in Context.check_interrupt only."""
    context = Context()
    open_streams()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return perform(context, argv)
    except Stop as stop:
        return end_with(context, stop)
    except KeyboardInterrupt:
        return show_stop(INTERRUPTED if context.done else STOPPED, (f"stopped; {context.left}",))
    except BrokenPipeError:  # whoever read our output has stopped, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        code = INTERRUPTED if context.advice else LOCAL
        return show_stop(
            code,
            (what, f"the file system did not let apply.py go on: check permissions and space there; {context.left}"),
        )
    finally:
        if signal.SIGINT in signal.sigpending():  # too late to stop anything
            signal.sigwait({signal.SIGINT})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_with(context: Context, stop: Stop) -> int:
    lines = stop.lines
    if context.advice and stop.code != INTERRUPTED:
        return show_stop(INTERRUPTED, (*lines, context.advice))
    in_cache = isinstance(stop, GitFailed) and stop.git_dir and context.scratch.parent in stop.git_dir.parents
    if in_cache:
        lines = (*lines, f"if the cache is damaged, `{context.command('fetch')}` repairs it")
    # These are raised in places that do not know what was changed before.
    unknown = stop.code == SOURCE or isinstance(stop, GitFailed)
    return show_stop(stop.code, (*lines, context.left) if unknown else lines)
