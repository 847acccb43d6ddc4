"""The door: what comes in as strings, numbers and arrays leaves as layers, an energy, nodes
and clamps, or as an error that says what to write instead.

Values are checked when a call is made (`setup`), shapes when it is traced (`pose`).
"""

import dataclasses
import functools as ft
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, cast, get_args

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool

from ._checks import all_finite, not_finite
from ._clamp import Masked, clamp
from ._energy import (
    LOSSES,
    AbstractEnergy,
    ActivityDecay,
    Node,
    PCEnergy,
    SpectralPenalty,
    WeightDecay,
    check_of_states,
    squared_error,
    take_apart,
    unfit,
)
from ._fixed import join, split
from ._given import as_batch, check_number, check_type, choice, is_half, refuse_half, show
from ._inference import AbstractInference, GradientFlow
from ._layer import (
    NEEDS_NUMBERS,
    UNTRACEABLE,
    Layer,
    ParamType,
    check_chain,
    feedforward_batch,
    parameterise,
)
from ._numbers import constant, floats_to_arrays
from ._types import Clamps, Given, Layers, Loss, Nodes, Number

LossName: TypeAlias = Literal["mse", "ce", "bernoulli", "poisson", "huber"]
Skips = Given[Sequence[Callable | None] | None]
Params = Given[tuple[Layers, Skips]]

_PENALTIES: dict[str, Callable[[Array], AbstractEnergy]] = {
    "weight_decay": WeightDecay,
    "spectral_penalty": SpectralPenalty,
    "activity_decay": ActivityDecay,
}
_SYNONYMS = {"loss": "loss_id", "solver": "ode_solver"}
_MASKS = {"output": "mask", "input": "input_mask"}


class Options(TypedDict, total=False):
    """The keywords that the paper's calls share.

    - `loss_id`, or `loss`: at the output, `"mse"` (default), `"ce"`, `"bernoulli"`, `"poisson"`
        or `"huber"`, or a function of the target and the prediction of one example.
    - `param_type`, `gamma`: the scaling of the layers, see [`jpc.parameterise`][].
    - `output_energy_scaling`: the precision of the output's term. At equilibrium a small one
        keeps learning close to the loss. `None` is 1, as it is for `gamma`.
    - `stiffness`: how many times more precise each hidden state is than the next one, see
        [`jpc.PCEnergy`][]. `None` is 1.
    - `weight_decay`, `spectral_penalty`, `activity_decay`: the coefficients of a
        [`jpc.WeightDecay`][], [`jpc.SpectralPenalty`][], [`jpc.ActivityDecay`][].
    - `energy`: any [`jpc.AbstractEnergy`][], instead of the options that make one. The loss that
        is reported is that of its output; where it does not say what that is, `loss_id` does.
    - `reduction`: `"mean"` (default): inference follows the gradient of the batch's mean energy,
        as in the paper, so that times and step sizes grow with the batch. `"sum"`: each example
        follows its own, whatever batch it is in. See [`jpc.GradientFlow`][].
    - `mask`: the units of the output that are given, if not all are: booleans of its shape, or
        one for each example, which then counts for all of its units. The others are inferred:
        they start from the last of the activities, and what was inferred is in the last of
        those that are returned. What the output holds there does not matter, it may be NaN.
        With the cross-entropy an example's output is given whole or not at all.
    - `input_mask`: the same for the input. Then $z_0$ is the first of the activities, as it is
        without an input; in a feedforward pass it starts from zeros in the units that are not
        given.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    options = dict(loss_id="huber", output_energy_scaling=0.1, weight_decay=1e-3)
    value = jpc.pc_energy_fn(params, activities, y, x=x, **options)
    ```
    """

    loss_id: LossName | Loss
    loss: LossName | Loss
    param_type: ParamType
    gamma: Number | None
    output_energy_scaling: Number | None
    stiffness: Number | None
    weight_decay: Number
    spectral_penalty: Number
    activity_decay: Number
    energy: AbstractEnergy
    reduction: Literal["sum", "mean"]
    mask: ArrayLike | None
    input_mask: ArrayLike | None


