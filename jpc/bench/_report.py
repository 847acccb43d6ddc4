"""The files of a table."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import write_whole
from .._significance import LEVEL, Sample, holm, welch
from ._table import NETWORKS, RULES, Cell, Suite
from ._train import WARM_UP

_APART = 10.0  # Percent, between seeds.
_LEGEND = """Accuracy: on the test set, after training, in percent; mean ± standard deviation over
seeds, or each of them where they are far apart. p: the chance of such a difference to
backpropagation if there were none (Welch's t-test, Holm's correction); * below 0.05. Time: of a
training step, relative to backpropagation in the same run, in turns. Memory: of its program,
relative to that of backpropagation. The others are of the trained network on 256 training
examples. S is the mean eigenvalue of I + H A, 1 for backpropagation; the angle is to
backpropagation's gradient; certified are examples that are at equilibrium to the tolerance of
their rule, 1 % for the nudged ones."""
Found = Mapping[Cell, dict[str, Any]]


def write_report(
    name: str, suite: Suite, size: str, cells: Sequence[Cell], found: Found, out: Path
) -> Path:
    """Writes the data, the picture and the text, and returns the path of the last."""
    mine = {cell: found[cell] for cell in cells if cell in found}
    flag = "" if size == "default" else f" --{size}"
    if not mine:
        raise FileNotFoundError(f"Nothing of {name}{flag} was run in {out}.")
    write_whole(out / f"{name}.csv", _csv(mine))
    places = list(dict.fromkeys(cell.place for cell in mine))
    rules = dict.fromkeys(cell.rule for cell in mine)
    devices = dict.fromkeys(f"{f['device']}, {f['products']}" for f in mine.values())
    dates = sorted({f["date"] for f in mine.values()})
    some = next(iter(mine))
    parts = [
        f"# {name}: {suite.title}",
        f"    jpc bench {name}{flag}",
        f"At each place every rule has the same settings: AdamW, warmed up during {WARM_UP:.0%} "
        f"and then falling to zero as a cosine, in batches of {some.batch}. Images of CIFAR-10 "
        "are flipped and cropped.",
        f"Run on {'; '.join(devices)}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.",
        _picture(suite.picture, mine, out / name),
        *(part for place in places for part in _table(place, mine)),
        _LEGEND,
        "\n".join(f"- {rule}: {RULES[rule].text}." for rule in rules),
        *_not_run(cells, mine),
    ]
    write_whole(out / f"{name}.md", "\n\n".join(filter(None, parts)) + "\n")
    return out / f"{name}.md"


def by_rule(place: str, found: Found) -> dict[tuple[str, float | None], list[dict]]:
    """What was measured at a place, for each rule and strength."""
    groups: dict[tuple[str, float | None], list[dict]] = {}
    for cell, mine in found.items():
        if cell.place == place:
            groups.setdefault((cell.rule, cell.strength), []).append(mine)
    return groups


def ends(runs: Sequence[dict]) -> list[float]:
    return [run["accuracies"][-1] for run in runs]


def _table(place: str, found: Found) -> list[str]:
    groups = by_rule(place, found)
    cell = next(cell for cell in found if cell.place == place)
    base = Sample("backprop", ends(groups.get(("backprop", None), [])))
    against = lambda key, runs: math.nan if key[0] == base.name else welch(runs, base)
    chances = holm([against(key, Sample("", ends(runs))) for key, runs in groups.items()])
    head = ["rule", "seeds", "accuracy", "p", "time", "memory", "S", "angle", "certified"]
    lines = [
        _line(*key, runs, chance)
        for (key, runs), chance in zip(groups.items(), chances, strict=True)
    ]
    rows = [head, ["---"] * len(head), *lines]
    text = NETWORKS[cell.network].text
    width = f"width {cell.width}" if not cell.images else f"{cell.width} channels"
    width += f", {cell.examples:,} examples" if cell.examples else ""
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return [f"## {place}", f"{text}, {width}; {cell.optimiser}.", table]


def _line(rule: str, strength: float | None, runs: Sequence[dict], chance: float) -> list[str]:
    last = [run["regimes"][-1] for run in runs]
    mean = lambda name: statistics.fmean(look[name] for look in last)
    own = rule == "backprop"
    star = "\\*" if chance < LEVEL else ""
    told = "" if math.isnan(chance) else f"{chance:.2g}{star}"
    return [
        rule if strength is None else f"{rule} {strength:g}",
        str(len(runs)),
        _spread(ends(runs)),
        told,
        "1" if own else f"{statistics.median(run['cost'] for run in runs):.2f}",
        "1" if own else _known(statistics.median(run["memory"] for run in runs)),
        "1" if own else f"{mean('mean_eigenvalue'):.3g}",
        "0" if own else f"{mean('angle'):.0f}°",
        "" if own else f"{100 * mean('successful'):.3g}%",
    ]


def _known(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _spread(values: Sequence[float]) -> str:
    """The mean and the deviation, or each value where some failed: a mean says nothing then."""
    if max(values) - min(values) > _APART:
        return ", ".join(f"{value:.2f}" for value in values)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def _csv(found: Found) -> str:
    """A line for each network and moment at which its regime was measured."""
    rows = []
    for cell, mine in found.items():
        own = {**vars(cell), **{k: mine[k] for k in ("seconds", "cost", "memory", "device")}}
        for look in mine["regimes"]:
            epoch = int(look["epoch"])
            tested = mine["accuracies"][epoch - 1] if epoch else ""
            rows.append(own | look | dict(accuracy=tested))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _picture(kind: str, found: Found, path: Path) -> str:
    try:
        from . import _draw  # noqa: PLC0415
    except ImportError:
        return "No picture: Matplotlib is not installed. With it, the same command draws one."
    canvas = getattr(_draw, kind)(found)
    for suffix, metadata in {".png": {}, ".pdf": {"CreationDate": None}}.items():
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=suffix[1:], dpi=150, metadata=metadata)
        write_whole(path.with_name(path.name + suffix), buffer.getvalue())
    return f"![{path.name}]({path.name}.png)"


def _not_run(cells: Sequence[Cell], found: Found) -> list[str]:
    left: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        if cell not in found:
            left.setdefault(cell.place, {}).setdefault(cell.named, []).append(str(cell.seed))
    lines = []
    for place, rules in left.items():
        whole = len(rules) == len({cell.named for cell in cells if cell.place == place})
        groups: dict[str, list[str]] = {}
        for rule, seeds in rules.items():
            groups.setdefault(", ".join(seeds), []).append(rule)
        for seeds, names in groups.items():
            told = "all rules" if whole and len(groups) == 1 else ", ".join(names)
            lines.append(f"- {place}, seed {seeds}: {told}")
    return ["\n".join(["Not run:", "", *lines])] if lines else []
