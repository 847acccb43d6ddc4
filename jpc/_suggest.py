import difflib
from collections.abc import Iterable


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """` Did you mean relu?` after what was wrong, or nothing if no name is like it. `lr` is like
    `learning-rate`, and `cross-entropy` like `ce`.
    """
    plain = {name.lower().replace("-", "_").strip("_"): name for name in names}
    wrong = given.lower().replace("-", "_").strip("_")
    if not wrong:
        return ""
    short = [name for name in plain if wrong == _initials(name) or name == _initials(wrong)]
    close = short or difflib.get_close_matches(wrong, plain, n=1)
    return f" Did you mean {plain[close[0]]}?" if close else ""


def _initials(name: str) -> str:
    words = name.split("_")
    return "".join(word[0] for word in words if word) if len(words) > 1 else ""
