"""Descent, minimisers, Langevin dynamics, and energies in the coordinates of their errors."""

import dataclasses
import functools as ft

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import optimistix as optx
import pytest
from helpers import arrays, assert_close, infer, make_problem, slowly, to

import jpc
from jpc._inference.base import judge
from jpc._inference.minimise import _confirm

PC = jpc.PCEnergy()
PROBLEM = make_problem()  # Random states, far from equilibrium.
SGD = optax.sgd(0.1)


def free(inferred):
    return jax.tree.leaves(inferred.nodes)


def ended(inferred, result):
    return np.all(inferred.result == result)


# --- all of them ---


def test_what_was_inferred_is_shown_in_a_line():
    """Each example counted by how it ended, also where that is not known yet."""
    nodes = [None, jnp.zeros((3, 2))]
    result = judge(jnp.array([True, False, False]))
    shown = repr(jpc.Inferred(nodes, result, {"steps": jnp.zeros(3)}))
    assert (
        shown == "Inferred(1 successful, 2 stopped_early, nodes=[None, f64[3,2]], stats=['steps'])"
    )
    traced = []
    jax.jit(lambda done: traced.append(repr(jpc.Inferred(nodes, judge(done), {}))))(
        jnp.ones(3) > 0
    )
    assert traced == ["Inferred(result=..., nodes=[None, f64[3,2]], stats=[])"]


METHODS = {
    "flow": jpc.GradientFlow(),
    "descent": jpc.Descent(SGD),
    "minimise": jpc.Minimise(),
    "minimise together": jpc.Minimise(together=True),
    "equilibrium": jpc.Equilibrium(),
    "langevin": jpc.Langevin(),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_report_the_same(name):
    """A result and three numbers for each example; a flow and an equilibrium have more to say."""
    run = ft.partial(METHODS[name], key=jr.key(0))
    inferred = eqx.filter_eval_shape(run, PC, *PROBLEM.posed())
    more = inferred.stats.keys() - {"steps", "evaluations", "gradient_norm"}
    assert len(inferred.stats) - len(more) == 3
    assert more == {"flow": {"t1", "rejected"}, "equilibrium": {"error", "converged"}}.get(
        name, set()
    )
    assert {x.shape for x in jax.tree.leaves((inferred.result, inferred.stats))} == {(5,)}
    assert [z.shape for z in free(inferred)] == [z.shape for z in PROBLEM.hidden]


@pytest.mark.parametrize("name", METHODS)
def test_methods_keep_the_precision_of_a_network(name):
    """Also where float64 is enabled, as it is here."""
    run = ft.partial(METHODS[name], key=jr.key(0))
    inferred = eqx.filter_eval_shape(run, PC, *to(jnp.float32, PROBLEM.posed()))
    found = [*free(inferred), inferred.stats["gradient_norm"]]
    assert {x.dtype for x in found} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "method", [slowly(jpc.GradientFlow()), jpc.Descent(SGD), jpc.Equilibrium()]
)
def test_a_method_is_compiled_once(method):
    """Also if it is called by itself, outside of `jax.jit`."""
    traced = []

    def loss(y, f):
        traced.append(None)
        return jpc.squared_error(y, f)

    energy, (params, nodes, clamps) = jpc.PCEnergy(loss=loss), PROBLEM.posed()
    method(energy, params, nodes, clamps)
    once = len(traced)
    method(energy, params, jax.tree.map(lambda z: 0.5 * z, nodes), clamps)
    assert len(traced) == once > 0


@pytest.mark.parametrize(
    "method",
    [jpc.Descent(optax.sgd(1e100), throw=False), slowly(jpc.Langevin(5000.0, 5.0, throw=False))],
)
def test_what_is_not_a_number_is_not_called_small(method):
    layers, nodes, clamps = PROBLEM.posed()
    inferred = method(PC, layers, nodes, clamps, key=jr.key(0))
    assert ended(inferred, jpc.RESULTS.diverged)
    assert not np.any(np.isfinite(inferred.stats["gradient_norm"]))
    with pytest.raises(RuntimeError, match="z_1 is not finite"):
        dataclasses.replace(method, throw=True)(PC, layers, nodes, clamps, key=jr.key(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jpc.Descent("0.1"), "needs a step size, such as 0.1, or an Optax optimiser"),
        (lambda: jpc.Minimise(SGD), "an Optimistix minimiser.*Optax optimisers are for Descent"),
        (lambda: jpc.Langevin(path="tree"), "UnsafeBrownianPath or diffrax.V.* class itself"),
    ],
)
def test_the_wrong_kind_of_object(make, message):
    with pytest.raises(TypeError, match=message):
        make()


