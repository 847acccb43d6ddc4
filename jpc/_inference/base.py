import abc
import functools as ft
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from .._checks import (
    all_finite,
    checked_jit,
    failing,
    not_finite,
    raise_if,
    raise_if_failed,
    raise_if_not_finite,
)
from .._clamp import Masked, check_problem, entries, entry, spell
from .._energy import AbstractEnergy, EPCEnergy, check_known, take_apart, unfit
from .._given import (
    check_callable,
    check_count,
    check_key,
    check_number,
    check_type,
    is_real,
    refuse_half,
    show,
)
from .._metrics import tree_norm
from .._numbers import floats_to_arrays
from .._types import Clamps, Given, Nodes, Terms

NEEDS_KEY = (
    "give a key, to the method itself, to jpc.make_pc_step or to jpc.make_step. (Calls without a "
    "step, such as jpc.solve_inference, take none.)"
)

_Call = TypeVar("_Call", bound=Callable)


class RESULTS(eqx.Enumeration):
    """How inference ended, for each example. A member shows its message, and that of `successful`
    is empty.

    - `successful`: it is at equilibrium, to the method's tolerance.
    - `stopped_early`: it used up its time or its steps.
    - `max_steps_reached`: an adaptive solver needed more than `max_steps` steps.
    - `diverged`: the energy rose, or is not finite.
    - `hopping`: it hops over kinks, as rectifiers have, without descending further.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    inferred = jpc.Descent(0.1, 20)(energy, model, nodes, clamps)
    arrived = jnp.mean(inferred.result == jpc.RESULTS.successful)
    ```
    """

    successful = ""
    stopped_early = (
        "Inference used up the time or the steps it was given before it reached equilibrium. "
        "Give it more, or accept activities that are not at equilibrium."
    )
    max_steps_reached = (
        "Inference took `max_steps` steps without reaching either `t1` or equilibrium. "
        "Increase `max_steps`, loosen the tolerances, or use another solver."
    )
    diverged = (
        "Inference diverged: the energy at the end is larger than at the start, or not finite. "
        "Use a smaller step size or an adaptive step size controller."
    )
    hopping = (
        "Inference hops over kinks of the energy, as rectifiers have, without descending further. "
        "Accept what it found, use `jpc.Equilibrium`, or activation functions without kinks."
    )


def judge(converged: Bool[Array, " batch"]) -> RESULTS:
    """Of each example."""
    one = lambda done: RESULTS.where(done, RESULTS.successful, RESULTS.stopped_early)
    return jax.vmap(one)(converged)


def keep_nodes(params: PyTree, nodes: Nodes, clamps: Clamps) -> Nodes:
    """What a [`jpc.Record`][] keeps by default."""
    del params, clamps
    return nodes


class Record(eqx.Module):
    """What to record during inference.

    **Arguments:**

    - `fn`: what to keep: a function `(params, nodes, clamps) -> PyTree` of one example, such
        as the `terms` of an energy. By default the nodes.
    - `ts`: the times at which to keep it.
    - `length`: keeps it at the start and at every step instead, with room for this many
        steps. Inference takes no more steps than that.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    record = jpc.Record(energy.terms, length=20)  # The energy of each layer, at every step.
    inferred = jpc.Descent(0.1, 20)(energy, model, nodes, clamps, record=record)
    of_output = inferred.trajectory.values[-1]  # A row for each step, a column for each example.
    ```
    """

    fn: Given[Callable[[PyTree, Nodes, Clamps], PyTree]] = keep_nodes
    ts: Given[Float[Array, " times"] | None] = None
    length: Given[int | None] = eqx.field(static=True, default=None)

    def __check_init__(self):
        if (self.ts is None) == (self.length is None):
            raise ValueError("Record needs either ts, or length to keep every step.")
        check_callable("fn", self.fn, "energy.terms")
        if isinstance(self.fn, type):
            raise TypeError(f"fn must be a function, such as energy.terms, got {show(self.fn)}.")
        check_count("length", self.length, none=True)
        if self.ts is not None:
            _check_times(self.ts)


def _check_times(ts: Any) -> None:
    array = isinstance(ts, jax.Array | np.ndarray) and is_real(ts)
    if not (array and ts.ndim == 1 and ts.size):
        raise TypeError(f"ts must be an array of times, such as jnp.arange(10.0), got {show(ts)}.")
    if not isinstance(ts, Tracer):
        times = np.asarray(ts)
        if not (np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) > 0).all()):
            raise ValueError(f"ts must be finite times from 0 on, in order, got {show(times)}.")


