"""What single states, losses, sums, clamps and layers are, by hand: small numbers and NumPy are
the oracle.
"""

import contextlib
import functools as ft
import itertools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close as same_trees, make_problem

import jpc
from jpc._clamp import check_state, entry, inferred
from jpc._energy import EPCEnergy, Unfolded, take_apart, total
from jpc._energy.loss import unfit
from jpc._energy.network import sort

PC, TARGET, NAN = jpc.PCEnergy(), (1.0, 0.0, 1.0), jnp.nan


def numbers(*values):
    return jnp.asarray(values, float)


def assert_close(got, expected, **tolerances):
    same_trees(got, np.asarray(expected), **tolerances)


def refused(error, message):
    """That what is in here is refused, if there is an error."""
    return contextlib.nullcontext() if error is None else pytest.raises(error, match=message)


def double(z):
    return 2 * z


def treble(z):
    return 3 * z


# --- one state ---


def cost_of(z, f, given, mask, loss, p):
    """Of each unit: its square where it is inferred, the loss where it is given."""
    square = lambda t: 0.5 * (t - f) ** 2
    losses = {"squared": square, "bernoulli": lambda t: np.log1p(np.exp(f)) - t * f}
    return np.sum(p * np.where(mask, losses[loss](given), square(z)))


LOSSES = {"squared": jpc.squared_error, "bernoulli": jpc.bernoulli}
STATE, PREDICTED = np.array([0.3, -1.2, 0.7]), np.array([1.1, 0.4, -0.6])
MASKS = list(itertools.product((False, True), repeat=3))[::2]


@pytest.mark.parametrize("mask", [*MASKS, (True, True, True)])
@pytest.mark.parametrize(
    ("loss", "p", "learned"),
    [
        ("squared", 2.0, False),
        ("squared", 2.0, True),
        ("squared", (0.5, 3.0, 2.0), False),
        ("squared", (0.5, 3.0, 2.0), True),
        ("bernoulli", 3.0, False),
    ],
)
def test_each_unit_of_a_state_costs_its_own(loss, p, learned, mask):
    """With half the logarithm of its precision taken off, if that is learned. What a clamp holds
    in the other units does not count.
    """
    p, mask = jnp.asarray(p), np.asarray(mask)
    node = jpc.Node(jnp.sin, ("a",), LOSSES[loss], p, learned)
    given = jpc.Masked(jnp.where(mask, numbers(*TARGET), NAN), jnp.asarray(mask))
    expected = cost_of(STATE, PREDICTED, np.array(TARGET), mask, loss, np.asarray(p))
    expected -= 0.5 * np.sum(np.broadcast_to(np.log(p), 3)) if learned else 0
    z, predicted = jnp.asarray(STATE), jnp.asarray(PREDICTED)
    assert_close(node.cost(z, predicted, given), expected)
    if mask.all():
        assert_close(node.cost(z, predicted, numbers(*TARGET)), expected)
    if not mask.any():
        assert_close(node.cost(z, predicted, None), expected)


@pytest.mark.parametrize("p", [4.0, (4.0, 0.5, 2.0)])
def test_a_prior_costs_where_its_state_is_inferred(p):
    node, z, mask = jpc.Node(precision=jnp.asarray(p)), jnp.asarray(STATE), (False, True, False)
    squares = 0.5 * np.asarray(p) * STATE**2
    assert_close(node.cost(z, None, None), np.sum(squares))
    assert_close(node.cost(z, None, z), 0.0)
    some = jpc.Masked(z, jnp.asarray(mask))
    assert_close(node.cost(z, None, some), np.sum(np.where(mask, 0, squares)))


def test_what_has_no_prediction_and_no_prior_is_no_term():
    flat, whole, prior = (jpc.Node(precision=p) for p in (0.0, 0, 2.0))
    assert [node.counts() for node in (flat, whole, prior)] == [False, False, True]
    assert jpc.Node(precision=1).counts() and jpc.Node(precision=jnp.zeros(())).counts()
    assert jpc.Node(double, ("a",), precision=0.0).counts()


