"""One page about a run, and the figures on it."""

import dataclasses
import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .config import ENTRIES, Config
from .folder import Record
from .machine import machine
from .outcome import Outcome
from .page import (
    Number,
    figures,
    gallery,
    heading,
    note,
    numbers,
    page,
    pairs,
    say,
    section,
    table,
    word,
)
from .rules import FROM_FORWARD, why_no_regime
from .setting import Picture
from .svg import Drawing, Line, Mark, bars, chart, matrix
from .toml import as_tables

Status = Literal["running", "interrupted", "failed", "finished"]
MOST_CLASSES, MOST_LINES = 40, 200
_NOT_METRICS = ("epoch", "step", "seconds", "compile_seconds")
METRICS = ("test_acc", "test_r2", "test_loss", "loss")  # The first of them that is there counts.
_UP = ("acc", "r2")  # More is better.
_WORDS = {
    "test_acc": ("test accuracy", "of the test examples whose class the network got right"),
    "test_r2": ("test R²", "of the test targets' variance is explained; 1 is all of it"),
    "test_loss": ("test loss", "mean of the loss over the test examples; less is better"),
    "loss": ("training loss", "mean of the loss over the training examples of an epoch"),
}
_LINES = {
    "loss": "training",
    "acc": "training",
    "test_loss": "test",
    "test_acc": "test",
    "test_guess_acc": "test, amortiser alone",
    "test_r2": "test",
    "val_loss": "validation",
    "val_acc": "validation",
    "val_r2": "validation",
}


