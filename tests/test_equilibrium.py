"""The solver for the equilibrium of inference, against closed forms, and predictive coding in
NumPy for everything without one.

Numbers are traced, and problems of equal sizes share compilations, some with those of
`test_agreement.py`.
"""

import dataclasses
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import (
    Chain,
    Problem,
    assert_close,
    infer,
    make_problem,
    scalings,
    slowly,
    to,
    weights,
)

import jpc
from jpc._energy import Unfolded
from jpc._inference import equilibrium as equilibrium_module
from jpc._inference.relax import Progress, rounding_of
from jpc._inference.sketch import Sketch

SIZES = (2, 4, 4, 5)
ONE_CHORD = jpc.Equilibrium(chords=1, max_steps=0)
CHORDS = jpc.Equilibrium(chords=5, max_steps=0)


def pc(*precisions):
    return jpc.PCEnergy(precision=[jnp.asarray(p) for p in precisions])


def pose(problem, chain=None):
    """Layers, a feedforward start, and clamps."""
    hidden = (chain or problem.chain()).feedforward(problem.x)[1:-1]
    return problem.layers, *jpc.clamp([jnp.asarray(z) for z in hidden], problem.y, problem.x)


def solve(problem, inference, energy=None, nodes=None):
    layers, start, clamps = pose(problem)
    energy = energy or pc(*[1.0] * len(layers))
    return infer(inference, energy, layers, nodes or start, clamps)


def states_of(problem, nodes):
    return [np.asarray(z) for z in (problem.x, *nodes[1:-1], problem.y)]


def energies(chain, states):
    """Of each example."""
    return np.array([chain.energy([z[i : i + 1] for z in states]) for i in range(len(states[0]))])


def gaps(chain, states):
    """The gradient of each example, relative to its errors."""
    predictions = [
        np.stack([chain.predict(layer, z) for z in states[layer - 1]])
        for layer in range(1, chain.depth)
    ]
    errors = [z - p for z, p in zip(states[1:-1], predictions, strict=True)]
    norm = lambda parts: np.sqrt(sum(np.sum(x**2, axis=1) for x in parts))
    return norm(chain.activity_grads(states)[1:]) / np.maximum(norm(errors), 1e-12)


def succeeded(inferred):
    return np.asarray(inferred.result == jpc.RESULTS.successful)


def assert_honest(problem, inferred, rtol, chain=None, start=None):
    """No energy is higher than before, and who succeeded has no gradient left: none to speak
    of, as the tolerance is for errors in other coordinates. What is said of it is what it is.
    """
    chain = chain or problem.chain()
    before = chain.feedforward(problem.x) if start is None else states_of(problem, start)
    before, after = [*before[:-1], np.asarray(problem.y)], states_of(problem, inferred.nodes)
    assert np.all(energies(chain, after) <= energies(chain, before) + 1e-12)
    assert np.all(gaps(chain, after)[succeeded(inferred)] <= 30 * rtol)
    assert np.all(inferred.stats["evaluations"] == inferred.stats["steps"] + 1)
    norm = lambda parts: np.sqrt(sum(np.sum(x**2, axis=1) for x in parts))
    relative = norm(chain.activity_grads(after)[1:]) / norm(after[1:-1])
    assert_close(inferred.stats["gradient_norm"], relative, rtol=1e-5, atol=1e-10)


def assert_converged(problem, inferred, rtol, chain=None):
    assert np.all(succeeded(inferred))
    assert_honest(problem, inferred, rtol, chain)


# --- linear networks: one step is the closed form ---


LINEAR = make_problem("linear", (3, 4, 4, 4, 2), gain=1.5)
KINDS = [slowly(("sp", False)), ("mupc", True)]


@dataclasses.dataclass
class Linear:
    """A kind of linear network, in the words of the core, of the paper's calls, and of NumPy."""

    param_type: str
    skips: bool

    def __post_init__(self):
        self.params = (LINEAR.model, jpc.make_skip_model(4) if self.skips else None)
        fan_ins = [3, 4, 4, 4]
        scale = lambda x: jnp.asarray(x) if isinstance(x, float) else x
        layers = jpc.parameterise(*self.params, fan_ins=fan_ins, param_type=self.param_type)
        self.layers = jax.tree.map(scale, layers)
        self.scales = scalings(self.param_type, fan_ins, skips=self.skips)

    def chain(self, precisions):
        return LINEAR.chain(scales=self.scales, skips=self.skips, precisions=list(precisions))

    def posed(self):
        return self.layers, *pose(LINEAR, self.chain([1.0] * 4))[1:]


