import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._checks import need_more, raise_if_not_finite, trying
from .._clamp import check_problem, like
from .._device import accelerated
from .._energy import AbstractEnergy, EPCEnergy, LocalEnergy, Parts, Unfolded, ravel, take_apart
from .._given import check_count, check_flags, check_type
from .._metrics import tree_norm
from .._solve import solve
from .._types import Given, Number
from .base import (
    AbstractInference,
    Inferred,
    check_matrix,
    check_positive,
    conclude,
    gradient_norm,
    judge,
    method,
)
from .chords import Chords, Found, Inverse, Matrix, add, derivatives, energy_of, learn_from, pair
from .implicit import implicit
from .kinks import Kinks, find_kinks, settle
from .mix import Way, begin, finish, go_on, until_all, until_together
from .relax import at_least, dot, norm, pick, relax
from .sketch import Sketch

_CHORDS, _STEPS = 16, 200  # At most, if nothing else was asked for.
_EXACT = 5  # Chords that most examples need to be far within the tolerance.
_FEW = 2  # Chords where a device would rather not wait.
_LARGE = 2**20  # Units of a batch, from which on waiting takes no time in comparison.
_DEEP = 16  # States, from which on chords are a loop, for a short first call.
_BLUR = 0.05  # Of an energy: what rounding makes of it at most.
_CLOSE = 0.3  # Of the errors: farther off than this, an example descends whatever its kinks.


