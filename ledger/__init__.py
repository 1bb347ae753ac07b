"""What of the paper was run, and did it come out: the rooms behind reproduce.py.

    cli          its verbs
    errors       what a user is told in place of a traceback
    experiments  the ledger, read from experiments.toml
    commands     the commands of an experiment, with their environment
    execute      running them
    record       what each run leaves beside its results
    results      what is collected, and the states of what came out
    collect      finds the folders of runs and checks them
    readers/     reads what verl, its evaluation, timm, FastTD3 and the demos write into them
    statistics   intervals and aggregates over seeds
    verdicts     what counts as reproduced
    report/      the pages

`list`, `show` and `run` (cli, experiments, commands, execute, record, results) need the standard library alone.
"""