@pytest.fixture(params=KINDS, ids=str)
def linear(request):
    return Linear(*request.param)


@pytest.mark.parametrize("precision", [1.0, 0.1])
def test_one_chord_is_the_closed_form(linear, precision):
    energy = pc(1.0, 1.0, 1.0, precision)
    nodes = infer(ONE_CHORD, energy, *linear.posed()).nodes
    options = dict(param_type=linear.param_type, output_energy_scaling=precision)
    data = (LINEAR.x, LINEAR.y)
    best = jpc.linear_equilib_energy(linear.params, *data, **options, return_rescaling=True)[0]
    value = linear.chain([1.0, 1.0, 1.0, precision]).energy(states_of(LINEAR, nodes))
    assert_close(value, best)
    solution = jpc.compute_linear_activity_solution(
        LINEAR.model, *data, use_skips=linear.skips, **options
    )
    assert_close(jax.tree.leaves(nodes), solution[:-1], atol=1e-10)


@pytest.mark.parametrize("precisions", [(0.5, 2.0, 1.0, 3.0), (10.0, 0.1, 1.0, 100.0)])
def test_one_chord_with_any_precisions(linear, precisions):
    states = states_of(LINEAR, infer(ONE_CHORD, pc(*precisions), *linear.posed()).nodes)
    grads = linear.chain(precisions).activity_grads(states)[1:]
    assert_close(grads, [np.zeros_like(g) for g in grads], atol=1e-10)


@pytest.mark.parametrize("precision", [1.0, 0.1])
def test_the_matrix_is_the_rescaling_of_the_theory(linear, precision):
    energy = pc(1.0, 1.0, 1.0, precision)
    prepared = eqx.filter_jit(jpc.Equilibrium.prepare)(ONE_CHORD, energy, *linear.posed())
    options = dict(param_type=linear.param_type, output_energy_scaling=precision)
    data = (LINEAR.x, LINEAR.y)
    _, rescaling = jpc.linear_equilib_energy(
        linear.params, *data, **options, return_rescaling=True
    )
    assert_close(precision * rescaling @ prepared.matrix.matrix, np.eye(2), atol=1e-10)


def test_a_prepared_matrix_serves_other_batches():
    other = dataclasses.replace(LINEAR, x=LINEAR.x[::-1] + 1.0, y=3.0 * LINEAR.y)
    posed = Linear("sp", False).posed()
    prepared = eqx.filter_jit(jpc.Equilibrium.prepare)(ONE_CHORD, pc(*[1.0] * 4), *posed)
    grads = other.chain().activity_grads(states_of(other, solve(other, prepared).nodes))[1:]
    assert_close(grads, [np.zeros_like(g) for g in grads], atol=1e-10)


def test_a_step_of_training_is_one_of_the_closed_form():
    params, optim = (LINEAR.model, None), optax.sgd(0.1)
    state = optim.init((eqx.filter(LINEAR.model, eqx.is_array), None))
    inference = jpc.Equilibrium(max_steps=0)
    step = jpc.make_pc_step(LINEAR.model, optim, state, LINEAR.y, LINEAR.x, inference=inference)
    grads, _ = jpc.compute_linear_equilib_energy_grads(params, LINEAR.x, LINEAR.y)
    expected = [w - 0.1 * g for w, g in zip(LINEAR.weights, weights(grads), strict=True)]
    assert_close(weights(step["model"]), expected, atol=1e-10)
    assert np.all(step["result"] == jpc.RESULTS.successful)


# --- hard cases ---


def large_inputs():
    problem = make_problem("tanh", SIZES)
    return dataclasses.replace(problem, x=100 * problem.x)


