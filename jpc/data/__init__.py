"""Data to learn from: `jpc.data.load("mnist")`, or `jpc.data.load("my.csv")`.

The `digits` come with the package: the 1,797 images of the test set of E. Alpaydin and
C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998),
CC BY 4.0, as scikit-learn has them. Each is a byte for its label and 8 x 8 bytes for its pixels,
0 to 16. The others are downloaded as they were published.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily
from ._own import is_own as is_own
from ._source import NAMES as NAMES

if TYPE_CHECKING:
    from ._api import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__, "_api")
