"""The verb fetch: bring the pinned sources into the cache, verified."""

from __future__ import annotations

from engine.run import Run
from engine.source import find_source


def verb_fetch(run: Run) -> int:
    say = run.context.say
    for name in run.names:
        up = run.upstreams[name]
        label = run.options.version or up.default
        version = up.version(label)
        run.result[name] = {"version": label, "commit": version.commit, "fetched": False}
        if run.options.dry_run:
            where = f"unless the cache {run.cache.root} has it"
            say(f"{name} {label}: would fetch {version.commit[:12]} from {up.url}, {where}")
            continue
        run.cache.repair(name)
        with run.or_left_out(name):
            source = find_source(run.cache, up, version, run.options.source, None, None)
            origin = "fetched" if source.fresh else "in the cache"
            say(f"{name} {label}: {origin} and verified ({source.kind}, {source.base[:12]})")
            run.result[name].update(source=source.kind, commit=source.base, fetched=source.fresh)
    return run.code