class Equilibrium(AbstractInference):
    r"""Solves for the equilibrium of inference, $\nabla_z F = 0$, of any network that predicts
    forwards: a [`jpc.AbstractNetworkEnergy`][] such as [`jpc.PCEnergy`][] or
    [`jpc.GraphEnergy`][], also with priors and penalties or in the coordinates of its errors,
    with any convex loss, and clamped anywhere.

    First come a few iterations of the whole batch, chords, which share a matrix $A$. Examples that
    have not converged then descend by themselves from where they started. No example ends at a
    higher energy than it started from. `result` says which examples have converged, and
    `stats["error"]` estimates how far off each of them is, relatively.

    Rectifiers have kinks, and units may come to rest there. Such units are held if their layer
    begins with the rectifier. Outside training each example of such a network has its own matrix,
    and if there are rectifiers elsewhere, all examples descend.

    Learning uses the errors that were solved for. Derivatives of the `nodes` are those of the
    implicit function theorem.

    In training the matrix is kept from batch to batch: `Inferred.method` is the same method with
    the matrix of this batch, for the next ones. [`jpc.fit`][] uses it, and makes a new matrix
    every 16 steps. Unless `chords` or `max_steps` say otherwise, each batch takes two chords, or
    more until the errors of the batch, together, are off by less than `rtol`. No example then
    descends by itself, and the history says what share of them has `converged`.

    **Arguments:**

    - `rtol`: an example has converged when its errors are off by less than this, relatively.
    - `chords`: how many iterations with a shared matrix; each is one forward and one backward
        pass without gradients of the weights. With a `max_steps` other than 0 they end when all
        examples have converged. `None`: as many as it takes, 16 at most; an example that is off
        by more than 1 % after 8 of them goes on by itself. (With no other steps on an
        accelerator, where small networks would wait for an answer, 2.)
    - `shared`: how many examples of the batch to take the matrix from; `None`: each example
        has its own.
    - `max_steps`: how many steps an example may take by itself after that. With 0 an example that
        has not converged says so in `result`. `None` is 200, and 0 in training that carries the
        matrix along.
    - `safe`: with no steps of single examples, whether an example learns from its first chord if
        it is off by more than 10 %. What a first chord says is never large. (In a network with
        kinks the limit is 50 % if units can be held there. It is `rtol` if they cannot, because
        chords may then hop for ever.) With `False` an example learns from its last chord, however
        far off that is.
    - `dense`: the largest number of units that are predicted and given for which whole matrices
        are made. Beyond it $A$ is sketched, from twice as many products. With 0 there are no
        matrices, and no chords.
    - `throw`: whether activities that are not finite raise an error.
    - `matrix`: what is shared, if it is known, as in what [`jpc.Equilibrium.prepare`][] returns.

    **Example:**

    ```python
    import jax.random as jr

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    energy = jpc.PCEnergy(precision=[1.0, 1.0, 0.1])
    nodes, clamps = jpc.pose(energy, model, {0: x, 3: y})
    inferred = jpc.Equilibrium(max_steps=0)(energy, model, nodes, clamps)
    converged = inferred.result == jpc.RESULTS.successful
    ```
    """

    rtol: Given[Number] = 1e-2
    chords: Given[int | None] = eqx.field(static=True, default=None)
    shared: Given[int | None] = eqx.field(static=True, default=4)
    max_steps: Given[int | None] = eqx.field(static=True, default=None)
    dense: Given[int] = eqx.field(static=True, default=32)
    safe: Given[bool] = eqx.field(static=True, default=True)
    throw: Given[bool] = eqx.field(static=True, default=True)
    matrix: PyTree = None

    def __check_init__(self):
        check_positive("rtol", self.rtol)
        for name in ("chords", "max_steps"):
            check_count(name, getattr(self, name), least=0, none=True)
        check_count("dense", self.dense, least=0)
        if self.max_steps == 0 and 0 in (self.chords, self.dense):  # Of no matrix are no chords.
            raise ValueError("Equilibrium needs at least one chord or step.")
        check_count("shared", self.shared, none=True)
        check_flags(safe=self.safe, throw=self.throw)

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if record is not None:
            raise ValueError("Equilibrium has no dynamics to record: use GradientFlow.")
        if not jax.tree.leaves(nodes):
            raise ValueError("There is nothing to infer: every state is given.")
        in_errors = isinstance(energy, EPCEnergy)
        inner = energy.energy if in_errors else energy
        parts = take_apart(inner)
        unfolded, free, given = Unfolded.of(parts.network(params), nodes, clamps)
        unfold = _Unfold(parts, (unfolded.names, unfolded.free, unfolded.seen))
        fixed_unfold, fixed_params, start, fixed = _without_derivatives(
            (unfold, params, free, given)
        )
        still = fixed_unfold(fixed_params)
        start = start if in_errors else jax.vmap(still.coordinates)(start, fixed)
        found, okay, done, matrix, left = self._solve(still, start, fixed)

        def end(v, given):
            v = implicit(v, unfold, params, given)
            if in_errors:
                return v
            z, _ = unfolded.unfold(v, given)
            return {name: z[name] for name in v}

        ended = like(nodes, pick(okay, jax.vmap(end)(found.v, given), free))
        energies = jax.vmap(still.energy)
        before = energies(start, fixed)
        after = jnp.where(okay, energies(found.v, fixed), before)
        ended, result = conclude(energy, ended, judge(done), before, after, throw=self.throw)
        lesson = LocalEnergy(inner), like(nodes, pair(still, found.z, add(found.delta, found.lam)))
        if self.throw:
            ended = raise_if_not_finite({"What there is to learn": lesson[1]}, ended)
        if left is not None:
            ended, lesson = need_more(left, ended), need_more(left, lesson)
        stats = {"steps": found.steps, "evaluations": found.steps + 1, "error": found.gap}
        stats["converged"] = self._converged(found)
        # Where units are held at kinks, it is the gradient of the others.
        held = found.gap * jax.vmap(lambda v: jnp.linalg.norm(still.own(v)))(found.v)
        held = held / jax.vmap(tree_norm)(ended)
        norms = gradient_norm(energy, params, ended, clamps)
        stats["gradient_norm"] = jnp.where(okay & found.kinks, held, norms)
        return Inferred(ended, result, stats, lesson=lesson, method=self._carry(matrix))

    @property
    def _steps(self) -> int:
        return _STEPS if self.max_steps is None else self.max_steps

    def _carry(self, matrix: PyTree) -> "Equilibrium | None":
        if matrix is None or self.shared is None:  # Those of other examples are of no use.
            return None
        return dataclasses.replace(self, matrix=matrix, max_steps=self.max_steps or 0)

    def _converged(self, found: Found) -> Array:
        """Which examples have. With no steps of single examples what counts is what one adds to
        the batch: errors that are small beside those of the others may be off by more.
        """
        if self._steps > 0:
            return found.gap <= self.rtol
        sizes = jax.vmap(lambda errors: norm(ravel(errors)))((found.lam, found.delta))
        return found.gap * sizes <= self.rtol * jnp.maximum(sizes, jnp.mean(sizes))

    def prepare(self, energy, params, nodes, clamps) -> "Equilibrium":
        """Returns the same method with the matrix of this batch, to be used for other batches.
        The matrix changes slowly while a network learns, and making it is a good part of the cost
        on a device that waits for one small kernel after another. One matrix for ten batches will
        do.
        """
        check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
        check_problem(nodes, clamps)
        inner = energy.energy if isinstance(energy, EPCEnergy) else energy
        unfolded, free, given = Unfolded.of(take_apart(inner).network(params), nodes, clamps)
        return dataclasses.replace(self, matrix=self._share(unfolded, free, given))

    def _solve(
        self, unfolded: Unfolded, start: dict, given: dict
    ) -> tuple[Found, Array, Array, PyTree, Array | None]:
        """What was found for each example, whether that is no worse than the start, whether it
        has converged, the matrix that was shared, if any, and of a first try whether there are
        examples left that need more.
        """
        if not unfolded.seen:
            return *self._rest(unfolded, start, given), None, None
        before = jax.vmap(unfolded.energy)(start, given)
        size = sum(z[0].size for name in unfolded.seen for z in jax.tree.leaves(given[name])[:1])

        def assess(found):
            after, blur = jax.vmap(ft.partial(energy_of, unfolded))(found.v, given)
            # Of states that are far too large even what may be rounding is.
            okay = after <= before + jnp.minimum(blur, _BLUR * (1 + before))
            return okay, okay & (found.gap <= self.rtol)

        kinks, bends = find_kinks(unfolded, *jax.tree.map(lambda x: x[0], (start, given)))
        matrix = None
        if self.chords != 0 and self.dense > 0 and unfolded.definite():
            share = ft.partial(self._share, unfolded, start, given)
            matrix = share() if self.matrix is None else check_matrix(self.matrix, share)
        own = self._steps > 0 and kinks in ("held", "rectifiers")
        tries = matrix is not None and not (own and (kinks == "rectifiers" or size > self.dense))
        if tries:
            # Beyond a kink may be another equilibrium: who gets there must not depend on others.
            how = dataclasses.replace(self, shared=None) if own else self
            matrices = how._share(unfolded, start, given) if own else matrix
            found = how._iterate(unfolded.bending(bends), start, given, matrices, kinks)
        else:
            found = jax.vmap(lambda v, given: learn_from(unfolded, v, given, None))(start, given)
        okay, done = assess(found)
        if self._steps > 0:
            # Where kinks cannot be held, what is close will not come much closer.
            over = done | (okay & (found.gap <= _CLOSE)) if kinks == "others" else done
            if tries and trying():
                return found, okay, done, matrix, ~jnp.all(over)
            alone = ft.partial(self._alone, unfolded, size <= self.dense, kinks)
            found = _few_at_a_time(alone, (start, given), found, over)
            okay, done = assess(found)
        return found, okay, done, matrix, None

    def _rest(self, unfolded: Unfolded, start: dict, given: dict) -> tuple[Found, Array, Array]:
        """Where nothing is both predicted and given there are no errors, and no state that has a
        prior is anything but zero.
        """
        flat = lambda name: not unfolded.network[name].counts()
        v = {name: z if flat(name) else jnp.zeros_like(z) for name, z in start.items()}
        found = jax.vmap(lambda v, given: learn_from(unfolded, v, given, None))(v, given)
        okay = jnp.ones_like(found.gap, bool)
        return found._replace(gap=jnp.zeros_like(found.gap)), okay, okay

    def _iterate(
        self, unfolded: Unfolded, start: dict, given: dict, matrix: PyTree, kinks: Kinks
    ) -> Found:
        """Iterations from a feedforward pass, with matrices that were made there."""
        known = jax.vmap(unfolded.foresee)(given)
        problem = (given, known, matrix)
        strict = self._steps > 0
        how: Any = dict(strict=strict, kinks=kinks, safe=self.safe and not strict)
        axes = (0, 0, 0, 0 if self.shared is None else None)

        def each(fn: Callable[[Chords, Any], Any]) -> Callable[[Any], Any]:
            one = lambda x, given, known, matrix: fn(
                Chords(unfolded.knowing(known), given, matrix, self.rtol, **how), x
            )
            return lambda x: jax.vmap(one, in_axes=axes)(x, *problem)

        ways = each(begin)(_without_errors(unfolded, start))
        return each(finish)(self._go_on(ways, each(go_on), len(unfolded.network), kinks))

    def _go_on(
        self, ways: Way, step: Callable[[Way], Way], depth: int, kinks: Kinks = "none"
    ) -> Way:
        most = _CHORDS if self.chords is None else self.chords
        if self._steps > 0:
            # Whole matrices of others lead some examples astray; by themselves these are quick.
            whole = self.shared is not None and ways.now.at.lam.shape[-1] <= self.dense
            leaves = whole and self.chords is None
            return until_all(ways, step, self.rtol, most, least=min(_EXACT, most), leaves=leaves)
        units = sum(z.size for z in jax.tree.leaves(ways.now.at.delta))
        if self.chords is None and (not accelerated() or units > _LARGE):
            # Two are often enough, and what a loop carries along costs as much as half of one.
            ways = ways if depth > _DEEP else step(ways)
            return until_together(ways, step, self.rtol, most, kinks)
        count = _FEW if self.chords is None else self.chords
        if depth > _DEEP:
            return jax.lax.fori_loop(1, count, lambda _, ways: step(ways), ways)
        return ft.reduce(lambda ways, _: step(ways), range(1, count), ways)

    def _share(self, unfolded: Unfolded, start: dict, given: dict) -> PyTree:
        """The matrix of each example, or of the first few, or a sketch of the first one's."""
        start = _without_errors(unfolded, start)
        example = jax.tree.map(lambda x: x[0], (start, given))
        yhat, unravel = ravel_pytree(unfolded.predict(*example)[0])
        loss = lambda y: unfolded.loss(unravel(y), example[1])
        square = unfolded.quadratic(given)
        if yhat.size > self.dense:
            rank = min(2 * self.dense, yhat.size)
            sketch = lambda v, given: Sketch.of(unfolded, v, given, rank)
            finish = lambda sketch: sketch.invert(loss, yhat) if square else sketch
            if self.shared is not None:
                return finish(sketch(*example))
            return jax.vmap(lambda *given: finish(sketch(*given)))(start, given)
        some = jax.tree.map(lambda x: x[: self.shared], (start, given))
        matrices = jax.vmap(ft.partial(derivatives, unfolded))(*some)
        one = jnp.eye(yhat.size, dtype=yhat.dtype)
        finish = lambda A, H: Inverse(solve(one + dot(H, A), one)) if square else Matrix(A)
        if self.shared is None:
            return jax.vmap(finish)(*matrices)
        return finish(*(jnp.mean(matrix, axis=0) for matrix in matrices))

    def _alone(self, unfolded: Unfolded, dense: bool, kinks, start, given, found, done) -> Found:
        """One example by itself, from its start, if it is not done."""
        named: Any = dict(rtol=self.rtol, max_steps=self._steps, dense=dense)
        relaxed = relax(unfolded, start, given, done, **named)
        over, steps = done | (relaxed.gap <= self.rtol), found.steps + relaxed.steps
        new = learn_from(unfolded, relaxed.v, given, None)._replace(gap=relaxed.gap, steps=steps)
        if kinks in ("held", "rectifiers"):
            new = pick(over, new, _settle(unfolded, new, given, self.rtol, ~over))
        if dense:
            solved = learn_from(unfolded, relaxed.v, given, relaxed.lam)
            new = pick(over, new._replace(z=solved.z, delta=solved.delta, lam=solved.lam), new)
        return pick(done, found, new)


