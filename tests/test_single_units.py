"""Methods of inference on networks of single units, where a few lines by hand say what comes out,
and what they take and refuse.
"""

import dataclasses
import functools as ft
import types
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import optimistix as optx
import pytest
from helpers import assert_close as same_trees, infer
from jax.tree_util import Partial

import jpc
import jpc._regime
from jpc._inference import equilibrium as equilibrium_module, nudged as nudged_module
from jpc._inference.backprop import _distance
from jpc._inference.base import check_matrix, check_positive, conclude, gradient_norm, judge, until
from jpc._inference.chords import Chords, learn_from
from jpc._inference.equilibrium import Equilibrium, _settle
from jpc._inference.flow import _relative
from jpc._inference.forward import Forward
from jpc._inference.kinks import _at_kinks, _hold_near, _newton, _search, find_kinks, settle
from jpc._inference.mix import Way, _Pair, _Try
from jpc._inference.nudged import _combine, _linear, _pose, _solve
from jpc._inference.relax import pick
from jpc._inference.sketch import Sketch
from jpc._inference.stages import Stages

RESULTS, NAN, FALSE = jpc.RESULTS, jnp.nan, jnp.asarray(False)
W1, W2, P1, P2 = 0.7, 1.5, 2.0, 0.5
CURVE = P1 + P2 * W2**2  # Of the energy, in the hidden unit.
X, Y = np.array([0.8, -1.0]), np.array([3.0, 1.0])
PULL = P1 * W1 * X + P2 * W2 * Y
BEST = PULL / CURVE
PC = jpc.PCEnergy(precision=[P1, P2])
LAYERS = [Partial(jnp.multiply, jnp.asarray(w)) for w in (W1, W2)]


def numbers(*values):
    return jnp.asarray(values, float)


def assert_close(got, expected, **tolerances):
    same_trees(got, np.asarray(expected), **tolerances)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def column(values):
    return jnp.asarray(values, float)[:, None]


def pose(start, x=X):
    return [None, column(start), None], [column(x), None, column(Y)]


def energy_of(h):
    return P1 / 2 * (h - W1 * X) ** 2 + P2 / 2 * (Y - W2 * h) ** 2


# --- descent ---


def descended(h, rate, steps):
    return BEST + (1 - rate * CURVE) ** steps * (h - BEST)


def test_a_descent_by_hand():
    """A gradient for each step, and one to see where it ended; its derivative backwards."""
    start = np.array([0.5, -0.2])
    found = infer(jpc.Descent(0.1, 3), PC, LAYERS, *pose(start))
    assert_close(found.nodes[1][:, 0], descended(start, 0.1, 3))
    assert found.stats["steps"].tolist() == [3, 3]
    assert found.stats["evaluations"].tolist() == [4, 4]
    slope = CURVE * np.abs(found.nodes[1][:, 0] - BEST) / np.abs(found.nodes[1][:, 0])
    assert_close(found.stats["gradient_norm"], slope)

    def end(x):
        return jpc.Descent(0.1, 3)(PC, LAYERS, *pose(start, x)).nodes[1][0, 0]

    part = 1 - (1 - 0.1 * CURVE) ** 3
    assert_close(jax.grad(end)(jnp.asarray(X)), [P1 * W1 / CURVE * part, 0.0])


def test_a_descent_that_is_recorded_ends_early_too():
    """One that begins at equilibrium takes no step. There are as many entries as the other one
    took steps, and the start.
    """
    start = np.array([BEST[0], 2.0])
    record = jpc.Record(lambda params, nodes, clamps: nodes[1][0], length=50)
    named = dict(record=record)
    found = infer(jpc.Descent(0.1, 80, rtol=1e-3), PC, LAYERS, *pose(start), **named)
    way, steps = np.asarray(found.trajectory.values), found.stats["steps"].tolist()
    assert steps[0] == 0 < steps[1] < 50 and way.shape == (51, 2)
    assert found.trajectory.length == steps[1] + 1
    assert_close(found.trajectory.ts, np.repeat(np.arange(51.0)[:, None], 2, axis=1))
    for i in range(steps[1] + 1):
        assert_close(way[i], [BEST[0], descended(2.0, 0.1, i)[1]], atol=1e-12)
    assert_close(way[steps[1] :, 1], np.full(51 - steps[1], way[steps[1], 1]))
    assert np.all(found.result == RESULTS.successful)


def test_a_descent_with_a_tolerance_takes_no_more_steps_than_it_may():
    start = np.array([BEST[0], 2.0])
    found = infer(jpc.Descent(0.1, 3, rtol=1e-12, throw=False), PC, LAYERS, *pose(start))
    assert found.stats["steps"].tolist()[1] == 3
    assert_close(found.nodes[1][:, 0], descended(start, 0.1, 3))


@pytest.mark.parametrize("optim", [np.ones(2), "0.1", None, True])
def test_a_step_size_is_one_number(optim):
    with pytest.raises(TypeError, match="Descent needs a step size"):
        jpc.Descent(optim)


def test_an_optimiser_says_why_it_cannot():
    def init(nodes):
        raise ValueError("no such state\nand more")

    optim = optax.GradientTransformation(init, optax.sgd(0.1).update)
    with pytest.raises(ValueError, match="the list of all states: no such state"):
        jpc.Descent(optim)(PC, LAYERS, *pose([0.0, 0.0]))


