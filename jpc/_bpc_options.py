"""The door of bidirectional predictive coding: two models, options and arrays become the layers,
nodes and clamps of an energy, or an error that says what to write instead.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from ._checks import all_finite, checked_jit, not_finite, raise_if, which_not_finite
from ._clamp import Masked, clamp
from ._energy import AbstractEnergy, BPCEnergy
from ._given import check_model
from ._layer import Layer, ParamType, feedforward_batch, parameterise
from ._options import (
    Posed,
    Setup,
    Skips,
    batches,
    check_states,
    data,
    network,
    number,
    optional_data,
    part,
    setup,
)
from ._types import Clamps, Given, Layers, Nodes, Number, Scalar

Models = Given[tuple[Layers, Layers]]

NAMES = ("top_down_model", "bottom_up_model")
WEIGHTS = ("forward_energy_weight", "backward_energy_weight")


class BPCOptions(TypedDict, total=False):
    """The keywords that the calls of bidirectional predictive coding share.

    - `forward_energy_weight`, `backward_energy_weight`: the weights of the two directions, see
        [`jpc.BPCEnergy`][]. Both are 1 by default; a network that is to classify does better with
        a forward weight of 1e-3.
    - `energy`: any energy of two models, instead of these weights, such as
        `jpc.BPCEnergy(1e-3, source_gradient=0.0) + jpc.WeightDecay(1e-4)`.
    - `skip_model`: one skip connection per layer, the same for both directions, see
        [`jpc.make_skip_model`][]. They are not learned.
    - `param_type`: the scaling of the layers, see [`jpc.parameterise`][]: of each model in the
        order of its own direction, so that the last layer of the bottom-up model is $g_1$.
    - `reduction`: `"mean"` (default): activity gradients are those of the batch's mean energy.
        `"sum"`: each example's is that of its own energy.
    - `input_mask`: what is given of the input, if not all is: one boolean for each example, or for
        each unit. The rest is inferred, and what the input holds there does not matter, it may be
        NaN. Then $z_0$ is the first of the activities, as it is without an input.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    weights = dict(forward_energy_weight=1e-3, backward_energy_weight=1.0)
    value = jpc.bpc_energy_fn(model, back[::-1], activities, y, x=x, **weights)
    ```
    """

    forward_energy_weight: Number
    backward_energy_weight: Number
    energy: AbstractEnergy
    skip_model: Skips
    param_type: ParamType
    reduction: Literal["sum", "mean"]
    input_mask: ArrayLike | None


class Read(NamedTuple):
    """What the options say."""

    setup: Setup
    skips: list


def read_options(models: Models, options: Any) -> Read:
    for name, model in zip(NAMES, models, strict=True):
        check_model(name, model)
    depths = [len(model) for model in models]
    if depths[0] != depths[1]:
        raise ValueError(
            f"top_down_model has {depths[0]} layers and bottom_up_model {depths[1]}: they must "
            "have as many, since each layer of one goes back between the same two states."
        )
    known = BPCOptions.__annotations__
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"Unknown keyword {', '.join(unknown)}. Options: {', '.join(known)}.")
    weights = {name: options[name] for name in WEIGHTS if name in options}
    if weights and "energy" in options:
        raise ValueError(f"Give either energy or {', '.join(weights)}, not both.")
    made = BPCEnergy(*(weight(name, weights.get(name, 1.0)) for name in WEIGHTS))
    others = {name: options[name] for name in options if name not in (*WEIGHTS, "skip_model")}
    skips = options.get("skip_model")
    return Read(
        setup((models[0], skips), dict(energy=made) | others),
        [None] * depths[0] if skips is None else list(skips),
    )


def weight(name: str, value: Any) -> Array:
    return number(name, value, least=0.0)


def call(fn: Callable, models: Models, activities, output, input, options, *args) -> Any:
    """Calls `fn(both, models, posed, *args)`, jitted, on the problem that is posed."""
    read, activities = read_options(models, options), batches("activities", activities)
    problem = (activities, data("output", output), optional_data("input", input))
    return _jitted(fn, read, models, *problem, *args)


@checked_jit
def _jitted(fn, read, models, activities, output, input, *args):
    both = Both.of(read, output)
    output, input = given(read, output, input, activities)
    layers, shapes = both.layers(models)
    posed = clamp_states(shapes, activities, output, input)
    return fn(both, models, Posed(cast(Any, layers), *posed), *args)


def given(read: Read, output: Array, input: Array | None, activities: list[Array]) -> tuple:
    """The output and the input, with its mask if there is one; checked."""
    parts = output, part(read.setup, "input", input)
    missing = " If labels are missing, say with input_mask which are given."
    found = {not_finite("output"): ~all_finite(output)}
    found |= {not_finite("input") + missing: ~all_finite(parts[1])}
    found |= which_not_finite({f"activities[{i}]": z for i, z in enumerate(activities)})
    return raise_if(found, parts)


class Both(eqx.Module):
    """How two models become the layers of an energy."""

    setup: Setup
    skips: list
    output: jax.ShapeDtypeStruct = eqx.field(static=True)

    @classmethod
    def of(cls, read: Read, output: Array) -> "Both":
        """For models of such a batch of outputs."""
        return cls(*read, jax.ShapeDtypeStruct(output.shape[1:], output.dtype))

    def __call__(self, models: Models) -> Models:
        return self.layers(models)[0]

    def energy(self, models: Models, nodes: Nodes, clamps: Clamps) -> Scalar:
        return self.setup.energy(self(models), nodes, clamps)

    def layers(self, models: Models) -> tuple[Models, list[jax.ShapeDtypeStruct]]:
        """The layers of both, and the shapes of the states."""
        top_down, bottom_up = map(list, models)
        shapes = self._sweep(bottom_up)
        one = jnp.zeros((1, *shapes[0].shape), shapes[0].dtype)
        down, made = network(self.setup, (top_down, self.skips), one, name=NAMES[0])
        _check_mirror(shapes, made)
        fan_ins = [math.prod(z.shape) for z in shapes[:0:-1]]
        kind = self.setup.param_type
        up = parameterise(bottom_up[::-1], self.skips[::-1], fan_ins=fan_ins, param_type=kind)
        return (down, up[::-1]), shapes

    def _sweep(self, bottom_up: Layers) -> list[jax.ShapeDtypeStruct]:
        layers = parameterise(bottom_up, self.skips, fan_ins=[1] * len(bottom_up))
        shapes = [self.output]
        for i, layer in reversed([*enumerate(layers, start=1)]):
            shapes.insert(0, _shape_below(i, layer, shapes[0]))
        return shapes

    def pose(self, models: Models, output: Array, input: Any, key: Any) -> tuple[Nodes, Clamps]:
        """From the bottom-up sweep."""
        del key
        (_, up), shapes = self.layers(models)
        guesses = feedforward_batch(up[::-1], output)[::-1]
        whole = input is not None and not isinstance(input, Masked)
        return clamp_states(shapes, [*guesses[whole:], output], output, input)


def clamp_states(
    shapes: list, activities: list[Array], output: Array, input: Any
) -> tuple[Nodes, Clamps]:
    """From activities, of which the last one, the prediction of the output, does not matter."""
    x, mask = (input.value, input.mask) if isinstance(input, Masked) else (input, None)
    depth, first = len(shapes) - 1, int(x is not None and mask is None)
    _check_number(activities, depth, first, "without" if x is None else "with")
    check_input(x, shapes[0])
    chain = {"activity z_0": activities[0]} if x is None else {"input z_0": x}
    hidden = activities[1 - first : -1]
    chain |= {f"activity z_{i}": z for i, z in enumerate(hidden, start=1)}
    check_states(chain | {f"output z_{depth}": output}, shapes)
    return clamp(activities[:-1], output, x, input_mask=mask)


def check_input(x: Array | None, z: jax.ShapeDtypeStruct) -> None:
    if x is not None and x.shape[1:] != z.shape:
        one_hot = " (Integer labels need jax.nn.one_hot(labels, num_classes).)"
        raise ValueError(
            f"The input z_0 has shape {x.shape}, {x.shape[1:]} for one example, but layer 1 of "
            f"bottom_up_model makes {z.shape}.{one_hot if x.ndim == 1 else ''}"
        )


def _shape_below(i: int, layer: Layer, z: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    try:
        return cast(Any, jax.eval_shape(layer, z))
    except Exception as error:  # Whatever it is that a layer of somebody's own raises.
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"Layer {i} of bottom_up_model cannot take z_{i}, of shape {z.shape} for one example: "
            f"{why} (The layers are in the order of the top-down model's, and the last one takes "
            "the output: reverse a network that starts there, jpc.make_mlp(...)[::-1].)"
        ) from error


def _check_mirror(shapes: list, made: list) -> None:
    """That the top-down model makes the states that the bottom-up model takes."""
    for i, (z, top_down) in enumerate(zip(shapes, made, strict=True)):
        if z.shape != top_down.shape:
            last = i == len(shapes) - 1
            raise ValueError(
                f"Layer {i} of top_down_model makes a z_{i} of shape {top_down.shape} for one "
                f"example, but {'the output' if last else 'that of bottom_up_model'} has the "
                f"shape {z.shape}."
            )


def _check_number(activities: list, depth: int, first: int, how: str) -> None:
    if depth == first:
        raise ValueError("Models of one layer have nothing to infer: give them at least two.")
    if len(activities) != depth + 1 - first:
        raise ValueError(
            f"Two models of {depth} layers {how} an input have {depth + 1 - first} activities, "
            f"z_{first} ... z_{depth} (the last one is the prediction of the output), got "
            f"{len(activities)}."
        )
