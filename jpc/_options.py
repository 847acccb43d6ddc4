"""The door: what comes in as strings, numbers and arrays leaves as layers, an energy, nodes
and clamps, or as an error that says what to write instead.

Values are checked when a call is made ([`setup`][]), shapes when it is traced ([`pose`][]).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, get_args

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
from ._layer import Layer, ParamType, feedforward, parameterise
from ._types import Clamps, Nodes, Number

_LOSSES = {"mse": squared_error, "ce": cross_entropy}
_PENALTIES: dict[str, Callable[[Array], AbstractEnergy]] = {
    "weight_decay": WeightDecay,
    "spectral_penalty": SpectralPenalty,
    "activity_decay": ActivityDecay,
}
Params = tuple[Sequence[Callable], Sequence[Callable | None] | None]


class Options(TypedDict, total=False):
    """The keywords that the paper's calls share.

    - `loss_id`, or `loss`: `"mse"` (default) or `"ce"`, at the output.
    - `param_type`, `gamma`: the scaling of the layers, see [`jpc.parameterise`][].
    - `output_energy_scaling`: the precision of the output's term. Near equilibrium a small
        one keeps learning close to the loss.
    - `weight_decay`, `spectral_penalty`, `activity_decay`: coefficients of
        [`jpc.WeightDecay`][], [`jpc.SpectralPenalty`][], [`jpc.ActivityDecay`][].
    - `reduction`: `"sum"` (default) or `"mean"`, see [`jpc.GradientFlow`][].
    - `energy`: any [`jpc.AbstractEnergy`][], instead of the options that make one.
    """

    loss_id: Literal["mse", "ce"]
    loss: Literal["mse", "ce"]
    param_type: ParamType
    gamma: Number
    output_energy_scaling: Number
    weight_decay: Number
    spectral_penalty: Number
    activity_decay: Number
    reduction: Literal["sum", "mean"]
    energy: AbstractEnergy


class Setup(eqx.Module):
    """What the options say: the energy that is descended, the chain of it that is reported,
    the loss of its output, and how to make layers of a model.
    """

    energy: AbstractEnergy
    chain: AbstractEnergy
    loss: Callable
    gamma: Number
    param_type: ParamType = eqx.field(static=True)
    reduction: Literal["sum", "mean"] = eqx.field(static=True)


class Posed(NamedTuple):
    """A problem of the core."""

    layers: list[Layer]
    nodes: Nodes
    clamps: Clamps


def number(name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> Array:
    """A number as an array, so that changing it does not retrace; checked unless traced."""
    if isinstance(value, Tracer):
        return jnp.asarray(value)
    if jnp.shape(value) != () or isinstance(value, str):
        raise ValueError(f"{name} must be one number, got {value!r}.")
    number = float(value)
    if not (math.isfinite(number) and number > above and number >= least):
        bound = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        raise ValueError(f"{name} must be a finite number {bound}, got {number:g}.")
    return jnp.asarray(number)


def choice(name: str, value: Any, choices: Sequence[str]) -> Any:
    """A string that must be one of several."""
    if value not in choices:
        raise ValueError(f"Unknown {name} {value!r}: choose from {', '.join(map(repr, choices))}.")
    return value


def setup(model: Sequence[Callable], options: Options) -> Setup:
    """Reads the options that the paper's calls share."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        given, known = ", ".join(sorted(unknown)), ", ".join(Options.__annotations__)
        raise TypeError(f"Unknown keyword {given}: the options are {known}.")
    if "loss" in options and "loss_id" in options:
        raise ValueError("loss and loss_id are two names of one option: give one of them.")
    check_model("model", model)
    loss_id = options.get("loss_id", options.get("loss", "mse"))
    loss = _LOSSES[choice("loss", loss_id, list(_LOSSES))]
    chain = energy = PCEnergy(loss, _precisions(len(model), options))
    for name, penalty in _PENALTIES.items():
        coefficient = number(name, options.get(name, 0.0), least=0.0)
        if name in options:
            energy = energy + penalty(coefficient)
    if "energy" in options:
        chain = energy = _given_energy(options["energy"], options)
    return Setup(
        energy,
        chain,
        loss,
        number("gamma", options.get("gamma", 1.0), above=0.0),
        choice("param_type", options.get("param_type", "sp"), get_args(ParamType)),
        choice("reduction", options.get("reduction", "sum"), ("sum", "mean")),
    )


def _precisions(depth: int, options: Options) -> list[Number]:
    last = number("output_energy_scaling", options.get("output_energy_scaling", 1.0), above=0.0)
    return [1.0] * (depth - 1) + [last]


def _given_energy(energy: AbstractEnergy, options: Options) -> AbstractEnergy:
    made_of = {"loss_id", "loss", "output_energy_scaling", *_PENALTIES}
    both = made_of & options.keys()
    if both:
        raise ValueError(f"Give either energy, or {', '.join(sorted(both))}: not both.")
    if not isinstance(energy, AbstractEnergy):
        raise TypeError(
            f"energy must be a jpc.AbstractEnergy such as jpc.PCEnergy(), got {energy!r}."
        )
    return floats_to_arrays(energy)


