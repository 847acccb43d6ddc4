"""Monte Carlo predictive coding: inference draws samples of the posterior, and learning descends
the mean of their energies. That climbs the likelihood of the data; with one state for each
example, at the minimum of its energy, predictive coding learns too large a spread.
"""

from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jax.core import Tracer
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from ._checks import checked_jit
from ._energy import AbstractEnergy
from ._generic import Pose, make_step
from ._given import check_model, check_sizes, check_type, show, split_key
from ._inference import AbstractInference, Descent, Inferred, Langevin, Record, Trajectory
from ._inference.base import NEEDS_KEY, method
from ._layer import parameterise
from ._options import layer_shapes, number
from ._types import Clamps, Given, Layers, Nodes, Number, Terms


class SampledEnergy(AbstractEnergy):
    r"""The mean of an energy over samples of the states of each example,

    $$\frac{1}{S} \sum_{s=1}^S F(\theta, z^s).$$

    Its `nodes` have an axis of samples, after that of the batch.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    mean = jpc.SampledEnergy(energy)
    twice = [z if z is None else jnp.stack([z, z], axis=1) for z in nodes]  # Two samples of each.
    difference = mean(model, twice, clamps) - energy(model, nodes, clamps)  # 0.0
    ```
    """

    energy: Given[AbstractEnergy]

    def __check_init__(self):
        check_type("energy", self.energy, AbstractEnergy, "jpc.PCEnergy()")

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        terms = jax.vmap(lambda z: self.energy.terms(params, z, clamps))(nodes)
        return jax.tree.map(jnp.mean, terms)

    def descends(self) -> bool | Bool[Array, ""]:
        return self.energy.descends()


class MonteCarlo(AbstractInference):
    r"""Inference by samples of the posterior: descends to its peak, goes on with Langevin dynamics
    from there, and keeps samples from the second half of the way. They are its `trajectory`, and
    the network learns from them.

    **Arguments:**

    - `warm`: how to descend, any [`jpc.AbstractInference`][].
    - `sampler`: a [`jpc.Langevin`][].
    - `samples`: how many to keep.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    method = jpc.MonteCarlo(jpc.Descent(0.1, 5), jpc.Langevin(t1=0.5, dt=0.05), samples=2)
    inferred = method(energy, model, nodes, clamps, key=jr.key(0))
    ```
    """

    warm: Given[AbstractInference] = Descent(optax.adam(0.1), 50)
    sampler: Given[Langevin] = Langevin(t1=5.0, dt=0.05)
    samples: Given[int] = eqx.field(static=True, default=20)

    def __check_init__(self):
        check_type("warm", self.warm, AbstractInference, "jpc.Descent(optax.adam(0.1), 50)")
        check_type("sampler", self.sampler, Langevin, "jpc.Langevin(t1=5.0, dt=0.05)")
        check_sizes(samples=self.samples)
        half = 0.5 * self.sampler.t1 / self.sampler.dt
        if not isinstance(half, Tracer) and self.samples > half + 1.5:
            raise ValueError(
                f"samples={self.samples} are kept from the second half of the way, but sampler "
                f"has {half:.0f} steps there: take fewer samples, or a larger t1."
            )

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if record is not None:
            raise ValueError("MonteCarlo keeps its samples, as its trajectory: leave out record.")
        if key is None:
            raise ValueError(f"Monte Carlo predictive coding is random: {NEEDS_KEY}")
        first, second = jr.split(key)
        warm = self.warm(energy, params, nodes, clamps, key=first)
        record, start = Record(ts=self._times()), warm.nodes
        drawn = self.sampler(energy, params, start, clamps, record=record, key=second)
        costs = {k: warm.stats[k] + drawn.stats[k] for k in ("steps", "evaluations")}
        way = cast(Trajectory, drawn.trajectory)
        by_example = jax.tree.map(lambda z: jnp.swapaxes(z, 0, 1), way.values)
        lesson = (SampledEnergy(energy), by_example)
        return Inferred(drawn.nodes, drawn.result, drawn.stats | costs, way, lesson)

    def _times(self) -> Array:
        # At the ends of steps. What Diffrax interpolates in between varies less than the path.
        t1, dt = self.sampler.t1, self.sampler.dt
        steps = jnp.round(jnp.linspace(0.5, 1.0, self.samples) * t1 / dt)
        return jnp.minimum(steps * dt, t1)