def test_a_precision_is_learned_from_its_error():
    """From $\\delta = p e$ as from the error: the gradient of $p e^2 / 2 - \\log(p) / 2$."""
    error, p = np.array([0.3, -1.2]), np.array([0.5, 3.0])

    def surprise(p):
        return jpc.Node(double, ("a",), precision=p, learned=True).surprise(jnp.asarray(delta))

    delta = p * error
    assert_close(surprise(jnp.asarray(p)), np.sum(p * error**2 - np.log(p)) / 2)
    assert_close(jax.grad(surprise)(jnp.asarray(p)), (error**2 - 1 / p) / 2)


def test_a_loss_says_why_it_cannot():
    """In one line, the first one."""

    def loss(target, prediction):
        raise TypeError("no such target\nand more")

    node = jpc.Node(double, ("a",), loss)
    with pytest.raises(TypeError, match=r"its prediction: no such target$"):
        node.given_cost(numbers(1.0), numbers(2.0))


def test_errors_of_others_are_not_renamed():
    """A state is named in what we say, and not in what a library does."""

    class Other(ValueError):
        def __init__(self, one, two):
            super().__init__(one + two)

    def loss(target, prediction):
        raise Other("one", "two")

    posed = [numbers(1.0)[None], None], [None, numbers(2.0)[None]]
    with pytest.raises(Other, match="onetwo"):
        jpc.PCEnergy(loss)([double], *posed)


# --- losses ---


def test_targets_of_a_batch_are_all_looked_at():
    """One that is wrong is enough. What sums to one does so up to a hundredth."""
    wrong = lambda loss, targets: any(map(bool, unfit("y", [loss], jnp.asarray(targets)).values()))
    fit, off = [[0.5, 0.5], [0.0, 1.0]], [[0.5, 0.5], [0.7, 0.8]]
    assert [wrong(jpc.cross_entropy, targets) for targets in (fit, off)] == [False, True]
    for sums, expected in ((0.993, False), (1.007, False), (0.985, True), (1.015, True)):
        assert wrong(jpc.cross_entropy, [[0.5, 0.5], [0.0, sums]]) == expected
    negative = [[0.5, 0.5], [-0.5, 1.5]]
    assert wrong(jpc.cross_entropy, negative) and wrong(jpc.poisson, negative)
    assert wrong(jpc.bernoulli, negative) and not wrong(jpc.bernoulli, fit)


def test_classes_are_along_the_last_axis():
    """Of several words of a text, say: two examples of three words of two classes."""
    wrong = lambda given: any(map(bool, unfit("y", [jpc.cross_entropy], given).values()))
    words = jnp.asarray([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]] * 2)
    assert not wrong(words) and wrong(words.at[1, 2, 0].set(0.9))
    known = jnp.asarray([[[True] * 2] * 3, [[False] * 2] * 3])  # Of the second one, nothing is.
    assert not wrong(jpc.Masked(words.at[1].set(0.0), known))
    assert wrong(jpc.Masked(words.at[0, 1].set(0.0), known))


# --- precisions ---


def each_precision(energy, depth=3):
    return [float(p) for p in energy.precisions(depth)]


def test_precisions_of_each_layer():
    assert each_precision(jpc.PCEnergy(precision=0.25)) == [0.25] * 3
    assert each_precision(jpc.PCEnergy(precision=(1, 2, 3))) == [1, 2, 3]
    assert each_precision(jpc.PCEnergy(precision=np.array([0.5, 2.0, 3.0]))) == [0.5, 2, 3]
    stiff = jpc.PCEnergy(precision=[2.0, 3.0, 4.0, 5.0], stiffness=10.0)
    assert each_precision(stiff, 4) == [200, 30, 4, 5]
    assert each_precision(jpc.PCEnergy(stiffness=0.5)) == [0.5, 1, 1]
    assert each_precision(jpc.PCEnergy(stiffness=1e30), 4) == [1e30, 1e30, 1, 1]


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("12", "precision must be a number, got '12'"),
        (b"12", "precision must be a number"),
        ([], "precision has no entries"),
        (np.array([1.0, 0.0]), r"precision\[1\] must be a finite number above 0"),
        ([1.0, jnp.array([1.0, -1.0])], r"precision\[1\] must be finite numbers"),
        ([1.0, jnp.array([1.0, NAN])], r"precision\[1\] must be finite numbers"),
        ([1.0, jnp.zeros(2)], r"precision\[1\] must be .* not all 0"),
    ],
)
def test_precisions_that_are_none(precision, message):
    with pytest.raises(ValueError, match=message):
        jpc.PCEnergy(precision=precision)


