"""What of the paper was run, and did it come out: the rooms behind reproduce.py.

    experiments  the ledger, read from experiments.toml
    commands     the commands of an experiment, with their environment
    execute      running them, and the record that each run leaves
    results      what is collected: values, curves, problems
    readers/     the folders that verl, its evaluation, timm, FastTD3 and the demos write
    collect      finds these folders and checks them
    statistics   intervals and aggregates over seeds
    verdicts     what counts as reproduced
    report/      the pages
"""
