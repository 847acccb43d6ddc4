r"""Inference without dynamics.

In the coordinates $v = (z_0, e_1 \dots e_{L-1})$ of its errors a chain's energy is

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

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, PyTree

from .._energy import AbstractEnergy, EPCEnergy, LocalEnergy, as_chain, unfold
from .._layer import apply
from .._metrics import tree_norm
from .._types import Clamps, Layers, Nodes, Number, Scalar
from .base import RESULTS, AbstractInference, Inferred, conclude, examples, gradient_norm


class _Found(NamedTuple):
    """Of one example: the coordinates `v`, how far they are off relatively, and what follows
    at the states where they were linearised: $\\lambda$ and $\\delta = J^T \\lambda$.
    """

    v: Nodes
    states: list[Array]
    delta: Nodes
    lam: Array
    gap: Array
    steps: Array


class Equilibrium(AbstractInference):
    r"""Solves for the equilibrium of inference, $\nabla_z F = 0$, of a chain: a
    [`jpc.PCEnergy`][], also with penalties or in the coordinates of its errors.

    First come a few iterations of the whole batch with one matrix $S$, the mean of a handful
    of examples. Then the examples that are not there yet, if any, are brought down by damped
    Gauss-Newton steps of their own. No example ends at a higher energy than it started from.
    Learning uses the errors that were solved for. Gradients through it are those of the
    iterations, not of the implicit function theorem.

    **Arguments:**

    - `rtol`: an example has converged when its errors are off by less than this, relatively.
    - `chords`: how many iterations with a shared matrix; each is one forward and one backward
        pass without gradients of the weights.
    - `shared`: how many examples of the batch to take the matrix from; `None`: each example
        has its own.
    - `max_steps`: how many damped steps an example may take after that. With 0 there is no
        branch in the compiled program; an example that has not converged says so in `result`,
        and what there is to learn from it is what the chords left.
    - `dense`: the largest size of the output for which matrices are made. Beyond it the damped
        steps are solved for by conjugate gradients, and there are no chords.
    - `throw`: whether activities that are not finite raise an error.
    - `inverse`: $S^{-1}$, if it is known, as in what [`jpc.Equilibrium.prepare`][] returns.
    """

    rtol: Number = 1e-2
    chords: int = eqx.field(static=True, default=5)
    shared: int | None = eqx.field(static=True, default=4)
    max_steps: int = eqx.field(static=True, default=100)
    dense: int = eqx.field(static=True, default=64)
    throw: bool = eqx.field(static=True, default=True)
    inverse: Array | None = None

    def __check_init__(self):
        if self.chords < 0 or self.max_steps < 0 or self.chords + self.max_steps == 0:
            raise ValueError("Equilibrium needs at least one chord or damped step.")
        if self.shared is not None and self.shared < 1:
            raise ValueError(f"shared must be at least one example, or None: got {self.shared}.")

    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if record is not None:
            raise ValueError("Equilibrium has no dynamics to record: use GradientFlow.")
        chain = _Chain.of(energy, params, nodes, clamps)
        before = examples(energy, params, nodes, clamps)
        start = jax.vmap(chain.coordinates)(nodes, clamps)
        if self.chords > 0 and chain.definite and chain.outputs <= self.dense:
            found = self._chords(chain, start, clamps)
        else:
            found = jax.vmap(chain.linearise)(start, clamps)
        if self.max_steps > 0:
            found = self._damp_if_needed(chain, start, found, clamps)
        ended = jax.vmap(chain.nodes)(found.v, clamps)
        after = examples(energy, params, ended, clamps)
        okay = after <= before
        ended, after = _where(okay, (ended, after), (nodes, before))
        result = jax.vmap(_result)(okay & (found.gap <= self.rtol))
        ended, result = conclude(ended, result, before, after, throw=self.throw)
        stats = {"steps": found.steps, "evaluations": found.steps + 1}
        stats["gradient_norm"] = gradient_norm(energy, params, ended, clamps)
        return Inferred(ended, result, stats, lesson=chain.lesson(found, clamps))

    def prepare(self, energy, params, nodes, clamps) -> "Equilibrium":
        """The same method with the matrix of this batch, to be used for others. The matrix
        changes slowly while a network learns, and making it is a good part of the cost on a
        device that waits for one small kernel after another: one for ten batches will do.
        """
        chain = _Chain.of(energy, params, nodes, clamps)
        start = jax.vmap(chain.coordinates)(nodes, clamps)
        return dataclasses.replace(self, inverse=self._inverse(chain, start, clamps))

    def _inverse(self, chain: "_Chain", start: Nodes, clamps: Clamps) -> Array:
        """$S^{-1}$ of each example at a feedforward pass, or of the mean of the first few."""
        some = jax.tree.map(lambda x: x[: self.shared], (_feedforward(start), clamps))
        matrix = jax.vmap(chain.matrix)(*some)
        return jnp.linalg.inv(matrix if self.shared is None else jnp.mean(matrix, axis=0))

    def _chords(self, chain: "_Chain", start: Nodes, clamps: Clamps) -> "_Found":
        """Iterations from a feedforward pass, with matrices that are made there."""
        inverse = self._inverse(chain, start, clamps) if self.inverse is None else self.inverse
        chord = lambda v, clamps, inverse: self._chord(chain, v, clamps, inverse)
        axes = (0, 0, 0 if inverse.ndim == 3 else None)
        return jax.vmap(chord, in_axes=axes)(_feedforward(start), clamps, inverse)

    def _chord(self, chain: "_Chain", v: Nodes, clamps: Clamps, inverse: Array) -> "_Found":
        lam, changes = jnp.zeros_like(clamps[-1]), []
        found: Any = None
        for _ in range(self.chords):
            prediction, pull, states = jax.vjp(chain.predict(clamps), v, has_aux=True)
            residual = chain.output_error(clamps, prediction) - lam
            lam = lam + (inverse @ residual.ravel()).reshape(lam.shape)
            (delta,) = pull(lam)
            last, v = v, jax.tree.map(jnp.divide, delta, chain.weights)
            changes.append(_relative(last, v))
            found = _Found(v, states, delta, lam, _remaining(changes), jnp.asarray(self.chords))
        # The iterations may settle while the gradient says otherwise, at a kink for example.
        confirmed = chain.gap(v, clamps) <= jnp.sqrt(self.rtol)
        return found._replace(gap=jnp.where(confirmed, found.gap, jnp.inf))

    def _damp_if_needed(self, chain, start, found, clamps) -> "_Found":
        """Damped steps from the better of the start and what was found."""
        energy = jax.vmap(chain.energy)
        okay = energy(found.v, clamps) <= energy(start, clamps)
        v, done = _where(okay, found.v, start), okay & (found.gap <= self.rtol)
        damp = jax.vmap(lambda v, clamps, done: self._damp(chain, v, clamps, done))
        damped = lambda: _where(done, found, damp(v, clamps, done))
        return jax.lax.cond(jnp.all(done), lambda: found, damped)

    def _damp(self, chain: "_Chain", v: Nodes, clamps: Clamps, done: Array) -> "_Found":
        """Levenberg-Marquardt: the damping falls with each step that lowers the energy, and
        grows, with the step not taken, otherwise.
        """
        step = chain.dense_step if chain.outputs <= self.dense else chain.iterative_step
        eps = jnp.finfo(clamps[-1].dtype).eps
        floor = 0.0 if chain.definite else jnp.sqrt(eps)

        def body(state):
            v, energy, damping, _, steps = state
            tries, gap = step(v, clamps, damping)
            new, lower = _lowest([(v, chain.energy(v, clamps)) for v in tries])
            okay = lower <= energy + 4 * eps * jnp.abs(energy)
            easier = jnp.where(damping < 1e-3, floor, damping / 4)
            damping = jnp.where(okay, easier, jnp.maximum(8 * damping, 0.1))
            converged = gap <= self.rtol
            v, energy = _where(okay & ~converged, (new, lower), (v, energy))
            return v, energy, damping, gap, steps + 1

        def unfinished(state):
            *_, gap, steps = state
            return ~done & (gap > self.rtol) & (steps < self.max_steps)

        damping = jnp.asarray(0.0 if chain.definite else 1e-2, clamps[-1].dtype)
        gap = jnp.asarray(jnp.inf, clamps[-1].dtype)
        state = (v, chain.energy(v, clamps), damping, gap, jnp.asarray(0))
        v, _, _, gap, steps = jax.lax.while_loop(unfinished, body, state)
        solvable = chain.definite and chain.outputs <= self.dense
        found = (chain.solve if solvable else chain.linearise)(v, clamps)
        return found._replace(v=v, gap=gap, steps=steps + self.chords)


class _Chain(eqx.Module):
    """A chain in the coordinates of its errors; all of its functions are of one example."""

    layers: Layers
    weights: Nodes
    loss: Callable[[Array, Array], Scalar]
    local: LocalEnergy | None
    definite: bool = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    @staticmethod
    def of(energy: AbstractEnergy, layers: Layers, nodes: Nodes, clamps: Clamps) -> "_Chain":
        """From a batch of nodes and clamps."""
        in_errors = isinstance(energy, EPCEnergy)
        chain = as_chain(energy.energy if in_errors else energy)
        if any(z is None for z in nodes[1:-1]) or clamps[-1] is None:
            raise ValueError(
                "Equilibrium needs the output clamped and every state between it and the input "
                "free: use GradientFlow, Descent or Minimise."
            )
        prior, *precisions = chain.weights(len(layers))
        free = nodes[0] is not None
        return _Chain(
            layers,
            [prior if free else None, *precisions],
            chain.loss(len(layers)),
            None if in_errors else LocalEnergy(chain),
            definite=chain.prior is not None or not free,
            outputs=math.prod(clamps[-1].shape[1:]),
        )

    def predict(self, clamps: Clamps) -> Callable[[Nodes], tuple[Array, list[Array]]]:
        """The prediction of the output, and the states, as a function of the coordinates."""
        return lambda v: unfold(self.layers, v[0] if clamps[0] is None else clamps[0], v[1:])

    def coordinates(self, nodes: Nodes, clamps: Clamps) -> Nodes:
        if self.local is None:
            return nodes[:-1]
        states = eqx.combine(nodes, clamps)
        chain = zip(self.layers[:-1], states, states[1:-1], strict=False)
        return nodes[:1] + [z - apply(layer, before) for layer, before, z in chain]

    def nodes(self, v: Nodes, clamps: Clamps) -> Nodes:
        states = v[1:] if self.local is None else self.predict(clamps)(v)[1]
        return [*v[:1], *states, None]

    def energy(self, v: Nodes, clamps: Clamps) -> Scalar:
        squares = jax.tree.map(lambda x, w: 0.5 * w * jnp.sum(x**2), v, self.weights)
        prediction, _ = self.predict(clamps)(v)
        return jax.tree.reduce(jnp.add, squares) + self.loss(clamps[-1], prediction)

    def output_error(self, clamps: Clamps, prediction: Array) -> Array:
        """$g$, and $-g$ is the gradient of the loss."""
        return -jax.grad(self.loss, argnums=1)(clamps[-1], prediction)

    def linearise(self, v: Nodes, clamps: Clamps) -> _Found:
        """What there is to learn at `v`, with the output error as it is there."""
        prediction, pull, states = jax.vjp(self.predict(clamps), v, has_aux=True)
        g = self.output_error(clamps, prediction)
        (delta,) = pull(g)
        return _Found(v, states, delta, g, jnp.asarray(jnp.inf, g.dtype), jnp.asarray(0))

    def solve(self, v: Nodes, clamps: Clamps) -> _Found:
        r"""As `linearise`, with $\lambda$ solved for: where $S$ is large, the output error is a
        small difference of large numbers.
        """
        prediction, pull, states = jax.vjp(self.predict(clamps), v, has_aux=True)
        g = self.output_error(clamps, prediction)
        J, A = self._jacobian(pull, prediction, self.weights)
        H = self._curvature(clamps, prediction)
        seen = jax.tree.map(lambda j, x: j @ x.ravel(), J, v)
        rhs = g.ravel() + H @ jax.tree.reduce(jnp.add, seen)
        lam = jnp.linalg.solve(jnp.eye(len(A), dtype=A.dtype) + H @ A, rhs).reshape(g.shape)
        (delta,) = pull(lam)
        return _Found(v, states, delta, lam, jnp.asarray(jnp.inf, g.dtype), jnp.asarray(0))

    def lesson(self, found: _Found, clamps: Clamps) -> tuple[LocalEnergy, Nodes] | None:
        if self.local is None:
            return None
        z_0 = found.v[0] if clamps[0] is None else clamps[0]
        hidden = zip(found.states, found.delta[1:], strict=True)
        return self.local, [(z_0, None), *hidden, (None, found.lam)]

    def matrix(self, v: Nodes, clamps: Clamps) -> Array:
        """$S = I + H A$ without damping."""
        prediction, pull, _ = jax.vjp(self.predict(clamps), v, has_aux=True)
        _, A = self._jacobian(pull, prediction, self.weights)
        return jnp.eye(len(A), dtype=A.dtype) + self._curvature(clamps, prediction) @ A

    def _jacobian(self, pull, prediction: Array, weights: Nodes) -> tuple[Nodes, Array]:
        """$J$, with the output's units first, and $A = J W J^T$."""
        size = prediction.size
        basis = jnp.eye(size, dtype=prediction.dtype).reshape(size, *prediction.shape)
        (J,) = jax.vmap(pull)(basis)
        J = jax.tree.map(lambda x: x.reshape(size, -1), J)
        parts = jax.tree.map(lambda x, w: (x / w) @ x.T, J, weights)
        return J, jax.tree.reduce(jnp.add, parts)

    def _curvature(self, clamps: Clamps, prediction: Array) -> Array:
        H = jax.hessian(self.loss, argnums=1)(clamps[-1], prediction)
        return H.reshape(prediction.size, prediction.size)

    def dense_step(self, v: Nodes, clamps: Clamps, damping: Array) -> tuple[list[Nodes], Array]:
        """The step of the module's docstring, and one of Newton's; and how far off `v` is."""
        prediction, pull, _ = jax.vjp(self.predict(clamps), v, has_aux=True)
        g = self.output_error(clamps, prediction).ravel()
        weights = jax.tree.map(lambda w: w + damping, self.weights)
        J, A = self._jacobian(pull, prediction, weights)
        H = self._curvature(clamps, prediction)
        S = jnp.eye(len(A), dtype=A.dtype) + H @ A
        push = lambda t: jax.tree.reduce(jnp.add, jax.tree.map(lambda j, x: j @ x.ravel(), J, t))
        back = lambda lam: jax.tree.map(lambda j, x: (lam @ j).reshape(x.shape), J, v)
        shrunk = jax.tree.map(lambda x, w, d: w / d * x, v, self.weights, weights)
        lam = jnp.linalg.solve(S, g + H @ push(shrunk))
        step = jax.tree.map(lambda x, d, w: (damping * x + d) / w, v, back(lam), weights)

        def precondition(t):  # The inverse of P + damping + J^T H J.
            t = jax.tree.map(jnp.divide, t, weights)
            seen = back(jnp.linalg.solve(S, H @ push(t)))
            return jax.tree.map(lambda x, y, w: x - y / w, t, seen, weights)

        newton = self._newton(v, clamps, damping, step, precondition)
        return [step, newton], self._gap(v, back(g))

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
        solver = lx.CG(rtol=1e-6, atol=0.0, max_steps=10)
        rhs = jax.tree.map(jnp.negative, gradient(v))
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
        return [step], self._gap(v, forces)

    def gap(self, v: Nodes, clamps: Clamps) -> Array:
        """How far off `v` is, by the gradient there."""
        return self._gap(v, self.linearise(v, clamps).delta)

    def _gap(self, v: Nodes, forces: Nodes) -> Array:
        """The norm of the gradient $P v - J^T g$ relative to that of its two parts."""
        own = jax.tree.map(jnp.multiply, v, self.weights)
        gradient = tree_norm(jax.tree.map(jnp.subtract, own, forces))
        size = jnp.maximum(tree_norm(own), tree_norm(forces))
        # Below this there is nothing left to learn from, and rounding is all there is.
        return gradient / jnp.maximum(size, jnp.sqrt(jnp.finfo(size.dtype).eps))