class FlowOptions(Options, total=False):
    """The keywords that the paper's calls with inference share, besides [`jpc.Options`][].

    - `ode_solver`, or `solver`: any Diffrax solver, `diffrax.Heun()` by default.
    - `max_t1`: when to stop at the latest.
    - `dt`: the (first) step size. An adaptive controller finds its own by default.
    - `stepsize_controller`: `diffrax.PIDController(rtol=1e-3, atol=1e-3)` by default.
    - `inference`: any [`jpc.AbstractInference`][], instead of the options above, which make
        a [`jpc.GradientFlow`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    import diffrax

    flow = dict(ode_solver=diffrax.Tsit5(), max_t1=5)
    result = jpc.make_pc_step(model, optim, opt_state, y, x, **flow)
    ```
    """

    ode_solver: dfx.AbstractSolver
    solver: dfx.AbstractSolver
    max_t1: Number
    dt: Number | None
    stepsize_controller: dfx.AbstractStepSizeController
    inference: AbstractInference | None


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Setup:
    """What the options say. `chain` is the energy without its penalties, which is reported, and
    so is `loss`; if it is `None`, that of the energy's output is. It is taken apart once.
    """

    energy: AbstractEnergy
    chain: AbstractEnergy
    inference: AbstractInference
    loss: Loss | None
    gamma: Number
    param_type: ParamType
    reduction: Literal["sum", "mean"]
    masks: dict[str, Array]

    @ft.cached_property
    def _parts(self) -> tuple[Hashable, list]:
        return split([getattr(self, field.name) for field in dataclasses.fields(self)])

    def tree_flatten(self) -> tuple[list, Hashable]:
        fixed, arrays = self._parts
        return arrays, fixed

    @classmethod
    def tree_unflatten(cls, fixed: Hashable, arrays: Any) -> "Setup":
        return cls(*join(fixed, arrays))


class Posed(NamedTuple):
    """A problem of the core."""

    layers: list[Layer]
    nodes: Nodes
    clamps: Clamps


def setup(params: Params, options: Any, *, max_t1: float | None = None) -> Setup:
    """Reads the options, once if they hold no arrays; those of inference too if there is a default
    `max_t1`.
    """
    check_params(params)
    leaves, structure = jax.tree.flatten(options)
    if any(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
        return _read(len(params[0]), options, max_t1)
    x64 = cast(Any, jax.config).jax_enable_x64
    key = (len(params[0]), max_t1, structure, *leaves, *map(type, leaves), x64)
    try:
        return _READ[key]
    except KeyError:
        if len(_READ) > 1000:
            _READ.clear()
        return _READ.setdefault(key, _read(len(params[0]), options, max_t1))
    except TypeError:  # Something that has no hash.
        return _read(len(params[0]), options, max_t1)


_READ: dict[Hashable, Setup] = {}


def _read(depth: int, options: Any, max_t1: float | None) -> Setup:
    known = (FlowOptions if max_t1 else Options).__annotations__
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"Unknown keyword {', '.join(unknown)}. Options: {', '.join(known)}.")
    for name, other in _SYNONYMS.items():
        _refuse_both(options.keys() & {name}, options.keys() & {other})
    options = {_SYNONYMS.get(name, name): value for name, value in options.items()}
    choice("reduction", reduction := options.get("reduction", "mean"), ("sum", "mean"))
    chain, energy = _energies(depth, options)
    gamma = options.get("gamma")
    return Setup(
        energy,
        chain,
        _inference(options, reduction, max_t1 or 20.0),
        _loss(options) if "loss_id" in options or "energy" not in options else None,
        number("gamma", 1.0 if gamma is None else gamma, above=0.0),
        choice("param_type", options.get("param_type", "sp"), get_args(ParamType)),
        reduction,
        {name: _booleans(word, options.get(word)) for name, word in masks_of(options).items()},
    )


def masks_of(options: Any) -> dict[str, str]:
    """The masks among some options, by what they are masks of."""
    return {name: word for name, word in _MASKS.items() if options.get(word) is not None}


