"""The gradient flow of an energy, against NumPy, finer solutions and closed forms.

Compiling a solve takes longer than running it: tests share problems, solvers and static
options wherever they can, and vary numbers.
"""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    assert_close,
    equilibrate,
    infer,
    make_conv_problem,
    make_problem,
    slowly,
    split,
)

import jpc
from jpc._inference.base import examples

PROBLEM = make_problem(batch=8)
PC = jpc.PCEnergy()
FIXED = dfx.ConstantStepSize()


def euler(t1, dt, **kwargs):
    return jpc.GradientFlow(dfx.Euler(), t1, dt, FIXED, **kwargs)


def heun(t1=20.0, rtol=1e-3):
    """The default flow, which reports instead of raising."""
    return jpc.GradientFlow(t1=t1, rtol=rtol, max_steps=5000, throw=False)


def tsit5(t1, tol=1e-9):
    return jpc.GradientFlow(dfx.Tsit5(), t1, controller=dfx.PIDController(rtol=tol, atol=tol))


def ended(inferred):
    """How the examples ended: the names of the results that there are."""
    names = ("successful", "stopped_early", "max_steps_reached", "diverged", "hopping")
    which = {name: inferred.result == getattr(jpc.RESULTS, name) for name in names}
    assert np.all(sum(np.asarray(those, int) for those in which.values()) == 1)
    return {name for name, those in which.items() if np.any(those)}


def free(inferred):
    return jax.tree.leaves(inferred.nodes)


def gradient_sizes(problem, nodes):
    """The norm of each example's gradient, by NumPy."""
    states = [np.asarray(z) for z in (problem.x, *jax.tree.leaves(nodes), problem.y)]
    grads = problem.chain().activity_grads(states)[1:]
    return np.sqrt(sum(np.sum(np.square(g), axis=1) for g in grads))


def at(values, i):
    return [z[i] for z in jax.tree.leaves(values)]


# --- the numbers ---


def test_euler_is_a_loop_of_euler_steps():
    inferred = infer(euler(2.0, 0.125), PC, *PROBLEM.posed())
    assert_close(free(inferred), PROBLEM.chain().euler(PROBLEM.states, 0.125, 16)[1:-1])
    assert np.all(inferred.stats["steps"] == 16)
    assert np.all(inferred.stats["evaluations"] == 17)
    assert_close(inferred.stats["t1"], np.full(8, 2.0))
    assert ended(inferred) == {"stopped_early"}


def test_constant_steps_know_where_they_ended():
    """They do not look for a steady state on their way, unless asked to."""
    inferred = infer(euler(1000.0, 0.25), PC, *PROBLEM.posed())
    assert ended(inferred) == {"successful"}
    assert np.all(inferred.stats["steps"] == 4000)
    asked = infer(euler(1000.0, 0.25, rtol=1e-3), PC, *PROBLEM.posed())
    assert ended(asked) == {"successful"}
    assert np.max(asked.stats["steps"]) < 1000


@pytest.mark.parametrize(("solver", "order"), [slowly(dfx.Euler(), 1), (dfx.Heun(), 2)])
def test_solver_has_its_order(solver, order):
    fine = free(infer(tsit5(1.0, 1e-12), PC, *PROBLEM.posed()))

    def error(dt):
        coarse = free(infer(jpc.GradientFlow(solver, 1.0, dt, FIXED), PC, *PROBLEM.posed()))
        return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(coarse, fine, strict=True)))

    halvings = [np.log2(error(dt) / error(dt / 2)) for dt in (1 / 16, 1 / 32)]
    np.testing.assert_allclose(halvings, order, atol=0.1)


def test_a_linear_network_reaches_its_equilibrium():
    problem = make_problem("linear", batch=8)
    inferred = infer(heun(1e3, 1e-6), PC, *problem.posed())
    reached = PC(problem.layers, inferred.nodes, problem.posed()[2])
    expected = jpc.linear_equilib_energy(problem.params, problem.x, problem.y)
    assert ended(inferred) == {"successful"}
    assert_close(reached, expected, rtol=1e-8)  # Quadratic in the tolerance of 1e-6.