def test_a_descent_in_errors_by_hand():
    """Its states are the predictions and the errors, which it also learns from."""
    start = np.array([0.5, -0.2])
    found = infer(jpc.InErrors(jpc.Descent(0.1, 3)), PC, LAYERS, *pose(start))
    assert_close(found.nodes[1][:, 0], descended(start, 0.1, 3))
    energy, errors = found.lesson
    assert isinstance(energy, jpc.EPCEnergy)
    assert_close(errors[1][:, 0], descended(start, 0.1, 3) - W1 * X)


def test_a_batch_of_single_units_may_be_one_problem():
    method = jpc.Minimise(together=True)
    found = eqx.filter_eval_shape(method, PC, LAYERS, *pose([0.0, 0.0]))
    assert {x.shape for x in jax.tree.leaves((found.result, found.stats))} == {(2,)}


def test_one_step_of_its_own_is_one():
    """With the whole matrix: there is the equilibrium."""
    method = jpc.Equilibrium(rtol=1e-9, chords=0, max_steps=1)
    found = infer(method, PC, LAYERS, *pose([0.0, 0.0]))
    assert found.stats["steps"].tolist() == [1, 1]
    assert found.stats["evaluations"].tolist() == [2, 2]
    assert_close(found.nodes[1][:, 0], BEST)