def refuse_masks(what: str, options: Any) -> None:
    if masks := masks_of(options).values():
        raise ValueError(
            f"{what} is for outputs and inputs that are given whole: leave out "
            f"{' and '.join(masks)}, and the examples that are not."
        )


def _booleans(name: str, value: Any) -> Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or array.dtype != jnp.bool_:
        got = show(value) if array is None else f"{array.dtype} of shape {array.shape}"
        raise TypeError(
            f"{name} must be booleans, true for the units that are given, such as "
            f"~jnp.isnan(data) or weights > 0: got {got}."
        )
    return array


def _energies(depth: int, options: dict[str, Any]) -> tuple[AbstractEnergy, AbstractEnergy]:
    if (given := options.get("energy")) is not None:
        check_type("energy", given, AbstractEnergy, "jpc.PCEnergy()")
        check_of_states(given)
        made_of = {"output_energy_scaling", "stiffness", *_PENALTIES}
        made_of |= {"loss_id"} if _says(given) else set()
        _refuse_both({"energy"}, made_of & options.keys())
        return (floats_to_arrays(given),) * 2
    last = options.get("output_energy_scaling")
    last = number("output_energy_scaling", 1.0 if last is None else last, above=0.0)
    stiffness = options.get("stiffness")
    if stiffness is not None:
        stiffness = number("stiffness", stiffness, above=0.0)
    chain = energy = PCEnergy(_loss(options), [1.0] * (depth - 1) + [last], stiffness)
    for name in filter(options.__contains__, _PENALTIES):
        energy = energy + _PENALTIES[name](number(name, options[name], least=0.0))
    return chain, energy


def _loss(options: dict[str, Any]) -> Loss:
    given: Any = options.get("loss_id", "mse")
    if callable(given):
        return cast(Loss, given)
    return LOSSES[choice("loss", given, tuple(LOSSES))]


def _says(energy: AbstractEnergy) -> bool:
    """Whether an energy says what predicts each state, and what its error costs."""
    try:
        return bool(take_apart(energy).networks)
    except TypeError:
        return False


def reported_loss(setup: Setup, layers: Layers) -> Loss:
    """The loss of the output."""
    if setup.loss is not None:
        return setup.loss
    if not _says(setup.energy):
        return squared_error
    output = take_apart(setup.energy).network(layers).get(len(layers), Node())
    return output.loss


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


def number(name: str, value: Any, **bounds: Any) -> Array:
    """A number as an array, so that changing it does not retrace; checked unless traced."""
    check_number(name, value, **bounds)
    return constant(value if isinstance(value, Tracer) else float(value))


def data(name: str, value: Given[ArrayLike]) -> Array:
    """Data as an array with a batch axis; integers, booleans and half precision as floats."""
    if _is_data(value):
        return cast(Array, value)
    array = as_batch(name, value)
    if is_half(array) or (array.ndim > 1 and not jnp.issubdtype(array.dtype, jnp.floating)):
        array = array.astype(jnp.result_type(float))
    return array


def _is_data(value: Any) -> bool:
    """Whether it is already that: most often it is, and to ask JAX takes long."""
    kinds = (np.float32, np.float64)
    return isinstance(value, jax.Array) and value.dtype in kinds and value.ndim > 0 < value.size


def optional_data(name: str, value: Given[ArrayLike | None]) -> Array | None:
    return None if value is None else data(name, value)


def input_data(params: Params, value: Given[ArrayLike]) -> Array:
    """The input of a network: integers stay what they are if its first layer takes nothing else,
    as an embedding of tokens does.
    """
    if _is_data(value):
        return cast(Array, value)
    as_floats = data("input", value)
    tokens, first = jnp.asarray(value), next(iter(params[0]))
    if tokens.ndim == 1 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        return as_floats
    return tokens if _takes(first, tokens) and not _takes(first, as_floats) else as_floats


