"""Networks of predictions: chains by another name, precisions, penalties, and energies of one's
own, against NumPy, finite differences, and long descent.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from graph_helpers import Mix, examples, learned, succeeded, value_and_grads
from helpers import SIZES, Chain, assert_close, infer, make_problem, slowly

import jpc

PROBLEM = make_problem(gain=1.5)
TIGHT = jpc.Equilibrium(rtol=1e-9)
CHORDS = jpc.Equilibrium(chords=2, max_steps=0)
DESCENT = jpc.Descent(optax.sgd(0.1), 20_000, rtol=1e-13)


# --- precisions ---


PRECISIONS = [[0.5, 3.0, 0.2, 1.5], 2.0, [4.0, 0.3]]  # Of each unit, or of a layer.


def as_arrays(precisions=PRECISIONS):
    return [jnp.asarray(p) for p in precisions]


def spread(precisions=PRECISIONS, sizes=SIZES):
    """One for each unit of each layer, for NumPy."""
    return [np.broadcast_to(p, n) for p, n in zip(precisions, sizes[1:], strict=True)]


class PreciseChain(Chain):
    """A chain whose precisions are those of units."""

    def energy_of(self, layer, target, prediction):
        return 0.5 * np.sum(self.precisions[layer - 1] * (target - prediction) ** 2)


def numpy_chain(problem, precisions):
    return PreciseChain([np.asarray(w) for w in problem.weights], precisions=precisions)


def test_precisions_of_units_are_those_of_numpy():
    energy, posed = jpc.PCEnergy(precision=as_arrays()), PROBLEM.posed()
    chain, states = numpy_chain(PROBLEM, spread()), PROBLEM.states
    value, by_nodes, by_params = value_and_grads(energy, *posed)
    assert_close(value, chain.energy(states))
    assert_close(energy.layerwise(*posed), list(chain.energies(states)))
    batch = len(PROBLEM.x)
    assert_close([batch * g for g in jax.tree.leaves(by_nodes)], chain.activity_grads(states)[1:])
    assert_close([m.fn.layers[1].weight for m in by_params], chain.weight_grads(states))


def test_precisions_of_equal_widths_are_no_weights_of_the_output():
    """Each of them counts inside of its own sum."""
    problem = make_problem(sizes=(3, 3, 3, 3))
    precisions = [[0.5, 1.0, 2.0], [3.0, 1.0, 0.1], [1.0, 4.0, 0.2]]
    chain = numpy_chain(problem, spread(precisions, (3, 3, 3, 3)))
    for given in (as_arrays(precisions), jnp.asarray(precisions)):
        value = jpc.PCEnergy(precision=given)(*problem.posed())
        assert_close(value, chain.energy(problem.states))


def test_errors_with_precisions_of_units():
    """The same energy in other coordinates, with the same gradient to learn from."""
    energy, (layers, nodes, clamps) = jpc.PCEnergy(precision=as_arrays()), PROBLEM.posed()
    z, chain = PROBLEM.states, PROBLEM.chain()
    predict = lambda layer: np.stack([chain.predict(layer, x) for x in z[layer - 1]])
    errors = [None, *(jnp.asarray(z[layer] - predict(layer)) for layer in (1, 2)), None]
    value, _, grads = value_and_grads(energy, layers, nodes, clamps)
    in_errors = value_and_grads(jpc.EPCEnergy(energy), layers, errors, clamps)
    assert_close(in_errors[0], value)
    assert_close(jax.tree.leaves(in_errors[2]), jax.tree.leaves(grads))


@pytest.mark.parametrize("shape", [(1,), (3,), (4, 4)])
@pytest.mark.parametrize("layer", [1, 2])
def test_a_precision_of_another_shape(shape, layer):
    precision = [1.0, 1.0, 1.0]
    precision[layer] = jnp.ones(shape)
    energy, posed = jpc.PCEnergy(precision=precision), PROBLEM.posed()
    for fn in (energy, jpc.EPCEnergy(energy), lambda *args: TIGHT(energy, *args)):
        with pytest.raises(ValueError, match="shape") as caught:
            fn(*posed)
        state = (SIZES[layer + 1],)
        assert str(shape) in str(caught.value) and str(state) in str(caught.value)


def test_precisions_of_units_are_of_squares():
    energy = jpc.PCEnergy(jpc.cross_entropy, [1.0, 1.0, jnp.ones(2)])
    for fn in (energy, lambda *args: TIGHT(energy, *args)):
        with pytest.raises(ValueError, match="for the squared error: with another loss"):
            fn(*PROBLEM.posed())


# --- the chain as a graph ---


def as_graph(problem, precisions, loss=jpc.squared_error):
    """Its energy, parameters, nodes and clamps, in words."""
    names = [f"z{i}" for i in range(len(SIZES))]
    energy = jpc.GraphEnergy(
        {name: [before] for before, name in itertools.pairwise(names)},
        loss={names[-1]: loss},
        precision=dict(zip(names[1:], precisions, strict=True)),
    )
    params = dict(zip(names[1:], problem.layers, strict=True))
    return energy, params, *(dict(zip(names, tree, strict=True)) for tree in problem.posed()[1:])


def leaves(tree):
    """Of a list, or of a dictionary in the order of its names."""
    return jax.tree.leaves(tree)


def test_a_chain_is_a_graph():
    """In its energy and its gradients, anywhere and next to equilibrium."""
    energy, posed = jpc.PCEnergy(precision=as_arrays()), PROBLEM.posed()
    graph, *graphed = as_graph(PROBLEM, as_arrays())
    for one, other in zip(
        value_and_grads(graph, *graphed), value_and_grads(energy, *posed), strict=True
    ):
        assert_close(leaves(one), leaves(other), rtol=1e-13)
    assert_same_lessons((graph, *graphed), (energy, *posed), CHORDS)


def assert_same_lessons(graphed, posed, method):
    """Returns those of the chain, and where it ended."""
    found, chain = infer(method, *graphed), infer(method, *posed)
    assert_close(leaves(found.nodes), leaves(chain.nodes), rtol=1e-12)
    lessons = [learned(found, graphed[1], graphed[3]), learned(chain, posed[1], posed[3])]
    assert_close(*map(leaves, lessons), atol=1e-11)
    return lessons[1], chain


@pytest.mark.slow
def test_a_chain_and_its_graph_end_where_descent_does():
    energy, posed = jpc.PCEnergy(precision=as_arrays()), PROBLEM.posed()
    graphed = as_graph(PROBLEM, as_arrays())
    lesson, chain = assert_same_lessons(graphed, (energy, *posed), TIGHT)
    assert np.all(succeeded(chain))
    descended = infer(DESCENT, energy, *posed)
    assert_close(leaves(chain.nodes), leaves(descended.nodes), atol=1e-7)
    _, _, grads = value_and_grads(energy, posed[0], descended.nodes, posed[2])
    assert_close(leaves(lesson), leaves(grads), atol=1e-7)


def test_a_chain_is_a_graph_with_another_loss():
    energy = jpc.PCEnergy(jpc.cross_entropy, [1.0, 2.0, 0.5])
    graph, *graphed = as_graph(PROBLEM, [1.0, 2.0, 0.5], jpc.cross_entropy)
    results = value_and_grads(graph, *graphed), value_and_grads(energy, *PROBLEM.posed())
    assert_close(*map(leaves, results), rtol=1e-13)


# --- precisions that are learned ---


LOGS = [0.3, [0.1, -0.2, 0.5, 0.7], [-0.4, 0.9]]


def with_precisions(logs=LOGS, problem=PROBLEM):
    pairs = zip(problem.model, logs, strict=True)
    return [jpc.Precise(layer, jnp.asarray(log)) for layer, log in pairs]


def surprise(logs, states):
    """The energy with the logarithms of the precisions, in NumPy."""
    precisions = spread([np.exp(log) for log in logs])
    return numpy_chain(PROBLEM, precisions).energy(states) - 0.5 * np.sum(np.hstack(spread(logs)))


def moved(logs, layer, index, change):
    logs = [np.array(log) for log in logs]
    logs[layer][index] += change
    return logs


@pytest.mark.parametrize(("layer", "index"), [(0, ()), (1, 2), (2, 0)])
def test_precisions_are_learned(layer, index):
    """Anywhere, and at equilibrium, where it is also the slope of the energy at equilibrium."""
    _, nodes, clamps = PROBLEM.posed()
    energy, states, params = jpc.PrecisionEnergy(), PROBLEM.states, with_precisions()
    value, _, grads = value_and_grads(energy, params, nodes, clamps)
    assert_close(value, surprise(LOGS, states))
    difference = lambda fn, h: (
        (fn(moved(LOGS, layer, index, h)) - fn(moved(LOGS, layer, index, -h))) / (2 * h)
    )
    expected = difference(lambda logs: surprise(logs, states), 1e-5)
    assert_close(grads[layer].log_precision[index], expected, rtol=1e-8, atol=1e-8)

    found = infer(TIGHT, energy, params, nodes, clamps)
    lesson = learned(found, params, clamps)
    _, _, grads = value_and_grads(energy, params, found.nodes, clamps)
    assert_close(leaves(lesson), leaves(grads), atol=1e-8)

    def settled(logs):
        nodes_ = infer(TIGHT, energy, with_precisions(logs), nodes, clamps).nodes
        return surprise(logs, [PROBLEM.states[0], *map(np.asarray, nodes_[1:-1]), PROBLEM.y])

    slope = difference(settled, 1e-4)
    assert_close(lesson[layer].log_precision[index], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_precisions_are_learned_from_a_part():
    """Units that are inferred count as those that are given do, as in every other layer."""
    _, hidden, _ = PROBLEM.posed()
    energy, params = jpc.PrecisionEnergy(), with_precisions()
    mask = jnp.asarray(np.random.default_rng(0).random(PROBLEM.y.shape) < 0.5)
    nodes, clamps = jpc.clamp([*hidden[1:-1], PROBLEM.y + 1], PROBLEM.y, PROBLEM.x, mask=mask)
    states = [*PROBLEM.states[:-1], np.asarray(PROBLEM.y + ~mask)]
    value, _, _ = value_and_grads(energy, params, nodes, clamps)
    assert_close(value, surprise(LOGS, states))
    found = infer(jpc.Equilibrium(rtol=1e-9, max_steps=50), energy, params, nodes, clamps)
    _, by_nodes, grads = value_and_grads(energy, params, found.nodes, clamps)
    assert np.all(succeeded(found))
    assert_close(by_nodes, jax.tree.map(np.zeros_like, by_nodes), atol=1e-8)
    assert_close(leaves(learned(found, params, clamps)), leaves(grads), atol=1e-8)


SPREADS = np.array([0.1, 0.5, 2.0])


def regression(points=4000):
    """Linear data with noise, and the network that made it. A hidden layer of great precision
    keeps its errors small, so that those of the output are all there is.
    """
    rng = np.random.default_rng(0)
    first, last = rng.normal(size=(4, 2)), rng.normal(size=(3, 4))
    x = rng.normal(size=(points, 2))
    y = x @ first.T @ last.T + SPREADS * rng.normal(size=(points, 3))
    weights = [[jnp.asarray(first)], [jnp.asarray(last)]]
    linear = [Linear(*w) for w in weights]
    precise = [jpc.Precise(linear[0], jnp.asarray(16.0)), jpc.Precise(linear[1], jnp.zeros(3))]
    return precise, jnp.asarray(x), jnp.asarray(y)


class Linear(eqx.Module):
    weight: jax.Array

    def __call__(self, z):
        return self.weight @ z


@pytest.mark.parametrize("inference", [CHORDS, jpc.Descent(optax.sgd(1e-7), 2)])
def test_the_noise_of_data_is_recovered(inference):
    """By steps of training in which nothing but the precision of the output is learned."""
    model, x, y = regression()
    labels = jax.tree.map(lambda _: "fixed", (eqx.filter(model, eqx.is_array), None))
    labels = eqx.tree_at(lambda p: p[0][-1].log_precision, labels, "learned")
    optim = optax.partition({"learned": optax.adam(0.2), "fixed": optax.set_to_zero()}, labels)
    state = optim.init((eqx.filter(model, eqx.is_array), None))
    for _ in range(60):
        step = jpc.make_pc_step(
            model, optim, state, y, x, energy=jpc.PrecisionEnergy(), inference=inference
        )
        model, state = step["model"], step["opt_state"]
    assert_close(np.exp(-0.5 * model[-1].log_precision), SPREADS, rtol=0.05)
    assert_close([m.fn.weight for m in model], [m.fn.weight for m in regression()[0]])


# --- penalties ---


class L1(jpc.AbstractPenalty):
    """Somebody's own."""

    def penalty(self, params):
        arrays = jax.tree.leaves(eqx.filter(params, eqx.is_inexact_array))
        return [0.3 * jnp.sum(jnp.abs(w)) for w in arrays]


