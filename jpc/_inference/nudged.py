import dataclasses
import functools as ft
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._clamp import Masked, check_problem, like
from .._energy import (
    AbstractEnergy,
    AbstractNetworkEnergy,
    EPCEnergy,
    Network,
    Node,
    Unfolded,
    ravel,
    squared_error,
    take_apart,
    total,
)
from .._given import check_count, check_flags, check_type, choice, show
from .._solve import solve
from .._types import Clamps, Given, Name, Nodes, Number, Scalar, Terms
from .backprop import ZIL, Backprop, FixedPrediction
from .base import RESULTS, AbstractInference, Inferred, check_matrix, check_positive, judge, method
from .chords import add, derivatives, multiply
from .equilibrium import Equilibrium
from .forward import Forward, backward
from .relax import at_least, dot, norm

Kind = Literal["target", "loss"]
Sign = Literal["positive", "negative", "centred"]
_DENSE = 64  # Units of output, up to which each example may have a matrix of its own.
_SIGNS: dict[Sign, tuple[float, ...]] = {
    "positive": (1.0,),
    "negative": (-1.0,),
    "centred": (1.0, -1.0),
}


class Nudged(AbstractInference):
    r"""Nudging: learning from how the equilibrium answers to a small part $\beta$ of the error.
    The energy is one of

    $$F_\beta = E + \mathrm{loss}(\hat y) + (1 - \beta) \, g^T \hat y
      \quad (\texttt{target}), \qquad
      F_\beta = E + \beta \, \mathrm{loss}(\hat y) \quad (\texttt{loss}),$$

    with $E$ the energy of all other states, $\hat y_0$ the feedforward prediction and $g =
    -\nabla \mathrm{loss}(\hat y_0)$. The first of them has the error $\beta g$ at $\hat y_0$. For
    the squared error it is the loss of a target that is moved, $\hat y_0 + \beta (y - \hat y_0)$;
    for the cross-entropy that of the target $\mathrm{softmax}(\hat y_0) + \beta (y -
    \mathrm{softmax}(\hat y_0))$; it is defined for any convex loss. What is learned is

    $$\frac{\nabla_\theta F_\beta - \nabla_\theta F_{-\beta}}{2 \beta} \quad (\texttt{centred}),
      \qquad \frac{\nabla_\theta F_\beta}{\beta} \quad (\texttt{positive}), \qquad
      -\frac{\nabla_\theta F_{-\beta}}{\beta} \quad (\texttt{negative}),$$

    each at its own equilibrium. All three have the same limit for $\beta \to 0$, which takes no
    inference. It is at the states of the feedforward pass

    $$-\lambda^T \nabla_\theta \hat y, \qquad S \lambda = g, \qquad S = I + H A, \qquad
      A = \sum_n J_n P_n^{-1} J_n^T,$$

    with $H = \nabla^2 \mathrm{loss}(\hat y_0)$ each example's own and $J_n = \partial \hat y /
    \partial z_n$: one forward pass, one small solve, one backward pass. (In the limit of `"loss"`
    $\lambda$ is $g$, and the rule is backpropagation.) Making $A$ takes a backward pass for each
    unit of the output, of the examples that share it.

    A target that is moved by all of the error is that of plain predictive coding: `Nudged(1.0,
    sign="positive")`.

    **Arguments:**

    - `beta`: $\beta$, the part of the error; `None`: the limit of small nudges.
    - `kind`: what is nudged, the `"target"` or the weight of the `"loss"`.
    - `sign`: `"positive"`, `"negative"` or `"centred"`; only for a finite `beta`.
    - `strength`: how far from backpropagation to be, whatever the network is: the precision of
        the output is multiplied by a number $c$ such that $c \, p \, \mathrm{tr}(A) / n$ is this,
        so that the mean eigenvalue of $S$ is 1 + `strength` for squared errors. What is learned
        is divided by $c$, and tends to backpropagation for a small strength. `stats["precision"]`
        is $c$. `None`: $c$ is 1.
    - `inference`: for a finite `beta`, [`jpc.Equilibrium`][] by default.
    - `chords`: in the limit, how many times to solve with the shared matrix. Each one after the
        first takes a backward and a forward pass to find what the example's own matrix leaves.
        With more than one, steps are as long as it takes for the rest to be shortest, so that
        it never grows.
    - `shared`: how many examples of the batch to take $A$ from; `None`: each has its own.
    - `own`: for how many of the last states each example has its own part of $A$. The part of a
        state near the output takes only a short way back, so it is cheap. Where earlier states
        are more precise, it is nearly all of $A$. Not for more than 64 units of output.
    - `rtol`: in the limit, an example has succeeded if $\lambda$ is off by less, relatively.
    - `throw`: whether numbers that are not finite raise an error.
    - `matrix`: $A$, if it is known, as in what [`jpc.Nudged.prepare`][] returns.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    rule = jpc.Nudged(strength=1.0)  # The limit of small nudges.
    result = jpc.make_pc_step(model, optim, opt_state, y, x, inference=rule, stiffness=1e4)
    ```
    """

    beta: Given[Number | None] = None
    kind: Given[Kind] = eqx.field(static=True, default="target")
    sign: Given[Sign] = eqx.field(static=True, default="centred")
    strength: Given[Number | None] = None
    inference: Given[AbstractInference | None] = None
    chords: Given[int] = eqx.field(static=True, default=1)
    shared: Given[int | None] = eqx.field(static=True, default=4)
    own: Given[int] = eqx.field(static=True, default=1)
    rtol: Given[Number] = 1e-2
    throw: Given[bool] = eqx.field(static=True, default=True)
    matrix: Given[Array | None] = None

    def __check_init__(self):
        choice("kind", self.kind, get_args(Kind))
        choice("sign", self.sign, get_args(Sign))
        check_positive("beta", self.beta, none=True)
        check_positive("strength", self.strength, none=True)
        check_positive("rtol", self.rtol)
        kind, example = AbstractInference | None, "jpc.Equilibrium(), or None"
        check_type("inference", self.inference, kind, example)
        if isinstance(self.inference, Backprop | FixedPrediction | ZIL | Nudged):
            raise TypeError(
                f"inference must find an equilibrium, such as {example}, got "
                f"{show(self.inference)}, a rule of its own."
            )
        check_count("chords", self.chords)
        check_count("shared", self.shared, none=True)
        check_count("own", self.own, least=0)
        check_flags(throw=self.throw)
        check_type("matrix", self.matrix, jax.Array | None, "that of Nudged().prepare(...)")
        if self.beta is None and (self.sign != "centred" or self.inference is not None):
            raise ValueError(
                "sign and inference are of a finite beta, such as Nudged(0.1): in the limit all "
                "signs are the same, and nothing is inferred."
            )

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        forward = Forward.of("Nudged", (energy, params, nodes, clamps), record, precisions="all")
        if not forward.v:
            raise ValueError("There is nothing to infer: every state is given.")
        matrix, factor = self._scale(forward)
        if self.beta is None:
            return self._limit(forward, matrix, factor)
        inference = Equilibrium(throw=self.throw) if self.inference is None else self.inference
        betas = [sign * jnp.asarray(self.beta) for sign in _SIGNS[self.sign]]
        posed = [_pose(forward, self.kind, beta, factor) for beta in betas]
        ends = [inference(p.energy, params, p.nodes, p.clamps, key=key) for p in posed]
        weights = [1 / (len(betas) * beta * factor) for beta in betas]
        return _combine(forward, posed, ends, weights, factor)

    def problem(self, energy, params, nodes, clamps) -> tuple[AbstractEnergy, Nodes, Clamps]:
        """What is inferred first with a finite `beta`: an energy, where its nodes start, and its
        clamps.
        """
        if self.beta is None:
            raise ValueError("In the limit nothing is inferred: give a finite beta, Nudged(0.1).")
        forward = Forward.of("Nudged", (energy, params, nodes, clamps), None, precisions="all")
        beta = _SIGNS[self.sign][0] * jnp.asarray(self.beta)
        posed = _pose(forward, self.kind, beta, self._scale(forward)[1])
        return posed.energy, posed.nodes, posed.clamps

    def prepare(self, energy, params, nodes, clamps) -> "Nudged":
        """The same rule with the matrix $A$ of this batch, to be used for others: it changes
        slowly while a network learns.
        """
        check_problem(nodes, clamps)
        forward = Forward.of("Nudged", (energy, params, nodes, clamps), None, precisions="all")
        return dataclasses.replace(self, matrix=_mean(self._share(forward)))

    def _scale(self, forward: Forward) -> tuple[Array | None, Array]:
        """$A$, if it is needed, and $c$."""
        one = jnp.ones((), jnp.result_type(*jax.tree.leaves(forward.v)))
        limit = self.beta is None and self.kind == "target"
        if not limit and self.strength is None:
            return None, one
        mean = lambda: _mean(self._share(forward))
        matrix = self._share(forward) if self.matrix is None else check_matrix(self.matrix, mean)
        if self.strength is None:
            return matrix, one
        each = jnp.diagonal(_mean(matrix)) * _precisions(forward)
        return matrix, jnp.asarray(self.strength, one.dtype) / at_least(jnp.mean(each))

    def _share(self, forward: Forward) -> Array:
        """The matrix of each example: of the last states its own, of the others the mean of the
        first few; or one for all.
        """
        unfolded, v, given = forward.unfolded, forward.v, forward.given
        make = lambda of: jax.vmap(lambda *example: derivatives(unfolded, *example, of=of)[0])
        own = self.own if _size(forward) <= _DENSE else 0
        early = max(len(unfolded.free) - own, 0)
        if self.shared is None or early == 0:
            return make(unfolded.free)(v, given)
        first, last = unfolded.free[:early], unfolded.free[early:]
        few = lambda tree: jax.tree.map(lambda x: x[: self.shared], tree)
        shared = jnp.mean(make(first)(few(v), few(given)), axis=0)
        return shared[None] + make(last)(v, given) if last else shared

    def _limit(self, forward: Forward, matrix: Array | None, factor: Array) -> Inferred:
        if matrix is None or self.kind == "loss":  # Backpropagation.
            size = _size(forward)
            matrix, factor = jnp.zeros((size, size), factor.dtype), jnp.zeros_like(factor)
        each = matrix.ndim == 3
        solve_one = ft.partial(_solve, forward.unfolded, self.chords, each)
        axes = (0, 0, 0 if each else None, None)
        solved = jax.vmap(solve_one, in_axes=axes)(forward.v, forward.given, matrix, factor)
        stats = dict(steps=self.chords, evaluations=self.chords + 1, error=solved.gap)
        stats |= dict(precision=factor, relaxed=solved.relaxed)
        result = judge(solved.gap <= self.rtol)
        return forward.finish(solved.z, solved.delta, result, stats, throw=self.throw)