def test_numbers_that_are_just_allowed():
    """Some of a state's units may have no precision; weights and coefficients may be nothing."""
    jpc.PCEnergy(precision=[1.0, jnp.array([0.0, 0.5])])
    jpc.PCEnergy(precision=1e-3, stiffness=1e-3)
    jpc.BPCEnergy(0.0, 1.0, 0.0)
    jpc.BPCEnergy(1.0, 0.0, 0.0)
    for kind in (jpc.WeightDecay, jpc.SpectralPenalty, jpc.ActivityDecay, jpc.GaussianPrior):
        kind(0.0)
    jpc.GraphEnergy({"h": ["x"]}, precision={"x": 0.0, "h": 1e-3})
    jpc.GraphEnergy({"h": ["x"]}, precision={"x": np.zeros(2), "h": np.array([0.0, 1.0])})
    assert len(jpc.parameterise([double] * 2, fan_ins=[1, 1], param_type="mupc", gamma=0.5)) == 2
    jpc.Layer(double, scale=-0.5)


@pytest.mark.parametrize(
    ("parents", "precision", "error"),
    [
        ({"h": ["x"]}, {"x": -1.0}, ValueError),
        ({"h": ["x"]}, {"h": 0.0}, ValueError),
        ({"h": ["x"]}, {"x": np.array([0.0, -1.0])}, ValueError),
        ({"h": {"x"}}, {}, TypeError),
        ({"h": ["x", 3]}, {}, TypeError),
    ],
)
def test_graphs_that_are_none(parents, precision, error):
    with pytest.raises(error, match=r"The (parents|precision) of '"):
        jpc.GraphEnergy(parents, precision=precision)


@pytest.mark.parametrize("log", [np.zeros(()), jnp.zeros((), int), 0.0])
def test_a_logarithm_is_an_array_of_floats(log):
    with pytest.raises(TypeError, match="log_precision must be an array of floats"):
        jpc.Precise(double, log)
    with pytest.raises(ValueError, match="log_precision must be finite"):
        jpc.Precise(double, jnp.array([0.0, jnp.inf]))


# --- sums ---


def linear(*sizes):
    return make_problem("linear", sizes).model


def test_multiples_of_multiples():
    energy = 2.0 * (3.0 * PC + 5.0 * jpc.WeightDecay(0.1))
    parts, model = take_apart(energy), linear(2, 3, 2)
    assert [float(factor) for factor, _ in parts.networks] == [6.0]
    assert [float(factor) for factor, _ in parts.penalties] == [10.0]
    network = parts.network(model)
    assert [float(network[i].precision) for i in range(3)] == [0, 6, 6]
    assert_close(parts.penalise(model)[0], 10 * jpc.WeightDecay(0.1).penalty(model))


def test_priors_of_one_state_add_up():
    prior = jpc.GaussianPrior(0.5) + jpc.GaussianPrior(0.25)
    for energy in (PC + prior, prior + PC):
        network = take_apart(energy).network([double])
        assert float(network[0].precision) == 0.75 and network[1].fn is double


def test_parts_of_a_graph_are_sorted():
    """Parents first, whichever way round they are given; in a cycle as they come."""
    one, other = jpc.GraphEnergy({"y": ["h"]}), jpc.GraphEnergy({"h": ["x"]})
    params = {"y": double, "h": treble}
    for energy in (one + other, other + one):
        network = take_apart(energy).network(params)
        assert [*network] == ["x", "h", "y"] and network["h"].fn is treble
    back = jpc.GraphEnergy({"h": ["y"]})
    assert {*take_apart(one + back).network(params)} == {"h", "y"}
    assert sort({"a": ["b"], "b": ["a"]}) is None
    assert sort({"c": ["b"], "a": [], "b": ["a"], "d": []}) == ["a", "b", "c", "d"]