def make_mcpc_step(
    params: PyTree,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: PyTree,
    input: PyTree = None,
    *,
    energy: Given[AbstractEnergy],
    pose: Given[Pose],
    key: Given[PRNGKeyArray],
    warm: Given[AbstractInference] = MonteCarlo.warm,
    sampler: Given[Langevin] = MonteCarlo.sampler,
    samples: Given[int] = MonteCarlo.samples,
) -> dict[str, Any]:
    r"""One step of training with Monte Carlo predictive coding,

    $$z^s \sim \exp(-F(\theta, z)), \qquad
      \theta \leftarrow \theta - \mathrm{optim} \Big(
      \frac{1}{S} \sum_{s=1}^S \nabla_\theta F(\theta, z^s) \Big).$$

    **Arguments:**

    - `params`, `optim`, `opt_state`, `output`, `input`, `energy`, `pose`: as in
        [`jpc.make_step`][]. The energy must have a prior on what nothing predicts, such as a
        [`jpc.GaussianPrior`][].
    - `key`: randomness.
    - `warm`, `sampler`, `samples`: as in [`jpc.MonteCarlo`][].

    **Returns:**

    The dictionary of [`jpc.make_step`][]. Its `nodes`, `energy` and `energies` are those of the
    last samples, and `trajectory.values` has all of them, with the batch as the second axis.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    def pose(params, output, input, key):
        return jpc.clamp(jpc.feedforward_batch(params, input)[:-1], output, input)

    short = dict(warm=jpc.Descent(0.1, 5), sampler=jpc.Langevin(t1=0.5, dt=0.05), samples=2)
    named = dict(energy=energy, pose=pose, key=jr.key(0))
    result = jpc.make_mcpc_step(model, optim, opt_state, y, x, **named, **short)
    ```
    """
    inference = MonteCarlo(warm, sampler, samples)
    given = (params, optim, opt_state, output, input)
    return make_step(*given, energy=energy, inference=inference, pose=pose, key=key)


def sample(
    key: Given[PRNGKeyArray],
    layers: Given[Layers],
    shape: Given[Sequence[int]],
    temperature: Given[Number] = 1.0,
) -> Array:
    r"""Ancestral samples of a chain, from the prior down,

    $$z_0 \sim N(0, T), \qquad z_\ell \sim N(f_\ell(z_{\ell-1}), T), \qquad
      \text{then } f_L(z_{L-1}).$$

    The output comes without noise: it is what the loss takes as a prediction, the mean for squared
    errors, the logits for bits.

    **Arguments:**

    - `key`: a `jax.random.key`.
    - `layers`: of the chain, callables on one example.
    - `shape`: of $z_0$, with the number of samples first.
    - `temperature`: $T$; below 1 samples are more alike.

    **Returns:**

    A batch of predictions of the output.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    drawn = jpc.sample(jr.key(0), model, (10, 4))
    ```
    """
    check_model("layers", layers)
    if not isinstance(shape, Sequence) or not shape:
        raise ValueError(f"shape is that of z_0, such as (100, 20), got {show(shape)}.")
    check_sizes(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    spread = jnp.sqrt(number("temperature", temperature, least=0.0))
    z = jax.ShapeDtypeStruct(tuple(shape[1:]), jnp.result_type(float))
    layer_shapes("layers", parameterise(layers, fan_ins=[1] * len(layers)), z)
    return _sample(split_key(key, len(layers)), list(layers), tuple(shape), spread)


@checked_jit
def _sample(keys, layers, shape, spread):
    z = spread * jr.normal(keys[0], shape)
    for layer, key in zip(layers[:-1], keys[1:], strict=True):
        mean = jax.vmap(layer)(z)
        z = mean + spread * jr.normal(key, mean.shape, mean.dtype)
    return jax.vmap(layers[-1])(z)
