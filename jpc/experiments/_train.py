"""Trains networks of equal shape side by side, and looks at them from time to time."""

import functools as ft
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

import jpc
import jpc.data

from .._types import Layers, Nodes
from ._cell import Cell, Row
from ._methods import ENERGY, accurate_flow, compare_methods, infer, paper_flow, pose, timed

Index: TypeAlias = Int[Array, ""]


class Data(NamedTuple):
    """Several data sets of equal shape, one on top of the other."""

    images: Float[Array, "sets examples pixels"]
    labels: Float[Array, "sets examples classes"]
    test_images: Float[Array, "sets tests pixels"]
    test_labels: Float[Array, "sets tests classes"]


@ft.lru_cache(maxsize=1)
def stack_data(names: tuple[str, ...]) -> Data:
    sets = [jpc.data.load(name, flatten=True) for name in names]
    split = [(*s.train, *s.test) for s in sets]
    images, labels, tests, truths = (np.stack(parts) for parts in zip(*split, strict=True))
    one_hot = lambda numbers: jax.nn.one_hot(numbers, len(sets[0].classes))
    return Data(jnp.asarray(images), one_hot(labels), jnp.asarray(tests), one_hot(truths))


class Member(NamedTuple):
    """A network, and what is its own in how it is trained."""

    arrays: PyTree
    opt_state: PyTree
    order: Int[Array, "steps batch"]
    data: Int[Array, ""]
    t1: Float[Array, ""]
    dt: Float[Array, ""]