# As the pages and the docstrings have them.
DEFAULTS = {
    jpc.Descent: dict(steps=20, rtol=None, throw=True),
    jpc.GradientFlow: dict(
        solver=dfx.Heun(), t1=20.0, dt0=None, controller=None, rtol=None, max_steps=100_000,
        reduction="sum", throw=True, progress_meter=dfx.NoProgressMeter(),
    ),
    jpc.Minimise: dict(
        solver=optx.BFGS(rtol=1e-6, atol=1e-6), max_steps=1000, together=False, throw=True
    ),
    jpc.Langevin: dict(
        t1=100.0, dt=0.01, temperature=1.0, preconditioner=1.0, solver=dfx.Euler(),
        path=dfx.UnsafeBrownianPath, max_steps=1_000_000, throw=True,
    ),
    jpc.Equilibrium: dict(
        rtol=1e-2, chords=None, shared=4, max_steps=None, dense=32, safe=True, throw=True,
        matrix=None,
    ),
    jpc.Nudged: dict(
        beta=None, kind="target", sign="centred", strength=None, inference=None, chords=1,
        shared=4, own=1, rtol=1e-2, throw=True, matrix=None,
    ),
    jpc.FixedPrediction: dict(steps=None, dt=1.0),
    jpc.PCEnergy: dict(loss=jpc.squared_error, precision=1.0, stiffness=None),
    jpc.BPCEnergy: dict(forward_weight=1.0, backward_weight=1.0, source_gradient=1.0),
    jpc.Node: dict(fn=None, parents=(), loss=jpc.squared_error, precision=1.0, learned=False),
    jpc.GaussianPrior: dict(node=0),
    jpc.Record: dict(ts=None, length=None),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_what_is_not_said(kind):
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    assert {name: fields[name] for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_sizes_that_the_pages_name():
    assert nudged_module._DENSE == jpc._regime.DENSE == 64  # Units of output.
    assert (equilibrium_module._CHORDS, equilibrium_module._STEPS) == (16, 200)
    assert equilibrium_module._FEW == 2


# --- how it ended ---


@pytest.mark.parametrize(
    ("before", "after", "okay"),
    [
        (99.0, 105.0, True),
        (99.0, 130.0, False),
        (-99.0, -95.0, True),
        (-99.0, -70.0, False),
        (0.0, 0.05, True),
        (0.0, 0.3, False),
        (1.0, -jnp.inf, False),
        (1.0, NAN, False),
    ],
)
def test_who_has_diverged(before, after, okay):
    """Whose energy has grown by more than a tenth of it, or is no number. It may also grow if it
    need not descend.
    """
    named = dict(throw=False)
    rising = jpc.BPCEnergy(source_gradient=0.5)
    for energy in (PC, rising):
        ended = judge(jnp.ones(1, bool))
        _, result = conclude(
            energy, [numbers(1.0)], ended, *map(numbers, (before, after)), **named
        )
        fine = okay or (energy is rising and np.isfinite(after))
        assert bool((result == RESULTS.successful)[0]) == fine
        assert bool((result == RESULTS.diverged)[0]) != fine


def test_a_gradient_is_relative_to_the_states():
    """However small they are; of states that are zero it is itself."""
    norm = jax.jit(lambda *given: gradient_norm(PC, LAYERS, *given))
    for size in (1.0, 1e-6):
        start = size * np.array([2.0, -3.0])
        expected = np.abs(CURVE * start - PULL) / np.abs(start)
        assert_close(norm(*pose(start)), expected)
        assert_close(_relative(numbers(3.0 * size), numbers(4.0 * size)), 0.75)
        other = {1: numbers(3.0 * size, 0.0), 2: numbers(4.0 * size)}
        one = jax.tree.map(lambda x: 1.5 * x, other)
        assert_close(_distance(one, other), 0.5)
    assert_close(norm(*pose([0.0, 0.0])), np.abs(PULL))
    assert_close(
        _distance({1: numbers(3.0), 2: numbers(4.0)}, {1: numbers(0.0), 2: numbers(0.0)}), 5.0
    )


@pytest.mark.parametrize(
    "ts", [[0.0], 0.0, np.array(0.0), np.zeros((1, 1)), np.zeros(0), np.array([True])]
)
def test_times_are_an_array(ts):
    with pytest.raises(TypeError, match="ts must be an array of times"):
        jpc.Record(ts=ts)


@pytest.mark.parametrize("ts", [(-1.0, 0.0), (0.0, 0.0), (1.0, 0.5), (0.0, NAN), (jnp.inf,)])
def test_times_go_on(ts):
    with pytest.raises(ValueError, match="ts must be finite times from 0 on, in order"):
        jpc.Record(ts=np.array(ts))
    assert jpc.Record(ts=np.array([0.2])).ts.shape == (1,)
    assert jpc.Record(ts=np.array([0.0, 0.2, 3.0])).ts.shape == (3,)


def test_a_record_says_why_it_cannot():
    def fn(params, nodes, clamps):
        raise TypeError("no such thing\nand more")

    with pytest.raises(TypeError, match="return arrays: no such thing"):
        jpc.Descent(0.1, 2)(PC, LAYERS, *pose([0.0, 0.0]), record=jpc.Record(fn, length=2))


def test_no_time_is_beyond_the_end():
    nodes, ts = [numbers(7.0)], jnp.array([0.5, 1.0, 3.0])
    same_trees(until(3.0, ts, nodes), nodes)
    with pytest.raises(RuntimeError, match="times beyond t1"):
        until(2.0, ts, nodes)


def test_positive_numbers():
    check_positive("it", 0.5)
    check_positive("it", None, none=True)
    for value, named in ((0.0, {}), (-1.0, dict(none=True)), (None, {})):
        with pytest.raises(ValueError, match="it must be"):
            check_positive("it", value, **named)


@pytest.mark.parametrize(
    ("matrix", "got"),
    [
        (jnp.ones((3, 3)), r"got \[\(3, 3\)\]"),
        ([jnp.ones((2, 2))], "got something else of this shape"),
        ("A", "got 'A'"),
        ((jnp.ones((2, 2)), jnp.ones(1)), r"got \[\(2, 2\), \(1,\)\]"),
    ],
)
def test_matrices_of_other_problems(matrix, got):
    own = jnp.ones((2, 2))
    assert check_matrix(own, lambda: own) is own
    with pytest.raises(ValueError, match=rf"this one's has the shapes \[\(2, 2\)\], {got}"):
        check_matrix(matrix, lambda: own)


# --- flows ---


def test_steps_that_are_known_beforehand():
    flow = lambda *ts: jpc.GradientFlow(
        dfx.Euler(), 1.0, controller=dfx.StepTo(ts=jnp.asarray(ts))
    )
    flow(0.0, 0.3, 1.0)
    for ts in ((0.1, 0.3, 1.0), (0.0, 1.0, 1.2), (0.0, 0.3, 0.9)):
        with pytest.raises(ValueError, match="must go from 0 to t1, which is 1, got"):
            flow(*ts)


def test_what_is_steady_is_so_but_for_rounding():
    """Ten or so units in the last place of its states."""
    flow = jpc.GradientFlow(dfx.Heun(), 1.0, 0.1, dfx.ConstantStepSize())
    for size in (1e-3, 1.0, 1e3):
        state = jnp.full(4, size)
        _, steady, _ = flow._tolerances(lambda t, z, args: -z, state, -state)
        assert 1 <= steady / (np.finfo(float).eps * size) <= 100


PID = dfx.PIDController(rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rtol", [None, 0.2])
@pytest.mark.parametrize("controller", [None, PID, dfx.ConstantStepSize()])
def test_what_rests_is_steady(controller, rtol):
    """Its gradient is nothing, which is less than what is steady."""
    dt = 0.1 if isinstance(controller, dfx.ConstantStepSize) else None
    flow = jpc.GradientFlow(dfx.Heun(), 1.0, dt, controller, rtol)
    state = jnp.ones(4)
    _, steady, _ = flow._tolerances(lambda t, z, args: 0 * z, state, 0 * state)
    assert 0 < steady <= 2e-6 * 2


CUBE = types.SimpleNamespace(
    vf=lambda t, y, args: -(y**3), contr=lambda t0, t1: jnp.asarray(t1 - t0)
)


def cube_step(method, y0, dt, steady=None, curvature=None):
    """Of a flow down $z^4 / 4$."""
    first = -(y0**3)
    solver = Stages(method, first, steady, curvature)
    state = solver.init(CUBE, 0.0, dt, y0, None)
    return solver.step(CUBE, 0.0, dt, y0, None, state, made_jump=False)


def stages_of(method, y0, dt):
    """The stages by hand: where they are, and the speeds there."""
    tableau = method.tableau
    at, speeds = [y0], [-(y0**3)]
    for row in tableau.a_lower:
        at.append(y0 + dt * sum(w * k for w, k in zip(row, speeds, strict=True)))
        speeds.append(-(at[-1] ** 3))
    end = y0 + dt * sum(w * k for w, k in zip(tableau.b_sol, speeds, strict=True))
    error = dt * sum(w * k for w, k in zip(tableau.b_error, speeds, strict=True))
    return at, speeds, end, error


@pytest.mark.parametrize("method", [dfx.Heun(), dfx.Bosh3()])
def test_a_step_of_a_flow_by_hand(method):
    """It hands on its last gradient, and counts a curvature of four times the largest one at
    most: more than that is a kink.
    """
    y0, dt = np.array([0.5, -1.0, 1.2]), 0.2
    at, speeds, end, error = stages_of(method, y0, dt)
    bends = [
        np.linalg.norm(k - speeds[0]) / np.linalg.norm(z - y0)
        for z, k in zip(at[1:], speeds[1:], strict=True)
    ]
    for curvature, part in ((None, 1.0), (9.0, 1.0), (0.1, 0.4 / max(bends))):
        known = None if curvature is None else jnp.asarray(curvature)
        found, found_error, _, (ended, square, _), _ = cube_step(
            method, jnp.asarray(y0), dt, None, known
        )
        assert_close(found, end)
        assert_close(ended, -(end**3))
        assert_close(square, np.sum(end**6))
        assert_close(found_error, part * error)


def test_a_flow_stops_where_it_is_steady():
    """By the root of the mean square of its gradient, or where it does not descend."""
    y0 = jnp.full(4, 0.5)
    end = np.asarray(cube_step(dfx.Heun(), y0, 0.2)[0])
    size = float(np.sqrt(np.mean(end**6)))
    for steady, stops in ((1.01 * size, True), (0.99 * size, False)):
        result = cube_step(dfx.Heun(), y0, 0.2, jnp.asarray(steady))[-1]
        assert bool(result == dfx.RESULTS.successful) != stops
    solver = Stages(dfx.Heun(), -(y0**3), jnp.asarray(1e-9), None)
    _, square, _ = solver.init(CUBE, 0.0, 0.2, y0, None)
    state = (-(y0**3), square, jnp.asarray(0.0))
    assert solver.step(CUBE, 0.0, 0.2, y0, None, state, False)[-1] != dfx.RESULTS.successful


# --- samples ---


@pytest.mark.parametrize("speed", ["fast", 0.0, -1.0, NAN, np.array([1.0, 0.0]), [1.0, jnp.inf]])
def test_speeds_are_positive(speed):
    with pytest.raises(ValueError, match="preconditioner must be positive numbers"):
        jpc.Langevin(preconditioner=speed)


@pytest.mark.parametrize("path", ["tree", dfx.AbstractBrownianPath, int, None])
def test_paths_are_one_of_two(path):
    with pytest.raises(TypeError, match=r"path must be diffrax\.UnsafeBrownianPath or"):
        jpc.Langevin(path=path)


def test_paths_of_samples():
    """A tree goes from the start to the end, and is finer than the steps."""
    nodes = [None, jnp.zeros((2, 1))]
    method = jpc.Langevin(3.0, 0.1, path=dfx.VirtualBrownianTree)
    tree, adjoint = method._path(nodes, jr.key(0))
    assert (float(tree.t0), float(tree.t1)) == (0.0, 3.0)
    assert 0 < 3.0 * tree.tol < 0.1  # Of a way from 0 to 1.
    assert isinstance(adjoint, dfx.RecursiveCheckpointAdjoint)
    fresh, adjoint = jpc.Langevin(3.0, 0.1)._path(nodes, jr.key(0))
    assert isinstance(fresh, dfx.UnsafeBrownianPath) and isinstance(adjoint, dfx.ForwardMode)


def test_speeds_of_nodes():
    nodes, clamps = [None, column([1.0, 2.0])], [column(X), None]
    for given in (0.5, [None, 0.5], [None, column([0.5, 0.5])]):
        (speed,) = jax.tree.leaves(jpc.Langevin(preconditioner=given)._speed(nodes, clamps))
        assert_close(speed, [[0.5], [0.5]])
    with pytest.raises(ValueError, match="a tree like the nodes"):
        jpc.Langevin(preconditioner=[0.5])._speed(nodes, clamps)


# --- rules ---


def test_distances_are_of_all_units():
    """6 and 8 are 10 together, and 3 and 4 are 5: wherever they are, every unit counts as much."""
    tree = lambda a, b: {1: jnp.array([a, 0.0]), 2: jnp.array([0.0, b, 0.0])}
    assert_close(_distance(tree(9.0, 12.0), tree(3.0, 4.0)), 2.0)
    assert_close(_distance(tree(6.0, 8.0), tree(0.0, 0.0)), 10.0)  # To nothing it is as it is.


@pytest.mark.parametrize("rule", [jpc.Backprop(), jpc.FixedPrediction(), jpc.ZIL()])
def test_rules_that_stay_relax_nothing(rule):
    found = rule(PC, LAYERS, *pose([0.0, 0.0]))
    assert found.stats["relaxed"].tolist() == [0, 0]
    assert_close(found.nodes[1][:, 0], W1 * X)
    delta = P2 * (Y - W2 * W1 * X)
    assert_close(found.lesson[1][2][1][:, 0], delta)
    assert_close(found.lesson[1][1][1][:, 0], W2 * delta)


def test_rules_keep_what_is_given_in_part():
    """The other units are those of the feedforward pass."""
    nodes, clamps = pose([0.0, 0.0])
    nodes[2] = column([0.0, 0.0])
    clamps[2] = jpc.Masked(clamps[2], jnp.array([[True], [False]]))
    found = jpc.Backprop()(PC, LAYERS, nodes, clamps)
    assert_close(found.nodes[2][:, 0], [Y[0], W2 * W1 * X[1]])


def test_a_leaf_that_is_free_has_nothing_to_learn():
    """Though its parent moves by Z-IL, and it does with it."""
    energy = jpc.GraphEnergy({"h": ["x"], "y": ["h"], "leaf": ["h"]})
    params = {"h": LAYERS[0], "y": LAYERS[1], "leaf": jnp.sin}
    nodes, clamps = jpc.pose(energy, params, {"x": column(X), "y": column(Y)})
    found, expected = (
        rule(energy, params, nodes, clamps).lesson[1] for rule in (jpc.ZIL(), jpc.Backprop())
    )
    same_trees(found, expected)
    assert not found["leaf"][1].any()


def test_nudges_learn_no_precisions():
    """Not even that of the output, which rules that stay can learn."""
    layers = [LAYERS[0], jpc.Precise(LAYERS[1], jnp.zeros(()))]
    jpc.Backprop()(jpc.PrecisionEnergy(), layers, *pose([0.0, 0.0]))
    with pytest.raises(ValueError, match="nothing to learn the precision of the state 2 from"):
        jpc.Nudged()(jpc.PrecisionEnergy(), layers, *pose([0.0, 0.0]))


def forward_of(energy, layers, nodes, clamps):
    return Forward.of("It", (energy, layers, nodes, clamps), None)


def one_of(forward):
    first = lambda tree: jax.tree.map(lambda z: z[0], tree)
    return forward.unfolded, first(forward.v), first(forward.given)


def test_where_there_is_no_error_nothing_is_relaxed():
    nodes, _ = pose([0.0, 0.0])
    clamps = [column([0.0, 0.0]), None, column([0.0, 0.0])]
    unfolded, v, given = one_of(forward_of(PC, LAYERS, nodes, clamps))
    named = v, given, jnp.ones((1, 1)), jnp.ones(())
    solved = eqx.filter_jit(_solve)(unfolded, 1, False, *named)
    assert solved.relaxed == 0 and solved.gap == 0 and not solved.delta[2].any()


def two_hidden():
    """Three units, three units, two outputs; its weights and states too."""
    weights = [draw(seed, *shape) for seed, shape in ((40, (3, 2)), (41, (3, 3)), (42, (2, 3)))]
    layers = [_Tanh(jnp.asarray(w)) for w in weights]
    energy = jpc.PCEnergy(precision=[2.0, 0.5, 3.0])
    x, y = draw(43, 4, 2), draw(44, 4, 2)
    z = [x]
    for w in weights:
        z.append(np.tanh(z[-1]) @ w.T)
    posed = jpc.pose(energy, layers, {0: jnp.asarray(x), 3: jnp.asarray(y)})
    return weights, z, forward_of(energy, layers, *posed)


class _Tanh(eqx.Module):
    weight: jax.Array

    def __call__(self, z):
        return self.weight @ jnp.tanh(z)


def parts_of(weights, z):
    """What each hidden state adds to $A$, for each example."""
    last = weights[2] * (1 - np.tanh(z[2]) ** 2)[:, None]
    first = last @ (weights[1] * (1 - np.tanh(z[1]) ** 2)[:, None])
    square = lambda J: J @ np.swapaxes(J, 1, 2)
    return square(first) / 2.0, square(last) / 0.5


@pytest.mark.parametrize(("shared", "own"), [(2, 1), (2, 0), (3, 2), (None, 1), (1, 9)], ids=str)
def test_the_matrix_of_a_nudge(shared, own):
    """Of the last states each its own, of the others the mean of the first few."""
    weights, z, forward = two_hidden()
    first, last = parts_of(weights, z)
    found = eqx.filter_jit(lambda f: jpc.Nudged(shared=shared, own=own)._share(f))(forward)
    if shared is None or own >= 2:
        expected = first + last
    elif own == 1:
        expected = np.mean(first[:shared], axis=0) + last
    else:
        expected = np.mean((first + last)[:shared], axis=0)
    assert_close(found, expected)
    prepared = nudged_module._mean(found)
    assert_close(prepared, np.mean(expected, axis=0) if expected.ndim == 3 else expected)


def test_a_large_output_has_one_matrix():
    weights, z, forward = two_hidden()
    with pytest.MonkeyPatch.context() as patch:  # Nothing that others may have traced.
        patch.setattr(nudged_module, "_DENSE", 1)
        found = eqx.filter_jit(lambda f: jpc.Nudged(shared=2, own=1)._share(f))(forward)
    assert_close(found, np.mean(sum(parts_of(weights, z))[:2], axis=0))


def test_only_what_predicts_nothing_is_moved_by_a_nudge():
    """Of two states that are given, the first one predicts the other: it stays where it is, and
    has a slope instead.
    """
    x, m, y = numbers(1.0)[:, None], numbers(3.0)[:, None], numbers(5.0)[:, None]
    layers = [Partial(jnp.multiply, numbers(2.0)[0])] * 3
    forward = forward_of(jpc.PCEnergy(), layers, [None, 0.0 * x, None, None], [x, None, m, y])
    posed = _pose(forward, "target", jnp.asarray(0.25), jnp.asarray(2.0))
    given = [None if z is None else float(z[0, 0]) for z in posed.clamps]
    # Predictions are 2, 4 and 6; of the first error, -1, three quarters are taken off, twice.
    assert given == [1.0, None, 3.0, 6.0 + 0.25 * (5.0 - 6.0), 2.0 * 0.75 * -1.0]


def test_a_slope_is_of_all_units():
    assert_close(_linear(numbers(1.0, 2.0, 3.0), numbers(4.0, 5.0, 6.0)), 4.0 + 10.0 + 18.0)


def test_the_loss_of_what_is_given_in_part_is_not_weighed():
    """If it predicts others: where it is free it would be weighed too. Its target can be moved."""
    x, m, y = numbers(1.0)[:, None], numbers(3.0)[:, None], numbers(5.0)[:, None]
    layers = [Partial(jnp.multiply, numbers(2.0)[0])] * 2
    posed = lambda clamps, kind: _pose(
        forward_of(jpc.PCEnergy(), layers, [None, 0.0 * m, None], clamps),
        kind, jnp.asarray(0.25), jnp.asarray(2.0),
    )  # fmt: skip
    some = jpc.Masked(m, jnp.ones(m.shape, bool))
    posed([x, some, y], "target")
    with pytest.raises(ValueError, match=r'and 1 is given in part .*take kind="target"'):
        posed([x, some, y], "loss")
    assert posed([x, None, y], "loss").energy.weight == 2.0 * 0.25
    assert posed([x, None, y], "target").energy.weight == 2.0


def test_two_nudges_are_as_good_as_the_worse_one():
    forward = forward_of(PC, LAYERS, *pose([0.0, 0.0]))
    posed = [_pose(forward, "target", jnp.asarray(beta), jnp.ones(())) for beta in (0.1, -0.1)]
    answer = lambda done, error: jpc.Inferred(
        forward.nodes, judge(jnp.array(done)), {"error": numbers(*error)}
    )
    ends = [answer([True, True], (0.1, 0.4)), answer([True, False], (0.2, 0.3))]
    weights = [jnp.asarray(5.0), jnp.asarray(-5.0)]
    both = _combine(forward, posed, ends, weights, jnp.asarray(2.0))
    for result in (
        both.result,
        _combine(forward, posed, ends[::-1], weights, jnp.asarray(2.0)).result,
    ):
        assert (result == RESULTS.successful).tolist() == [True, False]
    assert_close(both.stats["error"], [0.2, 0.4])
    assert_close(both.stats["precision"], [2.0, 2.0])
    assert [float(state[0][0]) for state in both.lesson[1]] == [5.0, -5.0]


def test_units_that_rest_at_their_kinks():
    """They are those whose error is just what their prediction is off zero, times the precision,
    and not because both are nothing. A unit of a state that does not bend is as it was.
    """
    predicted, v = numbers(-0.5, 0.0, -0.3, -0.3), numbers(0.1, 0.2, 0.3, 0.4)
    pulled = numbers(1.0, 0.0, 0.6, 0.5)
    both = lambda x: {1: x, 2: x}
    fake: Any = types.SimpleNamespace(
        predict=lambda v: (None, both, lambda delta: (delta,), None, both(predicted)),
        unfolded=types.SimpleNamespace(
            bends=((1, 0.0),),
            weights=lambda: both(2.0),
            unfold=lambda v, given: ({n: jnp.isinf(x) for n, x in v.items()}, {}),
            held=lambda v, predicted: v,
        ),
        given={},
    )
    errors, held = Chords.settle(fake, both(v), pulled)
    assert errors[1].tolist() == [-np.inf, 0.2, -np.inf, 0.4] and errors[2] is v
    assert held[1].tolist() == [True, False, True, False] and not held[2].any()


# --- sketches ---


def test_a_sketch_of_a_multiple_of_one():
    """Of all directions but some it knows four times the mean: of $c I$ with some $\\Omega$ it is
    $c$ times the projection onto that, and what is missing follows from an estimate of the trace.
    """
    size, rank, c = 6, 2, 1.7
    layers = [Partial(jnp.multiply, jnp.full(size, s)) for s in (1.0, np.sqrt(c))]
    nodes, clamps = jpc.clamp([jnp.zeros((1, size))], jnp.zeros((1, size)), jnp.ones((1, size)))
    forward = forward_of(jpc.PCEnergy(), layers, nodes, clamps)
    found = eqx.filter_jit(ft.partial(Sketch.of, rank=rank))(*one_of(forward))
    probes = np.asarray(jr.normal(jr.key(0), (rank, size)))
    onto = probes.T @ np.linalg.solve(probes @ probes.T, probes)
    assert_close(found.F @ found.F.T, c * onto, rtol=1e-9, atol=1e-9)
    trace = c * np.sum(probes**2) / rank
    missing = max(trace - c * rank, 0) / (size - rank)
    assert_close(found.rest, 4 * missing, rtol=1e-9)


def test_a_flat_loss_makes_a_sketch_of_nothing():
    """Nor does one that curves down count for what is left out."""
    sketch, y = Sketch(jnp.zeros((2, 1)), jnp.asarray(0.3)), numbers(1.0, 2.0)
    for curve, scale in ((0.0, 1.0), (0.5, 1.15), (-1.0, 1.0)):
        loss = lambda y, curve=curve: 0.5 * curve * jnp.sum(y**2)
        both = jax.jit(lambda y: (sketch.solve(loss, y, y), sketch.invert(loss, y)))  # noqa: B023
        solved, inverse = both(y)
        assert_close(solved, np.asarray(y) / scale)
        assert_close(inverse.solve(loss, y, y), np.asarray(y) / scale)


# --- which examples go on, and how far ---


def chain_of(*layers):
    """A chain of two units, of four examples, at its feedforward pass."""
    x = jnp.asarray(draw(50, 4, 2))
    posed = jpc.pose(jpc.PCEnergy(), layers, {0: x, len(layers): jnp.ones((4, 2))})
    forward = forward_of(jpc.PCEnergy(), layers, *posed)
    return forward.unfolded, forward.v, forward.given


@pytest.mark.parametrize(
    ("layers", "kinks", "bends"),
    [
        ((jnp.tanh, jnp.sin), "none", {}),
        ((jnp.tanh, jax.nn.relu), "held", {1: 0.0}),
        ((jnp.tanh, jnp.abs), "held", {1: -1.0}),
        ((jnp.tanh, jax.nn.hard_tanh), "rectifiers", {}),
        ((jnp.abs, jnp.sin), "none", {}),  # Of what is given.
        ((jnp.tanh, jnp.sort), "others", {}),
        ((jnp.tanh, jax.nn.relu, jnp.sort), "others", {1: 0.0}),
    ],
)
def test_kinks_are_found_in_programs(layers, kinks, bends):
    unfolded, v, given = chain_of(*layers)
    found = find_kinks(unfolded, *jax.tree.map(lambda z: z[0], (v, given)))
    assert found == (kinks, bends)


class _Method(types.SimpleNamespace):
    """What asks who goes on: an `Equilibrium` whose parts note that they were called."""

    rtol, chords, dense, shared, matrix = 0.01, None, 2, 4, None
    gaps = 0.005, 0.2, 0.9, 0.005  # The last one has gone up.

    def _share(self, *problem):
        return jnp.ones(())

    def _iterate(self, unfolded, start, given, matrix, kinks):
        self.tried = kinks
        up = jax.tree.map(lambda z: z.at[3].add(99.0), start)
        found = jax.vmap(lambda v, given: learn_from(unfolded, v, given, None))(up, given)
        return found._replace(gap=numbers(*self.gaps))

    def _alone(self, unfolded, whole, kinks, start, given, found, done):
        self.whole, self.kinks = whole, kinks
        return pick(done, found, found._replace(steps=found.steps + 1, gap=0.0 * found.gap))


@pytest.mark.parametrize(
    ("last", "options", "alone", "tried"),
    [
        (jnp.tanh, {}, [0, 1, 1, 1], "none"),
        (jnp.tanh, dict(dense=1), [0, 1, 1, 1], "none"),
        (jnp.tanh, dict(chords=0), [1, 1, 1, 1], None),
        (jnp.tanh, dict(dense=0), [1, 1, 1, 1], None),
        (jnp.tanh, dict(_steps=0), [0, 0, 0, 0], "none"),
        # Beyond a kink may be another equilibrium.
        (jax.nn.hard_tanh, {}, [1, 1, 1, 1], None),
        (jax.nn.hard_tanh, dict(_steps=1), [1, 1, 1, 1], None),
        (jax.nn.relu, dict(dense=1), [1, 1, 1, 1], None),  # Matrices of one's own are too large.
        (jax.nn.relu, dict(_steps=0), [0, 0, 0, 0], "held"),
        (jnp.sort, {}, [0, 0, 1, 1], "others"),  # What is close will not come closer.
    ],
)
def test_who_goes_on_alone(last, options, alone, tried):
    """Who is not within the tolerance, or has gone up."""
    method = _Method(**(dict(_steps=5) | options))
    unfolded, v, given = chain_of(jnp.tanh, last)
    solve = jax.jit(lambda v, given: Equilibrium._solve(method, unfolded, v, given)[:3])
    found, okay, done = solve(v, given)
    assert found.steps.tolist() == alone
    assert getattr(method, "tried", None) == tried
    if any(alone):
        assert method.whole == (method.dense >= 2)
    if method._steps == 0:
        assert okay.tolist() == [True, True, True, False]
        assert done.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("options", "depth", "waits", "taken"),
    [
        (dict(max_steps=0), 3, False, 4),  # Until all errors together are off by less than 0.2,
        (dict(max_steps=0, chords=3), 3, False, 3),  # if nobody says how often;
        (dict(max_steps=0, chords=3), 17, False, 3),
        (dict(max_steps=0), 3, True, 2),  # twice where a device would rather not wait.
        (dict(max_steps=0, chords=5), 3, True, 5),
        (dict(), 3, False, 5),  # Before steps of single examples a few more,
        (dict(max_steps=1), 3, True, 5),
        (dict(chords=2), 3, False, 2),  # or as many as there may be.
        (dict(rtol=1e-9), 3, False, 16),
        (dict(rtol=1e-9, max_steps=0), 3, False, 16),
    ],
)
def test_how_many_chords_there_are(options, depth, waits, taken):
    one = jnp.ones(2)
    at = _Pair(jnp.ones((2, 3)), one)
    now = _Try(at, jnp.stack([one, 0 * one], axis=1), one, one)
    start = Way(now, one, one, (one, one), one, one, jnp.ones(2, int))

    def halve(ways):
        now = ways.now._replace(gap=0.5 * ways.now.gap)
        return ways._replace(now=now, taken=ways.taken + 1)

    method = jpc.Equilibrium(**(dict(rtol=0.2) | options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equilibrium_module, "accelerated", lambda: waits)
        assert method._go_on(start, halve, depth).taken.tolist() == [taken] * 2
        patch.setattr(equilibrium_module, "_LARGE", 5)  # Of six units: waiting is nothing.
        taken = 4 if waits and taken == 2 else taken
        assert method._go_on(start, halve, depth).taken.tolist() == [taken] * 2


def test_a_steady_state_is_one_of_its_gradient():
    """However large the states are, also where a solver does not tell."""
    flow, y = jpc.GradientFlow(dfx.ImplicitEuler()), numbers(100.0, 100.0)
    speed, steady = lambda size: lambda t, y, args: size * jnp.ones(2), jnp.asarray(0.1)
    solver, event = flow._watch(jnp.ones(2), steady, None)
    assert solver is flow.solver
    named = dict(solver=solver, stepsize_controller=dfx.PIDController(1e-3, 1e-3))
    for size, expected in ((0.09, True), (0.11, False), (1.0, False)):
        ended = event.cond_fn(0.0, y, None, terms=dfx.ODETerm(speed(size)), **named)
        assert bool(ended) == expected


# --- kinks ---


def test_energies_that_are_the_same_but_for_rounding_are_no_obstacle():
    """The energy is lower by less than its blur, and the step is taken."""
    square = lambda z: 0.5 * jnp.sum((z - 3) ** 2)
    named = dict(tolerance=jnp.asarray(1e-9), blur=jnp.asarray(0.5))
    run = jax.jit(lambda start: settle(square, start, jnp.asarray(True), **named))
    for start, steps in ((2.9, 2), (3.0, 1)):
        z, gap, taken = run(numbers(start))
        assert_close(z, [3.0])
        assert gap <= 1e-9 and taken == steps


def test_a_part_of_the_errors_is_little_enough():
    """A gradient of 10 beside an error of 100, with a precision of 2."""
    h = W1 * 0.8 + 100.0
    clamps = [numbers([0.8]), None, numbers([W2 * h + 190 / (P2 * W2)])]
    forward = forward_of(PC, LAYERS, [None, numbers([0.0]), None], clamps)
    unfolded, _, given = one_of(forward)
    found = learn_from(unfolded, {1: numbers(100.0)}, given, None)._replace(steps=jnp.asarray(7))
    run = jax.jit(lambda rtol: _settle(unfolded, found, given, rtol, jnp.asarray(True)))
    for rtol, moves in ((0.1, False), (0.01, True)):
        ended = run(rtol)
        assert ended.kinks and ended.steps == (9 if moves else 8)
        assert_close(ended.gap, 0.0 if moves else 10 / 200, atol=1e-12)
        assert_close(ended.v[1], [100.0 - (10 / CURVE if moves else 0)])
        assert_close(ended.delta[1], P1 * ended.v[1])


def test_what_begins_near_its_kink_is_held_at_once():
    rises = lambda z: jnp.abs(z[0]) + 0.5 * (z[1] - 3) ** 2
    named = dict(tolerance=jnp.asarray(1e-9), blur=jnp.asarray(1e-2))
    run = jax.jit(lambda start: settle(rises, start, jnp.asarray(True), **named))
    z, gap, taken = run(numbers(1e-5, 3.0))
    assert_close(z, [0.0, 3.0])
    assert gap == 0 and taken == 1


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_what_is_near_a_kink_is_a_thousandth_of_the_states(size):
    """By the root of their mean square, which is 707 here."""
    rises = lambda z: jnp.sum(jnp.abs(z))
    z = size * numbers(1000.0, 1000.0, 0.5, 1.0, -0.6, 5.0, 0.0, 0.0)[:4]
    there, held = jax.jit(lambda z: _hold_near(rises, z, rises(z)))(z)
    assert held.tolist() == [False, False, True, False]
    assert_close(there, np.asarray(z) * [1, 1, 0, 1])


def test_slopes_to_both_sides():
    """Held where they are -1.5 and 0.5, and not where both are positive: then it goes left."""
    lasso = lambda a: lambda z: jnp.sum(0.5 * (z - a) ** 2 + jnp.abs(z))
    at = jax.jit(lambda pull: _at_kinks(lasso(pull), numbers(0.0), jnp.ones(1, bool)))
    for pull, held, left in ((0.5, True, False), (-1.3, False, True), (1.3, False, False)):
        found = at(pull)
        assert [bool(x[0]) for x in found] == [held, left]


def test_what_does_not_cross_a_kink_is_not_held():
    rises = lambda z: jnp.sum(jnp.abs(z))
    new, held, okay = _search(rises, numbers(1.0), FALSE[None], numbers(-0.5), numbers(1.0)[0])
    assert_close(new, [0.5])
    assert okay and not held[0]


@pytest.mark.parametrize("pull", [3.0, -3.0])
def test_a_unit_that_is_let_go_goes_where_it_pulls(pull):
    energy = lambda z: jnp.sum(0.5 * (z - pull) ** 2 + jnp.abs(z))
    new, held, okay = _search(
        energy, numbers(0.0), ~FALSE[None], numbers(0.0), energy(numbers(0.0))
    )
    assert okay and not held[0] and 0 < new[0] * pull < 1e-6


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_newtons_step_never_climbs(size):
    """Where a square curves down, it is the gradient."""
    down = lambda z: -jnp.sum(numbers(1.0, 2.0) * z**2)
    z = size * numbers(1.0, -2.0)
    gradient = jax.grad(down)(z)
    step = jax.jit(lambda *given: _newton(down, *given))
    assert_close(step(z, jnp.zeros(2, bool), gradient), -gradient)
