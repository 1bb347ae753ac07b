"""The folders that verl, its evaluation, timm, FastTD3 and the demos write: a module each, which recognises them and reads them.

    reading     what a reader returns, and what it reads for
    tables      logs as columns: bad lines left out and named, NaN kept apart, curves made shorter
    recipes     the commands and protocols of the overlays' recipes, to which a run's own are compared
    records     what `reproduce.py run` notes of a run

Rules of all readers. A line that cannot be read is left out and listed; the rest counts. So is a last line without its end, even if
it looks whole, because its last number may not be. A metric that is NaN, infinite or out of its range at any step that counts is left
out of the run as a whole, so that no average takes it in; the run's other metrics stay. A run whose steps go to and fro, or that
was not trained or sampled as the recipe says, is not used at all.
"""

from ledger.readers import demos, evaluation, fasttd3, timm, verl

READERS = (demos, evaluation, timm, fasttd3, verl)  # the demos' folders hold some of the others' files