def _few_at_a_time(alone: Callable, problem: PyTree, found: Found, over: Array) -> Found:
    """What `alone` makes of the examples that are not over. A processor takes an eighth of the
    batch at a time: what is slow in one example then keeps few others. An accelerator takes all
    of them in the same time.
    """
    size = len(over) if accelerated() else -(-len(over) // 8)

    def go_on(state):
        found, over = state
        rows = jnp.argsort(over)[:size]
        some = jax.tree.map(lambda x: x[rows], (*problem, found, over))
        new = jax.vmap(alone)(*some)
        put = lambda whole, part: whole.at[rows].set(part)
        return jax.tree.map(put, found, new), over.at[rows].set(True)

    return jax.lax.while_loop(lambda state: ~jnp.all(state[1]), go_on, (found, over))[0]


def _without_errors(unfolded: Unfolded, v: dict) -> dict:
    """As in a feedforward pass. A state that nothing predicts stays where it is."""
    predicted = lambda name: unfolded.network[name].fn is not None
    return {name: jnp.zeros_like(z) if predicted(name) else z for name, z in v.items()}


def _settle(unfolded: Unfolded, found: Found, given: dict, rtol: Any, active: Array) -> Found:
    """Newton's method in the states, where units are held at kinks."""
    size = at_least(jnp.linalg.norm(unfolded.own(found.v)))
    energy, blur = energy_of(unfolded, found.v, given)
    potential = lambda free: unfolded.potential(free, given)
    free = {name: found.z[name] for name in found.v}
    free, gap, steps = settle(potential, free, active, tolerance=rtol * size, blur=blur)
    # There no gradient but only the errors themselves tell what there is to learn.
    new = learn_from(unfolded, unfolded.coordinates(free, given), given, None)
    new = new._replace(gap=gap / size, steps=found.steps + steps, kinks=jnp.asarray(True))
    return pick(potential(free) <= energy + blur, new, found)


class _Unfold(eqx.Module):
    """A network as a function of its parameters."""

    parts: Parts
    names: tuple = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Unfolded:
        return Unfolded(self.parts.network(params), *self.names)


def _without_derivatives(tree: PyTree) -> PyTree:
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