HARD = {
    "weights x 3": lambda: make_problem("tanh", SIZES, gain=3.0),
    "other weights x 3": lambda: make_problem("tanh", SIZES, gain=3.0, seed=1),
    "weights x 10, which need steps refused": lambda: make_problem(
        "tanh", SIZES, gain=10.0, seed=6
    ),
    "weights x 20, which need damping": lambda: make_problem("tanh", SIZES, gain=20.0, seed=7),
    "weights x 20, where chords settle": lambda: make_problem("tanh", SIZES, gain=20.0, seed=1),
    "saturated units": large_inputs,
}


@pytest.mark.parametrize("rtol", [1e-3, 1e-8])
@pytest.mark.parametrize("name", HARD)
def test_hard_cases_converge(name, rtol):
    problem = HARD[name]()
    assert_converged(problem, solve(problem, jpc.Equilibrium(rtol=rtol)), rtol)


@pytest.mark.parametrize("chords", [slowly(1), 5])
@pytest.mark.parametrize("name", HARD)
def test_chords_alone_are_honest(name, chords):
    problem = HARD[name]()
    inferred = solve(problem, jpc.Equilibrium(chords=chords, max_steps=0))
    assert_honest(problem, inferred, 1e-2)


def test_equilibrium_itself_stays():
    problem = HARD["weights x 3"]()
    found = solve(problem, jpc.Equilibrium(rtol=1e-8))
    for inference, successful in ((jpc.Equilibrium(rtol=1e-8), True), (CHORDS, False)):
        again = solve(problem, inference, nodes=found.nodes)
        assert np.all(succeeded(again)) == successful
        assert_honest(problem, again, 1e-8, start=found.nodes)
        assert_close(again.nodes, found.nodes, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_kinks_are_no_obstacle(gain):
    for seed in range(3):
        problem = make_problem("relu", SIZES, gain=gain, seed=seed)
        inferred = solve(problem, jpc.Equilibrium())
        chain = problem.chain()
        before = [*chain.feedforward(problem.x)[:-1], np.asarray(problem.y)]
        after = states_of(problem, inferred.nodes)
        assert np.all(energies(chain, after) <= energies(chain, before) + 1e-12)
        assert np.all(succeeded(inferred))


def test_rounding_is_no_reason_to_go_on():
    """In single precision the loss of a confident prediction is a small difference of large
    numbers. An example that is at equilibrium but for that needs no more steps.
    """
    problem = make_problem("tanh", (3, 20, 20, 5), gain=20.0, batch=32, seed=1)
    layers, nodes, clamps = pose(problem)
    sure = jax.vmap(lambda z: jpc.feedforward(problem.layers, z))(problem.x)[-1]
    clamps[-1] = jax.nn.one_hot(jnp.argmax(sure, axis=1), 5, dtype=sure.dtype)
    posed = to(jnp.float32, (jpc.PCEnergy(jpc.cross_entropy), layers, nodes, clamps))
    inferred = infer(jpc.Equilibrium(), *posed)
    assert np.all(succeeded(inferred))
    assert np.max(inferred.stats["steps"]) <= 24  # Of which 16 are those of the batch.


def test_an_accelerator_may_round_products_more(monkeypatch):
    """As much as its matrix products may be off is not held against an example, unless they
    are asked to be precise.
    """
    loss = lambda prediction: 2.0 * jnp.sum(prediction**2)
    prediction = jnp.arange(1.0, 6.0, dtype=jnp.float32)
    rounding = lambda: np.abs(rounding_of(loss, prediction))
    mine = rounding()
    np.testing.assert_allclose(mine, 8 * 2.0**-23 * 4 * prediction, rtol=1e-5)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(rounding(), mine * 2.0**-10 / 2.0**-23, rtol=1e-5)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_array_equal(rounding(), mine)


# --- depth ---


@pytest.mark.parametrize("chords", [slowly(4), None])
def test_chords_in_a_loop_are_the_same(chords, monkeypatch):
    """As in deep networks, with the same gradients through them."""
    posed = pose(make_problem("tanh", SIZES))
    method = jpc.Equilibrium(rtol=1e-4, chords=chords, max_steps=0, throw=False)

    def learned(weight):
        layers = eqx.tree_at(lambda p: p[0].fn.layers[1].weight, posed[0], weight)
        inferred = method(jpc.PCEnergy(), layers, *posed[1:])
        return jpc.PCEnergy()(layers, inferred.nodes, posed[2]), inferred

    weight = posed[0][0].fn.layers[1].weight
    results = []
    for deep in (equilibrium_module._DEEP, 0):
        monkeypatch.setattr(equilibrium_module, "_DEEP", deep)
        (energy, inferred), gradient = jax.value_and_grad(learned, has_aux=True)(weight)
        results.append((energy, gradient, inferred.nodes, inferred.lesson[1], inferred.stats))
    assert_close(*results, rtol=1e-12)


class Dense(eqx.Module):
    weight: jax.Array
    act: Callable

    def __call__(self, z):
        return self.weight @ self.act(z)


def _same(z):
    return z


def deep(depth, param_type, width=4, batch=4):
    """A problem, its layers, and the same in NumPy; with skips if there are many layers."""
    rng, skips = np.random.default_rng(0), param_type == "mupc"
    sizes = [3, *[width] * (depth - 1), 2]
    spread = lambda n: 1.0 if skips else (3 * n) ** -0.5
    matrices = [spread(n) * rng.normal(size=(m, n)) for n, m in itertools.pairwise(sizes)]
    acts = [_same, *[jnp.tanh] * (depth - 1)]
    model = [Dense(jnp.asarray(w), act) for w, act in zip(matrices, acts, strict=True)]
    skip_model = jpc.make_skip_model(depth) if skips else None
    layers = jpc.parameterise(model, skip_model, fan_ins=sizes[:-1], param_type=param_type)
    scales = scalings(param_type, sizes[:-1], skips=skips)
    x, y = jnp.asarray(rng.normal(size=(batch, 3))), jnp.asarray(np.eye(2)[np.arange(batch) % 2])
    problem = Problem(model, x, y, [])
    return problem, layers, Chain(matrices, "tanh", scales=scales, skips=skips)


@pytest.mark.parametrize("param_type", ["sp", slowly("mupc")])
@pytest.mark.parametrize("depth", [18, slowly(30), slowly(100)])  # Chords in a loop.
def test_deep_networks(depth, param_type):
    problem, layers, chain = deep(depth, param_type)
    nodes, clamps = pose(problem, chain)[1:]
    inferred = infer(jpc.Equilibrium(chords=2, max_steps=0), jpc.PCEnergy(), layers, nodes, clamps)
    assert_honest(problem, inferred, 1e-2, chain)
    before, after = (energies(chain, states_of(problem, z)) for z in (nodes, inferred.nodes))
    assert np.mean(after) < np.mean(before)


# --- the size of the output ---


WIDE = make_problem("tanh", (3, 4, 784), batch=3, gain=2.0)


@pytest.mark.parametrize(
    "inference",
    [
        pytest.param(jpc.Equilibrium(rtol=1e-6), marks=pytest.mark.slow),
        jpc.Equilibrium(1e-6, dense=0),
    ],
)
def test_a_large_output(inference):
    assert_converged(WIDE, solve(WIDE, inference), 1e-6)


def test_a_sketch_is_enough_for_a_large_output(monkeypatch):
    """Of less than its rank, and no example by itself."""
    monkeypatch.setattr(equilibrium_module, "_DEEP", 0)  # Forty chords are long to compile.
    method = jpc.Equilibrium(rtol=1e-6, chords=40, max_steps=0, dense=1)
    inferred = solve(WIDE, method, pc(1.0, 1e-3))
    assert_converged(WIDE, inferred, 1e-6, WIDE.chain(precisions=[1.0, 1e-3]))


@pytest.mark.parametrize("shared", [1, slowly(None)])
def test_iterations_with_a_sketch_stay_finite(shared):
    """Too few of them, and far too strong an output."""
    method = jpc.Equilibrium(chords=2, max_steps=0, dense=1, shared=shared)
    inferred = solve(WIDE, method, pc(1.0, 1e4))
    lesson = jax.tree.leaves(inferred.lesson[1])
    assert all(np.all(np.isfinite(x)) for x in lesson)
    assert_honest(WIDE, inferred, 1e-2, WIDE.chain(precisions=[1.0, 1e4]))


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(jpc.squared_error, marks=pytest.mark.slow),
        jpc.cross_entropy,
        pytest.param(jpc.bernoulli, marks=pytest.mark.slow),
    ],
)
def test_a_sketch_of_full_rank_is_the_matrix(loss):
    """Of a matrix of rank 4 with 6 columns, and the answer for any loss."""
    problem = make_problem("tanh", (3, 4, 6), batch=1)
    layers, nodes, clamps = pose(problem)
    network = jpc.PCEnergy(loss).network(layers)
    unfolded, free, given = Unfolded.of(network, nodes, clamps)
    t = jnp.arange(6.0)

    @jax.jit
    def found(free, given):
        A, H = equilibrium_module.derivatives(unfolded, free, given)
        sketch = Sketch.of(unfolded, free, given, rank=5)
        yhat = unfolded.predict(free, given)[0][2]
        of = lambda y: unfolded.loss({2: y}, given)
        solved = [s.solve(of, yhat, t) for s in (sketch, sketch.invert(of, yhat))]
        return A, H, sketch(t), *solved

    A, H, product, *solved = found(*jax.tree.map(lambda x: x[0], (free, given)))
    assert_close(product, A @ t, rtol=1e-8, atol=1e-8)
    expected = np.linalg.solve(np.eye(6) + H @ A, t)
    assert_close(solved, [expected, expected], rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_examples_that_go_on_by_themselves_keep_their_places():
    """More of them than are taken at a time."""
    problem = make_problem("tanh", SIZES, batch=20, gain=3.0)
    layers, nodes, clamps = pose(problem)
    method = jpc.Equilibrium(rtol=1e-8, chords=1)
    whole = infer(method, pc(1.0, 1.0, 1.0), layers, nodes, clamps)
    assert_converged(problem, whole, 1e-8)
    last = jax.tree.map(lambda x: x[-1:], (nodes, clamps))
    alone = infer(method, pc(1.0, 1.0, 1.0), layers, *last)
    assert_close(whole.nodes[1][-1:], alone.nodes[1], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_one_output_under_vmap_and_scan():
    """A scan over two pairs of problems, the pairs mapped over."""
    problems = [make_problem("tanh", (3, 4, 1), gain=gain) for gain in (1.0, 2.0, 4.0, 8.0)]
    stack = lambda *x: jnp.stack(x).reshape(2, 2, *x[0].shape) if eqx.is_array(x[0]) else x[0]
    stacked = jax.tree.map(stack, *map(pose, problems))
    xs, rest = eqx.partition(stacked, eqx.is_array)

    one = lambda x: jpc.Equilibrium(rtol=1e-8)(pc(1.0, 1.0), *eqx.combine(x, rest))
    scan = jax.jit(lambda xs: jax.lax.scan(lambda _, x: (None, jax.vmap(one)(x)), None, xs)[1])
    inferred = scan(xs)
    for i, problem in enumerate(problems):
        mine = jax.tree.map(lambda x: x[i // 2, i % 2], inferred)  # noqa: B023
        assert_converged(problem, mine, 1e-8)
        energy, nodes = mine.lesson
        learned = eqx.filter_grad(energy)(problem.layers, nodes, pose(problem)[2])
        states = states_of(problem, mine.nodes)
        found = [layer.fn.layers[1].weight for layer in learned]
        assert_close(found, problem.chain().weight_grads(states), rtol=1e-5)


# --- the rest of the batch ---


def pick(problem, which):
    x, y = (jnp.asarray(np.asarray(z)[which]) for z in (problem.x, problem.y))
    return dataclasses.replace(problem, x=x, y=y)


def test_duplicates_get_the_same_answer():
    problem = HARD["weights x 3"]()
    z = jax.tree.leaves(solve(pick(problem, [0, 1, 0, 2, 1]), jpc.Equilibrium()).nodes)
    assert_close([x[:2] for x in z], [x[np.array([2, 4])] for x in z])


def test_examples_do_not_matter_to_one_another():
    """With matrices of their own, in any company and in any order."""
    problem, inference = HARD["weights x 3"](), dataclasses.replace(CHORDS, shared=None)
    nodes = solve(problem, inference).nodes
    for which in ([3, 1, 4, 0, 2], [2, 2, 0, 2, 2]):
        again = solve(pick(problem, which), inference).nodes
        assert_close(again, jax.tree.map(lambda z: z[np.array(which)], nodes))  # noqa: B023


def test_chords_of_a_processor_are_as_many_as_it_takes():
    """A second one says how far off the first was: that is the least, and a tight tolerance takes
    more. An accelerator, which would have to wait for the answer, takes a fixed number.
    """
    problem = HARD["weights x 3"]()
    loose, tight = (
        solve(problem, jpc.Equilibrium(rtol=rtol, max_steps=0)).stats for rtol in (0.9, 1e-6)
    )
    assert np.max(loose["steps"]) == 2
    assert np.max(tight["steps"]) > equilibrium_module._FEW


def test_examples_share_no_more_than_a_matrix():
    """In any company, up to the tolerance."""
    problem = HARD["weights x 3"]()
    tight = jpc.Equilibrium(rtol=1e-10)
    nodes = solve(problem, tight).nodes
    for which in ([3, 1, 4, 0, 2], [2, 2, 0, 2, 2]):
        again = solve(pick(problem, which), tight).nodes
        assert_close(again, jax.tree.map(lambda z: z[np.array(which)], nodes), atol=1e-8)  # noqa: B023


@pytest.mark.parametrize("seed", [7, 13, 22])
def test_the_first_of_a_batch_do_not_lead_others_to_another_equilibrium(seed):
    """Such a network has several. The matrix is of the first four examples, and here each order
    of the batch has other ones.
    """
    keys = jr.split(jr.key(seed), 3)
    model = jpc.make_mlp(keys[0], 6, 10, 4, 3, "gelu", use_bias=True)
    steep = lambda w: 3 * w if eqx.is_array(w) and w.ndim == 2 else w
    x, y = jr.normal(keys[1], (16, 6)), 2 * jr.normal(keys[2], (16, 3))
    energy, model = jpc.PCEnergy(), jax.tree.map(steep, model)
    posed = jpc.pose(energy, model, {0: x, 4: y})
    turn = lambda tree: jax.tree.map(lambda z: z[::-1], tree)
    method = jpc.Equilibrium()
    found = infer(method, energy, model, *posed).nodes
    turned = infer(method, energy, model, *turn(posed)).nodes
    assert_close(turn(turned), found, rtol=0, atol=0.2)


# --- learning ---


@eqx.filter_jit
def learning_gradient(energy, layers, nodes, clamps):
    return eqx.filter_grad(energy)(layers, nodes, clamps)


def test_learning_gradient_is_that_of_the_equilibrium_energy():
    """The envelope theorem, by finite differences."""
    problem, tight = make_problem("tanh", SIZES, gain=2.0), jpc.Equilibrium(rtol=1e-10)
    energy, nodes = solve(problem, tight).lesson
    grads = learning_gradient(energy, problem.layers, nodes, pose(problem)[2])
    for layer, index in ((0, (1, 0)), (1, (2, 3)), (2, (4, 1))):

        def value(change, layer=layer, index=index):
            where = lambda m: m[layer].layers[1].weight
            weight = where(problem.model).at[index].add(change)
            moved = dataclasses.replace(problem, model=eqx.tree_at(where, problem.model, weight))
            return moved.chain().energy(states_of(moved, solve(moved, tight).nodes))

        slope = (value(1e-5) - value(-1e-5)) / 2e-5
        assert_close(grads[layer].fn.layers[1].weight[index], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_single_precision():
    problem = make_problem("tanh", (3, 4, 1), gain=3.0)
    energy = pc(1.0, 1.0)
    inferred = infer(jpc.Equilibrium(), *to(jnp.float32, (energy, *pose(problem))))
    assert all(z.dtype == jnp.float32 for z in jax.tree.leaves(inferred.nodes))
    assert np.all(succeeded(inferred))
    states = states_of(problem, to(jnp.float64, inferred.nodes))
    assert np.all(gaps(problem.chain(), states) < 1e-2)


@eqx.filter_jit
def train(energy, layers, nodes, clamps, steps=30):
    """A few steps at equilibrium, all on the same batch."""
    optim, chords = optax.adam(1e-2), jpc.Equilibrium(chords=2, max_steps=0)
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)

    def step(carry, _):
        layers = eqx.combine(carry[0], rest)
        local, at = chords(energy, layers, nodes, clamps).lesson
        learned = jpc.learn(local, layers, at, clamps, optim=optim, opt_state=carry[1])
        return (eqx.filter(learned.params, eqx.is_inexact_array), learned.opt_state), None

    (weights, _), _ = jax.lax.scan(step, (weights, optim.init(weights)), length=steps)
    return eqx.combine(weights, rest)


@pytest.mark.slow
def test_errors_that_were_solved_for_are_better_to_learn_from():
    """In single precision, in a deep network: than differences of states and predictions."""
    problem, layers, chain = deep(10, "sp", width=8)
    nodes, clamps = pose(problem, chain)[1:]
    energy = pc(*[1.0] * 9, 0.001)
    posed = (energy, train(energy, layers, nodes, clamps), nodes, clamps)
    chords = jpc.Equilibrium(rtol=1e-4, chords=5, shared=None, max_steps=0)

    def solved(dtype):
        return to(dtype, posed), infer(chords, *to(dtype, posed))

    (_, layers, *_), exact = solved(jnp.float64)
    matrices = [np.asarray(layer.fn.weight) for layer in layers]
    chain = Chain(matrices, "tanh", precisions=[1.0] * 9 + [0.001])
    best = chain.weight_grads(states_of(problem, exact.nodes))
    (energy, layers, _, clamps), inferred = solved(jnp.float32)
    assert np.all(succeeded(exact)) and np.all(succeeded(inferred))

    def worst(energy, nodes):
        """The relative error of the worst layer."""
        grads = learning_gradient(energy, layers, nodes, clamps)
        pairs = zip(jax.tree.leaves(grads), best, strict=True)
        return max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs)

    assert worst(*inferred.lesson) < 5e-5
    assert worst(*inferred.lesson) < 0.5 * worst(energy, inferred.nodes)


# --- misuse ---


class Custom(jpc.AbstractEnergy):
    def terms(self, params, nodes, clamps):
        return jpc.PCEnergy().terms(params, nodes, clamps)


@pytest.mark.parametrize(
    "energy",
    [Custom(), jpc.PCEnergy() + jpc.ActivityDecay(0.1), jpc.ActivityDecay(0.1) + jpc.PCEnergy()],
)
def test_other_energies_are_refused(energy):
    with pytest.raises(TypeError, match="GradientFlow, Descent or Minimise"):
        jpc.Equilibrium()(energy, *pose(LINEAR))
    with pytest.raises(TypeError, match="GradientFlow, Descent or Minimise"):
        jpc.EPCEnergy(energy)


def test_there_is_nothing_to_record():
    with pytest.raises(ValueError, match="no dynamics to record"):
        jpc.Equilibrium()(jpc.PCEnergy(), *pose(LINEAR), record=jpc.Record(length=3))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(chords=0, max_steps=0), "at least one chord"),
        (dict(chords=-1), "chords must be a whole number of at least 0"),
        (dict(shared=0), "shared must be"),
    ],
)
def test_misuse_is_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        jpc.Equilibrium(**kwargs)


