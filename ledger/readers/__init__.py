"""Readers of the folders that verl, its evaluation, timm, FastTD3, recipes/control, rivals and the demos write.

    run_folder   what a reader finds in one folder, and what it looks for
    tables       logs as columns: bad lines left out and named, NaN kept apart, curves made shorter
    recipes      the commands and protocols of the overlays' recipes, with which a result's own are compared

Each has `recognises(folder, names)` and `read(folder, needs)`. Rules of all but rivals, whose tables count as a whole:
a line that cannot be read is left out and listed, and the rest counts. So is a last line without its end, even if it
looks whole: its last number may not be. A metric that is NaN, infinite or out of its range at any step is left out of
the result as a whole, so that no average takes it in; the other metrics stay. A result whose steps go back and forth,
or that was not trained or sampled as the recipe says, is not used at all.
"""

from ledger.readers import control, evaluation, fasttd3, timm, verl

READERS = (evaluation, timm, fasttd3, control, verl)