class Part(NamedTuple):
    """A section: its title, what it says, its figures and what is beside them, and what else it
    shows.
    """

    title: str
    words: str = ""
    drawings: Sequence[Drawing] = ()
    beside: str = ""
    more: str = ""

    def __str__(self) -> str:
        return section(self.title, self.words, figures(self.drawings, self.beside), self.more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What there is to tell of a run. Only the command knows the configuration, what the network
    says of the test set, and pictures.
    """

    records: Sequence[Record]
    status: Status = "finished"
    epochs: int | None = None
    name: str = "training"
    config: Config | None = None
    pictures: Sequence[Picture] = ()
    outcome: Outcome | None = None

    def page(self) -> str:
        """While a run goes on its page loads itself again."""
        tables = [] if self.config is None else [section("Configuration", _tables(self.config))]
        tables.append(section("Machine", pairs(machine())))
        header = heading(self.title(), self._state()) + numbers(_numbers(self.records))
        sections = [*map(str, self._parts()), *tables]
        return page(self.title(), header, sections, reload=self.status == "running")

    def drawings(self) -> list[Drawing]:
        """Every figure of the page."""
        return [drawing for part in self._parts() for drawing in part.drawings]

    def title(self) -> str:
        config, last = self.config, self.records[-1] if self.records else {}
        name = self.name if config is None else f"{config.data.name}, {config.data.task}"
        best = headline(self.records)
        return f"{name}: {describe_metric(best, last.get(best)) if best else 'no epoch done yet'}"

    def _parts(self) -> list[Part]:
        records, config = self.records, self.config
        method = "" if config is None else config.inference.method or ""
        return [
            _curves(records),
            _classes(self.outcome),
            _mistakes(self.outcome),
            _energies(method, records),
            _certificate(config, method, records),
            _regime(config, records),
            _norms(records),
            *_galleries([*self.pictures, *(self.outcome.remade if self.outcome else ())]),
        ]

    def _state(self) -> str:
        done, of = len(self.records), "" if self.epochs is None else f" of {self.epochs}"
        seconds = sum(record["seconds"] for record in self.records)
        compiling = sum(record.get("compile_seconds", 0.0) for record in self.records)
        compiling = f"and {compiling:.0f} s of compiling" if compiling else "with compiling"
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        known = self.config is not None and self.status not in ("finished", "failed")
        resume = ", and jpc train --resume goes on with it" if known else ""
        ran = f"{_STATES[self.status]}{resume}. Epoch {done}{of}, {seconds:.0f} s {compiling}"
        made_of = "" if self.config is None else f"{describe_method(self.config)}; "
        return f"{ran}; {made_of}written {now}."


_STATES = {
    "running": "Running when this was written; if that is long ago, it was killed",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "finished": "Finished",
}


def describe_method(config: Config) -> str:
    """`mlp 3 x 256, equilibrium, seed 0`."""
    network = config.network
    shape = f"{network.depth} x {network.width}" if network.kind == "mlp" else network.channels
    return f"{network.kind} {shape}, {config.inference.method}, seed {config.training.seed}"


def describe_metric(name: str, value: float | None) -> str:
    """`test accuracy 97.5 %`, `test loss 3.1`."""
    return f"{name_metric(name)} {_amount(name, value)}"


def name_metric(metric: str) -> str:
    return _WORDS[metric][0] if metric in _WORDS else metric.replace("_", " ")


def _amount(metric: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not a number"
    return f"{value:.1f} %" if metric.endswith("acc") else f"{value:.4g}"


def headline(records: Sequence[Record]) -> str | None:
    """The metric that says how good a network is."""
    names = _scalars(records)
    wanted = [name for name in METRICS if name in names]
    return next(iter([*wanted, *names]), None)


def more_is_better(metric: str) -> bool:
    return metric.endswith(_UP)


def best_epoch(records: Sequence[Record], metric: str) -> Record | None:
    """The first of the best, by validation data if there are any. How good the best epoch of
    training is would say nothing.
    """
    judge = metric.replace("test_", "val_")
    judge = judge if judge in _scalars(records) else metric
    there = [record for record in records if None not in (record.get(judge), record.get(metric))]
    if not there or not metric.startswith("test_"):
        return None
    choose = max if more_is_better(metric) else min
    return choose(there, key=lambda record: record[judge])


def _scalars(records: Sequence[Record]) -> list[str]:
    """The metrics that are numbers, in order."""
    names = dict.fromkeys(name for record in records for name in record)
    number = lambda x: x is None or (isinstance(x, int | float) and not isinstance(x, bool))
    plain = [name for name in names if all(number(record.get(name)) for record in records)]
    return [name for name in plain if name not in _NOT_METRICS]


def _vectors(records: Sequence[Record]) -> list[str]:
    """The metrics that are lists of numbers, one for each layer."""
    last: Record = records[-1] if records else {}
    lists = {name: value for name, value in last.items() if isinstance(value, list) and value}
    plain = lambda value: all(x is None or isinstance(x, int | float) for x in value)
    return [name for name, value in lists.items() if len(value) <= MOST_LINES and plain(value)]


def _numbers(records: Sequence[Record]) -> list[Number]:
    metric = headline(records)
    if metric is None:
        return []
    last, (name, meaning) = (
        records[-1],
        _WORDS.get(metric, (name_metric(metric), "after the last")),
    )
    found = [Number(name, _amount(metric, last.get(metric)), f"last epoch: {meaning}")]
    if best := best_epoch(records, metric):
        fair = metric.replace("test_", "val_") in best
        chosen = "validation" if fair else "the test examples themselves, so it flatters"
        text = f"epoch {best['epoch']}, chosen on {chosen}"
        found.append(Number(f"best epoch's {name}", _amount(metric, best[metric]), text))
    if "loss" in last and metric != "loss":
        found.append(Number(_WORDS["loss"][0], _amount("loss", last["loss"]), _WORDS["loss"][1]))
    error = _diagnosis(last).get("certificate", {}).get("gradient_error")
    if error is not None:
        text = "error of the learning gradient, beside that at equilibrium"
        found.append(Number("distance from equilibrium", _percent(error), text))
    middle = statistics.median(record["seconds"] for record in records)
    text = "median over the epochs, so without compiling"
    return [*found, Number("time of an epoch", f"{middle:.3g} s", text)]


def _diagnosis(record: Record) -> dict[str, Any]:
    """That of the command, not what somebody else calls so."""
    found = record.get("diagnosis")
    return found if isinstance(found, dict) and "course" in found else {}


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _curves(records: Sequence[Record]) -> Part:
    names = _scalars(records)
    rates, shares, losses = ([n for n in names if n.endswith(e)] for e in (*_UP, "loss"))
    others = [name for name in names if name not in (*rates, *shares, *losses)]
    text = "Examples whose class was right. More is better."
    drawn = _curve("Accuracy", rates, records, "%", text)
    text = "Share of the targets' variance that is explained. 1 is all of it, 0 is the mean."
    drawn += _curve("Explained variance", shares, records, "R²", text)
    text = "What training makes small."
    text += " Where test goes up and training down, it overfits." if len(losses) > 1 else ""
    drawn += _curve("Loss", losses, records, "loss", text)
    for name in others:
        drawn += _curve(
            name_metric(name).capitalize(), [name], records, name_metric(name), "After each epoch."
        )
    return Part("Learning curves", drawings=drawn)


def _curve(
    title: str, names: Sequence[str], records: Sequence[Record], label: str, text: str
) -> list[Drawing]:
    epochs = [record["epoch"] for record in records]
    lines = [
        Line(_LINES.get(name, name_metric(name)), epochs, [record.get(name) for record in records])
        for name in names
    ]
    values = [y for line in lines for y in line.ys if y is not None]
    log, mark = title == "Loss" and min(values, default=0.0) > 0, None
    best = [(name, found) for name in names if (found := best_epoch(records, name))]
    if best:
        name, found = best[0]
        said = f"best epoch: {found['epoch']}, {_amount(name, found[name])}"
        mark = Mark(found["epoch"], found[name], said)
    return chart(title, lines, "epoch", label, log=log, mark=mark, note=text)


def _classes(outcome: Outcome | None) -> Part:
    if outcome is None:
        return Part("Classes")
    counts, names = outcome.confusion(), list(outcome.classes)
    totals, right = counts.sum(axis=1), counts.diagonal()
    shares = [float(r / max(t, 1)) for r, t in zip(right, totals, strict=True)]
    order = sorted(range(len(names)), key=lambda i: shares[i])[:MOST_CLASSES]
    order = sorted(order) if len(names) <= MOST_CLASSES else order
    texts = [f"{100 * shares[i]:.1f} % of {totals[i]}" for i in order]
    which = "" if len(order) == len(names) else f" The worst {MOST_CLASSES}."
    text = f"Share of each class's test examples that were right.{which}"
    named = ([names[i] for i in order], [shares[i] for i in order], texts)
    drawn = []
    if len(names) <= MOST_CLASSES:
        grid = "Each row is a class, each column what it was taken for: mistakes are off the "
        drawn += matrix("Confusion matrix", names, counts.tolist(), f"{grid}diagonal.")
    drawn += bars("Accuracy of each class", *named, text)
    return Part("Classes", say(_confusions(outcome)), drawn)


def _confusions(outcome: Outcome) -> str:
    wrong, number = int(sum(outcome.truths != outcome.guesses)), len(outcome.truths)
    first = "" if number == outcome.examples else f"the first {number} of "
    text = f"{wrong} mistakes in {first}{outcome.examples} test examples"
    repeated = [(a, b, n) for a, b, n in outcome.confused() if n > 1]
    often = ", ".join(f"{a} taken for {b} ({n} times)" for a, b, n in repeated)
    return f"{text}. Most often: {often}." if often else f"{text}."


def _mistakes(outcome: Outcome | None) -> Part:
    title = "Worst mistakes"
    if outcome is None or not (outcome.pictures or outcome.rows):
        return Part(title)
    text = note("Test examples of which the network was surest and wrong, the worst first.")
    if outcome.pictures:
        return Part(title, text, more=gallery(outcome.pictures))
    header = ["row", "is", "said", *outcome.features]
    return Part(title, text, more=table(header, outcome.rows))


def _by_layer(
    records: Sequence[Record], rows: Sequence[Sequence[Any]], each: str = "layer"
) -> list[Line]:
    """The entries of lists over epochs."""
    epochs = [record["epoch"] for record in records]
    columns = zip(*rows, strict=True)
    return [Line(f"{each} {i}", epochs, column) for i, column in enumerate(columns, start=1)]


def _energies(method: str, records: Sequence[Record]) -> Part:
    """During inference, and over training."""
    title = "Energies of the layers"
    drawn = []
    for name in _vectors(records):
        kept = [record for record in records if record.get(name)]
        each = "layer" if name == "energies" else name_metric(name)
        lines = _by_layer(kept, [record[name] for record in kept], each)
        text = "Mean over the steps of each epoch."
        drawn += chart(
            f"Training: {name_metric(name)}",
            lines,
            "epoch",
            name_metric(name),
            log=True,
            note=text,
        )
    known = [record for record in records if _diagnosis(record)]
    if not known:
        return Part(title, drawings=drawn)
    during = _course("first", method, known[0])
    during += _course("last", method, known[-1]) if len(known) > 1 else []
    lines = _by_layer(known, [_diagnosis(record)["energies"] for record in known])
    text = "What is left when inference ends. It falls as the network learns to predict."
    end = chart("At the end of inference", lines, "epoch", "energy", log=True, note=text)
    words = "Means over the same few training examples. The error enters where the output is "
    words += "given, and spreads to the other layers. "
    if method == "equilibrium":
        words += "Equilibrium has no course: what is shown is the gradient flow that it replaces."
    return Part(title, note(words), [*during, *end, *drawn])


def _course(which: str, method: str, record: Record) -> list[Drawing]:
    course = _diagnosis(record)["course"]
    columns = list(zip(*course["energies"], strict=True))
    lines = [Line(f"layer {i}", course["times"], c) for i, c in enumerate(columns, start=1)]
    title, steps = f"During inference, {which} epoch", method == "descent"
    text = f"Epoch {record['epoch']}. {_shares([c[-1] for c in columns])}"
    named: Any = dict(log=True, log_x=not steps, note=text)
    return chart(title, lines, "step" if steps else "time", "energy", **named)


def _shares(energies: Sequence[float | None]) -> str:
    """How the energy is spread out over the layers."""
    if any(e is None for e in energies) or not sum(e or 0.0 for e in energies) > 0:
        return ""
    whole = sum(e or 0.0 for e in energies)
    if len(energies) <= 6:
        listed = ", ".join(_percent((e or 0.0) / whole) for e in energies)
        return f"Share of each layer at the end, from the first to the last: {listed}."
    reached = [i for i, e in enumerate(energies, start=1) if (e or 0.0) > 1e-3 * whole]
    return f"At the end {len(reached)} of {len(energies)} layers have over 0.1 % of the energy."


def _norms(records: Sequence[Record]) -> Part:
    known = [record for record in records if _diagnosis(record)]
    title = "Weights and gradients"
    if not known:
        return Part(title)
    weights, gradients = (
        _by_layer(known, [_diagnosis(record)[f"{of}_norms"] for record in known])
        for of in ("weight", "gradient")
    )
    text = "Root of the sum of squares of a layer's parameters. It should settle, not explode."
    drawn = chart("Norm of the parameters", weights, "epoch", "norm", note=text)
    text = "How much each layer is asked to change. Layers far below the others hardly learn."
    gradient = chart(
        "Norm of the learning gradient", gradients, "epoch", "norm", log=True, note=text
    )
    return Part(title, drawings=[*drawn, *gradient])


_MEANINGS = {
    "examples that met the tolerance": "whose inference ended because it was done, not because "
    "it ran out of steps or time",
    "activity gradient, relative": "what still pulls at the activities; 0 at equilibrium",
    "energy above equilibrium": "the energy that inference left, of the energy there is",
    "error of the learning gradient": "its distance from the one at equilibrium, over that one's "
    "length; 0 at equilibrium",
    "the same, layer by layer": "from the first layer to the last",
    "equilibrium found to high accuracy": "whether what all of this is compared with is right",
}
_MORE = {
    "equilibrium": "give --steps 100, or more --chords",
    "euler": "give a larger --max-t1",
    "descent": "give more --steps",
}


def _certificate(config: Config | None, method: str, records: Sequence[Record]) -> Part:
    title = "Distance from equilibrium"
    known = [record for record in records if _diagnosis(record)]
    if not known:
        return Part(title)
    if config is not None and config.training.rule in FROM_FORWARD:
        words = f"--rule {config.training.rule} does not learn where --inference ends. How far it "
        words += "is from equilibrium is told by the next section."
        return Part(title, note(words))
    diagnosis = _diagnosis(known[-1])
    found = diagnosis["certificate"]
    entries = {
        "examples that met the tolerance": f"{100 * diagnosis['converged']:.0f} %",
        "activity gradient, relative": _show(diagnosis["activity_gradient"]),
    }
    if found:
        entries |= {
            "energy above equilibrium": f"{_show(found['excess'])} of {_show(found['energy'])}",
            "error of the learning gradient": _show(found["gradient_error"]),
            "the same, layer by layer": ", ".join(map(_show, found["layer_gradient_errors"])),
            "equilibrium found to high accuracy": f"{100 * found['found']:.0f} % of examples",
        }
    words = say(certify(method, diagnosis)) + note(
        f"Where {method} ended after the last epoch, compared with the equilibrium of the same "
        "few training examples."
    )
    return Part(title, words, _errors(known) if found else [], pairs(entries, _MEANINGS))


def certify(method: str, diagnosis: Mapping[str, Any]) -> str:
    """The distance from equilibrium in words, and what to do about it."""
    error = diagnosis["certificate"].get("gradient_error")
    if error is None:
        return "How far inference ended from equilibrium is not known for this energy."
    gap = f"the learning gradient differs by {_percent(error)} from the one there"
    remedy = _MORE.get(method, "give a larger --max-t1")
    if error < 0.01:
        said = f"Inference ended at equilibrium: {gap}."
    elif error < 0.1:
        said = f"Inference ended close to equilibrium: {gap}."
    elif error < 0.5:
        said = f"Inference ended short of equilibrium: {gap}. To get closer, {remedy}."
    else:
        said = f"Inference ended far from equilibrium: {gap}. This network learned from the "
        said += f"beginning of inference, not from its end. To get closer, {remedy}."
    if diagnosis["certificate"]["found"] < 0.9:
        said += " That equilibrium was not found accurately for all examples: a rough estimate."
    return said


def _errors(records: Sequence[Record]) -> list[Drawing]:
    epochs = [record["epoch"] for record in records]
    found = [_diagnosis(record)["certificate"] for record in records]
    errors = [certificate.get("gradient_error") for certificate in found]
    lines = [Line("error of the learning gradient", epochs, errors)]
    excess = [_ratio(certificate) for certificate in found]
    if any(e is not None and e > 0 for e in excess):
        lines.append(Line("energy above equilibrium", epochs, excess))
    text = "Both relative, after each epoch: 0.01 is 1 %. Less is closer."
    return chart("Over training", lines, "epoch", "relative", log=True, note=text)


def _ratio(certificate: Mapping[str, float | None]) -> float | None:
    excess, energy = certificate.get("excess"), certificate.get("energy")
    return excess / energy if excess is not None and energy else None


_PLACES = {
    "mean_eigenvalue": (
        "Mean eigenvalue of S",
        "eigenvalue",
        "By how much equilibrium shrinks the output's error before it is learned from. At 1 "
        "equilibrium is backpropagation.",
    ),
    "angle": (
        "Angle to backpropagation",
        "degrees",
        "Between the gradient that this rule learns with and that of backpropagation. 0 is the "
        "same direction.",
    ),
    "relaxed": (
        "Relaxed energy",
        "share",
        "Of the energy that inference can take off, what it did: 0 is a feedforward pass, 1 is "
        "equilibrium.",
    ),
}


def _regime(config: Config | None, records: Sequence[Record]) -> Part:
    """Where the rule stands, over training."""
    title = "Between backpropagation and equilibrium"
    known = [record for record in records if _diagnosis(record)]
    if config is None or not known:
        return Part(title)
    if reason := why_no_regime(config):
        return Part(title, note(f"Not measured: {reason}."))
    found = [_diagnosis(record).get("regime", {}) for record in known]
    epochs, drawn = [record["epoch"] for record in known], []
    for name, (called, label, text) in _PLACES.items():
        values = [regime.get(name) for regime in found]
        if any(value is not None for value in values):
            line = Line(name_metric(name), epochs, values)
            drawn += chart(called, [line], "epoch", label, note=text)
    words = "After each epoch, on the same few training examples. Far from backpropagation is a "
    words += "rule only if S is far from 1 and the energy is relaxed."
    return Part(title, note(words), drawn)


def _show(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.2g}"


_GALLERIES = {
    "Predictions": "The first test examples, and what the network says of them.",
    "Samples": "What the network makes up.",
    "Reconstructions": "Test images, and what the network makes of the causes it infers.",
}


def _galleries(pictures: Sequence[Picture]) -> list[Part]:
    kinds = dict.fromkeys(picture.kind for picture in pictures)
    return [
        Part(
            kind,
            note(_GALLERIES.get(kind, "")),
            more=gallery([picture for picture in pictures if picture.kind == kind]),
        )
        for kind in kinds
    ]


def _tables(config: Config) -> str:
    texts = {(entry.table, entry.key): entry.rules["text"] for entry in ENTRIES}
    cards = []
    for name, options in as_tables(config).items():
        meanings = {key: texts.get((name, key), "") for key in options}
        cards.append(f"<div><h3>{word(name)}</h3>{pairs(options, meanings)}</div>")
    return f'<div class="cards">{"".join(cards)}</div>'