# --- what it does not do, and corners ---


def free_pose(sizes=SIZES):
    problem = make_problem(sizes=sizes)
    layers, (_, *nodes), (_, *clamps) = pose(problem)
    return layers, [problem.x, *nodes], [None, *clamps]


@pytest.mark.slow
def test_two_priors_are_one():
    posed, prior = free_pose(), jpc.GaussianPrior
    one, two = jpc.PCEnergy() + prior(0.75), jpc.PCEnergy() + prior(0.5) + prior(0.25)
    found, expected = (infer(jpc.Equilibrium(rtol=1e-9), e, *posed) for e in (two, one))
    assert_close(jax.tree.leaves(found.nodes), jax.tree.leaves(expected.nodes))
    assert np.all(found.stats["gradient_norm"] < 1e-8)


@pytest.mark.slow
def test_a_prior_of_nothing_is_none():
    posed = free_pose()
    flat, none = jpc.PCEnergy() + jpc.GaussianPrior(0.0), jpc.PCEnergy()
    found, expected = (infer(jpc.Equilibrium(rtol=1e-9), e, *posed) for e in (flat, none))
    assert_close(jax.tree.leaves(found.nodes), jax.tree.leaves(expected.nodes))


def test_nothing_is_learned_from_what_is_not_finite():
    layers, nodes, clamps = pose(make_problem(sizes=(3, 4, 4, 2)))
    with pytest.raises(RuntimeError, match="What there is to learn is not finite"):
        energy = jpc.PCEnergy(precision=[1.0, jnp.array([0.0, 1.0, 1.0, 1.0]), 1.0])
        infer(jpc.Equilibrium(max_steps=0), energy, layers, nodes, clamps)