def test_sums_of_nothing_and_of_opposites():
    assert total({}) == 0 and total([numbers(1.0)[0], {"a": numbers(2.0)[0]}]) == 3
    posed = [double], [None, None], [numbers(1.0)[None], numbers(5.0)[None]]
    assert_close(PC(*posed), 4.5)
    assert (PC - PC)(*posed) == 0
    assert_close((0.5 * PC)(*posed), 2.25)
    assert_close((PC - 0.5 * PC).layerwise(*posed)[1][0], -2.25)
    batch = [double], [None, None], [numbers(1.0, 1.0)[:, None], numbers(5.0, 3.0)[:, None]]
    assert_close(PC(*batch), (4.5 + 0.5) / 2)


def test_who_descends():
    """A sum does if both do."""
    whole, part = jpc.BPCEnergy(), jpc.BPCEnergy(source_gradient=0.3)
    assert PC.descends() and whole.descends() and not part.descends()
    sums = [whole + whole, whole + part, part + whole, 2.0 * whole, 2.0 * part]
    assert [bool(energy.descends()) for energy in sums] == [True, False, False, True, False]


def both_ways(energy, clamps, x):
    return total(energy.terms(([double], [treble]), [x, None], clamps))


def test_dendrites_let_a_part_of_a_gradient_through():
    """Of single units, predicted by 2 and 3 times the other: its own errors reach a state whole,
    those of what it predicts by a part, and the value is that of the energy.
    """
    a, b, x, y = 0.5, 0.25, 1.5, 4.0
    for part in (1.0, 0.3, 0.0):
        energy = jpc.BPCEnergy(a, b, part)
        clamps, up, down = [None, numbers(y)], x - 3 * y, y - 2 * x
        value = ft.partial(both_ways, energy, clamps)
        assert_close(value(numbers(x)), a * down**2 / 2 + b * up**2 / 2)
        assert_close(jax.grad(value)(numbers(x)), [b * up + part * a * down * -2])


def test_amortised_by_hand():
    """Each guess is compared with what was inferred for the next state."""
    guesses, inferences = [numbers(1.0), numbers(2.0), None], [None, numbers(5.0), numbers(4.0)]
    terms = jpc.AmortisedEnergy().terms([double, treble], guesses, inferences)
    assert_close(terms[0], 4.5)
    assert_close(terms[1], 2.0)
    with pytest.raises(ValueError, match="one more of nodes and of clamps"):
        jpc.AmortisedEnergy().terms([double, treble], guesses, inferences[:2])


def test_errors_are_coordinates_of_what_is_given_in_part():
    """The same energy as in the states, and the same to learn."""
    weights = [numbers(0.5, -1.0, 2.0), numbers(1.5, 0.3, -0.7)]
    scaled = lambda w: jax.tree.map(lambda w: jpc.Layer(jax.tree_util.Partial(jnp.multiply, w)), w)
    x, y, mask = numbers(1.0, 2.0, 3.0), numbers(0.4, -0.2, 0.9), jnp.array([True, False, True])
    z, free = [x, numbers(0.1, 0.2, -0.3)], numbers(0.6, 0.8, -0.5)
    given = [x, None, jpc.Masked(y, mask)]
    errors = [None, z[1] - weights[0] * x, free - weights[1] * z[1]]
    for loss in (jpc.squared_error, jpc.bernoulli):
        energy = jpc.PCEnergy(loss, [2.0, 3.0])
        both = lambda w, e, nodes: total(e.terms(scaled(w), nodes, given))
        states = jax.value_and_grad(both)(weights, energy, [None, z[1], free])
        found = jax.value_and_grad(both)(weights, EPCEnergy(energy), errors)
        same_trees(found, states)