SUMS = {
    "after": lambda pc, one, other: pc + one + other,
    "before": lambda pc, one, other: one + (other + pc),
    "between": lambda pc, one, other: (one + pc) + other,
}


@pytest.mark.parametrize("order", [slowly("after"), slowly("before"), "between"])
def test_penalties_are_learned_from(order):
    """In any order: they add their own gradient to that of the errors, and nothing else."""
    layers, nodes, clamps = PROBLEM.posed()
    energy = SUMS[order](jpc.PCEnergy(), jpc.WeightDecay(0.2), L1())
    plain = infer(CHORDS, jpc.PCEnergy(), layers, nodes, clamps)
    found = infer(CHORDS, energy, layers, nodes, clamps)
    assert_close(found.nodes, plain.nodes)
    weights = lambda grads: [m.fn.layers[1].weight for m in grads]
    expected = [
        g + 0.2 * w + 0.3 * np.sign(w)
        for g, w in zip(weights(learned(plain, layers, clamps)), PROBLEM.weights, strict=True)
    ]
    assert_close(weights(learned(found, layers, clamps)), expected)


class Custom(jpc.AbstractEnergy):
    def terms(self, params, nodes, clamps):
        return jpc.PCEnergy().terms(params, nodes, clamps)


@pytest.mark.parametrize(
    ("energy", "name"),
    [
        (jpc.PCEnergy() + jpc.ActivityDecay(0.1), "ActivityDecay"),
        (jpc.WeightDecay(0.1) + (jpc.ActivityDecay(0.1) + jpc.PCEnergy()), "ActivityDecay"),
        (Custom(), "Custom"),
    ],
)
def test_an_energy_that_names_no_predictions(energy, name):
    message = f"{name} does not say what predicts.*AbstractNetworkEnergy.*AbstractPenalty"
    for fn in (lambda: TIGHT(energy, *PROBLEM.posed()), lambda: jpc.EPCEnergy(energy)):
        with pytest.raises(TypeError, match=message):
            fn()