def test_a_free_input_of_one_layer():
    """Ridge regression."""
    problem = make_problem(sizes=(2, 3))
    (weight,) = (np.asarray(w) for w in problem.weights)
    energy = jpc.PCEnergy() + jpc.GaussianPrior(0.5)
    posed = (problem.layers, *jpc.clamp([problem.x], problem.y))
    inferred = infer(jpc.Equilibrium(rtol=1e-9), energy, *posed)
    ridge = np.linalg.solve(weight.T @ weight + 0.5 * np.eye(2), weight.T @ problem.y.T).T
    assert_close(inferred.nodes[0], ridge)


@pytest.mark.slow
def test_chords_that_are_not_taken_are_not_counted():
    posed = pose(make_problem(sizes=SIZES))
    steps = [
        infer(jpc.Equilibrium(chords=k, dense=0), jpc.PCEnergy(), *posed).stats["steps"]
        for k in (0, 5)
    ]
    assert_close(*steps)


def test_a_tolerance_is_positive():
    with pytest.raises(ValueError, match="rtol must be a finite number above 0, got -1"):
        jpc.Equilibrium(rtol=-1)


@pytest.mark.parametrize(
    ("energy", "gap", "stalled"), [(0.99, 2.0, 0), (0.9995, 2.0, 4), (1.0, 0.4, 0), (1.0, 0.6, 4)]
)
def test_a_descent_goes_on_by_a_thousandth_of_its_energy_or_half_of_its_gap(energy, gap, stalled):
    new = Progress(*map(jnp.asarray, (1.0, 1.0, 3))).update(jnp.asarray(energy), jnp.asarray(gap))
    assert new.stalled == stalled
    assert new.gap == (1.0 if stalled else gap)


