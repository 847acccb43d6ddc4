"""What makes a run another one than that of a checkpoint, in words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SETTINGS = dict(
    batch_size="the batch size",
    examples="the number of examples",
    classes="the number of classes",
    metrics="the metrics",
)
_DATA = dict(data="the data", test="the test data", validation="the validation data")
_PROGRAMS = dict(
    step="the step (model, energy, inference or optimiser)", evaluate="how to evaluate"
)
_MOST_NUMBERS = 3


class OtherRunError(ValueError):
    """A checkpoint is of another run; `found` says what differs."""

    def __init__(self, found: str):
        super().__init__(
            f"{found}. Choose another folder, or go on all the same: "
            "jpc.Checkpoints(..., resume='anyway')."
        )
        self.found = found


def differ_in_settings(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The entries that are not the same."""
    changed = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return list(dict.fromkeys(_say_setting(name, old, new) for name in changed))


def _say_setting(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    top, rest = re.fullmatch(r"\['(\w+)'\](.*)", name, re.S).groups()  # pyright: ignore
    if top == "key":
        return "the key: another one"
    default = "True" if top == "shuffle" else "missing"
    return _then_now(
        _SETTINGS.get(top, top) + rest, old.get(name, default), new.get(name, default)
    )


def differ_in_identity(
    old: Mapping[str, Any], new: Mapping[str, Any], programs: bool
) -> list[str]:
    """What is not the same of all but the state; of `programs` too, if no setting has made others
    of them.
    """
    data = [_say_data(_DATA[name], old.get(name), new.get(name)) for name in _DATA]
    stop = (
        _then_now("when to stop", old["stop"], new["stop"]) if old["stop"] != new["stop"] else ""
    )
    return list(filter(None, [*data, stop, *(_say_programs(old, new) if programs else ())]))


def _say_data(what: str, old: Any, new: Any) -> str:
    if old == new:
        return ""
    if old is None or new is None:
        return _then_now(what, *("none" if x is None else "given" for x in (old, new)))
    if old["shapes"] != new["shapes"]:
        return _then_now(what, old["shapes"], new["shapes"])
    return f"{what}: other numbers of the same shape"


def _say_programs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    both = [name for name in _PROGRAMS if old.get(name) and new.get(name)]
    changed = [name for name in both if old[name] != new[name]]
    yield from (_PROGRAMS[name] + _say_numbers(old[name], new[name]) for name in changed)
    made = [n for n in new["made"] if old["made"].get(n) != new["made"][n]] if changed else []
    if made:
        said = [_then_now(name, old["made"].get(name), new["made"][name]) for name in made]
        yield f"perhaps for no other reason than {', '.join(said)}"


def _say_numbers(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which numbers in a program are others, if nothing else is."""
    gone, come = (sorted({*a} - {*b}) for a, b in _both_ways(old, new))
    if old["form"] != new["form"] or not 0 < len(gone) + len(come) <= 2 * _MOST_NUMBERS:
        return ""
    then, now = (_spell(numbers, beside) for numbers, beside in ((gone, come), (come, gone)))
    said = [f"{then} then"] * bool(then) + [f"{now} now"] * bool(now)
    return f", a number in it: {', '.join(said)}"


def _spell(numbers: Sequence[float], beside: Sequence[float]) -> str:
    """With as many digits as it takes to tell them from others."""
    short, long = ([f"{x:.{n}g}" for x in numbers] for n in (6, 17))
    others = {f"{x:.6g}" for x in beside}
    return ", ".join(long if others & {*short} else short)


def _both_ways(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[list, list]]:
    return [(old["numbers"], new["numbers"]), (new["numbers"], old["numbers"])]


def _then_now(what: str, old: Any, new: Any) -> str:
    return f"{what}: {old} then, {new} now"
