import difflib
from collections.abc import Iterable


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """` Did you mean relu?` after what was wrong, or nothing if no name is like it."""
    plain = {name.lower().replace("-", "_"): name for name in names}
    close = difflib.get_close_matches(given.lower().replace("-", "_"), plain, n=1)
    return f" Did you mean {plain[close[0]]}?" if close else ""