class _Solved(NamedTuple):
    r"""Of one example: the states, the errors of all of them, how far $\lambda$ is off by an
    estimate, and the part of the energy of the nudge that is relaxed.
    """

    z: dict
    delta: dict
    gap: Array
    relaxed: Array


def _solve(
    unfolded: Unfolded, chords: int, each: bool, v: dict, given: dict, A: Array, factor: Array
) -> _Solved:
    """The limit. `each`: whether every example has a matrix of its own."""
    z, errors, pull = backward(unfolded, v, given)
    g, unravel = ravel_pytree(errors)
    predicted = unfolded.predict(v, given)[0]
    loss = lambda y: unfolded.loss(ravel_pytree(predicted)[1](y), given)
    H = factor * jax.hessian(loss)(ravel(predicted))
    S, one = jnp.eye(g.size, dtype=g.dtype) + dot(H, A), jnp.eye(g.size, dtype=g.dtype)
    # One inverse for all examples where the curvature and the matrix are the same.
    same = unfolded.quadratic(given) and not each
    solved = ft.partial(dot, solve(S, one)) if same else ft.partial(solve, S)

    move = multiply(unfolded, v, given)
    lam = solved(g)
    moved = move(lam)
    if chords > 1:  # With steps as long as it takes for the rest to be shortest.
        length = _shortest(g, lam + dot(H, moved))
        lam, moved = length * lam, length * moved
    for _ in range(chords - 1):
        rest = g - lam - dot(H, moved)
        step = solved(rest)
        change = move(step)
        length = _shortest(rest, step + dot(H, change))
        lam, moved = lam + length * step, moved + length * change
    rest = g - lam - dot(H, moved)
    step = solved(rest)
    now = dot(g + rest, moved)
    whole = dot(g, moved + dot(A, step))
    relaxed = now / jnp.where(whole == 0, 1, whole)
    delta = add(pull(unravel(lam)), unravel(lam))
    return _Solved(z, delta, norm(step) / at_least(norm(lam)), relaxed)


