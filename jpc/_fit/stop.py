import math
from collections.abc import Sequence

import equinox as eqx

from .._given import check_count, check_flags, check_number, check_type
from .._types import Given
from .progress import Record


class EarlyStopping(eqx.Module):
    """Stops training after `patience` epochs in a row that were no better than the best one.

    **Arguments:**

    - `metric`: the name of an entry of the history, such as `"test_loss"`.
    - `patience`: how many epochs to wait for an improvement.
    - `minimise`: whether less is better.
    - `min_delta`: the smallest improvement that counts.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    stop = jpc.EarlyStopping("test_acc", patience=2, minimise=False)
    ```
    """

    metric: Given[str] = "test_loss"
    patience: Given[int] = 3
    minimise: Given[bool] = True
    min_delta: Given[float] = 0.0

    def __check_init__(self):
        check_type("metric", self.metric, str, "'test_loss'")
        check_count("patience", self.patience)
        check_flags(minimise=self.minimise)
        check_number("min_delta", self.min_delta, least=0.0)

    def check(self, names: Sequence[str]) -> None:
        """Refuses a metric that the history will not have as a number."""
        if self.metric not in names:
            listed = ", ".join(names) or "none that are plain numbers"
            raise ValueError(f"No metric {self.metric!r} to stop by: there are {listed}.")

    def identity(self) -> str:
        """What tells the best epoch; how long to wait for it may change, as epochs may."""
        better = "least" if self.minimise else "most"
        return f"the {better} {self.metric}, by {self.min_delta:g}"

    def best(self, history: Sequence[Record]) -> int:
        """The index of the best epoch."""
        best = 0
        for i, record in enumerate(history):
            if self._cost(record) < self._cost(history[best]) - self.min_delta:
                best = i
        return best

    def __call__(self, history: Sequence[Record]) -> bool:
        """Whether to stop after these epochs."""
        return len(history) > self.best(history) + self.patience

    def _cost(self, record: Record) -> float:
        value = record.get(self.metric, math.nan)  # Of an earlier run it may not be there.
        return math.inf if math.isnan(value) else value if self.minimise else -value
