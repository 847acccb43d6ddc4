from collections.abc import Sequence

from jaxtyping import Array

from ._types import Clamps, Nodes


def clamp(
    activities: Sequence[Array], output: Array | None = None, input: Array | None = None
) -> tuple[Nodes, Clamps]:
    r"""Says which states of a chain $z_0 \dots z_L$ are inferred and which are given.

    **Arguments:**

    - `activities`: the free states, in chain order.
    - `output`: what $z_L$ is clamped to; `None` if it is the last of the activities.
    - `input`: what $z_0$ is clamped to; `None` if it is the first of the activities.

    **Returns:**

    `(nodes, clamps)`, two lists over the whole chain, each with `None` where the other
    one holds a value. To clamp a state in the middle, move it from one to the other.
    """
    ends = ([] if input is None else [input], [] if output is None else [output])
    nodes = [None for _ in ends[0]] + list(activities) + [None for _ in ends[1]]
    return nodes, ends[0] + [None for _ in activities] + ends[1]
