# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The command line: reads the arguments, calls the verb, and reports how the run ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from engine.call import Call
from engine.export import verb_export
from engine.port import verb_port
from engine.project import ROOT, read_upstreams
from engine.session import INTERRUPTED, LOCAL, OK, SESSION, SOURCE, STOPPED, USAGE, Stop, hint, some
from engine.source import Cache
from engine.verbs import verb_apply, verb_diff, verb_fetch, verb_revert, verb_status

VERBS = {  # the function, the options that not every verb has, and what it does
    "fetch": (verb_fetch, "version source", "bring the pinned source into the cache and verify it"),
    "apply": (verb_apply, "version source", "build the patched tree, verify it, switch the checkout to it"),
    "status": (verb_status, "version", "absent, clean, applied, stale, modified, wrong-base or interrupted"),
    "diff": (verb_diff, "stat local", "the overlay as git diff shows it: diff NAME [PATH ...]"),
    "revert": (verb_revert, "keep-edits", "back to the pinned upstream, byte for byte"),
    "export": (verb_export, "check", "write patches and overlay files from an edited checkout"),
    "port": (verb_port, "version source onto write", "try every patch on another upstream revision, or carry it there"),
}
COMMON = "checkouts checkout cache offline json verbose"
OPTIONS = {  # what an option's value is (nothing for a flag), and what it does
    "version": ("V", "a version from upstreams.json instead of the default"),
    "source": ("git|pypi|PATH", "upstream's repository, its source package, or a local clone or .tar.gz"),
    "onto": ("REF", "a version, tag, branch or commit (default with --checkout: its HEAD)"),
    "checkout": ("PATH", "port: a clone of yours; export, status, diff: a checkout that `port --write` made"),
    "checkouts": ("DIR", "where the checkouts are (default: checkouts/ beside apply.py)"),
    "cache": ("DIR", "default: ~/.cache/era-overlays"),
    "stat": ("", "the summary only"),
    "local": ("", "your own edits on top of the overlay"),
    "keep-edits": ("", "put local edits and commits on a branch of the checkout first"),
    "check": ("", "change nothing, exit 1 when patches or overlay files differ"),
    "write": ("", "make a checkout there with the patches as commits"),
    "offline": ("", "never touch the network"),
    "json": ("", "one JSON object on stdout; lines for people go to stderr"),
    "verbose": ("", "show the git commands"),
}
EPILOG = """\
NAME: all upstreams when none is given; those on request only where they have a checkout.

exit codes:
  0 done, or nothing to do      4 conflict
  1 drift found                 5 local edits (or the file system) in the way
  2 usage                       6 source unavailable
  3 wrong base or hash          7 interrupted; the same command again completes it
130 stopped by Ctrl-C before anything was changed
"""


# --- the arguments ---


def make_parser() -> argparse.ArgumentParser:
    about = "Put the ERA overlays onto pinned upstream sources, and take them off again."
    more = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": EPILOG, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog="apply.py", description=about, **more)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, help="`apply` if none is given")
    for verb, (_, options, about) in VERBS.items():
        sub = verbs.add_parser(verb, help=about, description=about[:1].upper() + about[1:] + ".", **more)
        sub.add_argument("words", nargs="*", metavar="NAME", help="an upstream")
        for option in [*options.split(), *COMMON.split()]:
            value, help_text = OPTIONS[option]
            names = [f"--{option}", *(["-v"] if option == "verbose" else [])]
            sub.add_argument(*names, help=help_text, **({"metavar": value} if value else {"action": "store_true"}))
        sub.set_defaults(**{name: None for name in ("version", "source", "onto")})
    return parser


def with_verb_first(argv: list[str]) -> list[str]:
    """Options may come before the verb, and `apply` need not be said."""
    verb = next((word for word in argv if word in VERBS), None)
    if verb is None:
        return ["--help"] if {*argv} & {"-h", "--help"} else ["apply", *argv]
    rest = [*argv]
    rest.remove(verb)
    return [verb, *rest]