def _feedforward(start: Nodes) -> Nodes:
    """No errors, from the same $z_0$."""
    return start[:1] + [jnp.zeros_like(e) for e in start[1:]]


def _lowest(tries: list[tuple[Nodes, Array]]) -> tuple[Nodes, Array]:
    """The one with the lowest energy; what is not a number is not low."""
    best, *others = tries
    for other in others:
        best = _where(other[1] < best[1], other, best)
    return best


def _remaining(changes: list[Array]) -> Array:
    """What is left of a sequence that converges linearly, by its last two changes."""
    *_, previous, last = [jnp.asarray(0.0), *changes]
    return last * jnp.where(previous > last, jnp.minimum(1.0, last / (previous - last)), 1.0)


def _relative(old: Nodes, new: Nodes) -> Array:
    """The distance of two trees, relative to the second."""
    change = tree_norm(jax.tree.map(jnp.subtract, new, old))
    return jnp.where(change > 0, change / tree_norm(new), 0.0)


def _result(converged: Array) -> RESULTS:
    return RESULTS.where(converged, RESULTS.successful, RESULTS.stopped_early)


def _where(mask: Array, one: PyTree, other: PyTree) -> PyTree:
    """One tree or the other, for each example."""
    pick = lambda a, b: jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)
    return jax.tree.map(pick, one, other)
