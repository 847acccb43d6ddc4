r"""Iterations of a whole batch that share a matrix.

Where the gradient of the energy vanishes, $P v = J^T \lambda$, with $J = \partial \hat y /
\partial v$ and $\lambda$ the error of what is given, $g(\hat y) = -\partial \, \mathrm{loss} /
\partial \hat y$: the equilibrium is a root in the space of what is given, however deep and wide
the network is. From some $v = P^{-1} J^T \lambda$ the prediction moves by $A \Delta\lambda$ with
$A = J P^{-1} J^T$, which differs little between examples. So an iteration solves

$$\lambda' = g(\hat y + A (\lambda' - \lambda))$$

with an $A$ that is shared and a loss that is the example's own, and goes to
$v' = P^{-1} J^T \lambda'$. For squared errors this is linear, and $S = I + H A$ the rescaling of
the linear theory. `mix.py` has the iterations.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from .._energy import Unfolded, ravel
from .._solve import solve
from .._types import Name
from .kinks import Kinks
from .relax import blur_of, dot, norm, rounding_of


class Inverse(NamedTuple):
    """$S^{-1}$, where the curvature of the loss is the same everywhere."""

    matrix: Array

    def solve(self, loss: Callable, y: Array, error: Array) -> Array:
        """$S^{-1}$ times an error."""
        del loss, y
        return dot(self.matrix, error)


class Matrix(NamedTuple):
    """$A$, where it is not."""

    matrix: Array

    def __call__(self, t: Array) -> Array:
        return dot(self.matrix, t)

    def solve(self, loss: Callable, y: Array, error: Array) -> Array:
        """$S^{-1}$ times an error, with the curvature of the loss at some prediction."""
        S = jnp.eye(y.size, dtype=y.dtype) + dot(jax.hessian(loss)(y), self.matrix)
        return solve(S, error)


class Found(NamedTuple):
    r"""Of one example: the coordinates `v`, how far they are off relatively, and what follows at
    the states `z` where they were linearised: $\lambda$ and $\delta = J^T \lambda$. `kinks`
    says whether units are held at kinks.
    """

    v: dict
    z: dict
    delta: dict
    lam: dict
    gap: Array
    steps: Array
    kinks: Array


def derivatives(
    unfolded: Unfolded, v: dict, given: dict, *, of: Iterable[Name] | None = None
) -> tuple[Array, Array]:
    """$A$ and $H$ of one example; `of` some states alone, what these add to $A$."""
    some = v if of is None else {name: v[name] for name in of}
    predict = lambda some: unfolded.predict({**v, **some}, given)[0]
    predicted, pull = jax.vjp(predict, some)
    yhat, unravel = ravel_pytree(predicted)
    weights = unfolded.weights()
    weights = {name: weights[name] for name in some}

    def both(row):
        (t,) = pull(unravel(row))
        return ravel(t), ravel(jax.tree.map(jnp.divide, t, weights))

    J, JW = jax.vmap(both)(jnp.eye(yhat.size, dtype=yhat.dtype))
    return dot(JW, J.T), jax.hessian(lambda y: unfolded.loss(unravel(y), given))(yhat)


def multiply(unfolded: Unfolded, v: dict, given: dict) -> Callable[[Array], Array]:
    """$A$ of one example times a vector, by a backward and a forward pass."""
    predict = lambda v: ravel(unfolded.predict(v, given)[0])
    _, pull = jax.vjp(predict, v)

    def product(t: Array) -> Array:
        errors = jax.tree.map(jnp.divide, pull(t)[0], unfolded.weights())
        return jax.jvp(predict, (v,), (errors,))[1]

    return product


def pair(unfolded: Unfolded, z: dict, delta: dict) -> dict:
    """The states and the errors to learn from, in pairs: the nodes of a
    [`jpc.LocalEnergy`][].
    """
    network = unfolded.network
    parents = {parent for node in network.values() for parent in node.parents}
    state = lambda name: z[name] if name in parents else None
    error = lambda name: None if network[name].fn is None else delta[name]
    return {name: (state(name), error(name)) for name in network}


def add(one: dict, other: dict) -> dict:
    """The errors of all states: of those that are inferred, and of those that are given."""
    both = {name: one[name] + other[name] for name in one if name in other}
    return {**one, **other, **both}


def learn_from(unfolded: Unfolded, v: dict, given: dict, lam: dict | None) -> Found:
    r"""What there is to learn at `v`: from $\lambda$ if that is known, or else from the errors
    themselves.
    """
    predict = lambda v: unfolded.predict(v, given)
    predicted, pull, z = jax.vjp(predict, v, has_aux=True)
    if lam is not None:
        (delta,) = pull(lam)
    else:
        lam = {n: -slope for n, slope in jax.grad(unfolded.loss)(predicted, given).items()}
        delta = jax.tree.map(jnp.multiply, v, unfolded.weights())
    never = jnp.asarray(jnp.inf, jnp.result_type(*jax.tree.leaves(v)))
    return Found(v, z, delta, lam, never, jnp.asarray(0), jnp.asarray(False))


def energy_of(unfolded: Unfolded, v: dict, given: dict) -> tuple[Array, Array]:
    """The energy of one example, and how much of it may be rounding."""
    predicted, _ = unfolded.predict(v, given)
    yhat, unravel = ravel_pytree(predicted)
    loss = lambda y: unfolded.loss(unravel(y), given)
    energy = 0.5 * jnp.vdot(ravel(v), unfolded.own(v)) + loss(yhat)
    return energy, blur_of(energy, loss, yhat, unfolded.quadratic(given))


class Chords(NamedTuple):
    r"""The iterations of one example. `shared` is an [`Inverse`][] or a [`Matrix`][], or what is
    like one of these. `strict`: whether $\lambda$ by itself is to be within the tolerance, not
    only all errors in one vector. `kinks`: which ones predictions have. `safe`: whether an
    example that has not converged learns from its first iteration.
    """

    unfolded: Unfolded
    given: dict
    shared: Any
    rtol: Any
    strict: bool
    kinks: Kinks
    safe: bool

    def predict(self, v: dict) -> tuple[Array, Callable, Callable, dict, dict]:
        """What is given, how that depends on `v`, the states, and the predictions of them."""

        def predict(v: dict) -> tuple[dict, tuple[dict, dict]]:
            z, predicted = self.unfolded.unfold(v, self.given)
            return {name: predicted[name] for name in self.unfolded.seen}, (z, predicted)

        predicted, pull, (z, every) = jax.vjp(predict, v, has_aux=True)
        return *ravel_pytree(predicted), pull, z, every

    def settle(self, v: dict, lam: Array) -> tuple[dict, dict]:
        """The errors and the states with the units that are held just where they are."""
        _, unravel, pull, _, predicted = self.predict(v)
        (delta,), weights = pull(unravel(lam)), self.unfolded.weights()
        holds = lambda n: (delta[n] == -weights[n] * predicted[n]) & (delta[n] != 0)
        held = {n: jnp.where(holds(n), -jnp.inf, v[n]) for n, _ in self.unfolded.bends}
        z, predicted = self.unfolded.unfold({**v, **held}, self.given)
        return self.unfolded.held({**v, **held}, predicted), {n: z[n] for n in v}

    def weigh(self, v: dict) -> Array:
        r"""$P v$ in one vector."""
        return ravel(jax.tree.map(jnp.multiply, v, self.unfolded.weights()))

    def held(self, v: dict, predicted: dict, delta: Array) -> Array:
        """The errors $P v$ with units where they are held. `delta` are those without."""
        return self.weigh(self.unfolded.held(v, predicted)) if self.unfolded.bends else delta

    def unravel(self, v: dict) -> Callable[[Array], dict]:
        r"""What makes of a vector like $\lambda$ what is like the predictions."""
        shapes = jax.eval_shape(lambda v: self.unfolded.predict(v, self.given)[0], v)
        return ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))[1]

    def rounding(self, unravel: Callable, yhat: Array) -> Array:
        r"""What rounding of the predictions may do to $\lambda$."""
        loss = lambda y: self.unfolded.loss(unravel(y), self.given)
        return norm(self.shared.solve(loss, yhat, rounding_of(loss, yhat)))

    def propose(self, unravel: Callable, yhat: Array, lam: Array, inner: int) -> Array:
        r"""The change of $\lambda$ that leads to equilibrium if $A$ is right."""
        loss = lambda y: self.unfolded.loss(unravel(y), self.given)
        error = lambda y: -jax.grad(loss)(y)
        if self.unfolded.quadratic(self.given):
            return self.shared.solve(loss, yhat, error(yhat) - lam)
        lengths = jnp.asarray([1.0, 0.5, 0.25, 0.0625], yhat.dtype)

        def potential(change):
            moved = self.shared(change)
            return dot(0.5 * change + lam, moved) + loss(yhat + moved)

        def newton(_, change):
            y = yhat + self.shared(change)
            move = self.shared.solve(loss, y, error(y) - lam - change)
            tries = jax.vmap(lambda length: change + length * move)(lengths)
            values = jax.vmap(potential)(tries)
            return tries[jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))]

        return jax.lax.fori_loop(0, inner, newton, jnp.zeros_like(yhat))
