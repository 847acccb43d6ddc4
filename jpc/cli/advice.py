"""What a run says of itself on the terminal: how long it will take, how well it converged."""

from collections.abc import Mapping
from typing import Any

from .config import Config
from .folder import Record
from .rules import FROM_FORWARD
from .text import say

_LONG, _FEW, _SHORT = 600.0, 0.5, 0.3
_AT_THE_END = ("pc", "epc", "precision")  # Rules that learn where inference ended.


def tell_pace(config: Config, examples: int, seconds: float) -> None:
    """Says how long a run of such steps will take if that is long, and what is quicker."""
    epoch = seconds * (examples // config.training.batch_size)
    if epoch * config.training.epochs > _LONG:
        said = f"an epoch takes about {duration(epoch)} here, all {config.training.epochs} about"
        whole = duration(epoch * config.training.epochs)
        say(f"{said} {whole}. Quicker: {', '.join(_quicker(config))}.", err=True)


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`."""
    units = {"days": 86_400, "h": 3600, "min": 60}
    name, unit = next(((n, u) for n, u in units.items() if seconds >= 1.5 * u), ("s", 1))
    number = seconds / unit
    return f"{number:.1f} {name}" if number < 10 and unit >= 3600 else f"{number:.0f} {name}"


def _quicker(config: Config) -> list[str]:
    """What makes a step shorter, the most useful first."""
    import jax  # noqa: PLC0415

    found, network, inference = [], config.network, config.inference
    if network.kind != "mlp":
        channels: Any = network.channels
        found += ["--network mlp"]
        found += [f"--channels {channels // 4} (about a sixteenth)"] if channels >= 16 else []
    elif (network.width or 0) > 128:
        found += ["--width 128"]
    if inference.method not in ("descent", "equilibrium"):
        found += ["--inference equilibrium"]
    elif inference.method == "equilibrium" and config.data.task != "discriminative":
        found += ["--inference descent"]
    elif (inference.steps or 0) > 20:
        found += ["--steps 20"]
    if config.training.rule in ("ipc", "mcpc"):
        found += ["--rule pc"]
    on_cpu = jax.default_backend() == "cpu"
    return [*found, f"--epochs {max(1, config.training.epochs // 10)}"] + ["a GPU"] * on_cpu


def advise(config: Config, record: Record) -> list[str]:
    """What to say at the end of a run that did not go as it should."""
    method, diagnosis = config.inference.method, record["diagnosis"]
    share = diagnosis["converged"]
    if method == "descent":
        return _advise_descent(config, diagnosis["certificate"])
    if config.training.rule in FROM_FORWARD or share >= _FEW:
        return []
    error = diagnosis["certificate"].get("gradient_error")
    means = "" if error is None else f" (the learning gradient is off by {100 * error:.0f} %)"
    if error is not None and error < 0.1:
        return []
    said = f"only {100 * share:.0f} % of the examples reached equilibrium{means}."
    return [f"{said} Try {_closer(config)}."]


def _advise_descent(config: Config, certificate: Mapping[str, Any]) -> list[str]:
    """Descent has no tolerance to meet. What counts is whether the gradient suffers, where the
    equilibrium is known and learned from. Where it is not, a state that has much less energy
    says enough.
    """
    rule, more = config.training.rule, f"--steps {5 * (config.inference.steps or 0)}"
    error, left = certificate.get("gradient_error"), _left(certificate)
    if rule not in _AT_THE_END or error is None:
        return []
    if certificate.get("found", 0.0) >= _FEW:
        off = f"the learning gradient is off by {100 * error:.0f} %" if error >= _SHORT else ""
        other = "" if rule == "epc" else " or --inference equilibrium"
    else:
        off = f"{100 * left:.0f} % of its energy or more is left" if left >= _SHORT else ""
        other = f" or --learning-rate {(config.optimiser.learning_rate or 0.0) / 5:g}"
    return [f"descent ended short of equilibrium ({off}). Try {more}{other}."] if off else []


def _left(certificate: Mapping[str, Any]) -> float:
    """The share of the energy that inference could have taken off, at least."""
    excess, energy = certificate.get("excess"), certificate.get("energy")
    return excess / energy if excess and energy else 0.0


def _closer(config: Config) -> str:
    """What brings inference closer to its end."""
    inference, rate = config.inference, config.optimiser.learning_rate or 0.0
    lower = f"--learning-rate {rate / 5:g}"
    if inference.method == "equilibrium":
        steps: Any = inference.steps
        precision: Any = config.energy.output_precision or 1.0
        more = f"--steps {max(100, 2 * steps)}"
        return f"{more}, --output-precision {precision / 10:g} or {lower}"
    longer: Any = inference.max_t1
    return f"--max-t1 {5 * longer:g}, --inference equilibrium or {lower}"
