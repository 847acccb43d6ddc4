"""The sections of a report that tell of inference: energies, the distance from equilibrium, the
place between it and backpropagation, and what is asked of the weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .config import Config
from .folder import Record
from .metrics import name_metric
from .page import Part, note, pairs, say
from .rules import FROM_FORWARD, why_no_regime
from .svg import Drawing, Line, chart

_MOST_LINES = 200


def diagnosis_of(record: Record) -> dict[str, Any]:
    """That of the command, not what somebody else calls so."""
    found = record.get("diagnosis")
    return found if isinstance(found, dict) and "course" in found else {}


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _vectors(records: Sequence[Record]) -> list[str]:
    """The metrics that are lists of numbers, one for each layer."""
    last: Record = records[-1] if records else {}
    lists = {name: value for name, value in last.items() if isinstance(value, list) and value}
    plain = lambda value: all(x is None or isinstance(x, int | float) for x in value)
    return [name for name, value in lists.items() if len(value) <= _MOST_LINES and plain(value)]


def _by_layer(
    records: Sequence[Record], rows: Sequence[Sequence[Any]], each: str = "layer"
) -> list[Line]:
    """The entries of lists over epochs."""
    epochs = [record["epoch"] for record in records]
    columns = zip(*rows, strict=True)
    return [Line(f"{each} {i}", epochs, column) for i, column in enumerate(columns, start=1)]


_WAYS = " Network 1 goes from labels to images, network 2 back."


def energies(method: str, records: Sequence[Record]) -> Part:
    """During inference, and over training."""
    title = "Energies of the layers"
    drawn = []
    for name in _vectors(records):
        kept = [record for record in records if record.get(name)]
        each = {"energies": "layer", "losses": "network"}.get(name, name_metric(name))
        lines = _by_layer(kept, [record[name] for record in kept], each)
        text = "Mean over the steps of each epoch."
        text += _WAYS * (name == "losses")
        drawn += chart(
            f"Training: {name_metric(name)}",
            lines,
            "epoch",
            name_metric(name),
            log=True,
            note=text,
        )
    known = [record for record in records if diagnosis_of(record)]
    if not known:
        return Part(title, drawings=drawn)
    during = _course("first", method, known[0])
    during += _course("last", method, known[-1]) if len(known) > 1 else []
    lines = _by_layer(known, [diagnosis_of(record)["energies"] for record in known])
    text = "What is left when inference ends. It falls as the network learns to predict."
    end = chart("At the end of inference", lines, "epoch", "energy", log=True, note=text)
    words = "Means over the same few training examples. The error enters where the output is "
    words += "given, and spreads to the other layers. "
    if method == "equilibrium":
        words += "Equilibrium has no course: what is shown is the gradient flow that it "
        words += "replaces, of those examples that have the most error left."
    return Part(title, note(words), [*during, *end, *drawn])


def _course(which: str, method: str, record: Record) -> list[Drawing]:
    course = diagnosis_of(record)["course"]
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
        listed = ", ".join(percent((e or 0.0) / whole) for e in energies)
        return f"Share of each layer at the end, from the first to the last: {listed}."
    reached = [i for i, e in enumerate(energies, start=1) if (e or 0.0) > 1e-3 * whole]
    return f"At the end {len(reached)} of {len(energies)} layers have over 0.1 % of the energy."


def norms(records: Sequence[Record]) -> Part:
    known = [record for record in records if diagnosis_of(record)]
    title = "Weights and gradients"
    if not known:
        return Part(title)
    weights, gradients = (
        _by_layer(known, [diagnosis_of(record)[f"{of}_norms"] for record in known])
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


def certificate(config: Config | None, method: str, records: Sequence[Record]) -> Part:
    title = "Distance from equilibrium"
    known = [record for record in records if diagnosis_of(record)]
    if not known:
        return Part(title)
    if config is not None and config.training.rule in FROM_FORWARD:
        words = f"--rule {config.training.rule} does not learn where --inference ends. How far it "
        words += "is from equilibrium is told by the next section."
        return Part(title, note(words))
    diagnosis = diagnosis_of(known[-1])
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
    gap = f"the learning gradient differs by {percent(error)} from the one there"
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
    found = [diagnosis_of(record)["certificate"] for record in records]
    errors = [certificate.get("gradient_error") for certificate in found]
    lines = [Line("error of the learning gradient", epochs, errors)]
    excess = [_ratio(certificate) for certificate in found]
    if any(e is not None and e > 0 for e in excess):
        lines.append(Line("energy above equilibrium", epochs, excess))
    text = (
        "Both relative, after each epoch: 0.01 is 1 %. Less is closer. An energy that is above "
        "equilibrium by nothing but rounding is left out."
    )
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


def regime(config: Config | None, records: Sequence[Record]) -> Part:
    """Where the rule stands, over training."""
    title = "Between backpropagation and equilibrium"
    known = [record for record in records if diagnosis_of(record)]
    if config is None or not known:
        return Part(title)
    if reason := why_no_regime(config):
        return Part(title, note(f"Not measured: {reason}."))
    found = [diagnosis_of(record).get("regime", {}) for record in known]
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