def test_a_descent_in_single_precision_where_the_output_is_very_sensitive():
    """Tr A is 3e4 here, and a linear network is solved by one step of Gauss and Newton. As a
    difference of large numbers that step would be rounding, and take several more.
    """
    draw = lambda seed, *size: np.random.default_rng(seed).normal(size=size)
    layers = [
        jax.tree_util.Partial(jnp.matmul, 5 / 6**0.5 * jnp.asarray(draw(i, 6, 6)))
        for i in range(4)
    ]
    clamps = {0: jnp.full((3, 6), 1e-3), 4: jnp.asarray(draw(9, 3, 6))}
    problem = to(jnp.float32, (layers, *jpc.pose(jpc.PCEnergy(), layers, clamps)))
    inferred = jpc.Equilibrium(chords=0)(jpc.PCEnergy(), *problem)
    assert jnp.all(inferred.result == jpc.RESULTS.successful)
    assert inferred.stats["steps"].tolist() == [1, 1, 1]


def test_what_is_infinite_is_not_the_same_but_for_rounding(monkeypatch):
    """However large the rounding of such energies is."""
    iterate = jpc.Equilibrium._iterate

    def spoilt(self, *args):
        found = iterate(self, *args)
        return found._replace(v=jax.tree.map(lambda z: jnp.full_like(z, jnp.inf), found.v))

    monkeypatch.setattr(jpc.Equilibrium, "_iterate", spoilt)
    jax.clear_caches()
    model = jpc.make_mlp(jr.key(0), 3, 4, 3, 2, "tanh")
    problem = jpc.pose(jpc.PCEnergy(), model, {0: jnp.ones((2, 3)), 3: jnp.ones((2, 2))})
    inferred = jpc.Equilibrium(chords=2, max_steps=0)(jpc.PCEnergy(), model, *problem)
    jax.clear_caches()
    assert_close(inferred.nodes, problem[0])
    assert jnp.all(inferred.result == jpc.RESULTS.stopped_early)