def floats_to_arrays(tree: PyTree) -> PyTree:
    """Python's floats as arrays, so that they are traced rather than compiled in."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, tree)


def check_model(name: str, model: Any) -> None:
    """A model is a sequence of callable layers."""
    try:
        layers = list(model)
    except TypeError:
        kind = type(model).__name__
        raise TypeError(
            f"{name} must be split into layers: a list of callables on one example, got {kind}."
        ) from None
    if not layers:
        raise ValueError(f"{name} has no layers.")
    for i, layer in enumerate(layers):
        if not callable(layer):
            kind = type(layer).__name__
            raise TypeError(f"Layer {i + 1} of {name} is not callable: got {kind}.")


def check_params(params: Any) -> None:
    """Parameters are the pair of a model and its skip connections."""
    if not (isinstance(params, tuple) and len(params) == 2):
        raise TypeError(
            "params must be the pair (model, skip_model), (model, None) without skip "
            f"connections, got {type(params).__name__}."
        )
    model, skip_model = params
    check_model("model", model)
    if skip_model is not None and len(skip_model) != len(model):
        raise ValueError(
            f"skip_model must have one entry per layer, None where there is no skip: the model "
            f"has {len(model)} layers, skip_model {len(skip_model)}."
        )


def data(name: str, value: ArrayLike) -> Array:
    """Data as an array with a batch axis; integers and booleans as floats."""
    array = jnp.asarray(value)
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(
            f"{name} must have a batch axis of at least one example first, got shape "
            f"{array.shape}."
        )
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real, got {array.dtype}.")
    if array.ndim > 1 and not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.result_type(float))
    return array


def optional_data(name: str, value: ArrayLike | None) -> Array | None:
    """Data that may be left out."""
    return None if value is None else data(name, value)


def network(setup: Setup, params: Params, input: Array) -> tuple[list[Layer], list]:
    """The layers of a network and the shapes of its states, from a batch of $z_0$."""
    check_params(params)
    model, skip_model = params
    bare = parameterise(list(model), skip_model, fan_ins=[1] * len(model))
    states = _shapes(bare, jax.ShapeDtypeStruct(input.shape[1:], input.dtype))
    if setup.param_type != "sp" and any(len(z.shape) != 1 for z in states):
        raise ValueError(
            f"param_type={setup.param_type!r} scales by the size of vectors: for states of "
            "another rank give each layer its own scale with jpc.Layer."
        )
    if setup.param_type != "sp" and len(model) < 2:
        raise ValueError(f"param_type={setup.param_type!r} needs at least two layers.")
    fan_ins = [math.prod(z.shape) for z in states[:-1]]
    layers = parameterise(
        list(model),
        skip_model,
        fan_ins=fan_ins,
        param_type=setup.param_type,
        gamma=setup.gamma,
    )
    return layers, states


def _shapes(layers: list[Layer], z: jax.ShapeDtypeStruct) -> list[jax.ShapeDtypeStruct]:
    states = [z]
    for i, layer in enumerate(layers):
        try:
            out = jax.eval_shape(layer, states[-1])
        except Exception as error:
            raise ValueError(
                f"Layer {i + 1} of the model cannot take z_{i}, of shape {states[-1].shape} "
                f"for one example: {error}"
            ) from error
        states.append(out)
    return states


def pose(
    setup: Setup,
    params: Params,
    activities: Sequence[Array] | None,
    output: Array,
    input: Array | None,
) -> Posed:
    """The problem of the core that one of the paper's calls is about. Activities come with
    the prediction of the output as their last entry, and leave without it; `None` stands for
    those of a feedforward pass.
    """
    check_params(params)
    depth = len(params[0])
    first = 0 if input is None else 1
    if depth == first:
        raise ValueError(
            "A network of one layer with its input and output clamped has nothing to infer: "
            "give it at least two layers."
        )
    if activities is not None and len(activities) != depth + 1 - first:
        raise ValueError(
            f"A network of {depth} layers {'with' if first else 'without'} an input has "
            f"{depth + 1 - first} activities, z_{first} ... z_{depth} (the last one is the "
            f"prediction of the output), got {len(activities)}."
        )
    given = [z for z in (input, *(activities or ())) if z is not None]
    layers, shapes = network(setup, params, given[0])
    if activities is None:
        activities = jax.vmap(lambda z: feedforward(layers, z))(input)
    chain = dict(enumerate([*activities[:-1], output], start=first))
    for i, z in chain.items():
        _check_shape(f"output z_{i}" if i == depth else f"activity z_{i}", i, z, shapes[i])
    _check_batch(chain if input is None else {0: input, **chain})
    return Posed(layers, *clamp(list(activities[:-1]), output, input))


def _check_shape(name: str, layer: int, z: Array, expected: jax.ShapeDtypeStruct) -> None:
    if z.shape[1:] != expected.shape:
        hint = ""
        if not jnp.issubdtype(z.dtype, jnp.floating):
            hint = " Integer labels need jax.nn.one_hot(labels, num_classes)."
        raise ValueError(
            f"The {name} has shape {z.shape}, {z.shape[1:]} for one example, but layer {layer} "
            f"predicts {expected.shape}.{hint}"
        )


def _check_batch(chain: dict[int, Array]) -> None:
    if len({z.shape[0] for z in chain.values()}) > 1:
        sizes = ", ".join(f"z_{i} has {z.shape[0]}" for i, z in chain.items())
        raise ValueError(f"All states must have one batch size, but {sizes}.")