def test_who_is_quadratic():
    """Squares of what is given whole."""
    x, y = numbers(1.0)[None], numbers(2.0)[None]
    masked = jpc.Masked(y, jnp.ones((1, 1), bool))
    problems = {"whole": ([None, None], [x, y]), "in part": ([None, y], [x, masked])}

    def quadratic(loss, posed):
        unfolded, _, given = Unfolded.of(jpc.PCEnergy(LOSSES[loss]).network([double]), *posed)
        return unfolded.quadratic(given)

    every = itertools.product(LOSSES, problems)
    found = [key for key in every if quadratic(key[0], problems[key[1]])]
    assert found == [("squared", "whole")]


# --- clamps ---


def test_what_is_inferred_of_a_part():
    mask = jnp.array([[True, False, True]])
    some = jpc.Masked(numbers(1.0, NAN, 3.0)[None], mask)
    nodes, clamps = [None, numbers(7.0, 8.0, 9.0)[None]], [numbers(4.0)[None], some]
    assert_close(inferred(nodes, clamps)[1], [[0, 8, 0]])
    assert_close(jpc.states(nodes, clamps)[1], [[1, 8, 3]])
    assert_close(some.fill(jnp.asarray(5.0)), [[1, 5, 3]])
    with pytest.raises(ValueError, match="is in both nodes and clamps"):
        jpc.states([numbers(1.0)], [numbers(2.0)])


def test_clamps_are_put_where_they_belong():
    """Also a single unit of each example."""
    x, z, y = (jnp.full(5, value) for value in (1.0, 2.0, 3.0))
    where = lambda tree: [None if leaf is None else float(leaf[0]) for leaf in tree]
    found = [
        jpc.clamp([z], y, x), jpc.clamp([z], y), jpc.clamp([z], input=x), jpc.clamp([x, z, y])
    ]  # fmt: skip
    assert [tuple(map(where, pair)) for pair in found] == [
        ([None, 2, None], [1, None, 3]),
        ([2, None], [None, 3]),
        ([None, 2], [1, None]),
        ([1, 2, 3], [None, None, None]),
    ]
    first = jnp.arange(5) == 0
    nodes, clamps = jpc.clamp([z, z], y, x, mask=first, input_mask=~first)
    assert_close(nodes[0], [2, 1, 1, 1, 1])
    assert_close(nodes[1], [3, 2, 2, 2, 2])
    assert clamps[0].mask.tolist() == (~first).tolist()
    assert clamps[1].mask.tolist() == first.tolist()
    with pytest.raises(ValueError, match="the units that are inferred: there are none"):
        jpc.clamp([], y, mask=first)


def test_entries_of_lists_and_dictionaries():
    """`None` where there is none."""
    assert [entry([7, 8], name) for name in (0, 1, 2, "a")] == [7, 8, None, None]
    assert [entry({"a": 7, 1: 8}, name) for name in (0, 1, "a", "b")] == [None, 8, 7, None]


MASK = np.array([[True, False]])


@pytest.mark.parametrize(
    ("value", "mask", "message"),
    [
        (3.0, MASK, "value must be an array"),
        (MASK, MASK, "value must be an array of real numbers"),
        (np.ones((1, 2)), np.ones((1, 2)), "mask must be an array of booleans"),
        (np.ones((1, 2)), True, "mask must be an array of booleans"),
    ],
)
def test_masks_that_are_none(value, mask, message):
    with pytest.raises(TypeError, match=message):
        jpc.Masked(value, mask)


def test_fillings_that_do_not_fit():
    some = jpc.Masked(np.ones((1, 2)), MASK)
    for free, got in ((np.ones((1, 3)), r"shape \(1, 3\)"), ("x", "'x'"), (None, "None")):
        with pytest.raises(ValueError, match=f"of the value's shape .1, 2., got {got}"):
            some.fill(free)