class Ensemble(eqx.Module):
    """What all of its members have in common."""

    static: PyTree = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    learning_rate: float = eqx.field(static=True)

    @property
    def optim(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def layers(self, member: Member) -> Layers:
        return eqx.combine(member.arrays, self.static)

    def batch(self, data: Data, member: Member, i: Any) -> tuple[Array, Array]:
        rows = member.order[i]
        return data.images[member.data, rows], data.labels[member.data, rows]

    @eqx.filter_jit
    def train(self, data: Data, members: Member, begin: Index, end: Index) -> Member:
        """Takes the training steps from `begin` to `end`."""

        def step(member: Member, i: Any) -> Member:
            layers = self.layers(member)
            nodes, clamps = pose(layers, *self.batch(data, member, i))
            inferred = self.method(member)(ENERGY, layers, nodes, clamps)
            energy, nodes = inferred.lesson or (ENERGY, inferred.nodes)
            state = member.opt_state
            learned = jpc.learn(energy, layers, nodes, clamps, optim=self.optim, opt_state=state)
            arrays = eqx.filter(learned.params, eqx.is_array)
            return member._replace(arrays=arrays, opt_state=learned.opt_state)

        all_steps = lambda m: jax.lax.fori_loop(begin, end, lambda i, m: step(m, i), m)
        return each(all_steps)(members)

    @eqx.filter_jit
    def accuracy(self, data: Data, members: Member) -> Float[Array, " members"]:
        """On the test set, in percent."""

        def one(member: Member) -> Array:
            predict = lambda z: jpc.feedforward(self.layers(member), z)[-1]
            preds = jax.vmap(predict)(data.test_images[member.data])
            return jpc.compute_accuracy(data.test_labels[member.data], preds)

        return each(one)(members)

    @eqx.filter_jit
    def start(self, data: Data, member: Member, i: Index) -> tuple[Nodes, Nodes]:
        return pose(self.layers(member), *self.batch(data, member, i))

    def method(self, member: Member) -> jpc.AbstractInference:
        return paper_flow(self.solver, member.t1, member.dt)

    @eqx.filter_jit
    def energies(self, data: Data, members: Member, i: Index) -> dict[str, Array]:
        """What inference reaches on a batch, what its flow would with an accurate solver, and the
        closed form for linear networks.
        """

        def one(member: Member) -> dict[str, Array]:
            layers, (x, y) = self.layers(member), self.batch(data, member, i)
            nodes, clamps = pose(layers, x, y)
            reach = lambda method: ENERGY(layers, infer(method, layers, nodes, clamps)[0], clamps)
            return {
                "energy": reach(self.method(member)),
                "energy_of_flow": reach(accurate_flow(member.t1)),
                "theory": closed_form(layers, x, y),
            }

        return each(one)(members)


def each(fn: Callable) -> Callable:
    """`fn` for each member at once; a single one is not given an axis."""

    def over(members: Member) -> Any:
        if members.data.shape[0] > 1:
            return jax.vmap(fn)(members)
        alone = fn(jax.tree.map(lambda x: x[0], members))
        return jax.tree.map(lambda x: x[None], alone)

    return over


def assemble(cells: Sequence[Cell], data: Data, names: Sequence[str]) -> tuple[Ensemble, Member]:
    """The networks of some cells, as they are before training."""
    cell, number = cells[0], data.images.shape[1]
    sizes = (data.images.shape[2], cell.width, cell.hidden + 1, data.labels.shape[2])
    keys = jax.vmap(lambda seed: jr.split(jr.key(seed)))(jnp.array([c.seed for c in cells]))
    make = lambda key: jpc.make_mlp(key, *sizes, cell.act)
    layers = eqx.filter_vmap(make)(keys[:, 0])
    arrays, static = eqx.partition(layers, eqx.is_array)
    ensemble = Ensemble(static, cell.solver, cell.learning_rate)
    count = number // cell.batch if cell.steps is None else min(cell.steps, number // cell.batch)
    order = jax.vmap(lambda key: jr.permutation(key, number)[: count * cell.batch])(keys[:, 1])
    column = lambda name: jnp.array([getattr(c, name) for c in cells], data.images.dtype)
    members = Member(
        arrays,
        jax.vmap(ensemble.optim.init)(eqx.filter(arrays, eqx.is_inexact_array)),
        order.reshape(len(cells), count, cell.batch),
        jnp.array([names.index(c.dataset) for c in cells]),
        column("t1"),
        column("dt"),
    )
    return ensemble, members


def run_cells(cells: Sequence[Cell], advance: Callable[[float], None]) -> list[list[Row]]:
    """Trains cells of equal shape, and returns what was measured of each. `advance` is told
    which part of the work was done.
    """
    names = tuple(dict.fromkeys(cell.dataset for cell in cells))
    data = stack_data(names)
    ensemble, members = assemble(cells, data, names)
    steps = members.order.shape[1]
    every = -(-steps // cells[0].points)
    rows: list[list[Row]] = [[] for _ in cells]
    comparing = 0.4 if cells[0].measure == "gap" else 0.0  # Once before, once after training.
    # Accelerators round products by default: to more than what little errors deep layers have
    # after a short inference.
    with jax.default_matmul_precision("highest"):
        for begin in [*range(0, steps, every), steps]:
            found = look(cells[0].measure, ensemble, data, members, begin)
            for mine, new in zip(rows, found, strict=True):
                mine += [dict(step=begin) | row for row in new]
            advance(comparing)
            if begin < steps:
                end = min(begin + every, steps)
                members = ensemble.train(data, members, *map(jnp.asarray, (begin, end)))
                jax.block_until_ready(members)
                advance((1 - 2 * comparing) * (end - begin) / steps)
    return rows


def look(
    measure: str, ensemble: Ensemble, data: Data, members: Member, step: int
) -> list[list[Row]]:
    """What there is to see at a moment of training: some rows for each member."""
    last = members.order.shape[1] - 1
    i, number = jnp.asarray(min(step, last)), members.data.shape[0]
    alone = [jax.tree.map(lambda x, k=k: x[k], members) for k in range(number)]
    problem = lambda m: (ensemble.layers(m), *ensemble.batch(data, m, i))
    if measure == "gap":
        return [compare_methods(*problem(member)) for member in alone]
    columns: dict[str, Any] = dict(accuracy=ensemble.accuracy(data, members))
    if measure == "time":
        times = [time_inference(ensemble, data, member, i) for member in alone]
        columns["ms"], columns["evaluations"] = zip(*times, strict=True)
    if measure == "theory":
        columns |= ensemble.energies(data, members, i)
    rows = [{name: float(c[k]) for name, c in columns.items()} for k in range(number)]
    if measure == "theory" and step > last:
        rows = [row | check_theory(*problem(m)) for row, m in zip(rows, alone, strict=True)]
    return [[row] for row in rows]


def time_inference(
    ensemble: Ensemble, data: Data, member: Member, i: Index
) -> tuple[float, Array]:
    """How long inference takes for one network by itself, in milliseconds, and in gradients."""
    nodes, clamps = jax.block_until_ready(ensemble.start(data, member, i))
    method, layers = ensemble.method(member), ensemble.layers(member)
    call = lambda: infer(method, layers, nodes, clamps)
    if i == 0:  # Compiling is not counted.
        jax.block_until_ready(call())
    times, evaluations = [], jnp.asarray(0)
    while len(times) < 2 or (len(times) < 3 and sum(times) < 400):  # Two of a long inference.
        ms, (_, evaluations) = timed(call)
        times.append(ms)
    return statistics.median_low(times), evaluations


def check_theory(layers: Layers, x: Array, y: Array) -> dict[str, float]:
    """The closed form against the energy at numerical convergence, in float64, relative; and how
    far that is from equilibrium.
    """
    with jax.enable_x64(True):
        double = lambda a: jnp.asarray(np.asarray(a), jnp.float64) if eqx.is_array(a) else a
        layers, x, y = jax.tree.map(double, (layers, x, y))
        nodes, clamps = pose(layers, x, y)
        exact = jpc.Equilibrium(rtol=1e-10, throw=False)
        inferred = exact(ENERGY, layers, nodes, clamps)
        energy, theory = ENERGY(layers, inferred.nodes, clamps), closed_form(layers, x, y)
        norm = jnp.max(inferred.stats["gradient_norm"])
        return dict(error_of_theory=float(energy / theory - 1), gradient_norm=float(norm))


def closed_form(layers: Layers, x: Array, y: Array) -> Array:
    energy = jpc.linear_equilib_energy((layers, None), x, y)
    assert isinstance(energy, Array)
    return energy
