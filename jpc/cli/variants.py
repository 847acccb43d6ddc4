"""The rules of learning, as the objects and steps of the library."""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

import jpc

from .._energy import LOSSES
from .config import Config

_PENALTIES = dict(
    weight_decay=jpc.WeightDecay,
    spectral_penalty=jpc.SpectralPenalty,
    activity_decay=jpc.ActivityDecay,
)


_EQUAL = dict(backprop=jpc.Backprop, zil=jpc.ZIL)


def replace_energy(config: Config, options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of the paper's calls, with an energy in place of those that make one where a
    rule has its own.
    """
    match config.training.rule:
        case "precision":
            energy = jpc.PrecisionEnergy()
        case "mcpc" if config.data.task == "unsupervised":
            energy = make_chain(config, config.network.depth) + jpc.GaussianPrior(1.0)
        case _:
            return options
    return dict(energy=add_penalties(energy, options))


def make_chain(config: Config, layers: Any) -> jpc.AbstractEnergy:
    """The energy of a network of so many layers."""
    last: Any = config.energy.output_precision
    precisions = [1.0] * (layers - 1) + [last]
    return jpc.PCEnergy(LOSSES[str(config.energy.loss)], precisions, config.energy.stiffness)


def in_errors(config: Config, layers: int) -> dict[str, Any]:
    """The keywords of a call, whose energy is yet to be taken to the coordinates of its errors."""
    energy, scaling = make_chain(config, layers), config.network.param_type
    return dict(energy=energy) | ({} if scaling is None else dict(param_type=scaling))


def add_penalties(energy: jpc.AbstractEnergy, options: dict[str, Any]) -> jpc.AbstractEnergy:
    for name, penalty in _PENALTIES.items():
        energy = energy + penalty(options[name]) if name in options else energy
    return energy


def wrap_output(config: Config, model: list) -> list:
    """A last layer that knows its precision, if that is learned: one for all units, since that of
    a pixel which is always black has no bound.
    """
    if config.training.rule != "precision":
        return model
    return [*model[:-1], jpc.Precise(model[-1], jnp.zeros(()))]


def wrap_inference(config: Config, method: jpc.AbstractInference) -> jpc.AbstractInference:
    """The method as a rule has it."""
    has: Any = config.inference
    match config.training.rule:
        case "epc":
            return jpc.InErrors(method)
        case "bpc" if has.method == "descent":
            return jpc.Descent(optax.sgd(has.dt, momentum=0.9), has.steps)
    return method


def make_rule(config: Config, method: jpc.AbstractInference) -> jpc.AbstractInference:
    """What a step learns from."""
    has: Any = config.inference
    training: Any = config.training
    match training.rule:
        case "backprop" | "zil" as name:
            return _EQUAL[name]()
        case "fixed":
            return jpc.FixedPrediction(training.fixed_steps, training.fixed_dt or 1.0)
        case "nudged":
            named: Any = dict(kind=training.nudge, strength=training.strength)
            if training.beta is None:
                return jpc.Nudged(**named, **_limit(training))
            return jpc.Nudged(training.beta, sign=training.sign, inference=method, **named)
        case "mcpc":
            times: Any = dict(t1=has.dt * has.steps, dt=has.dt)
            sampler = jpc.Langevin(**times, temperature=has.temperature)
            return jpc.MonteCarlo(method, sampler, max(1, has.steps // 2))
    return method


def _limit(training: Any) -> dict[str, Any]:
    """How the limit of small nudges is solved for; examples that share nothing have `None`."""
    names = dict(chords=training.nudge_chords, own=training.nudge_own)
    given: dict[str, Any] = {name: value for name, value in names.items() if value is not None}
    if training.nudge_shared is not None:
        given["shared"] = training.nudge_shared or None
    return given


def make_learner(config: Config, method: jpc.AbstractInference) -> Callable[..., dict[str, Any]]:
    """A step of training like [`jpc.make_pc_step`][]."""
    has: Any = config.inference
    if config.training.rule == "ipc":
        return ft.partial(_learn_at_once, activity_optim=optax.sgd(has.dt), steps=has.steps)
    return ft.partial(jpc.make_pc_step, inference=make_rule(config, method))


def _learn_at_once(**given: Any) -> dict[str, Any]:
    """Its energies are those of the last step, as with the others."""
    result = jpc.make_ipc_step(**given)
    return dict(result, energies=result["energies"][:, -1])
