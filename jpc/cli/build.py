"""The objects that a configuration names."""

import functools as ft
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree

import jpc
from jpc.data import Dataset, load

from .config import Config, ConfigError, Inference, Network, Optimiser
from .rules import FORWARD
from .variants import replace_energy

# What the predictions of a loss are to be put through to be those of its output.
MEANS: dict[str, Callable] = {"bernoulli": jax.nn.sigmoid, "poisson": jnp.exp}
# Steps that go down, each at most twice as long as the one before.
_SEARCH = optax.chain(
    optax.sgd(1.0),
    optax.scale_by_backtracking_linesearch(20, decrease_factor=0.5, increase_factor=2.0),
)
_SOLVERS = {"heun": dfx.Heun, "tsit5": dfx.Tsit5, "dopri5": dfx.Dopri5}
OPTIMISERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.adam,
    "nadam": optax.nadam,
    "rmsprop": optax.rmsprop,
    "sgd": optax.sgd,
    "momentum": ft.partial(optax.sgd, momentum=0.9),
}


def load_data(config: Config, *, progress: bool) -> Dataset:
    """Images as vectors for an mlp, and in the precision of the run when they are used."""
    named: Any = dict(flatten=config.network.kind == "mlp", normalise=not in_unit_range(config))
    named |= dict(validation=config.data.validation, progress=progress)
    try:
        dataset = load(config.data.dataset, **named)
    except ValueError as error:
        if "validation" not in str(error):
            raise
        raise ConfigError(f"--validation: {error}") from None
    examples, size = len(dataset.train[1]), config.training.batch_size
    if size > examples:
        raise ConfigError(f"--batch-size {size}, but {dataset.name} has {examples} examples.")
    return dataset


def in_unit_range(config: Config) -> bool:
    """Whether images stay in [0, 1], for a loss that is of such numbers."""
    images = config.data.task not in FORWARD
    return images and (config.energy.loss in MEANS or config.training.rule == "bpc")


class Params(NamedTuple):
    """A network and its skip connections."""

    model: Any
    skip_model: Any


def make_network(key: PRNGKeyArray, given: Network, sizes: tuple[Any, int]) -> Params:
    """A network from an input to an output of these sizes; an image has a shape."""
    input_size, output_dim = sizes
    has: Any = given  # Every option that the network has is there by now.
    if given.kind != "mlp":
        pool = {} if given.pool is None else dict(pool=given.pool)
        named: Any = dict(size=given.kind, channels=given.channels, **pool)
        cnn = _checked(jpc.make_cnn, key, input_size, output_dim, given.activation, **named)
        return Params(cnn, None)
    make = jpc.make_residual_mlp if given.skips else jpc.make_mlp
    shape = (math.prod(input_size), has.width, has.depth, output_dim)
    made = make(key, *shape, has.activation, has.bias, has.param_type)
    return Params(*made) if given.skips else Params(made, None)


def _checked(make: Callable, *args: Any, **options: Any) -> Any:
    """What the library refuses to make was asked for by an option."""
    try:
        return make(*args, **options)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def make_inference(given: Inference) -> jpc.AbstractInference:
    has: Any = given  # Every option that the method has is there by now.
    match given.method:
        case "equilibrium":
            return jpc.Equilibrium(has.rtol, has.chords, max_steps=has.steps)
        case "descent":
            return jpc.Descent(_SEARCH if has.dt is None else optax.sgd(has.dt), has.steps)
        case "euler":
            given = (dfx.Euler(), has.max_t1, has.dt, dfx.ConstantStepSize())
            return jpc.GradientFlow(*given, reduction=has.reduction)
    solver = _SOLVERS[has.method]()
    return jpc.GradientFlow(solver, has.max_t1, rtol=has.rtol, reduction=has.reduction)


def make_optimiser(given: Optimiser, epochs: int, steps: int) -> optax.GradientTransformation:
    """The optimiser and its schedule, for epochs of so many steps."""
    rise, rest = given.warmup * steps, (epochs - given.warmup) * steps
    peak: Any = given.learning_rate
    falls = given.schedule == "cosine"
    main = optax.cosine_decay_schedule(peak, rest) if falls else optax.constant_schedule(peak)
    warm = [optax.linear_schedule(0.0, peak, rise), main]
    return OPTIMISERS[given.kind](optax.join_schedules(warm, [rise]) if rise else main)


def init_optimiser(optim: optax.GradientTransformation, params: Params) -> PyTree:
    return optim.init(eqx.filter(tuple(params), eqx.is_array))


def make_options(config: Config) -> dict[str, Any]:
    """The keywords of the paper's calls that make the energy."""
    energy, param_type = config.energy, config.network.param_type
    penalties = ("weight_decay", "spectral_penalty", "activity_decay")
    options = {name: getattr(energy, name) for name in penalties if getattr(energy, name) > 0}
    options |= dict(loss_id=energy.loss, output_energy_scaling=energy.output_precision)
    options = replace_energy(config, options)
    return options if param_type is None else options | dict(param_type=param_type)


def make_mesh(devices: int) -> Mesh | None:
    if devices == 1:
        return None
    if devices > jax.device_count():
        kind = jax.default_backend()
        raise ConfigError(f"--devices {devices}, but JAX sees {jax.device_count()} ({kind}).")
    return Mesh(np.array(jax.devices()[:devices]), ("batch",))


def make_keys(seed: int) -> jax.Array:
    """One for the weights, one more for an amortiser's, one for training."""
    return jr.split(jr.key(seed), 3)