# --- Descent ---


def test_descent_is_a_loop_of_gradient_steps():
    inferred = infer(jpc.Descent(SGD, 30), PC, *PROBLEM.posed())
    assert_close(free(inferred), PROBLEM.chain().euler(PROBLEM.states, 0.1, 30)[1:-1])
    assert ended(inferred, jpc.RESULTS.stopped_early)
    assert np.all(inferred.stats["steps"] == 30)


def test_descent_stops_at_its_tolerance():
    """Each example after as many steps as it needs, which are those of a loop."""
    inferred = infer(jpc.Descent(SGD, 500, rtol=1e-3), PC, *PROBLEM.posed())
    steps = np.asarray(inferred.stats["steps"])
    assert ended(inferred, jpc.RESULTS.successful)
    assert len(set(steps)) > 1 and np.all(steps < 500)
    assert np.all(inferred.stats["gradient_norm"] <= 1e-3)
    for i, count in enumerate(steps):
        for loops, small in ((count, True), (count - 1, False)):
            states = PROBLEM.chain().euler([z[i : i + 1] for z in PROBLEM.states], 0.1, loops)
            norm = lambda parts: np.sqrt(sum(np.sum(x**2) for x in parts))
            grads = PROBLEM.chain().activity_grads(states)[1:]
            assert (norm(grads) <= 1e-3 * norm(states[1:-1])) == small
            if small:
                assert_close([z[i] for z in free(inferred)], [z[0] for z in states[1:-1]])


def test_descent_keeps_the_start_and_every_step():
    record = jpc.Record(length=30)
    inferred = infer(jpc.Descent(SGD, 30), PC, *PROBLEM.posed(), record=record)
    way = jax.tree.leaves(inferred.trajectory.values)
    for i in (0, 1, 17, 30):
        expected = PROBLEM.chain().euler(PROBLEM.states, 0.1, i)[1:-1]
        assert_close([z[i] for z in way], expected)
    assert_close([z[-1] for z in way], free(inferred))
    assert [len(z) for z in way] == [31, 31]
    assert inferred.trajectory.length == 31
    assert_close(inferred.trajectory.ts, np.repeat(np.arange(31.0)[:, None], 5, axis=1))


def test_a_descent_that_diverges_says_so():
    inferred = infer(jpc.Descent(optax.sgd(2.0), 20, throw=False), PC, *PROBLEM.posed())
    assert ended(inferred, jpc.RESULTS.diverged)


def test_descent_has_no_time():
    with pytest.raises(ValueError, match="record every step"):
        jpc.Descent(SGD)(PC, *PROBLEM.posed(), record=jpc.Record(ts=jnp.ones(1)))
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        jpc.Descent(SGD, 0)


# --- Minimise ---


def test_a_minimiser_may_run_out_of_steps():
    minimise = jpc.Minimise(optx.NonlinearCG(1e-9, 1e-9), max_steps=3, throw=False)
    inferred = infer(minimise, PC, *PROBLEM.posed())
    assert ended(inferred, jpc.RESULTS.max_steps_reached)
    assert np.all(inferred.stats["steps"] == 3)


def test_a_minimiser_that_gets_no_further_is_not_there():
    slow = jpc.Minimise(optx.GradientDescent(1e-7, 1e-6, 1e-6))
    inferred = infer(slow, PC, *PROBLEM.posed())
    assert ended(inferred, jpc.RESULTS.stopped_early)
    assert np.all(inferred.stats["gradient_norm"] > 1e-2)


def test_a_minimiser_keeps_no_record():
    with pytest.raises(ValueError, match="use GradientFlow or Descent"):
        jpc.Minimise()(PC, *PROBLEM.posed(), record=jpc.Record(length=3))