class Trajectory(eqx.Module):
    """What was recorded, with time as the first axis and the batch as the second. An example
    that has ended keeps its last value.

    **Attributes:**

    - `ts`: the times, one row for each of the examples.
    - `values`: what [`jpc.Record`][]'s `fn` gave.
    - `length`: the largest number of entries that any example has of its own.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    record = jpc.Record(length=20)
    way = jpc.Descent(0.1, 20)(energy, model, nodes, clamps, record=record).trajectory
    first = way.values[1]  # The first hidden layer: steps, examples, units.
    ```
    """

    ts: Float[Array, "times batch"]
    values: PyTree
    length: Array


class Inferred(eqx.Module):
    r"""What inference returns: the answer, whether to believe it, and how it went.

    **Attributes:**

    - `nodes`: the inferred states.
    - `result`: how inference ended for each example, a member of [`jpc.RESULTS`][].
    - `stats`: a dictionary with numbers for each example. `steps` is the number of steps, and
        `evaluations` the number of gradients. (A line search, and whatever a minimiser or a
        Gauss-Newton method does in a step, counts as one.) `gradient_norm` is the relative norm
        of the activity gradient at the end, $\lVert \nabla_z F \rVert / \lVert z \rVert$. A flow
        adds its final time, `t1`, and how many steps its controller `rejected`.
        [`jpc.Equilibrium`][] adds an estimate of its relative `error`, and whether it has
        `converged`. [`jpc.Nudged`][] adds the number by which it multiplied the `precision` of
        the output. Rules that stay at the feedforward pass add the part of the energy that is
        `relaxed`, see [`jpc.regime`][].
    - `trajectory`: a [`jpc.Trajectory`][], if you asked for one.
    - `lesson`: the energy and the nodes to learn from, if the method knows the errors better
        than the `nodes` can tell.
    - `method`: the method to use for the next batch, if this one has found something that is of
        use there, such as a matrix that changes slowly.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    inferred = jpc.Descent(0.1, 20)(energy, model, nodes, clamps)
    hidden = inferred.nodes[1]  # Of all examples.
    arrived = inferred.result == jpc.RESULTS.successful
    steps, pull = inferred.stats["steps"], inferred.stats["gradient_norm"]
    ```
    """

    nodes: Nodes
    result: Given[RESULTS]
    stats: Given[dict[str, Array]]
    trajectory: Trajectory | None = None
    lesson: tuple[AbstractEnergy, Nodes] | None = None
    method: "AbstractInference | None" = None

    def __check_init__(self):
        check_type("result", self.result, RESULTS, "jpc.RESULTS.successful")
        check_type("stats", self.stats, Mapping, '{"steps": 20}')

    def __repr__(self) -> str:
        """How the examples ended, and the shapes of what was inferred."""
        nodes = eqx.tree_pformat(self.nodes, width=1000)
        return f"Inferred({_count(self.result)}, nodes={nodes}, stats={list(self.stats or ())})"


def _count(result: RESULTS) -> str:
    """`3 successful, 2 stopped_early`, where that is known: not inside of a compiled function."""
    values: Any = getattr(result, "_value", None)
    known = isinstance(values, np.ndarray | jax.Array) and not isinstance(values, Tracer)
    if not (known and getattr(values, "is_fully_addressable", True)):
        return "result=..."
    ended = {name: np.sum(values == item._value) for name, item in RESULTS._name_to_item.items()}
    return ", ".join(f"{count} {name}" for name, count in ended.items() if count)


