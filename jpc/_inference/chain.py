r"""Chains in the coordinates of their errors, where the equilibrium of inference is small.

In $v = (z_0, e_1 \dots e_{L-1})$ a chain's energy is

$$F(v) = \tfrac{1}{2} v^T P v + \mathrm{loss}(y, \hat y(v)),$$

with a diagonal $P$. Where its gradient vanishes, $P v = J^T \lambda$, with
$J = \partial \hat y / \partial v$ and $\lambda$ the output error
$g(\hat y) = -\partial \, \mathrm{loss} / \partial \hat y$: the equilibrium is found in the
space of the output, however deep and wide the network is. Linearise $\hat y$ and $g$, whose
derivative is $-H$, at $v$, and damp by $\mu$; then one step is

$$(I + H A) \lambda = g + H J W P v, \qquad v \leftarrow W (\mu v + J^T \lambda),$$

where $W = (P + \mu)^{-1}$ and $A = J W J^T$. For squared errors and $\mu = 0$ the matrix
$S = I + H A$ is the rescaling of the linear theory.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._device import rounds_products
from .._energy import AbstractEnergy, EPCEnergy, LocalEnergy, as_chain
from .._layer import apply
from .._stack import apply_each, find_runs, gather, pass_one, pass_several
from .._types import Clamps, Layers, Nodes, Scalar
from .kinks import settle


class Found(NamedTuple):
    r"""Of one example: the coordinates `v`, how far they are off relatively, and what follows
    at the states $z_0 \dots z_{L-1}$ where they were linearised: $\lambda$ and
    $\delta = J^T \lambda$. `kinks` says whether units are held at kinks.
    """

    v: Nodes
    states: Nodes
    delta: Nodes
    lam: Array
    gap: Array
    steps: Array
    kinks: Array


class _Linear(NamedTuple):
    """The terms of the module's docstring at some `v`."""

    g: Array
    J: Array
    H: Array
    S: Array
    rounding: Array
    unravel: Callable[[Array], Nodes]

    def push(self, t: Nodes) -> Array:
        return self.J @ ravel(t)

    def back(self, lam: Array) -> Nodes:
        return self.unravel(lam @ self.J)