# --- Langevin ---


LINEAR = make_problem("linear", (2, 2, 2, 1), batch=1, gain=1.5)
CHAINS, T1, DT = 2000, 6.0, 0.1


def langevin(temperature=1.0, speeds=(1.0, 1.0), seed=0):
    """The ends of many chains that start at the posterior's mean."""
    preconditioner = [None, *(jnp.asarray(speed) for speed in speeds), None]
    method = jpc.Langevin(T1, DT, temperature, preconditioner)
    many = lambda z: jnp.repeat(z, CHAINS, axis=0)
    nodes, clamps = jpc.clamp([many(z) for z in _posterior()[0]], many(LINEAR.y), many(LINEAR.x))
    options = dict(record=jpc.Record(ts=jnp.array([2.0, T1])), key=jr.key(seed))
    inferred = infer(method, PC, LINEAR.layers, nodes, clamps, **options)
    return inferred, np.concatenate(free(inferred), axis=1)


@ft.cache
def _posterior():
    """The mean, and the Hessian whose inverse is the covariance."""
    mean = jpc.compute_linear_activity_solution(LINEAR.model, LINEAR.x, LINEAR.y)[:-1]
    return mean, np.asarray(jpc.compute_linear_activity_hessian(LINEAR.weights))


def after_steps(temperature, speed):
    """The covariance of Euler's method at the last of its steps, from zero at the first."""
    hessian = _posterior()[1]
    step, noise = np.eye(4) - DT * np.diag(speed) @ hessian, 2 * DT * temperature * np.diag(speed)
    covariance = np.zeros((4, 4))
    for _ in range(round(T1 / DT)):
        covariance = step @ covariance @ step.T + noise
    return covariance


def assert_distributed(samples, temperature, speed):
    """Mean and covariance within 4.5 standard errors of those of Euler's method, which are
    those of the posterior but for the size of its steps.
    """
    mean, hessian = _posterior()
    expected = after_steps(temperature, speed)
    np.testing.assert_allclose(expected, temperature * np.linalg.inv(hessian), rtol=0.3, atol=0.02)
    variances = np.diag(expected)
    off = np.mean(samples, axis=0) - np.concatenate(mean, axis=1)[0]
    assert np.all(np.abs(off) < 4.5 * np.sqrt(variances / CHAINS))
    error = np.sqrt((np.outer(variances, variances) + expected**2) / CHAINS)
    assert np.all(np.abs(np.cov(samples.T) - expected) < 4.5 * error)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (0.6, 1.2)])
def test_langevin_samples_the_posterior(temperature, speeds):
    """Whose covariance is proportional to the temperature, and does not depend on the speed."""
    _, samples = langevin(temperature, speeds)
    assert_distributed(samples, temperature, np.repeat(speeds, 2))


def test_samples_are_those_of_the_key_and_the_times():
    (one, first), (_, same), (_, other) = (langevin(seed=seed) for seed in (0, 0, 1))
    assert np.all(first == same) and not np.any(first == other)
    assert len(np.unique(first[:, 0])) == CHAINS
    assert np.all(one.stats["steps"] == round(T1 / DT))
    earlier, last = np.concatenate(jax.tree.leaves(one.trajectory.values), axis=2)
    assert_close(last, first)
    assert abs(np.corrcoef(earlier[:, 0], last[:, 0])[0, 1]) < 0.5
    assert_close(one.trajectory.ts, np.repeat([[2.0], [T1]], CHAINS, axis=1))


SHORT = make_problem(sizes=(3, 4, 2))  # Trees take long to compile, for each of the states.


@pytest.mark.slow
@pytest.mark.parametrize("solver", [dfx.Heun(), dfx.ShARK(), dfx.SEA()])
def test_solvers_need_more_or_less_of_a_path(solver):
    """From one path, they are close at the end. Fresh noise has what they need as well."""
    tree = jpc.Langevin(1.0, 0.01, path=dfx.VirtualBrownianTree)
    others = dataclasses.replace(tree, solver=solver)
    ends = [
        np.ravel(free(infer(method, PC, *SHORT.posed(), key=jr.key(0))))
        for method in (tree, others)
    ]
    assert np.corrcoef(*ends)[0, 1] > 0.999
    fresh = ft.partial(jpc.Langevin(1.0, 0.01, solver=solver), key=jr.key(0))
    eqx.filter_eval_shape(fresh, PC, *SHORT.posed())