class AbstractInference(eqx.Module):
    """How to descend an energy in the nodes.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    class OneStep(jpc.AbstractInference):
        def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
            moves = jax.grad(lambda z: energy(params, z, clamps))(nodes)
            end = jax.tree.map(lambda z, move: z - 0.1 * move, nodes, moves)
            ended = jpc.RESULTS.stopped_early
            return jpc.finish(energy, params, nodes, end, clamps, ended, {"steps": 1})

    inferred = OneStep()(energy, model, nodes, clamps)
    ```
    """

    @abc.abstractmethod
    def __call__(
        self,
        energy: AbstractEnergy,
        params: PyTree,
        nodes: Nodes,
        clamps: Clamps,
        *,
        record: Record | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Inferred:
        """**Arguments:**

        - `energy`: the energy to descend.
        - `params`: what it takes as its parameters.
        - `nodes`: where to start, with a batch axis.
        - `clamps`: what is given, with a batch axis.
        - `record`: what to keep on the way.
        - `key`: randomness, for the methods that need it.

        **Returns:**

        An [`jpc.Inferred`][].
        """


def answered(answer: Any) -> Inferred:
    """What a method returns, which may be somebody's own."""
    check_type("What a method of inference returns", answer, Inferred, "jpc.finish(...)")
    return answer


def method(call: _Call) -> _Call:
    """A method's `__call__`, compiled and with its checks. The numbers of the method and of the
    energy are traced, so that other ones do not compile another program.
    """

    @checked_jit
    def compiled(self, energy, params, nodes, clamps, known, *, record, key):
        refuse_half("params", params)
        _check_known(energy, params, nodes, clamps)
        clamps = _check_clamps(energy, params, clamps, known)
        if record is not None:
            _check_record(record.fn, params, nodes, clamps)
        return call(self, energy, params, nodes, clamps, record=record, key=key)

    def made(self, energy, params, nodes, clamps, *, record=None, key=None):
        check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
        check_type("record", record, Record | None, "jpc.Record(length=20), or None")
        check_key(key)
        check_problem(nodes, clamps)
        self, energy = floats_to_arrays((self, energy))
        known = not any(isinstance(x, Tracer) for x in jax.tree.leaves((nodes, clamps)))
        return compiled(self, energy, params, nodes, clamps, known, record=record, key=key)

    return ft.wraps(call)(made)  # pyright: ignore[reportReturnType]


def _check_record(fn: Callable, params: PyTree, nodes: Any, clamps: Any) -> None:
    """That it can be kept."""
    try:
        eqx.filter_eval_shape(jax.vmap(ft.partial(fn, params)), nodes, clamps)
    except TypeError as error:
        why = str(error).partition("\n")[0]
        raise TypeError(
            "Record's fn must take (params, nodes, clamps) of one example and return arrays: "
            f"{why}"
        ) from error


def _check_known(energy: AbstractEnergy, params: PyTree, nodes: Any, clamps: Any) -> None:
    """That there are no states beyond those of the network, if the energy says what that is."""
    try:
        network = take_apart(energy).network(params)
    except TypeError:  # One that does not say, or of which no method could ask for it.
        return
    check_known(network, nodes, clamps)


def _check_clamps(energy: AbstractEnergy, params: PyTree, clamps: Any, known: bool) -> Any:
    """That they are what the losses take, if they are not made by another program, which says
    so itself; and, of a call that has failed, that they are finite.
    """
    problems = unfit_clamps(energy, params, clamps) if known else {}
    if failing():
        named = {spell(n): c for n, c in entries(clamps) if c is not None}
        whole = {
            n: c.fill(jnp.zeros(())) if isinstance(c, Masked) else c for n, c in named.items()
        }
        problems |= {not_finite(f"clamps: {n}"): ~all_finite(c) for n, c in whole.items()}
    return raise_if(problems, clamps) if problems else clamps


def unfit_clamps(energy: AbstractEnergy, params: PyTree, clamps: Any) -> dict[str, Array]:
    """What can be wrong with the targets of the losses, if the energy says what these are."""
    inner = energy.energy if isinstance(energy, EPCEnergy) else energy
    try:
        network = take_apart(inner).network(params)
    except TypeError:
        return {}
    given = {name: entry(clamps, name) for name, node in network.items() if node.fn is not None}
    targets = {name: z for name, z in given.items() if isinstance(z, jax.Array | Masked)}
    found = [unfit(f"clamps: {spell(n)}", [network[n].loss], z) for n, z in targets.items()]
    return {message: bad for some in found for message, bad in some.items()}


def until(t1: Any, ts: Array, nodes: Nodes) -> Nodes:
    """The nodes, or a run-time error if there are times beyond the end."""
    late = "Record has times beyond t1, at which inference ends: leave them out, or make t1"
    return raise_if({f"{late} (max_t1) larger.": ts[-1] > jnp.asarray(t1, ts.dtype)}, nodes)


def as_precise(state: PyTree, times: Any) -> Any:
    """Times in the precision of a state: Diffrax would take the state to theirs."""
    precision = jnp.result_type(jnp.float32, *jax.tree.leaves(state))
    return None if times is None else jnp.asarray(times, precision)


def check_free(nodes: Nodes) -> None:
    """That there is something to infer."""
    if not jax.tree.leaves(nodes):
        raise ValueError("There is nothing to infer: every state is given.")


def check_positive(name: str, value: Any, *, none: bool = False) -> None:
    """That it is a positive number, or `None` where that means something."""
    if not (none and value is None):
        check_number(name, value, above=0.0)


def check_step(name: str, step: Any, t1: Any) -> None:
    """That a step is no longer than all of the way: a shorter one would be taken instead."""
    if not any(isinstance(x, Tracer | None) for x in (step, t1)) and step > t1:
        raise ValueError(
            f"{name} is a step, and must be at most t1 (max_t1), which is {float(t1):g}: got "
            f"{float(step):g}."
        )


def check_matrix(matrix: PyTree, share: Callable[[], PyTree]) -> PyTree:
    """A matrix that is known, if it is like the one of this problem."""
    own = jax.eval_shape(share)
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    same = jax.tree.structure(matrix) == jax.tree.structure(own)
    if not same or shapes(matrix) != shapes(own):
        got = shapes(matrix) if eqx.filter(matrix, eqx.is_array) is not None else show(matrix)
        if shapes(matrix) == shapes(own):
            got = "something else of this shape"
        raise ValueError(
            f"matrix is of another problem: this one's has the shapes {shapes(own)}, got {got}. "
            "Make it with .prepare(energy, params, nodes, clamps) of a batch like this one."
        )
    return matrix


def examples(
    energy: AbstractEnergy, params: PyTree, nodes: Nodes, clamps: Clamps
) -> Float[Array, " batch"]:
    """The energy of each example of a batch."""
    return jax.vmap(lambda n, c: energy.example(params, n, c))(nodes, clamps)


def gradient_norm(
    energy: AbstractEnergy, params: PyTree, nodes: Nodes, clamps: Clamps
) -> Float[Array, " batch"]:
    """The norm of each example's activity gradient, relative to that of its activities."""

    def ratio(nodes: Nodes, clamps: Clamps) -> Terms:
        grads = jax.grad(energy.example, argnums=1)(params, nodes, clamps)
        size = tree_norm(nodes)
        norm = tree_norm(grads)
        return norm / jnp.where(size > 0, size, 1)

    return jax.vmap(ratio)(nodes, clamps)


def by_name(nodes: Nodes) -> dict[str, Any]:
    """For a message that names a state."""
    if isinstance(nodes, dict):
        return {f"The state {name!r}": z for name, z in nodes.items()}
    return {f"z_{i}": z for i, z in enumerate(nodes)}


def finish(
    energy: AbstractEnergy,
    params: PyTree,
    nodes: Nodes,
    end: Nodes,
    clamps: Clamps,
    result: Given[RESULTS],
    stats: Given[dict[str, Any]],
    *,
    throw: bool = True,
    trajectory: Trajectory | None = None,
    lesson: tuple[AbstractEnergy, Nodes] | None = None,
) -> Inferred:
    """Makes the answer of a method of inference. It marks examples whose energy grew as diverged,
    and measures the activity gradient.

    **Arguments:**

    - `energy`, `params`, `clamps`: of the problem.
    - `nodes`, `end`: where inference began, and where it ended.
    - `result`: how it ended, for each example or for all of them.
    - `stats`: numbers to report, for each example or for all of them, such as the `steps`; the
        `gradient_norm` if it is known.
    - `throw`: whether divergence, and states that are not finite, raise an error.
    - `trajectory`, `lesson`: see [`jpc.Inferred`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    ended = jpc.RESULTS.stopped_early
    inferred = jpc.finish(energy, model, nodes, nodes, clamps, ended, {"steps": 0})
    ```
    """
    check_type("result", result, RESULTS, "jpc.RESULTS.successful")
    check_type("stats", stats, Mapping, '{"steps": 20}')
    before, after = (examples(energy, params, z, clamps) for z in (nodes, end))
    spread = lambda x: jnp.broadcast_to(x, before.shape)
    result, stats = jax.tree.map(spread, (result, stats))
    end, result = conclude(energy, end, result, before, after, throw=throw)
    if "gradient_norm" not in stats:
        stats |= {"gradient_norm": gradient_norm(energy, params, end, clamps)}
    return Inferred(end, result, stats, trajectory, lesson)


def conclude(
    energy: AbstractEnergy,
    nodes: Nodes,
    result: RESULTS,
    before: Float[Array, " batch"],
    after: Float[Array, " batch"],
    *,
    throw: bool,
) -> tuple[Nodes, RESULTS]:
    """Marks the examples whose energy grew, if it should not, or is no number, as diverged; if
    asked to, turns what went wrong into an exception.
    """
    may_grow = jnp.logical_not(energy.descends())

    def one(result, before, after):
        # An adaptive solver that hops around equilibrium may end a little above its start.
        slack = 0.1 * (1 + jnp.abs(before))
        okay = (may_grow | (after <= before + slack)) & jnp.isfinite(after)
        result = RESULTS.where(okay, result, RESULTS.diverged)
        return result, (result == RESULTS.diverged) | (result == RESULTS.max_steps_reached)

    result, failed = jax.vmap(one)(result, before, after)
    if throw:
        nodes = raise_if_not_finite(by_name(nodes), nodes)
        nodes = raise_if_failed(result, failed, nodes)
    return nodes, result
