"""One page about a run, which needs nothing but itself."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .config import Config
from .folder import Record
from .machine import machine
from .setting import Picture
from .svg import Line, chart
from .toml import as_tables

Status = Literal["running", "interrupted", "failed", "finished"]
_REFRESH = '<meta http-equiv="refresh" content="10" />'
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5c6575; --page: #f5f6f8;
  --card: #ffffff; --edge: #dfe3ea; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b5; --page: #12151b;
  --card: #1b2029; --edge: #303848; --bad: #ff8a7a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 1.2rem 1rem 3rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .2rem 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; color: var(--soft); max-width: 70ch; }
.cards { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(100%,
  420px), 1fr)); }
figure, .card { margin: 0; padding: .8rem; background: var(--card); border: 1px solid
  var(--edge); border-radius: 10px; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
@media (max-width: 500px) { svg text { font-size: 14px; } }
.grid { stroke: var(--edge); stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .25rem; margin-right: .35rem;
  vertical-align: middle; border-radius: 2px; }
.pictures { display: grid; gap: .6rem;
  grid-template-columns: repeat(auto-fill, minmax(76px, 1fr)); }
.pictures div { text-align: center; font-size: .8rem; line-height: 1.2; }
.pictures img { width: 100%; image-rendering: pixelated; border-radius: 4px; display: block;
  margin-bottom: .2rem; }
.wrong { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top;
  border-bottom: 1px solid var(--edge); }
td + td { overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
"""


def write_report(
    config: Config,
    records: Sequence[Record],
    pictures: Sequence[Picture],
    status: Status,
    headline: str,
) -> str:
    """A page of HTML that is well-formed XML too. While a run goes on, the page asks the browser
    to load it again every ten seconds.
    """
    sections = [
        _section("Curves", _curves(records)),
        _section("Energies of the layers", _energies(config, records)),
        _section("Weights and gradients", _norms(records)),
        _section("Distance from equilibrium", _certificate(config, records)),
        _section(*_gallery(config, pictures)),
        _section("Configuration", _tables(as_tables(config))),
        _section("Machine", _table(machine())),
    ]
    title = html.escape(f"{config.data.name}, {config.data.task}")
    refresh = _REFRESH if status == "running" else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />'
        f'<meta name="viewport" content="width=device-width, initial-scale=1" />{refresh}'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"{_header(config, records, status, headline)}{''.join(sections)}</body></html>\n"
    )


def describe_metric(name: str, value: float) -> str:
    """`test accuracy 97.5 %`, `test R² 0.93`, `test loss 3.1`."""
    if name == "test_r2":
        return f"test R² {value:.3f}"
    return f"test accuracy {value:.1f} %" if name == "test_acc" else f"test loss {value:.4g}"


def _header(config: Config, records: Sequence[Record], status: Status, headline: str) -> str:
    done, of = len(records), config.training.epochs
    said = describe_metric(headline, records[-1][headline]) if records else "no epoch done yet"
    seconds = sum(record["seconds"] for record in records)
    network = config.network
    shape = f"{network.depth} x {network.width}" if network.kind == "mlp" else network.channels
    made_of = f"{network.kind} {shape}, {config.inference.method}, seed {config.training.seed}"
    title = f"{config.data.name}, {config.data.task}: {said}"
    ran = f"{status}, epoch {done} of {of}, {seconds:.0f} s of training; {made_of}"
    return f"<header><h1>{html.escape(title)}</h1><p>{html.escape(ran)}</p></header>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>" if content else ""


def _cards(*figures: str) -> str:
    return f'<div class="cards">{"".join(figures)}</div>'


def _curves(records: Sequence[Record]) -> str:
    accuracies = {"test_acc": "test", "test_guess_acc": "test, amortiser alone"}
    losses = {"loss": "training", "test_loss": "test"}
    return _cards(
        chart("Accuracy", _over_epochs(records, accuracies), "epoch", "%"),
        chart("Explained variance", _over_epochs(records, {"test_r2": "test"}), "epoch", "R²"),
        chart("Loss", _over_epochs(records, losses), "epoch", "loss", log=True),
    )


def _over_epochs(records: Sequence[Record], names: Mapping[str, str]) -> list[Line]:
    there = {name: text for name, text in names.items() if records and name in records[-1]}
    epochs = [record["epoch"] for record in records]
    return [Line(text, epochs, [r[name] for r in records]) for name, text in there.items()]


