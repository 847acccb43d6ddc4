import numpy as np
from jaxtyping import Bool, Integer


def stratified(
    labels: Integer[np.ndarray, " examples"], count: int
) -> Bool[np.ndarray, " examples"]:
    """Chooses `count` examples at random, of each class in proportion to its size (to within
    one). Always the same ones: the stream of `RandomState` is frozen across NumPy's versions.

    **Returns:**

    Which examples are chosen.
    """
    order = np.random.RandomState(0).permutation(len(labels))
    rank = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)
    first = order[np.argsort(rank[order], kind="stable")][:count]
    return np.isin(np.arange(len(labels)), first)