# --- energies of one's own ---


class Encoder(eqx.Module):
    """Images and their mirror images share their weights."""

    body: jax.Array
    label: Mix
    image: Mix

    def mirrored(self, h):
        return self.image(-h)


class TwoHeads(jpc.AbstractNetworkEnergy):
    """An encoder with a label, an image, and the image's mirror image."""

    def network(self, params):
        return {
            "x": jpc.Node(precision=0.0),
            "h": jpc.Node(Linear(params.body), ("x",)),
            "label": jpc.Node(params.label, ("h",), jpc.cross_entropy),
            "image": jpc.Node(params.image, ("h",), precision=2.0),
            "mirror": jpc.Node(params.mirrored, ("h",), precision=0.5),
        }


def mix(rng, size, *parents):
    weights = [jnp.asarray(rng.normal(size=(size, n))) for n in parents]
    return Mix(weights, jnp.asarray(rng.normal(size=size)))


def two_heads(seed=0):
    rng = np.random.default_rng(seed)
    params = Encoder(jnp.asarray(rng.normal(size=(4, 3))), mix(rng, 3, 4), mix(rng, 2, 4))
    given = {"x": rng.normal(size=(5, 3)), "label": np.eye(3)[[0, 1, 2, 1, 0]]}
    given |= {"image": rng.normal(size=(5, 2)), "mirror": rng.normal(size=(5, 2))}
    return params, {name: jnp.asarray(value) for name, value in given.items()}


