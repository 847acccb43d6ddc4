"""The door: what comes in as strings, numbers and arrays leaves as layers, an energy, nodes
and clamps, or as an error that says what to write instead.

Values are checked when a call is made (`setup`), shapes when it is traced (`pose`).
"""

import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PyTree

from ._clamp import clamp
from ._energy import (
    AbstractEnergy,
    ActivityDecay,
    PCEnergy,
    SpectralPenalty,
    WeightDecay,
    cross_entropy,
    squared_error,
)
from ._inference import AbstractInference, GradientFlow
from ._layer import Layer, ParamType, choice, feedforward_batch, parameterise, show
from ._types import Clamps, Given, Layers, Nodes, Number

Skips = Given[Sequence[Callable | None] | None]
Params = Given[tuple[Layers, Skips]]

_LOSSES = {"mse": squared_error, "ce": cross_entropy}
_PENALTIES: dict[str, Callable[[Array], AbstractEnergy]] = {
    "weight_decay": WeightDecay,
    "spectral_penalty": SpectralPenalty,
    "activity_decay": ActivityDecay,
}
_SYNONYMS = {"loss": "loss_id", "solver": "ode_solver"}


class Options(TypedDict, total=False):
    """The keywords that the paper's calls share.

    - `loss_id`, or `loss`: `"mse"` (default) or `"ce"`, at the output.
    - `param_type`, `gamma`: the scaling of the layers, see [`jpc.parameterise`][].
    - `output_energy_scaling`: the precision of the output's term. At equilibrium a small one
        keeps learning close to the loss.
    - `weight_decay`, `spectral_penalty`, `activity_decay`: the coefficients of a
        [`jpc.WeightDecay`][], [`jpc.SpectralPenalty`][], [`jpc.ActivityDecay`][].
    - `energy`: any [`jpc.AbstractEnergy`][], instead of the options that make one.
    - `reduction`: `"sum"` (default) or `"mean"`, see [`jpc.GradientFlow`][].
    """

    loss_id: Literal["mse", "ce"]
    loss: Literal["mse", "ce"]
    param_type: ParamType
    gamma: Number
    output_energy_scaling: Number
    weight_decay: Number
    spectral_penalty: Number
    activity_decay: Number
    energy: AbstractEnergy
    reduction: Literal["sum", "mean"]


class FlowOptions(Options, total=False):
    """The keywords that the paper's calls with inference share, besides [`jpc.Options`][].

    - `ode_solver`, or `solver`: any Diffrax solver, `diffrax.Heun()` by default.
    - `max_t1`: when to stop at the latest.
    - `dt`: the (first) step size. An adaptive controller finds its own by default.
    - `stepsize_controller`: `diffrax.PIDController(rtol=1e-3, atol=1e-3)` by default.
    - `inference`: any [`jpc.AbstractInference`][], instead of the options above, which make
        a [`jpc.GradientFlow`][].
    """

    ode_solver: dfx.AbstractSolver
    solver: dfx.AbstractSolver
    max_t1: Number
    dt: Number | None
    stepsize_controller: dfx.AbstractStepSizeController
    inference: AbstractInference | None


class Setup(eqx.Module):
    """What the options say. `chain` is the energy without its penalties, which is reported."""

    energy: AbstractEnergy
    chain: AbstractEnergy
    inference: AbstractInference
    loss: Callable
    gamma: Number
    param_type: ParamType = eqx.field(static=True)
    reduction: Literal["sum", "mean"] = eqx.field(static=True)


class Posed(NamedTuple):
    """A problem of the core."""

    layers: list[Layer]
    nodes: Nodes
    clamps: Clamps


def setup(params: Params, options: Any, *, max_t1: float | None = None) -> Setup:
    """Reads the options; those of inference too if there is a default `max_t1`."""
    check_params(params)
    known = (FlowOptions if max_t1 else Options).__annotations__
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"Unknown keyword {', '.join(unknown)}. Options: {', '.join(known)}.")
    for name, other in _SYNONYMS.items():
        _refuse_both(options.keys() & {name}, options.keys() & {other})
    options = {_SYNONYMS.get(name, name): value for name, value in options.items()}
    choice("reduction", reduction := options.get("reduction", "sum"), ("sum", "mean"))
    chain, energy = _energies(len(params[0]), options)
    return Setup(
        energy,
        chain,
        _inference(options, reduction, max_t1 or 20.0),
        _LOSSES[options.get("loss_id", "mse")],
        number("gamma", options.get("gamma", 1.0), above=0.0),
        choice("param_type", options.get("param_type", "sp"), get_args(ParamType)),
        reduction,
    )