@pytest.mark.slow
def test_a_virtual_tree_can_be_differentiated_in_reverse():
    """By finite differences; fresh noise cannot."""

    def end(speed, path=dfx.VirtualBrownianTree):
        method = jpc.Langevin(0.2, 0.1, preconditioner=speed, path=path)
        return free(method(PC, *SHORT.posed(), key=jr.key(0)))[0][0, 0]

    run = jax.jit(jax.value_and_grad(end))
    (below, _), (_, slope), (above, _) = (run(1 + step) for step in (-1e-5, 0.0, 1e-5))
    assert_close(slope, (above - below) / 2e-5, rtol=1e-6)
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(end)(1.0, dfx.UnsafeBrownianPath)


def test_langevin_needs_a_key_and_times():
    args = (PC, *PROBLEM.posed())
    with pytest.raises(ValueError, match="give a key"):
        jpc.Langevin()(*args)
    with pytest.raises(ValueError, match="Record"):
        jpc.Langevin()(*args, record=jpc.Record(length=3), key=jr.key(0))


# --- the coordinates of the errors ---


DEEP = make_problem("tanh", (3, 4, 4, 4, 2))
PRECISIONS = [0.5, 2.0, 1.0, 3.0]
ENERGIES = {
    "precisions": jpc.PCEnergy(precision=PRECISIONS),
    "cross-entropy": jpc.PCEnergy(jpc.cross_entropy, PRECISIONS),
    "penalties": jpc.PCEnergy(precision=PRECISIONS) + jpc.WeightDecay(0.3),
    "free input": jpc.PCEnergy(precision=PRECISIONS) + jpc.GaussianPrior(0.7),
}


def errors_of(layers, nodes, clamps):
    states = eqx.combine(nodes, clamps)
    hidden = zip(layers[:-1], states, states[1:-1], strict=False)
    return [nodes[0], *(z - jax.vmap(layer)(before) for layer, before, z in hidden), None]


@pytest.mark.parametrize("name", ENERGIES)
def test_coordinates_change_neither_energy_nor_learning(name):
    """Also away from equilibrium."""
    layers, nodes, clamps = DEEP.posed()
    energy, free_input = ENERGIES[name], name == "free input"
    if free_input:
        nodes, clamps = jpc.clamp([DEEP.x, *DEEP.hidden], DEEP.y)

    @eqx.filter_jit
    def compare(layers, nodes, clamps):
        grad = lambda energy, nodes: eqx.filter_value_and_grad(energy)(layers, nodes, clamps)
        errors = errors_of(layers, nodes, clamps)
        return grad(jpc.EPCEnergy(energy), errors), grad(energy, nodes), errors

    in_errors, in_states, errors = compare(layers, nodes, clamps)
    assert_close(arrays(in_errors), arrays(in_states))
    assert [e is None for e in errors] == [not free_input, False, False, False, True]


def test_inference_in_errors_is_by_the_chain_rule():
    """Its gradient in the errors, by finite differences of the energy of the states."""
    layers, nodes, clamps = DEEP.posed()
    errors, energy = errors_of(layers, nodes, clamps), ENERGIES["precisions"]
    gradient = jax.jit(jax.grad(lambda e: jpc.EPCEnergy(energy)(layers, e, clamps)))
    grads, chain = gradient(errors), DEEP.chain(precisions=PRECISIONS)

    def value(errors):
        states = [np.asarray(DEEP.x)]
        for layer, e in enumerate(errors[1:-1], start=1):
            states.append(np.stack([chain.predict(layer, z) for z in states[-1]]) + e)
        return chain.energy([*states, np.asarray(DEEP.y)])

    for i in (1, 3):
        move = np.zeros((5, 4))
        move[2, 1] = 1e-5
        up, down = ([*errors[:i], errors[i] + s * move, *errors[i + 1 :]] for s in (1, -1))
        assert_close(grads[i][2, 1], (value(up) - value(down)) / 2e-5, rtol=1e-6, atol=1e-9)


