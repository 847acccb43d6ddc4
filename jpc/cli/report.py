"""One page about a run, and the figures on it."""

import dataclasses
import datetime
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from .config import ENTRIES, Config
from .folder import Record
from .inferred import certificate, diagnosis_of, energies, norms, percent, regime
from .machine import machine
from .metrics import (
    UP,
    WORDS,
    best_epoch,
    describe_metric,
    headline,
    most_of,
    name_metric,
    scalars,
    show_metric,
)
from .outcome import Outcome, Prediction
from .page import (
    Number,
    Part,
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
from .setting import Picture
from .svg import Drawing, Line, Mark, bars, chart, matrix, scatter
from .toml import as_tables

Status = Literal["running", "interrupted", "failed", "finished"]
MOST_CLASSES = 40
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
    predictions: Sequence[Prediction] = ()

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
            _predictions(self.predictions),
            _classes(self.outcome),
            _mistakes(self.outcome),
            energies(method, records),
            certificate(config, method, records),
            regime(config, records),
            norms(records),
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
    """`mlp 3 x 256, nudged, equilibrium, seed 0`."""
    network, rule = config.network, config.training.rule
    shape = f"{network.depth} x {network.width}" if network.kind == "mlp" else network.channels
    method = config.inference.method if rule == "pc" else f"{rule}, {config.inference.method}"
    return f"{network.kind} {shape}, {method}, seed {config.training.seed}"


def _numbers(records: Sequence[Record]) -> list[Number]:
    metric = headline(records)
    if metric is None:
        return []
    last, (name, meaning) = (
        records[-1],
        WORDS.get(metric, (name_metric(metric), "after the last")),
    )
    found = [Number(name, show_metric(metric, last.get(metric)), f"last epoch: {meaning}")]
    if best := best_epoch(records, metric):
        fair = metric.replace("test_", "val_") in best
        chosen = "validation" if fair else "the test examples themselves, so it flatters"
        text = f"epoch {best['epoch']}, chosen on {chosen}"
        found.append(Number(f"best epoch's {name}", show_metric(metric, best[metric]), text))
    if "loss" in last and metric != "loss":
        found.append(Number(WORDS["loss"][0], show_metric("loss", last["loss"]), WORDS["loss"][1]))
    error = diagnosis_of(last).get("certificate", {}).get("gradient_error")
    if error is not None:
        text = "error of the learning gradient, beside that at equilibrium"
        found.append(Number("distance from equilibrium", percent(error), text))
    middle = statistics.median(record["seconds"] for record in records)
    text = "median over the epochs, so without compiling"
    return [*found, Number("time of an epoch", f"{middle:.3g} s", text)]


def _curves(records: Sequence[Record]) -> Part:
    names = scalars(records)
    rates, shares, losses = ([n for n in names if n.endswith(e)] for e in (*UP, "loss"))
    others = [name for name in names if name not in (*rates, *shares, *losses)]
    text = "Examples whose class was right. More is better."
    drawn = _curve("Accuracy", rates, records, "%", text)
    text = "Share of the targets' variance that is explained. 1 is all of it, 0 is the mean."
    drawn += _curve("Explained variance", shares, records, "R²", text)
    text = "What training makes small."
    text += " Where test goes up and training down, it overfits." if len(losses) > 1 else ""
    drawn += _curve("Loss", losses, records, "loss", text)
    for name in others:
        called, text = WORDS.get(name, (name_metric(name), "after each epoch"))
        drawn += _curve(called.capitalize(), [name], records, called, f"{text.capitalize()}.")
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
        said = f"best epoch: {found['epoch']}, {show_metric(name, found[name])}"
        mark = Mark(found["epoch"], found[name], said)
    most = min(map(most_of, names), default=math.inf)
    return chart(title, lines, "epoch", label, log=log, most=most, mark=mark, note=text)


def _predictions(found: Sequence[Prediction]) -> Part:
    text = "A point for each test example. On the line what the network says is what is true."
    drawn = []
    for name, truths, guesses in found:
        drawn += scatter(f"Predicted {name}", truths, guesses, "true", "predicted", text)
    return Part("Predictions of numbers", drawings=drawn)


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
    said = "Test examples that it took for another class: those first where that seemed likelier "
    text = note(f"{said}than the right one by most.")
    if outcome.pictures:
        return Part(title, text, more=gallery(outcome.pictures))
    header = ["row", "is", "said", *outcome.features]
    return Part(title, text, more=table(header, outcome.rows))


_GALLERIES = {
    "Predictions": "The first test examples, and what the network says of them.",
    "Samples": "What the network makes up.",
    "Reconstructions": "Test images, and what the network makes of the causes it infers.",
}


def _galleries(pictures: Sequence[Picture]) -> list[Part]:
    kinds = dict.fromkeys(picture.kind for picture in pictures)
    of = lambda kind: [picture for picture in pictures if picture.kind == kind]
    shown = {kind: gallery(of(kind), pairs=kind == "Reconstructions") for kind in kinds}
    return [Part(kind, note(_GALLERIES.get(kind, "")), more=shown[kind]) for kind in kinds]


def _tables(config: Config) -> str:
    texts = {(entry.table, entry.key): entry.rules["text"] for entry in ENTRIES}
    cards = []
    for name, options in as_tables(config).items():
        meanings = {key: texts.get((name, key), "") for key in options}
        cards.append(f"<div><h3>{word(name)}</h3>{pairs(options, meanings)}</div>")
    return f'<div class="cards">{"".join(cards)}</div>'