def _energies(depth: int, options: dict[str, Any]) -> tuple[AbstractEnergy, AbstractEnergy]:
    if (given := options.get("energy")) is not None:
        made_of = {"loss_id", "output_energy_scaling", *_PENALTIES}
        _refuse_both({"energy"}, made_of & options.keys())
        check_type("energy", given, AbstractEnergy, "jpc.PCEnergy()")
        return (floats_to_arrays(given),) * 2
    loss = _LOSSES[choice("loss", options.get("loss_id", "mse"), tuple(_LOSSES))]
    last = options.get("output_energy_scaling", 1.0)
    last = number("output_energy_scaling", last, above=0.0)
    chain = energy = PCEnergy(loss, [1.0] * (depth - 1) + [last])
    for name in filter(options.__contains__, _PENALTIES):
        energy = energy + _PENALTIES[name](number(name, options[name], least=0.0))
    return chain, energy


def _inference(options: dict[str, Any], reduction: Any, max_t1: float) -> AbstractInference:
    if (given := options.get("inference")) is not None:
        made_of = {"ode_solver", "max_t1", "dt", "stepsize_controller", "reduction"}
        _refuse_both({"inference"}, made_of & options.keys())
        check_type("inference", given, AbstractInference, "jpc.GradientFlow()")
        return floats_to_arrays(given)
    dt = options.get("dt")
    solver = options.get("ode_solver", dfx.Heun())
    controller = options.get("stepsize_controller", dfx.PIDController(rtol=1e-3, atol=1e-3))
    check_type("ode_solver", solver, dfx.AbstractSolver, "diffrax.Heun()")
    kind = dfx.AbstractStepSizeController
    check_type("stepsize_controller", controller, kind, "diffrax.ConstantStepSize()")
    flow = GradientFlow(
        solver,
        number("max_t1", options.get("max_t1", max_t1), above=0.0),
        None if dt is None else number("dt", dt, above=0.0),
        controller,
        reduction=reduction,
    )
    return floats_to_arrays(flow)


def _refuse_both(one: set[str], other: set[str]) -> None:
    if one and other:
        raise ValueError(f"Give either {', '.join(one)} or {', '.join(sorted(other))}, not both.")