class ErrorChain(eqx.Module):
    """A chain in the coordinates of its errors; all of its functions are of one example."""

    blocks: list
    last: Callable
    weights: Nodes
    loss: Callable[[Array, Array], Scalar]
    local: LocalEnergy | None
    runs: tuple[int, ...] = eqx.field(static=True)
    definite: bool = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    @staticmethod
    def of(
        energy: AbstractEnergy,
        layers: Layers,
        nodes: Nodes,
        clamps: Clamps,
        *,
        loops: bool = False,
    ) -> "ErrorChain":
        """From a batch of nodes and clamps. With `loops`, a run of equal layers is one entry of
        the coordinates, with a further axis, and one loop of the compiled program: that is
        shorter, and slower to run.
        """
        in_errors = isinstance(energy, EPCEnergy)
        chain = as_chain(energy.energy if in_errors else energy)
        if any(z is None for z in nodes[1:-1]) or clamps[-1] is None:
            raise ValueError(
                "Equilibrium needs the output clamped and every state between it and the input "
                "free: use GradientFlow, Descent or Minimise."
            )
        states = eqx.combine(nodes, clamps)
        shapes = [z.shape[1:] for z in states]
        runs = find_runs(layers[:-1], shapes[:-2]) if loops else (1,) * (len(layers) - 1)
        prior, *precisions = chain.weights(len(layers))
        like = [jnp.ones((1,) * (z.ndim - 1), z.dtype) for z in states[1:-1]]
        weights = [p * one for p, one in zip(precisions, like, strict=True)]
        free = nodes[0] is not None
        return ErrorChain(
            gather(runs, layers[:-1]),
            layers[-1],
            [prior if free else None, *gather(runs, weights)],
            chain.loss(len(layers)),
            None if in_errors else LocalEnergy(chain.rest),
            runs,
            definite=chain.prior is not None or not free,
            outputs=math.prod(clamps[-1].shape[1:]),
        )

    def pack(self, states: Nodes) -> Nodes:
        """From a list over the chain, $z_0$ first, to one over the blocks."""
        return [states[0], *gather(self.runs, states[1:])]

    def unpack(self, v: Nodes) -> Nodes:
        runs = zip(self.runs, v[1:], strict=True)
        return [v[0], *(z for n, block in runs for z in ([block] if n == 1 else block))]

    def predict(self, clamps: Clamps) -> Callable[[Nodes], tuple[Array, Nodes]]:
        r"""The prediction $\hat y$ of the output, and the states $z_0 \dots z_{L-1}$, as a
        function of the coordinates.
        """

        def unfold(v: Nodes) -> tuple[Array, Nodes]:
            z = v[0] if clamps[0] is None else clamps[0]
            states = [z]
            for block, errors, length in zip(self.blocks, v[1:], self.runs, strict=True):
                z, passed = (pass_one if length == 1 else pass_several)(block, z, errors)
                states.append(passed)
            return apply(self.last, z), states

        return unfold

    def coordinates(self, nodes: Nodes, clamps: Clamps) -> Nodes:
        packed = self.pack(eqx.combine(nodes, clamps)[:-1])
        return [nodes[0], *(packed[1:] if self.local is None else self.errors(packed))]

    def errors(self, states: Nodes) -> Nodes:
        r"""Of the states $z_0 \dots z_{L-1}$."""
        last, errors = states[0], []
        for block, z, length in zip(self.blocks, states[1:], self.runs, strict=True):
            if length == 1:
                errors.append(z - apply(block, last))
                last = z
            else:
                before = jnp.concatenate([last[None], z[:-1]])
                errors.append(z - apply_each(block, before))
                last = z[-1]
        return errors

    def feedforward(self, nodes: Nodes) -> Nodes:
        """No errors, from the same $z_0$."""
        return self.pack([nodes[0], *map(jnp.zeros_like, nodes[1:-1])])

    def nodes(self, v: Nodes, clamps: Clamps) -> Nodes:
        states = v if self.local is None else self.predict(clamps)(v)[1]
        return [v[0], *self.unpack(states)[1:], None]

    def energy(self, v: Nodes, clamps: Clamps) -> Scalar:
        prediction, _ = self.predict(clamps)(v)
        return self._sum(v, clamps, prediction)

    def _sum(self, v: Nodes, clamps: Clamps, prediction: Array) -> Scalar:
        return 0.5 * jnp.vdot(ravel(v), self.own(v)) + self.loss(clamps[-1], prediction)

    def blur(self, v: Nodes, clamps: Clamps) -> Array:
        """Energies that differ by less than this are the same but for rounding: a loss may be a
        small difference of large predictions.
        """
        prediction, _ = self.predict(clamps)(v)
        size = jnp.abs(self._sum(v, clamps, prediction)) + jnp.linalg.norm(prediction)
        return 4 * jnp.finfo(size.dtype).eps * size

    def own(self, v: Nodes) -> Array:
        """$P v$, in one vector."""
        return ravel(jax.tree.map(jnp.multiply, v, self.weights))

    def settle(self, v: Nodes, clamps: Clamps, rtol: Array, max_steps: int):
        """Newton's method in the states, where there are kinks: the new `v`, how far off it is,
        the energy there, and the number of steps.
        """
        whole = lambda free: [free[0] if clamps[0] is None else clamps[0], *free[1:]]
        coordinates = lambda free: [free[0], *self.errors(whole(free))]

        def potential(free: Nodes) -> Scalar:
            z = free[-1] if self.runs[-1:] in ((), (1,)) else free[-1][-1]
            return self._sum(coordinates(free), clamps, apply(self.last, z))

        size = _at_least(jnp.linalg.norm(self.own(v)))
        free = [v[0], *self.predict(clamps)(v)[1][1:]]
        options: Any = dict(tolerance=rtol * size, blur=self.blur(v, clamps), max_steps=max_steps)
        free, gap, steps = settle(potential, free, **options)
        return coordinates(free), gap / size, potential(free), steps

    def output_error(self, clamps: Clamps, prediction: Array) -> Array:
        """$g$, and $-g$ is the gradient of the loss."""
        return -jax.grad(self.loss, argnums=1)(clamps[-1], prediction)

    def lesson(self, found: Found) -> Nodes:
        r"""The states $z_\ell$ and the errors $\delta_\ell$ to learn from, in pairs."""
        deltas = [None, *self.unpack(found.delta)[1:], found.lam]
        return list(zip([*self.unpack(found.states), None], deltas, strict=True))

    def rounding(self, clamps: Clamps, prediction: Array) -> Array:
        """What rounding may do to $g$."""
        error = lambda prediction: self.output_error(clamps, prediction)
        change = jax.jvp(error, (prediction,), (prediction,))[1]
        return 8 * _product_eps(prediction.dtype) * change

    def gap(self, v: Nodes, clamps: Clamps, lam: Array) -> Array:
        r"""How far $\lambda$ is off from the output error at `v`, or $P v$ from $J^T \lambda$."""
        prediction, pull, _ = jax.vjp(self.predict(clamps), v, has_aux=True)
        g, rounding = self.output_error(clamps, prediction), self.rounding(clamps, prediction)
        output = _distance(lam.ravel(), g.ravel(), rounding.ravel())
        return jnp.maximum(output, self._gap(v, pull(lam)[0], jnp.zeros(())))

    def _gap(self, v: Nodes, forces: Nodes, rounding: PyTree) -> Array:
        """How far off `v` is: the norm of the gradient $P v - J^T g$ there, relatively."""
        return _distance(self.own(v), ravel(forces), ravel(rounding))

    def linearise(
        self, v: Nodes, clamps: Clamps, lam: Array | None = None, kinks: Array | bool = False
    ) -> Found:
        r"""What there is to learn at `v`, with a given $\lambda$ or the output error there. Where
        there are kinks, no gradient but only the errors themselves, $\delta = P v$, tell it.
        """
        prediction, pull, states = jax.vjp(self.predict(clamps), v, has_aux=True)
        g = self.output_error(clamps, prediction)
        lam = g if lam is None else jnp.where(kinks, g, lam)
        own = jax.tree.map(jnp.multiply, v, self.weights)
        delta = jax.tree.map(lambda x, y: jnp.where(kinks, x, y), own, pull(lam)[0])
        never = jnp.asarray(jnp.inf, lam.dtype)
        return Found(v, states, delta, lam, never, jnp.asarray(0), jnp.asarray(kinks))

    def solve(self, v: Nodes, clamps: Clamps) -> Array:
        r"""$\lambda$ where $v$ is at equilibrium. The output error there is the same, but it is a
        small difference of large numbers where $S$ is large.
        """
        at = self._linear(v, clamps, self.weights)
        return jnp.linalg.solve(at.S, at.g.ravel() + at.H @ at.push(v)).reshape(at.g.shape)

    def matrix(self, v: Nodes, clamps: Clamps) -> Array:
        """$S$ without damping."""
        return self._linear(v, clamps, self.weights).S

    def _linear(self, v: Nodes, clamps: Clamps, weights: Nodes) -> _Linear:
        prediction, pull, _ = jax.vjp(self.predict(clamps), v, has_aux=True)
        size, identity = prediction.size, jnp.eye(prediction.size, dtype=prediction.dtype)

        def both(row):
            (t,) = pull(row)
            return ravel(t), ravel(jax.tree.map(jnp.divide, t, weights))

        J, JW = jax.vmap(both)(identity.reshape(size, *prediction.shape))
        H = jax.hessian(self.loss, argnums=1)(clamps[-1], prediction).reshape(size, size)
        g = self.output_error(clamps, prediction)
        rounding = self.rounding(clamps, prediction).ravel()
        return _Linear(g, J, H, identity + H @ (JW @ J.T), rounding, ravel_pytree(v)[1])

    def dense_step(self, v: Nodes, clamps: Clamps, damping: Array) -> tuple[list[Nodes], Array]:
        """The step of the module's docstring, and one of Newton's; and how far off `v` is."""
        weights = jax.tree.map(lambda w: w + damping, self.weights)
        at = self._linear(v, clamps, weights)
        g = at.g.ravel()
        shrunk = jax.tree.map(lambda x, w, d: w / d * x, v, self.weights, weights)
        lam = jnp.linalg.solve(at.S, g + at.H @ at.push(shrunk))
        step = jax.tree.map(lambda x, d, w: (damping * x + d) / w, v, at.back(lam), weights)

        def precondition(t):  # The inverse of P + damping + J^T H J.
            t = jax.tree.map(jnp.divide, t, weights)
            seen = at.back(jnp.linalg.solve(at.S, at.H @ at.push(t)))
            return jax.tree.map(lambda x, y, w: x - y / w, t, seen, weights)

        newton = self._newton(v, clamps, damping, step, precondition)
        return [step, newton], self._gap(v, at.back(g), at.back(at.rounding))

    def _newton(self, v: Nodes, clamps: Clamps, damping, step: Nodes, precondition) -> Nodes:
        """A few conjugate gradients on the damped Hessian itself, from a Gauss-Newton step."""
        gradient = jax.grad(lambda v: self.energy(v, clamps))
        product = lambda t: jax.tree.map(
            lambda x, y: x + damping * y, jax.jvp(gradient, (v,), (t,))[1], t
        )
        structure = jax.eval_shape(lambda: v)
        tag = lx.positive_semidefinite_tag
        options = {
            "preconditioner": lx.FunctionLinearOperator(precondition, structure, tag),
            "y0": jax.tree.map(jnp.subtract, step, v),
        }
        operator = lx.FunctionLinearOperator(product, structure, tag)
        rhs = jax.tree.map(jnp.negative, gradient(v))
        atol = 1e-6 * jnp.linalg.norm(ravel(rhs))
        solver = lx.CG(rtol=1e-6, atol=atol, max_steps=10, stabilise_every=None)  # pyright: ignore
        move = lx.linear_solve(operator, rhs, solver, options=options, throw=False).value
        return jax.tree.map(jnp.add, v, move)

    def iterative_step(self, v: Nodes, clamps: Clamps, damping) -> tuple[list[Nodes], Array]:
        r"""The same by conjugate gradients, for $\lambda = g + H u$ with
        $H (I + A H) u = H (b - A g)$.
        """
        prediction, pull, _ = jax.vjp(self.predict(clamps), v, has_aux=True)
        push = lambda t: jax.jvp(lambda v: self.predict(clamps)(v)[0], (v,), (t,))[1]
        weights = jax.tree.map(lambda w: w + damping, self.weights)
        A = lambda u: push(jax.tree.map(jnp.divide, pull(u)[0], weights))
        error = lambda p: self.output_error(clamps, p)
        H = lambda u: -jax.jvp(error, (prediction,), (u,))[1]
        g = error(prediction)
        b = push(jax.tree.map(lambda x, w, d: w / d * x, v, self.weights, weights))
        structure = jax.ShapeDtypeStruct(g.shape, g.dtype)
        operator = lx.FunctionLinearOperator(
            lambda u: H(u + A(H(u))), structure, lx.positive_semidefinite_tag
        )
        tolerance = float(jnp.finfo(g.dtype).eps) ** 0.75
        solver = lx.CG(rtol=tolerance, atol=tolerance, max_steps=4 * g.size)
        u = lx.linear_solve(operator, H(b - A(g)), solver, throw=False).value
        (delta,), (forces,) = pull(g + H(u)), pull(g)
        step = jax.tree.map(lambda x, d, w: (damping * x + d) / w, v, delta, weights)
        return [step], self._gap(v, forces, pull(self.rounding(clamps, prediction))[0])


def _distance(one: Array, other: Array, rounding: Array) -> Array:
    """Relative to the larger of the two, but for what rounding explains."""
    norm = jnp.linalg.norm
    size = _at_least(jnp.maximum(norm(one), norm(other)))
    return jnp.maximum(norm(one - other) - norm(rounding), 0) / size


def _at_least(size: Array) -> Array:
    """Below this there is nothing left to learn from, and rounding is all there is."""
    return jnp.maximum(size, jnp.sqrt(jnp.finfo(size.dtype).eps))


def _product_eps(dtype: Any) -> float:
    """What products of matrices are rounded to."""
    if dtype == jnp.float32 and rounds_products():
        return 2.0**-10
    return float(jnp.finfo(dtype).eps)


def ravel(tree: PyTree) -> Array:
    """All numbers in one vector: what is done to it is compiled once, not once a layer."""
    return ravel_pytree(tree)[0]