# --- when it stops ---


@pytest.mark.parametrize("act", ["tanh", "linear", slowly("gelu")])
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_it_stops_at_a_steady_state(act, gain):
    """With default tolerances, long before the end of a long time."""
    for seed in range(3):
        problem = make_problem(act, batch=8, gain=gain, seed=seed)
        layers, nodes, clamps = problem.posed()
        *hidden, _ = problem.chain().feedforward(problem.x)[1:]
        hidden = [jnp.asarray(z) for z in hidden]
        for start in (nodes, jpc.clamp(hidden, problem.y, problem.x)[0]):
            inferred = infer(heun(2000.0), PC, layers, start, clamps)
            assert ended(inferred) == {"successful"}
            assert np.all(inferred.stats["t1"] < 1000)
            before, after = (gradient_sizes(problem, z) for z in (start, inferred.nodes))
            assert np.all(after <= 1e-3 * before)


def test_a_result_is_honest():
    """Many an equilibrium of a ReLU network is at a kink, where the gradient jumps and never
    vanishes: success is said of those examples alone whose gradient did.
    """
    problem = make_problem("relu", batch=8)
    layers, nodes, clamps = problem.posed()
    inferred = infer(heun(200.0), PC, layers, nodes, clamps)
    before, after = (gradient_sizes(problem, z) for z in (nodes, inferred.nodes))
    successful = np.asarray(inferred.result == jpc.RESULTS.successful)
    assert 0 < successful.sum() < 8  # Else this test says little.
    np.testing.assert_array_equal(successful, after <= 1e-3 * before)


def test_it_does_not_hop_around_kinks_for_ever():
    """The rest of these say why they ended, at an energy next to the lowest, after no more than
    ten times the steps of a network without kinks.
    """
    problem = make_problem("relu", batch=8)
    layers, nodes, clamps = problem.posed()
    energies = lambda nodes: examples(PC, layers, nodes, clamps)
    inferred, smooth = (
        infer(heun(200.0), PC, *make_problem(act, batch=8).posed()) for act in ("relu", "tanh")
    )
    assert ended(inferred) == {"successful", "hopping"}
    assert np.max(inferred.stats["steps"]) <= 10 * np.max(smooth.stats["steps"])
    lowest = energies(infer(jpc.Descent(0.005, 4000), PC, layers, nodes, clamps).nodes)
    fallen, whole = energies(nodes) - energies(inferred.nodes), energies(nodes) - lowest
    assert np.all(fallen >= 0.95 * whole)