def _shortest(rest: Array, change: Array) -> Array:
    """How many times to take a change off for the least to be left."""
    return dot(rest, change) / at_least(dot(change, change))


def _predicted(forward: Forward) -> dict:
    return jax.vmap(lambda v, given: forward.unfolded.predict(v, given)[0])(
        forward.v, forward.given
    )


def _mean(matrix: Array) -> Array:
    """Of all examples, if each has its own."""
    return jnp.mean(matrix, axis=tuple(range(matrix.ndim - 2)))


def _size(forward: Forward) -> int:
    """How many units are predicted and given."""
    return sum(y[0].size for y in jax.tree.leaves(_predicted(forward)))


def _precisions(forward: Forward) -> Array:
    """Of the units that are predicted and given, in one vector."""
    predicted, network = _predicted(forward), forward.unfolded.network
    spread = lambda name, y: jnp.broadcast_to(network[name].precision, y.shape[1:])
    return ravel({name: spread(name, y) for name, y in predicted.items()})


# --- finite nudges ---


class _Posed(NamedTuple):
    energy: AbstractEnergy
    nodes: Nodes
    clamps: Clamps


class NudgedEnergy(AbstractNetworkEnergy):
    """A network whose loss is weighted, or has a linear term more for each of its `slopes`: nodes
    that share the prediction of another one.
    """

    energy: AbstractEnergy
    weight: Number
    seen: tuple[Name, ...] = eqx.field(static=True)
    slopes: tuple[tuple[Name, Name], ...] = eqx.field(static=True)

    def network(self, params: PyTree) -> Network:
        network = dict(take_apart(self.energy).network(params))
        twins = {
            twin: Node(network[name].fn, network[name].parents, _linear)
            for name, twin in self.slopes
        }
        for name in self.seen:
            node = network[name]
            network[name] = dataclasses.replace(node, precision=self.weight * node.precision)
        return network | twins