def test_an_energy_of_ones_own():
    """Is solved where descent ends, and learned from there, weights that are shared too."""
    energy, (params, given) = TwoHeads(), two_heads()
    nodes, clamps = jpc.pose(energy, params, given)
    found, expected = (infer(how, energy, params, nodes, clamps) for how in (TIGHT, DESCENT))
    assert np.all(succeeded(found)) and np.all(succeeded(expected))
    assert_close(found.nodes, expected.nodes, atol=1e-7)
    _, _, grads = value_and_grads(energy, params, expected.nodes, clamps)
    assert_close(learned(found, params, clamps), grads, atol=1e-7)


def test_an_energy_of_ones_own_in_errors():
    """Has the same value and learning gradient where its states are the same, and by the chain
    rule the gradient of the states times their derivative by the errors.
    """
    energy, (params, given) = TwoHeads(), two_heads()
    nodes, clamps = jpc.pose(energy, params, given)
    error = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
    moved = {**nodes, "h": nodes["h"] + error}
    value, by_states, grads = value_and_grads(energy, params, moved, clamps)
    errors = {**nodes, "h": error}
    again, by_errors, lesson = value_and_grads(jpc.EPCEnergy(energy), params, errors, clamps)
    assert_close(again, value)
    assert_close(lesson, grads)
    assert_close(by_errors["h"], by_states["h"])  # The only error: the derivative is 1.


# --- the rest of the batch ---


def answers(problem, which):
    """The energy of some examples, each in the company of the others, and whether it is said to
    be that of an equilibrium.
    """
    energy, which = jpc.PCEnergy(jpc.cross_entropy), np.asarray(which)
    given = {0: problem.x[which], len(problem.model): problem.y[which]}
    posed = (problem.layers, *jpc.pose(energy, problem.layers, given))
    inferred = infer(jpc.Equilibrium(rtol=1e-8), energy, *posed)
    values = examples(energy, posed[0], inferred.nodes, posed[2])
    return np.asarray(values), succeeded(inferred)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("act", "gain"),
    [
        *(slowly("tanh", gain) for gain in (3.0, 30.0)),
        *(("relu", gain) for gain in (1.0, 3.0, 10.0)),
    ],
)
def test_an_answer_is_the_examples_own(act, gain, seed):
    """Alone, in some company, and in another one, or it does not claim to be one."""
    problem = make_problem(act, (3, 5, 5, 4), batch=8, seed=seed, gain=gain)
    order = np.random.default_rng(0).permutation(8)
    values, okay = answers(problem, order)
    for place, which in enumerate(order):
        alone, fine = answers(problem, [which] * 8)
        if okay[place] and fine[0]:
            assert_close(values[place], alone[0], rtol=1e-6, atol=1e-8)
