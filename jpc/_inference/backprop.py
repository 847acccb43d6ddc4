"""Backpropagation, and the two rules of predictive coding that are equal to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from .._clamp import Masked, inferred, states
from .._energy import Unfolded, predictions
from .._given import check_count, check_number
from .._types import Given, Name, Number
from .base import RESULTS, AbstractInference, judge, method
from .chords import add
from .forward import Forward, backward


class Backprop(AbstractInference):
    r"""Backpropagation, in the place of inference: the states are those of a feedforward pass,
    and the errors are

    $$\delta_L = -\partial \, \mathrm{loss} / \partial \hat y, \qquad
      \delta_n = \sum_{c \in \mathrm{children}(n)}
      (\partial f_c / \partial z_n)^T \, \delta_c,$$

    so that the learning gradient is that of the loss (times the precision of the output), with
    the penalties. It takes any [`jpc.AbstractNetworkEnergy`][] whose free states are all
    predicted. Every `result` is successful: there is nothing to converge.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    result = jpc.make_pc_step(model, optim, opt_state, y, x, inference=jpc.Backprop())
    ```
    """

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        forward = Forward.of("Backprop", (energy, params, nodes, clamps), record)

        def one(v, given):
            z, lam, pull = backward(forward.unfolded, v, given)
            return z, add(pull(lam), lam)

        z, delta = jax.vmap(one)(forward.v, forward.given)
        return forward.finish(z, delta, RESULTS.successful, dict(steps=0, evaluations=1))


class FixedPrediction(AbstractInference):
    r"""Predictive coding with the fixed prediction assumption: the predictions and their
    derivatives stay as they are in the feedforward pass while the errors $\delta_n = p_n (z_n -
    f_n)$ relax, each by what its neighbours say,

    $$\delta_n \leftarrow \delta_n + \Delta t \, \Big( \sum_{c \in \mathrm{children}(n)}
      (\partial f_c / \partial z_n)^T \, \delta_c - \delta_n \Big),$$

    while the errors of what is given are held at $-\partial \, \mathrm{loss} / \partial \hat y$.
    The equilibrium of the errors is backpropagation.

    **Arguments:**

    - `steps`: how many steps to take. `None`: as many steps of length 1 as the network is deep,
        which end exactly at the equilibrium.
    - `dt`: the length of a step, below 2. With fewer `steps` than the network is deep, its first
        layers learn nothing yet.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    rule = jpc.FixedPrediction()  # As many steps as the network is deep: backpropagation.
    result = jpc.make_pc_step(model, optim, opt_state, y, x, inference=rule)
    ```
    """

    steps: Given[int | None] = eqx.field(static=True, default=None)
    dt: Given[Number] = 1.0

    def __check_init__(self):
        check_number("dt", self.dt, above=0.0, most=2.0)
        check_count("steps", self.steps, none=True)
        if self.steps is None and not isinstance(self.dt, Tracer) and self.dt != 1:
            raise ValueError(
                f"dt is of a number of steps: FixedPrediction(steps=20, dt={float(self.dt):g})."
            )

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        forward = Forward.of("FixedPrediction", (energy, params, nodes, clamps), record)
        unfolded = forward.unfolded
        steps = len(unfolded.free) if self.steps is None else self.steps

        def one(v, given):
            z, lam, _ = backward(unfolded, v, given)
            local = lambda z: predictions(unfolded.network, z, compared=False)
            _, pull = jax.vjp(local, z)

            def step(_, delta):
                (pulled,) = pull(add(delta, lam))
                pulled = inferred({n: pulled[n] for n in delta}, {n: given[n] for n in delta})
                return jax.tree.map(lambda d, p: d + self.dt * (p - d), delta, pulled)

            delta = jax.lax.fori_loop(0, steps, step, v)
            gap = _distance(step(0, delta), delta) / jnp.abs(jnp.asarray(self.dt))
            return z, add(delta, lam), gap

        z, delta, gap = jax.vmap(one)(forward.v, forward.given)
        result = judge(gap < 1e-2) if self.steps else RESULTS.successful
        stats = dict(steps=steps, evaluations=steps + 1, error=gap)
        return forward.finish(z, delta, result, stats)


class ZIL(AbstractInference):
    r"""Z-IL, inference of predictive coding in which every layer learns at its own moment. From a
    feedforward pass the states take steps down the energy, each of length one over its precision,

    $$z_n \leftarrow z_n - p_n^{-1} \, \partial F / \partial z_n.$$

    After $t$ steps an error has moved back by $t$ layers. The layer that it has just reached
    learns from it, while the state that predicts this layer has not moved yet. So the layers
    learn the gradient of backpropagation.

    All paths from a state to what is given must be equally long, as in a chain. For a graph in
    which they are not, take [`jpc.Backprop`][] or [`jpc.FixedPrediction`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    result = jpc.make_pc_step(model, optim, opt_state, y, x, inference=jpc.ZIL())
    ```
    """

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        forward = Forward.of("ZIL", (energy, params, nodes, clamps), record)
        unfolded = forward.unfolded
        moments = _moments(unfolded, forward.given)

        def one(v, given):
            first = unfolded.unfold(v, given)[0]
            free = {name: first[name] for name in unfolded.free}
            weights, slope = unfolded.weights(), jax.grad(unfolded.potential)

            def step(t, way):
                free, kept, learned = way
                delta = _errors(unfolded, free, given)
                # A layer learns from the states that predict it at its moment.
                learned = {n: jnp.where(t == moments[n], delta[n], learned[n]) for n in learned}
                kept = {n: jnp.where(t < moments[n], free[n], kept[n]) for n in kept}
                move = lambda z, g, p: z - g / p
                return jax.tree.map(move, free, slope(free, given), weights), kept, learned

            nothing = jax.tree.map(jnp.zeros_like, _errors(unfolded, free, given))
            last = max(moments.values()) + 1
            _, kept, learned = jax.lax.fori_loop(0, last, step, (free, free, nothing))
            return {**first, **kept}, learned

        z, delta = jax.vmap(one)(forward.v, forward.given)
        steps = max(moments.values())
        stats = dict(steps=steps, evaluations=steps + 1)
        return forward.finish(z, delta, RESULTS.successful, stats)


def _distance(one: dict, other: dict) -> Array:
    norm = lambda tree: jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))
    size = norm(other)
    return norm(jax.tree.map(jnp.subtract, one, other)) / jnp.where(size > 0, size, 1)


def _errors(unfolded: Unfolded, free: dict, given: dict) -> dict:
    r"""$-\partial F / \partial f_n$ of every state that is predicted."""
    z = states(free, given)
    predicted = predictions(unfolded.network, z, compared=True)
    slope = lambda n: jax.grad(unfolded.network[n].cost, argnums=1)(z[n], predicted[n], given[n])
    return {name: -slope(name) for name in predicted}


def _moments(unfolded: Unfolded, given: dict) -> dict[Name, int]:
    """After how many steps the errors reach each state that is predicted."""
    moments: dict[Name, int] = {}
    for name in reversed(unfolded.names):
        children = [n for n, node in unfolded.network.items() if name in node.parents]
        whole = given[name] is not None and not isinstance(given[name], Masked)
        later = set() if whole else {moments[n] + 1 for n in children if n in moments}
        found = later | ({0} if name in unfolded.seen else set())
        if len(found) > 1:
            raise ValueError(
                f"ZIL needs all ways from a state to what is given to be equally long, but from "
                f"{name!r} errors come after {' and '.join(map(str, sorted(found)))} steps: use "
                "Backprop or FixedPrediction."
            )
        moments |= {name: next(iter(found))} if found else {}
    # What leads nowhere has no errors, whenever one looks.
    return {name: moments.get(name, 0) for name in unfolded.names}