def _linear(slope: Array, prediction: Array) -> Scalar:
    return jnp.sum(slope * prediction)


def _pose(forward: Forward, kind: Kind, beta: Array, factor: Array) -> _Posed:
    """The problem of a finite nudge."""
    unfolded, given, clamps = forward.unfolded, dict(forward.given), forward.clamps
    parents = {parent for node in unfolded.network.values() for parent in node.parents}
    inside = [n for n in unfolded.seen if isinstance(given[n], Masked) and n in parents]
    if inside and kind == "loss":
        raise ValueError(
            f'kind="loss" weighs the loss of states that are given whole, and {inside[0]!r} is '
            'given in part and predicts others: take kind="target".'
        )
    weight = factor * beta if kind == "loss" else factor
    slopes: dict[Name, Any] = {}
    if kind == "target":
        predicted = _predicted(forward)
        errors = jax.vmap(lambda v, given: backward(unfolded, v, given)[1])(
            forward.v, forward.given
        )
        for name in unfolded.seen:
            if unfolded.network[name].loss is squared_error and name not in parents:
                given[name] = _towards(predicted[name], given[name], beta)
            else:
                slopes[name] = (1 - beta) * factor * errors[name]
    twins = _names(forward.nodes, slopes)
    energy = NudgedEnergy(forward.inner, weight, unfolded.seen, tuple(twins.items()))
    extra = {twins[name]: slope for name, slope in slopes.items()}
    if isinstance(clamps, dict):
        nodes, clamps = forward.nodes, {**clamps, **given, **extra}
    else:
        nodes = [*forward.nodes, *[None] * len(extra)]
        clamps = [*(given[i] for i in range(len(clamps))), *extra.values()]
    in_errors = forward.inner is not forward.energy
    return _Posed(EPCEnergy(energy) if in_errors else energy, nodes, clamps)