@pytest.mark.parametrize(
    ("state", "floats", "error"),
    [
        (np.ones(3), True, None),
        (np.ones(3, int), False, None),
        (np.ones(3, bool), False, None),
        (np.ones(3, bool), True, TypeError),
        (np.ones(3, int), True, TypeError),
        (np.ones(3, complex), False, TypeError),
        (3.0, False, TypeError),
        (np.float64(3.0), False, TypeError),
        (np.array(3.0), False, ValueError),
        (np.ones((0, 3)), False, ValueError),
        (np.ones((3, 0)), False, None),
    ],
)
def test_a_state_is_a_batch_of_numbers(state, floats, error):
    with refused(error, "z (must be|needs|is inferred)"):
        check_state("z", state, floats=floats)


@pytest.mark.parametrize(
    ("nodes", "clamps", "error"),
    [
        ([None], (None,), None),
        ({}, {}, None),
        ([None], [None, None], ValueError),
        ([None], {}, TypeError),
        ({}, [None], TypeError),
        (None, [None], TypeError),
        ([None], jnp.ones(2), TypeError),
    ],
)
def test_nodes_and_clamps_are_lists_or_dictionaries(nodes, clamps, error):
    with refused(error, "nodes|clamps"):
        jpc.states(nodes, clamps)


# --- layers ---


def test_scales_and_skips_by_hand():
    assert_close(jpc.Layer(double)(numbers(3.0)), [6.0])
    assert_close(jpc.Layer(double, scale=0.5)(numbers(3.0)), [3.0])
    assert_close(jpc.Layer(double, treble, 0.25)(numbers(2.0)), [7.0])


def test_a_layer_says_why_it_cannot():
    def layer(z):
        raise ValueError("no such state\nand more")

    message = (
        r"Layer 2 cannot take what enters it, of shape \(3,\) for one example: no such state$"
    )
    with pytest.raises(ValueError, match=message):
        jpc.feedforward([double, layer], jnp.ones(3))


@pytest.mark.parametrize("batch", [jnp.asarray(3.0), 3.0, [1.0], "x", None])
def test_a_batch_is_an_array(batch):
    with pytest.raises(TypeError, match="batch must be an array with the examples first"):
        jpc.feedforward_batch([double], batch)
    assert_close(jpc.feedforward_batch([double, treble], np.ones(2))[1], [6.0, 6.0])


@pytest.mark.parametrize("fan_ins", [[1], [1, 1, 1], 2, None, types.MappingProxyType({})])
def test_a_fan_in_for_each_layer(fan_ins):
    with pytest.raises(ValueError, match="fan_ins must list the size"):
        jpc.parameterise([double, treble], fan_ins=fan_ins)


# --- penalties ---


def test_weights_have_two_axes_and_more():
    """Of shapes (2,), (1, 2), (1, 2, 1) and a bias of (2, 1), which is none."""
    model = {"a": numbers(1, 2), "b": numbers(1, 2)[None], "c": numbers(3, 4)[None, :, None]}
    layer = eqx.nn.Conv1d(1, 2, 1, key=jax.random.key(0))
    layer = eqx.tree_at(
        lambda m: (m.weight, m.bias), layer, (jnp.ones((2, 1, 1)), jnp.ones((2, 1)))
    )
    squares = (1 + 4) + (9 + 16) + (1 + 1)
    assert_close(jpc.WeightDecay(0.5).penalty((model, layer)), 0.25 * squares)
    # Of b I - W'W is [[0, -2], [-2, -3]], of c [1 - 25], and of the layer [1 - 2].
    matrices = {"b": model["b"], "c": model["c"].reshape(2, 1, 1)}
    spectral = (4 + 4 + 9) + 24**2 + 1
    assert_close(jpc.SpectralPenalty(0.5).penalty((matrices, layer)), 0.25 * spectral)


def test_activities_decay_as_far_as_they_are_inferred():
    some = jpc.Masked(numbers(1.0, 5.0), jnp.array([True, False]))
    nodes, clamps = [numbers(3.0), numbers(1.0, 2.0), None], [None, some, numbers(7.0)]
    assert_close(jpc.ActivityDecay(0.5).terms(None, nodes, clamps), 0.25 * (9 + 4))
