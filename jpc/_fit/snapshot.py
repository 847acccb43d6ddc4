import equinox as eqx
from jaxtyping import PyTree

from .loop import Carry
from .progress import Record


class Snapshot(eqx.Module):
    """Where a run is, and all that it needs to go on from there.

    **Attributes:**

    - `carry`: the arrays of the state, and the sums of the metrics in this epoch.
    - `best`: the arrays of the state after the best epoch, if anybody asked for it.
    - `epoch`: how many epochs are done.
    - `step`: how many steps of the next one are done.
    - `total`: how many steps are done in all.
    - `history`: what was said of each epoch.
    - `since`: how many steps of this epoch are not in the sums.
    """

    carry: Carry
    best: PyTree = None
    epoch: int = 0
    step: int = 0
    total: int = 0
    history: tuple[Record, ...] = ()
    since: int = 0
