"""The rules of learning, as the objects and steps of the library."""

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
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
    return jpc.PCEnergy(LOSSES[str(config.energy.loss)], [1.0] * (layers - 1) + [last])


def in_errors(config: Config, layers: int) -> dict[str, Any]:
    """The keywords of a call whose activities are errors."""
    energy, scaling = jpc.EPCEnergy(make_chain(config, layers)), config.network.param_type
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


def make_learner(config: Config, method: jpc.AbstractInference) -> Callable[..., dict[str, Any]]:
    """A step of training like [`jpc.make_pc_step`][]."""
    has: Any = config.inference
    match config.training.rule:
        case "ipc":
            return ft.partial(_learn_at_once, activity_optim=optax.sgd(has.dt), steps=has.steps)
        case "mcpc":
            times = dict(t1=has.dt * has.steps, dt=has.dt)
            sampler = jpc.Langevin(**times, temperature=has.temperature)
            samples = jpc.MonteCarlo(method, sampler, max(1, has.steps // 2))
            return ft.partial(jpc.make_pc_step, inference=samples)
        case "backprop":
            return backpropagate
    return ft.partial(jpc.make_pc_step, inference=method)


def _learn_at_once(**given: Any) -> dict[str, Any]:
    """Its energies are those of the last step, as with the others."""
    result = jpc.make_ipc_step(**given)
    return dict(result, energies=result["energies"][:, -1])


def backpropagate(
    *, model: Any, skip_model: Any, optim: Any, opt_state: Any, output: Any, input: Any, key: Any,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A step of backpropagation: without inference only the output has an error, and the energy
    is its loss and the penalties.
    """
    del key

    def energy(params, layers=False):
        states = jpc.init_activities_with_ffwd(params[0], input, skip_model=params[1], **options)
        return jpc.pc_energy_fn(params, states, output, x=input, record_layers=layers, **options)

    params = (model, skip_model)
    grads = eqx.filter_grad(energy)(params)
    updates, opt_state = optim.update(grads, opt_state, eqx.filter(params, eqx.is_array))
    energies = energy(params, layers=True)
    loss = jpc.evaluate_discriminative(model, output, input, skip_model=skip_model, **options)
    model, skip_model = eqx.apply_updates(params, updates)
    state = dict(model=model, skip_model=skip_model, optim=optim, opt_state=opt_state)
    return state | dict(loss=loss["loss"], energies=energies)