def _by_layer(records: Sequence[Record], name: str) -> list[Line]:
    """The entries of a list in the diagnoses, over epochs."""
    epochs = [record["epoch"] for record in records]
    rows = [record["diagnosis"][name] for record in records]
    columns = zip(*rows, strict=True)
    return [Line(f"layer {i}", epochs, column) for i, column in enumerate(columns, start=1)]


def _course(record: Record) -> list[Line]:
    course = record["diagnosis"]["course"]
    columns = zip(*course["energies"], strict=True)
    return [
        Line(f"layer {i}", course["times"], column) for i, column in enumerate(columns, start=1)
    ]


def _energies(config: Config, records: Sequence[Record]) -> str:
    if not records:
        return ""
    x_label = "step" if config.inference.method == "descent" else "time"
    during = [
        chart(f"During inference, epoch {record['epoch']}", _course(record), x_label, "energy",
              log=True)
        for record in {record["epoch"]: record for record in (records[0], records[-1])}.values()
    ]  # fmt: skip
    end = chart(
        "At the end of inference", _by_layer(records, "energies"), "epoch", "energy", log=True
    )
    note = (
        "Equilibrium has no course: what is shown is the gradient flow that it replaces."
        if config.inference.method == "equilibrium"
        else ""
    )
    return f"<p>Means over the same few training examples. {note}</p>{_cards(*during, end)}"


def _norms(records: Sequence[Record]) -> str:
    if not records:
        return ""
    weights, gradients = (_by_layer(records, f"{of}_norms") for of in ("weight", "gradient"))
    return _cards(
        chart("Norm of the parameters", weights, "epoch", "norm"),
        chart("Norm of the learning gradient", gradients, "epoch", "norm", log=True),
    )


def _certificate(config: Config, records: Sequence[Record]) -> str:
    if not records:
        return ""
    diagnosis = records[-1]["diagnosis"]
    found = diagnosis["certificate"]
    numbers = {
        "examples that met the tolerance": f"{100 * diagnosis['converged']:.0f} %",
        "activity gradient, relative": f"{diagnosis['activity_gradient']:.2g}",
    }
    if found:
        numbers |= {
            "energy above equilibrium": f"{_show(found['excess'])} of {_show(found['energy'])}",
            "error of the learning gradient": _show(found["gradient_error"]),
            "the same, layer by layer": ", ".join(map(_show, found["layer_gradient_errors"])),
            "equilibrium found to high accuracy": f"{100 * found['found']:.0f} % of examples",
        }
    text = (
        f"Where {config.inference.method} ended in the last epoch, compared with the equilibrium "
        "of the same few training examples."
    )
    return f"<p>{text}</p>{_cards(_table(numbers), _errors(records) if found else '')}"


def _errors(records: Sequence[Record]) -> str:
    epochs = [record["epoch"] for record in records]
    found = [record["diagnosis"]["certificate"] for record in records]
    errors = Line("error of the learning gradient", epochs, [c["gradient_error"] for c in found])
    excess = Line("relative excess energy", epochs, [_ratio(c) for c in found])
    return chart("Distance from equilibrium", [errors, excess], "epoch", "relative", log=True)


def _ratio(certificate: Mapping[str, float | None]) -> float | None:
    excess, energy = certificate["excess"], certificate["energy"]
    return excess / energy if excess is not None and energy else None


def _show(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.2g}"


def _gallery(config: Config, pictures: Sequence[Picture]) -> tuple[str, str]:
    title = "Predictions" if config.data.task == "discriminative" else "Samples"
    cells = "".join(
        f"<div{'' if right else ' class=' + chr(34) + 'wrong' + chr(34)}>"
        f'<img alt="" src="data:image/png;base64,{encode(image)}" />{html.escape(caption)}</div>'
        for image, caption, right in pictures
    )
    return title, f'<div class="card pictures">{cells}</div>' if cells else ""


def encode(image: np.ndarray) -> str:
    """A PNG of an image of shape (channels, height, width), in base64."""
    from PIL import Image  # noqa: PLC0415

    pixels = np.round(255 * np.moveaxis(image, 0, -1)).astype(np.uint8)
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def _tables(tables: Mapping[str, Mapping[str, Any]]) -> str:
    titled = (
        f'<div class="card"><b>{name}</b>{_rows(options)}</div>'
        for name, options in tables.items()
    )
    return _cards(*titled)


def _table(entries: Mapping[str, Any]) -> str:
    return f'<div class="card">{_rows(entries)}</div>'


def _rows(entries: Mapping[str, Any]) -> str:
    rows = (
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(_word(value))}</td></tr>"
        for name, value in entries.items()
    )
    return f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