def _takes(layer: Callable, batch: Array) -> bool:
    try:
        jax.eval_shape(layer, jax.ShapeDtypeStruct(batch.shape[1:], batch.dtype))
    except Exception:  # Whatever it is that a layer of somebody's own raises.
        return False
    return True


def batches(name: str, values: Any) -> list[Array]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} must be a list of arrays, got {type(values).__name__}.")
    return [data(f"{name}[{i}]", value) for i, value in enumerate(values)]


def check_params(params: Any) -> None:
    if not (isinstance(params, tuple) and len(params) == 2):
        got = type(params).__name__
        raise TypeError(f"params must be (model, None) or (model, skip_model), got {got}.")
    check_chain(*params)


def network(setup: Setup, params: Params, input: Array, name: str = "model") -> tuple[list, list]:
    """The layers of a network and the shapes of its states, from a batch of $z_0$."""
    refuse_half(name, params)
    model, skip_model = list(params[0]), params[1]
    plain = parameterise(model, skip_model, fan_ins=[1] * len(model))
    states = layer_shapes(name, plain, jax.ShapeDtypeStruct(input.shape[1:], input.dtype))
    if setup.param_type != "sp" and (len(model) < 2 or any(len(z.shape) != 1 for z in states)):
        raise ValueError(
            f"param_type={setup.param_type!r} is for at least two layers between vectors; give "
            "other layers their own scale with jpc.Layer."
        )
    fan_ins = [math.prod(z.shape) for z in states[:-1]]
    scaled = ft.partial(parameterise, param_type=setup.param_type, gamma=setup.gamma)
    return scaled(model, skip_model, fan_ins=fan_ins), states


_INSTEAD = {
    eqx.nn.Dropout: "Inference needs the same function at each call: hold a key in the layer.",
    eqx.nn.BatchNorm: "Inference is of one example: use eqx.nn.GroupNorm or LayerNorm.",
}


def layer_shapes(
    name: str, layers: list[Layer], z: jax.ShapeDtypeStruct
) -> list[jax.ShapeDtypeStruct]:
    states = [z]
    for i, layer in enumerate(layers):
        try:
            z = jax.eval_shape(ft.partial(_unbroadcast, layer), z)
        except UNTRACEABLE as error:
            raise TypeError(f"Layer {i + 1} of {name} {NEEDS_NUMBERS}") from error
        except Exception as error:
            given = f"{'z' if i else 'the input z'}_{i}, of shape {z.shape} for one example"
            why = str(error).partition("\n")[0] + (_instead(layer) or _hint(z))
            raise ValueError(f"Layer {i + 1} of {name} cannot take {given}: {why}") from error
        states.append(z)
    return states


def _instead(layer: Layer) -> str:
    """What to use in the place of a layer that is not a function of one state."""
    kinds = tuple(_INSTEAD)
    parts = jax.tree.leaves(layer, is_leaf=lambda x: isinstance(x, kinds))
    found = [_INSTEAD[kind] for kind in kinds if any(isinstance(x, kind) for x in parts)]
    return "".join(f" ({said} See docs/variants/layers.md.)" for said in found[:1])


def _unbroadcast(layer: Layer, z: Array) -> Array:
    made = layer.fn(z)
    if not (isinstance(made, jax.Array) and jnp.issubdtype(made.dtype, jnp.floating)):
        array = isinstance(made, jax.Array)
        kind = "None" if made is None else f"a {type(made).__name__}"
        got = f"{made.dtype}{list(made.shape)}" if array else kind
        raise ValueError(f"it must make one array of real numbers of it, but it makes {got}.")
    plain, skipped = made.shape, jnp.shape(layer.skip(z))
    if skipped not in ((), plain):
        raise ValueError(f"it makes {plain} of it, but its skip connection {skipped}.")
    return layer(z)