def read_arguments(argv: list[str], held: contextlib.ExitStack) -> tuple[Call, str]:
    argv, paths = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    options = make_parser().parse_args(with_verb_first(argv))
    for name, value in vars(options).items():
        if value == "":  # an unset variable in somebody's script, not a request for the default
            raise Stop(USAGE, f"the option --{name.replace('_', '-')} is empty", "give it a value, or leave it out")
    SESSION.verbose, SESSION.json = options.verbose, options.json
    places = {key: getattr(options, key) for key in ("checkouts", "checkout", "cache")}
    SESSION.places = [word for key, value in places.items() if value for word in (f"--{key}", value)]
    upstreams = read_upstreams()
    named = [*dict.fromkeys(word for word in options.words if word in upstreams)]
    paths = [*(word for word in options.words if word not in upstreams), *paths]
    if paths and (options.verb != "diff" or not named):
        known = f"upstreams: {', '.join(upstreams)}; verbs: {', '.join(VERBS)}"
        raise Stop(USAGE, f"there is no upstream or verb {paths[0]!r}", known)
    checkouts = real_path(options.checkouts) if options.checkouts else ROOT / "checkouts"
    names = named or [name for name, up in upstreams.items() if not up.on_request or (checkouts / name).is_dir()]
    clone = real_path(options.checkout) if options.checkout else None
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Cache(real_path(options.cache or f"{users}/era-overlays"), options.offline, held)
    call = Call(upstreams, names, bool(named), paths, cache, checkouts, clone, options)
    refuse_unfit(call)
    return call, options.verb


def real_path(path: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))


def refuse_unfit(call: Call) -> None:
    """Refuse options that do not go together."""
    verb, name, clone = call.options.verb, call.names[0], call.clone
    for each in call.names:
        call.label(call.upstreams[each])  # refuses a version that is not known
    if clone and len(call.names) != 1:
        raise Stop(USAGE, "--checkout needs exactly one upstream", f"for example: {hint(verb, name)}")
    if clone and verb in ("apply", "revert", "fetch"):
        problem = f"`{verb}` does not change a clone of yours. Two lines bring ERA into it, a third undoes the pull:"
        git = f"git -C {shlex.quote(str(clone))}"
        pull = f"{git} pull {shlex.quote(f'{clone}-era')} era"
        raise Stop(USAGE, problem, hint("port", name, "--write").strip("`"), pull, f"{git} reset --keep ORIG_HEAD")
    if verb == "port" and not (call.options.onto or clone):
        advice = f"for example: {hint('port', name, '--onto', 'main')}"
        raise Stop(USAGE, "port needs --onto REF, or --checkout PATH", advice)


# --- the run ---


def perform(argv: list[str]) -> int:
    with contextlib.ExitStack() as held:
        SESSION.scratch = held.enter_context(tempfile.TemporaryDirectory(prefix="era-"))
        call, verb = read_arguments(argv, held)
        code = VERBS[verb][0](call)
    if SESSION.json:
        print(json.dumps(call.result, indent=2, sort_keys=True), flush=True)
    ready = [name for name in call.names if name not in call.left_out]
    others = [f"it was left out; the others are ready: {some(ready)}"] if ready else []
    for name, stop in call.left_out.items():
        report(*stop.lines, *others, f"to try it again: {hint(verb, name)}")
    return SOURCE if call.left_out else code


def report(*lines: str) -> None:
    print("error: " + "\n       ".join(lines), file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    SESSION.__init__()
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None if it was closed before the start
            stream.reconfigure(errors="backslashreplace")
    try:
        return perform(argv)
    except Stop as stop:
        code, lines = stop.code, stop.lines
    except KeyboardInterrupt:
        code, lines = STOPPED, ("stopped; nothing was changed",)
    except BrokenPipeError:  # whoever read our output has stopped, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        code, lines = LOCAL, (what, "the file system did not let apply.py go on: check permissions and space there")
    report(*lines, *([SESSION.begun] if SESSION.begun else []))
    return INTERRUPTED if SESSION.begun else code