def _towards(predicted: Array, given: Any, beta: Array) -> Any:
    if not isinstance(given, Masked):
        return predicted + beta * (given - predicted)
    value = predicted + beta * (given.value - predicted)
    return Masked(jnp.where(given.mask, value, 0), given.mask)


def _names(nodes: Nodes, slopes: dict) -> dict[Name, Name]:
    """New ones, in the manner of the others."""
    if isinstance(nodes, dict):
        return {name: f"{name}, its slope" for name in slopes}
    return {name: i for i, name in enumerate(slopes, start=len(nodes))}


class NudgedLesson(AbstractEnergy):
    """What there is to learn from several nudges. The nodes are a list with, for each of them,
    its weight, its nodes and its clamps. Penalties count once.
    """

    arrays: PyTree
    rest: PyTree = eqx.field(static=True)

    def __init__(self, energy: AbstractEnergy, lessons: tuple[AbstractEnergy, ...]):
        # Its functions are no leaves of an answer that leaves jit or vmap.
        self.arrays, self.rest = eqx.partition((energy, lessons), eqx.is_array)

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        del clamps
        energy, lessons = eqx.combine(self.arrays, self.rest)
        each = [
            weight * total(lesson.terms(params, states, given))
            for lesson, (weight, states, given) in zip(lessons, nodes, strict=True)
        ]
        return each, take_apart(energy).penalise(params)


def _combine(
    forward: Forward, posed: list[_Posed], ends: list[Inferred], weights: list[Array], factor: Any
) -> Inferred:
    size = len(jax.tree.leaves(forward.v)[0])
    energies, states = [], []
    for problem, end, weight in zip(posed, ends, weights, strict=True):
        energy, nodes = end.lesson or (problem.energy, end.nodes)
        energies.append(energy)
        states.append((jnp.broadcast_to(weight, (size,)), nodes, problem.clamps))
    result = ft.reduce(jax.vmap(_worse), [end.result for end in ends])
    worst = lambda *x: ft.reduce(jnp.maximum, x)
    stats = jax.tree.map(worst, *[end.stats for end in ends])
    stats["precision"] = jnp.broadcast_to(factor, (size,))
    nodes = like(forward.nodes, _as_dict(ends[0].nodes))
    lesson = NudgedLesson(forward.inner, tuple(energies)), states
    return Inferred(nodes, result, stats, lesson=lesson)


def _worse(one: RESULTS, other: RESULTS) -> RESULTS:
    return RESULTS.where(one == RESULTS.successful, other, one)


def _as_dict(nodes: Nodes) -> dict[Name, Any]:
    return dict(nodes) if isinstance(nodes, dict) else dict(enumerate(nodes))


def check_infers(inference: AbstractInference) -> None:
    """That a method infers states: some only find what there is to learn."""
    limit = isinstance(inference, Nudged) and inference.beta is None
    if limit or isinstance(inference, Backprop | FixedPrediction | ZIL):
        raise ValueError(
            f"inference={show(inference)} leaves the states where they are predicted, and finds "
            "what there is to learn: take one that infers them, such as jpc.Equilibrium()."
        )