def check_type(name: str, value: Any, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be something like {example}, got {show(value)}.")


def number(name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> Array:
    """A number as an array, so that changing it does not retrace; checked unless traced."""
    if not (eqx.is_array_like(value) and jnp.shape(value) == () and jnp.isrealobj(value)):
        raise ValueError(f"{name} must be a number, got {show(value)}.")
    if not isinstance(value, Tracer):
        value = float(value)
        if not (math.isfinite(value) and value > above and value >= least):
            bound = f"above {above:g}" if above > least else f"of at least {least:g}"
            raise ValueError(f"{name} must be a finite number {bound}, got {value:g}.")
    return _constant(value)


def floats_to_arrays(tree: PyTree) -> PyTree:
    """Python's floats as arrays, so that they are traced rather than compiled in."""
    return jax.tree.map(lambda x: _constant(x) if isinstance(x, float) else x, tree)


def _constant(value: Any) -> Array:
    with jax.ensure_compile_time_eval():  # In somebody's jit too, its value stays known.
        return jnp.asarray(value)


def data(name: str, value: Given[ArrayLike]) -> Array:
    """Data as an array with a batch axis; integers and booleans as floats."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or jnp.iscomplexobj(array):
        raise TypeError(f"{name} must be an array of real numbers, got {show(value)}.")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} needs a batch of examples, got shape {array.shape}.")
    if array.ndim > 1 and not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.result_type(float))
    return array


def optional_data(name: str, value: Given[ArrayLike | None]) -> Array | None:
    return None if value is None else data(name, value)


def batches(name: str, values: Any) -> list[Array]:
    if not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a list of arrays, got {type(values).__name__}.")
    return [data(f"{name}[{i}]", value) for i, value in enumerate(values)]


def check_model(name: str, model: Any, *, holes: bool = False) -> None:
    """A list of callables, `None` among them where there may be holes."""
    kind = lambda x: type(x).__name__
    try:
        layers = list(model)
    except TypeError:
        expected = "a list of layers (callables on one example, as jpc.make_mlp makes)"
        raise TypeError(f"{name} must be {expected}, got {kind(model)}.") from None
    if not layers:
        raise ValueError(f"{name} has no layers.")
    for i, layer in enumerate(layers, start=1):
        if not (callable(layer) or (holes and layer is None)):
            raise TypeError(f"Layer {i} of {name} is not callable: got {kind(layer)}.")


def check_params(params: Any) -> None:
    if not (isinstance(params, tuple) and len(params) == 2):
        got = type(params).__name__
        raise TypeError(f"params must be (model, None) or (model, skip_model), got {got}.")
    model, skip_model = params
    check_model("model", model)
    skips = [None] * len(model) if skip_model is None else skip_model
    check_model("skip_model", skips, holes=True)
    if len(skips) != len(model):
        sizes = f"{len(skips)} entries for {len(model)} layers"
        raise ValueError(f"skip_model has {sizes}: give one per layer, None for no skip.")


def network(setup: Setup, params: Params, input: Array, name: str = "model") -> tuple[list, list]:
    """The layers of a network and the shapes of its states, from a batch of $z_0$."""
    model, skip_model = list(params[0]), params[1]
    plain = parameterise(model, skip_model, fan_ins=[1] * len(model))
    states = _shapes(name, plain, jax.ShapeDtypeStruct(input.shape[1:], input.dtype))
    if setup.param_type != "sp" and (len(model) < 2 or any(len(z.shape) != 1 for z in states)):
        raise ValueError(
            f"param_type={setup.param_type!r} is for at least two layers between vectors; give "
            "other layers their own scale with jpc.Layer."
        )
    fan_ins = [math.prod(z.shape) for z in states[:-1]]
    scaled = ft.partial(parameterise, param_type=setup.param_type, gamma=setup.gamma)
    return scaled(model, skip_model, fan_ins=fan_ins), states


def _shapes(name: str, layers: list[Layer], z: jax.ShapeDtypeStruct) -> list[jax.ShapeDtypeStruct]:
    states = [z]
    for i, layer in enumerate(layers):
        try:
            z = jax.eval_shape(ft.partial(_unbroadcast, layer), z)
        except Exception as error:
            given = f"{'z' if i else 'the input z'}_{i}, of shape {z.shape} for one example"
            why = str(error).partition("\n")[0] + _hint(z)
            raise ValueError(f"Layer {i + 1} of {name} cannot take {given}: {why}") from error
        states.append(z)
    return states


def _unbroadcast(layer: Layer, z: Array) -> Array:
    plain, skipped = layer.fn(z).shape, jnp.shape(layer.skip(z))
    if skipped not in ((), plain):
        raise ValueError(f"it makes {plain} of it, but its skip connection {skipped}.")
    return layer(z)


def pose(setup: Setup, params: Params, activities: Any, output: Array, input: Any) -> Posed:
    """The problem of the core that one of the paper's calls is about. Activities come with
    the prediction of the output as their last entry, and leave without it; `None` stands for
    those of a feedforward pass.
    """
    depth, first = len(params[0]), 0 if input is None else 1
    if depth == first:
        raise ValueError("A network of one layer has nothing to infer: give it at least two.")
    if (activities is not None or input is None) and len(activities or ()) != depth + 1 - first:
        raise ValueError(
            f"A network of {depth} layers {'with' if first else 'without'} an input has "
            f"{depth + 1 - first} activities, z_{first} ... z_{depth} (the last one is the "
            f"prediction of the output), got {len(activities or ())}."
        )
    given = [z for z in (input, *(activities or ())) if z is not None]
    layers, shapes = network(setup, params, given[0])
    if activities is None:
        activities = feedforward_batch(layers, given[0])
    chain = {f"activity z_{i}": z for i, z in enumerate(activities, start=first)}
    chain = chain if input is None else {"input z_0": input, **chain}
    check_states(chain, shapes)
    chain.popitem()
    check_states({**chain, f"output z_{depth}": output}, shapes)
    output = output.astype(shapes[-1].dtype)  # For labels that were integers, in float64 now.
    return Posed(layers, *clamp(list(activities[:-1]), output, input))


def check_states(chain: dict[str, Array], shapes: list[jax.ShapeDtypeStruct]) -> None:
    """That the states of a chain are what its layers predict, for as many examples each."""
    for i, ((name, z), expected) in enumerate(zip(chain.items(), shapes, strict=True)):
        if z.shape[1:] != expected.shape:
            raise ValueError(
                f"The {name} has shape {z.shape}, {z.shape[1:]} for one example, but layer {i} "
                f"predicts {expected.shape}.{_hint(z)}"
            )
    if len({len(z) for z in chain.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(z)}" for name, z in chain.items())
        raise ValueError(f"All states must have the same batch size, but {sizes}.")


def _hint(z: Array | jax.ShapeDtypeStruct) -> str:
    whole = jnp.issubdtype(z.dtype, jnp.integer)
    return " (Integer labels need jax.nn.one_hot(labels, num_classes).)" if whole else ""