def test_signals_reach_the_first_layer_at_once():
    """From a feedforward start: at the first step in errors, one layer a step in states."""
    layers, _, clamps = DEEP.posed()
    hidden = DEEP.chain().feedforward(DEEP.x)[1:-1]
    descent, record = jpc.Descent(SGD, 3), jpc.Record(length=3)
    starts = {PC: hidden, jpc.EPCEnergy(PC): [np.zeros_like(z) for z in hidden]}

    def moved(energy):
        """Whether e_1 or z_1 and so on have moved, at each step."""
        nodes, _ = jpc.clamp([jnp.asarray(z) for z in starts[energy]], DEEP.y, DEEP.x)
        way = infer(descent, energy, layers, nodes, clamps, record=record).trajectory.values
        return [[np.all(np.abs(z[i] - z[0]) > 1e-12) for z in way[1:-1]] for i in (1, 2, 3)]

    in_states, in_errors = map(moved, starts)
    assert in_errors == [[True, True, True]] * 3
    assert in_states == [[False, False, True], [False, True, True], [True, True, True]]


@pytest.mark.parametrize("name", ["precisions", "cross-entropy", "penalties"])
def test_local_energy_learns_the_same_from_given_errors(name):
    layers, nodes, clamps = DEEP.posed()
    energy, states = ENERGIES[name], DEEP.states
    learn = eqx.filter_jit(lambda energy, nodes: eqx.filter_grad(energy)(layers, nodes, clamps))
    loss = "ce" if name == "cross-entropy" else "mse"
    chain = DEEP.chain(precisions=PRECISIONS, loss=loss)

    def delta(layer):
        pairs = zip(states[layer - 1], states[layer], strict=True)
        return np.stack([chain.pull_of(layer, t, chain.predict(layer, z)) for z, t in pairs])

    *deltas, last = (delta(layer) for layer in (1, 2, 3, 4))
    lesson = [(states[0], None), *zip(states[1:-1], deltas, strict=True), (None, last)]
    local = jpc.LocalEnergy(energy)
    got = learn(local, jax.tree.map(jnp.asarray, lesson))
    assert_close(arrays(got), arrays(learn(energy, nodes)))


# --- the default flow reaches the steady state that it asks for ---


@pytest.mark.parametrize("precision", [1.0, 0.01])
def test_the_default_flow_reaches_its_steady_state_in_single_precision(precision):
    """From a feedforward start; `test_flow.py` has the others."""
    chain = PROBLEM.chain(precisions=[1.0, 1.0, precision])
    hidden = [jnp.asarray(z) for z in chain.feedforward(PROBLEM.x)[1:-1]]
    energy = jpc.PCEnergy(precision=[jnp.asarray(p) for p in chain.precisions])
    posed = (energy, PROBLEM.layers, *jpc.clamp(hidden, PROBLEM.y, PROBLEM.x))
    with jax.enable_x64(False):
        inferred = infer(jpc.GradientFlow(t1=2000.0), *to(jnp.float32, posed))
    assert all(z.dtype == jnp.float32 for z in free(inferred))
    assert ended(inferred, jpc.RESULTS.successful)
    assert np.all(inferred.stats["t1"] < 2000)

    def size(hidden):
        states = [np.asarray(z, np.float64) for z in (PROBLEM.x, *hidden, PROBLEM.y)]
        return np.linalg.norm(np.concatenate(chain.activity_grads(states)[1:], axis=1), axis=1)

    assert np.all(size(free(inferred)) <= 2e-3 * size(hidden))


def test_a_minimiser_that_gets_no_further_is_not_at_a_minimum():
    """Unless the gradient is a hundredth of what it was, or rounding."""
    ended = jax.vmap(_confirm)(
        judge(jnp.asarray([True] * 4)),
        jnp.asarray([1.0, 1.0, 1e-9, 0.0]),
        jnp.asarray([9e-3, 1.5e-2, 1e-9, 1e-6]),
    )
    expected = [True, False, True, False]
    np.testing.assert_array_equal(ended == jpc.RESULTS.successful, expected)