def part(setup: Setup, name: str, value: Array | None) -> Any:
    """The output or the input; if there is a mask of it, as a `Masked`."""
    if (mask := setup.masks.get(name)) is None:
        return value
    word = _MASKS[name]
    if value is None:
        raise ValueError(f"{word} says which units of the {name} are given: give the {name} too.")
    if mask.shape not in (value.shape, value.shape[:1]):
        raise ValueError(
            f"{word} has shape {mask.shape}, but the {name} {value.shape}: give one boolean for "
            f"each of its units, or for each example, {value.shape[:1]}."
        )
    mask = mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
    mask = jnp.broadcast_to(mask, value.shape)
    return Masked(jnp.where(mask, value, 0), mask)


def problems(setup: Setup, output: Any, input: Any) -> dict[str, Bool[Array, ""]]:
    """What can be wrong with the numbers that are given: messages, and whether it is so."""
    found = {}
    for (name, word), given in zip(_MASKS.items(), (output, input), strict=True):
        missing = f"If values are missing, say with {word} which units are given."
        found[f"{not_finite(name)} {missing}"] = ~all_finite(given)
        if isinstance(given, Masked):
            empty = f"{word} is false everywhere: no unit of the {name} is given in this batch."
            found[empty] = ~jnp.any(given.mask)
    losses = [leaf for leaf in jax.tree.leaves((setup.energy, setup.loss)) if callable(leaf)]
    return found | unfit("output", losses, output)


def pose(setup: Setup, params: Params, activities: Any, output: Any, input: Any) -> Posed:
    """The problem of the core that one of the paper's calls is about. Activities come with
    the prediction of the output as their last entry, and leave without it (unless the output
    is given in part); `None` stands for those of a feedforward pass.
    """
    (y, mask), (x, input_mask) = _open(output), _open(input)
    depth, first = len(params[0]), 0 if x is None or input_mask is not None else 1
    if depth == first and mask is None:
        raise ValueError("A network of one layer has nothing to infer: give it at least two.")
    if activities is not None or x is None:
        how = "without" if x is None else "with" if first else "with part of"
        _check_number(activities or (), depth, first, how)
    start = [z for z in (x, *(activities or ())) if z is not None]
    layers, shapes = network(setup, params, start[0])
    if activities is None:
        activities = [*start, *feedforward_batch(layers, start[0])][first:]
    inferred = {f"activity z_{i}": z for i, z in enumerate(activities, start=first)}
    ends = {} if x is None else {"input z_0": x}
    check_states(inferred if not first else ends | inferred, shapes)
    between = list(inferred.items())[1 if input_mask is not None else 0 : -1]
    check_states(ends | dict(between) | {f"output z_{depth}": y}, shapes)
    y = y.astype(shapes[-1].dtype)  # For labels that were integers, in float64 now.
    free = list(activities[:-1] if mask is None else activities)
    return Posed(layers, *clamp(free, y, x, mask=mask, input_mask=input_mask))


def _check_number(activities: Sequence, depth: int, first: int, how: str) -> None:
    if len(activities) != depth + 1 - first:
        raise ValueError(
            f"A network of {depth} layers {how} an input has {depth + 1 - first} activities, "
            f"z_{first} ... z_{depth} (the last one is the prediction of the output), got "
            f"{len(activities)}."
        )


def _open(given: Any) -> tuple[Any, Array | None]:
    return (given.value, given.mask) if isinstance(given, Masked) else (given, None)


def check_states(chain: dict[str, Array], shapes: list[jax.ShapeDtypeStruct]) -> None:
    """That the states of a chain are what its layers predict, for as many examples each."""
    for i, ((name, z), expected) in enumerate(zip(chain.items(), shapes, strict=True)):
        if z.shape[1:] != expected.shape:
            raise ValueError(
                f"The {name} has shape {z.shape}, {z.shape[1:]} for one example, but "
                f"{f'layer {i} predicts' if i else 'the input has'} {expected.shape}.{_hint(z)}"
            )
    if len({len(z) for z in chain.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(z)}" for name, z in chain.items())
        raise ValueError(f"All states must have the same batch size, but {sizes}.")


def _hint(z: Array | jax.ShapeDtypeStruct) -> str:
    whole = jnp.issubdtype(z.dtype, jnp.integer)
    return " (Integer labels need jax.nn.one_hot(labels, num_classes).)" if whole else ""