def test_looking_for_a_steady_state_is_free():
    """A gradient at the start, then two for each step of Heun, by counting."""
    calls = []

    def layer(z):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.tanh(z)

    nodes, clamps = jpc.clamp([jnp.ones((1, 3))], jnp.zeros((1, 3)), jnp.ones((1, 3)))
    controller = dfx.PIDController(rtol=1e-3, atol=1e-3)
    flows = [jpc.GradientFlow(t1=t1, controller=controller) for t1 in (0.5, 20.0)]
    counts, taken = [], []
    for flow in flows:
        calls.clear()
        stats = jax.block_until_ready(infer(flow, PC, [layer, layer], nodes, clamps).stats)
        jax.effects_barrier()
        counts.append(len(calls) // 2)
        taken.append(int(stats["steps"][0] + stats["rejected"][0]))
        assert stats["evaluations"][0] == 1 + 2 * taken[-1]
    assert counts[1] - counts[0] == 2 * (taken[1] - taken[0]) > 0


def test_it_stops_at_equilibrium_itself():
    problem = make_problem("linear", batch=8)
    solution = jpc.compute_linear_activity_solution(problem.model, problem.x, problem.y)[:-1]
    nodes, clamps = jpc.clamp(solution, problem.y, problem.x)
    inferred = infer(heun(), PC, problem.layers, nodes, clamps)
    assert ended(inferred) == {"successful"}
    assert np.all(inferred.stats["steps"] <= 2)
    assert_close(free(inferred), solution, atol=1e-8)


def test_a_short_time_is_used_up():
    inferred = infer(heun(0.5), PC, *PROBLEM.posed())
    assert ended(inferred) == {"stopped_early"}
    assert_close(inferred.stats["t1"], np.full(8, 0.5))


@pytest.mark.slow
def test_tolerances_of_the_steady_state_can_be_given():
    """To the default controller, and beside one of your own."""
    controller = dfx.PIDController(rtol=1e-7, atol=1e-7)
    own = lambda rtol: jpc.GradientFlow(t1=500.0, controller=controller, rtol=rtol)
    for flow in (lambda rtol: heun(500.0, rtol), own):
        loose, strict = (infer(flow(rtol), PC, *PROBLEM.posed()) for rtol in (1e-1, 1e-2))
        assert ended(loose) == ended(strict) == {"successful"}
        assert np.all(loose.stats["t1"] < strict.stats["t1"])


def test_gradient_norm_of_a_batch_is_that_of_each_example():
    """Of its own energy, though it moves by the mean of the batch: in time one takes as many times
    longer as there are examples, and both end in the same place.
    """
    batch = len(PROBLEM.x)
    mean = jpc.GradientFlow(dfx.Euler(), 2.0 * batch, 0.125 * batch, FIXED, reduction="mean")
    found = infer(mean, PC, *PROBLEM.posed())
    assert_close(free(found), PROBLEM.chain().euler(PROBLEM.states, 0.125, 16)[1:-1])
    sizes = np.sqrt(sum(np.sum(np.square(z), axis=1) for z in free(found)))
    expected = gradient_sizes(PROBLEM, found.nodes) / sizes
    assert_close(found.stats["gradient_norm"], expected, rtol=1e-8)


def test_gradient_norm_is_that_of_the_end():
    inferred = infer(heun(1.0), PC, *PROBLEM.posed())
    sizes = np.sqrt(sum(np.sum(np.square(z), axis=1) for z in free(inferred)))
    expected = gradient_sizes(PROBLEM, inferred.nodes) / sizes
    assert_close(inferred.stats["gradient_norm"], expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("dt", "result", "message"),
    [(5.0, "diverged", "Inference diverged"), (0.1, "max_steps_reached", "`max_steps` steps")],
)
def test_failures_are_results_or_errors(dt, result, message):
    posed, options = PROBLEM.posed(), dict(t1=20.0, dt=dt, max_steps=5)
    inferred = infer(euler(**options, throw=False), PC, *posed)
    assert ended(inferred) == {result}
    with pytest.raises(RuntimeError, match=message):
        infer(euler(**options), PC, *posed)


def test_infinities_are_an_error_that_names_the_state():
    with pytest.raises(RuntimeError, match=r"z_[12] is not finite"):
        infer(euler(1e4, 10.0), PC, *PROBLEM.posed())


# --- independence of the rest of the batch ---


def test_examples_are_independent():
    layers, nodes, clamps = PROBLEM.posed()
    together = infer(heun(), PC, layers, nodes, clamps)
    for alone, answer in zip(split((nodes, clamps)), split(together.nodes), strict=True):
        single = infer(heun(), PC, layers, *jax.tree.map(lambda z: z[None], alone))
        assert_close(at(single.nodes, 0), answer, atol=1e-10)
    for which in ([3, 1, 7, 0, 6, 2, 5, 4], [0, 1, 2, 2, 2, 2, 2, 2]):
        again = jax.tree.map(lambda z: z[jnp.array(which)], (nodes, clamps))  # noqa: B023
        assert_close(
            free(infer(heun(), PC, layers, *again)),
            at(together.nodes, np.array(which)),
            atol=1e-10,
        )


def test_mean_reduction_is_slower_by_the_batch_size():
    mean = infer(euler(8.0, 0.5, reduction="mean"), PC, *PROBLEM.posed())
    own = infer(euler(1.0, 0.0625), PC, *PROBLEM.posed())
    assert_close(free(mean), free(own))
    assert ended(mean) == ended(own) == {"stopped_early"}
    args = (PROBLEM.params, PROBLEM.activities, PROBLEM.y, PROBLEM.x)
    options = dict(solver=dfx.Euler(), stepsize_controller=FIXED, max_t1=8.0, dt=0.5)
    activities = jpc.solve_inference(*args, reduction="mean", **options)
    assert_close(activities[:-1], free(own))


@pytest.mark.slow
def test_mean_reduction_reaches_the_same_equilibrium():
    flow = jpc.GradientFlow(t1=1e5, rtol=1e-6, reduction="mean")
    inferred = infer(flow, PC, *PROBLEM.posed())
    assert ended(inferred) == {"successful"}
    expected = equilibrate(PC, PROBLEM.layers, inferred.nodes, PROBLEM.posed()[2])
    assert_close(inferred.nodes, expected, atol=1e-4)


# --- recording ---


@pytest.mark.parametrize("reduction", ["sum", slowly("mean")])
def test_recording_on_a_grid_is_solving_to_each_time(reduction):
    ts = np.array([0.0, 0.25, 0.5, 1.25])
    flow = lambda t: euler(t, 0.125, reduction=reduction)
    record = jpc.Record(ts=jnp.asarray(ts))
    trajectory = infer(flow(1.25), PC, *PROBLEM.posed(), record=record).trajectory
    assert_close(trajectory.ts, np.broadcast_to(ts[:, None], (4, 8)))
    assert_close(at(trajectory.values, 0), PROBLEM.hidden)
    for i, t in enumerate(ts[1:], start=1):
        assert_close(at(trajectory.values, i), free(infer(flow(t), PC, *PROBLEM.posed())))


@pytest.mark.slow
def test_recording_on_a_grid_interpolates_adaptive_steps():
    record = jpc.Record(ts=jnp.array([0.3, 1.1, 1.9]))
    trajectory = infer(tsit5(2.0), PC, *PROBLEM.posed(), record=record).trajectory
    for i, t in enumerate([0.3, 1.1, 1.9]):
        alone = free(infer(tsit5(t), PC, *PROBLEM.posed()))
        assert_close(at(trajectory.values, i), alone, atol=1e-7)


def _nodes_and_energy(*z):
    return z[1], PC.example(*z)


def test_energy_decreases_along_the_flow():
    record = jpc.Record(_nodes_and_energy, length=512)
    trajectory = infer(tsit5(5.0, 1e-7), PC, *PROBLEM.posed(), record=record).trajectory
    _, energies = trajectory.values
    for energy, ts in zip(energies.T, trajectory.ts.T, strict=True):
        own = len(np.unique(ts))  # An example that has ended keeps its last value.
        assert own > 10
        assert np.all(np.diff(energy[:own]) < 0)
        assert np.all(energy[own:] == energy[own - 1])


def test_recording_every_step_goes_from_start_to_end():
    record = jpc.Record(_nodes_and_energy, length=512)
    inferred = infer(tsit5(100.0, 1e-4), PC, *PROBLEM.posed(), record=record)
    trajectory, t1 = inferred.trajectory, inferred.stats["t1"]
    nodes, _ = trajectory.values
    own = [len(np.unique(ts)) for ts in trajectory.ts.T]
    assert len(set(own)) > 1  # Else this test says little of examples that end early.
    assert trajectory.length == max(own)
    assert_close(at(nodes, 0), PROBLEM.hidden)
    assert_close(at(nodes, -1), free(inferred))
    for ts, n, end in zip(trajectory.ts.T, own, t1, strict=True):
        assert ts[0] == 0 and np.all(np.diff(ts[:n]) > 0) and np.all(ts[n - 1 :] == end)


def test_there_are_as_many_entries_as_steps_and_the_start():
    record = jpc.Record(_nodes_and_energy, length=512)
    inferred = infer(tsit5(100.0, 1e-4), PC, *PROBLEM.posed(), record=record)
    own = [len(np.unique(ts)) for ts in inferred.trajectory.ts.T]
    assert_close(np.array(own), inferred.stats["steps"] + 1)


@pytest.mark.slow
def test_recorded_iterations_go_from_start_to_end():
    args = (PROBLEM.params, PROBLEM.activities, PROBLEM.y, PROBLEM.x)
    recorded = jpc.solve_inference(*args, inference=heun(), record_iters=True)
    inferred = infer(heun(), PC, *PROBLEM.posed())
    steps = inferred.stats["steps"]
    assert_close(at(recorded[:-1], 0), PROBLEM.hidden)
    assert_close(at(recorded[:-1], -1), free(inferred))
    assert [len(z) for z in recorded] == [np.max(steps) + 1] * 3


@pytest.mark.slow
def test_record_every_is_a_grid():
    args = (PROBLEM.params, PROBLEM.activities, PROBLEM.y, PROBLEM.x)
    options = dict(solver=dfx.Euler(), stepsize_controller=FIXED, dt=0.125, max_t1=2.0)
    recorded = jpc.solve_inference(*args, record_every=0.5, reduction="sum", **options)
    states = [PROBLEM.chain().euler(PROBLEM.states, 0.125, 4 * i)[1:-1] for i in range(5)]
    assert_close(recorded[:-1], [np.stack(z) for z in zip(*states, strict=True)])


# --- any solver, any rank ---


@pytest.mark.slow
def test_implicit_solvers_work():
    flow = jpc.GradientFlow(dfx.Kvaerno3(), 200.0, rtol=1e-6)
    inferred = infer(flow, PC, *PROBLEM.posed())
    assert ended(inferred) == {"successful"}
    expected = equilibrate(PC, PROBLEM.layers, inferred.nodes, PROBLEM.posed()[2])
    assert_close(inferred.nodes, expected, atol=1e-4)


class _Flat(eqx.Module):
    """A layer of images, between vectors."""

    layer: eqx.Module
    shape: tuple = eqx.field(static=True)

    def __call__(self, z):
        return jnp.ravel(self.layer(z.reshape(self.shape)))


@pytest.mark.slow
def test_states_of_any_rank():
    problem = make_conv_problem()
    images = infer(euler(2.0, 0.125), PC, *problem.posed())
    layers, *lists = problem.posed()
    shapes = [z.shape[1:] for z in problem.states[:-1]]
    flat = [_Flat(layer, shape) for layer, shape in zip(layers, shapes, strict=True)]
    lists = jax.tree.map(lambda z: z.reshape(len(z), -1), lists)
    vectors = infer(euler(2.0, 0.125), PC, flat, *lists)
    assert_close([z.reshape(len(z), -1) for z in free(images)], free(vectors))
    assert_close(images.stats, vectors.stats, rtol=1e-8)
    assert [z.shape for z in free(images)] == [z.shape for z in problem.hidden]


@pytest.mark.slow
def test_a_progress_meter_reports(capfd):
    meter = dfx.TextProgressMeter()
    inferred = infer(euler(2.0, 0.125, progress_meter=meter), PC, *PROBLEM.posed())
    jax.effects_barrier()
    assert "100.00%" in capfd.readouterr().out
    assert_close(free(inferred), free(infer(euler(2.0, 0.125), PC, *PROBLEM.posed())))


# --- misuse ---


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(controller=FIXED), "step size"),
        (dict(solver=dfx.Euler()), "Euler"),
        (dict(max_steps=0), "max_steps"),
    ],
)
def test_misuse_is_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        jpc.GradientFlow(**kwargs)


def test_a_record_is_a_grid_or_every_step():
    for kwargs in ({}, dict(ts=jnp.zeros(1), length=3)):
        with pytest.raises(ValueError, match="ts, or length"):
            jpc.Record(**kwargs)
