"""List, run and check the paper's experiments: what reproduce.py does.

    cli          its verbs
    errors       what a user is told instead of a traceback
    ledger       experiments.toml
    commands     the commands of an experiment, with their environment
    run          starts them
    run_record   what each start leaves beside its results
    results      what was collected, and the states of its verdicts
    collect      finds the folders of results and checks them
    readers/     read what verl, its evaluation, timm, FastTD3 and the demos write there
    statistics   intervals and aggregates over seeds
    verdicts     what counts as reproduced
    report/      the pages

`list`, `show` and `run` (all modules up to results) need the standard library alone.
"""
