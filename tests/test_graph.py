"""Graphs of predictions against NumPy, finite differences, and long descent; numbers are traced,
so that all draws of a graph share their compilations.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from graph_helpers import Graph, examples, learned, make_graph, succeeded, value_and_grads
from helpers import assert_close, infer, slowly, to

import jpc

# Between them they have every loss, and whatever a state in the middle can be.
GRAPHS = {"given": make_graph(0, "given"), "masked": make_graph(1, "masked")}
GRAPHS["free"] = make_graph(4, "free")
TIGHT = jpc.Equilibrium(rtol=1e-8)
DESCENT = jpc.Descent(optax.sgd(0.1), 20_000, rtol=1e-13)


@pytest.fixture(params=GRAPHS)
def graph(request):
    return GRAPHS[request.param]


# --- the energy ---


def slope(drawn, array, index):
    """Of the energy in NumPy, by a central difference; `array` is one of its numbers."""
    kept, values = array[index], []
    for change in (1e-6, -1e-6):
        array[index] = kept + change
        values.append(drawn.value())
    array[index] = kept
    return (values[0] - values[1]) / 2e-6


@pytest.mark.parametrize("seed", range(3))
def test_energy_and_gradients_are_those_of_numpy(graph, seed):
    drawn = graph.draw(seed)
    value, by_nodes, by_params = value_and_grads(drawn.energy, *drawn.posed())
    assert_close(value, drawn.value())
    for name, grads in by_nodes.items():
        if grads is not None:
            expected = [slope(drawn, drawn.states[name], i) for i in np.ndindex(grads.shape)]
            given = np.stack([drawn.given(name, i) for i in range(graph.batch)])
            expected = np.where(given, 0, np.reshape(expected, grads.shape))
            assert_close(grads, expected, atol=1e-8)
            assert np.all(np.asarray(grads)[given] == 0)
    for name, layer in by_params.items():
        assert_close(layer.bias[0], slope(drawn, drawn.biases[name], 0), atol=1e-8)
        last = slope(drawn, drawn.weights[name][-1], (-1, -1))
        assert_close(layer.weights[-1][-1, -1], last, atol=1e-8)


def remasked(drawn, name, mask):
    """With another mask; `True` or `False` for no mask but a whole clamp or a free state."""
    masked = tuple(n for n in drawn.graph.masked if n != name)
    if isinstance(mask, bool):
        given = (*drawn.graph.given, name) if mask else drawn.graph.given
        graph = dataclasses.replace(drawn.graph, masked=masked, given=given)
        masks = {n: drawn.masks[n] for n in masked}
        return dataclasses.replace(drawn, graph=graph, masks=masks)
    return dataclasses.replace(drawn, masks={**drawn.masks, name: mask})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("head", ["first", "last"])
def test_a_mask_of_all_or_nothing(known, head):
    """Is a whole clamp, or a free state: of any separable loss, and of cross-entropy too."""
    graph = GRAPHS["free"]
    name = {"first": graph.masked[0], "last": "v"}[head]
    graph = dataclasses.replace(graph, masked=(name,), given=("a", "k"), batch=3)
    drawn = graph.draw(7)
    mask = np.full(drawn.states[name].shape, known)
    (value, by_nodes, by_params), (expected, other, learning) = (
        value_and_grads(d.energy, *d.posed())
        for d in (remasked(drawn, name, mask), remasked(drawn, name, known))
    )
    assert_close(value, expected)
    assert_close(jax.tree.leaves(by_params), jax.tree.leaves(learning))
    if known:
        assert np.all(np.asarray(by_nodes.pop(name)) == 0)
        other.pop(name)
    assert_close(by_nodes, other)


def test_what_a_mask_hides_does_not_matter():
    """Not even if it is NaN."""
    drawn = GRAPHS["masked"].draw(0)
    params, nodes, clamps = drawn.posed()
    hide = lambda c: jpc.Masked(jnp.where(c.mask, c.value, jnp.nan), c.mask)
    hidden = {n: hide(c) if isinstance(c, jpc.Masked) else c for n, c in clamps.items()}
    given = lambda c, z: jnp.where(c.mask, 1e3, z) if isinstance(c, jpc.Masked) else z
    other = {name: given(clamps[name], z) for name, z in nodes.items()}
    expected = value_and_grads(drawn.energy, params, nodes, clamps)
    assert_close(value_and_grads(drawn.energy, params, other, hidden), expected, rtol=0, atol=0)
    found, expected = (infer(TIGHT, drawn.energy, params, nodes, c) for c in (hidden, clamps))
    assert_close(found.nodes, expected.nodes, rtol=0, atol=0)


# --- inference ---


@pytest.mark.parametrize(("seed", "gain"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)])
@pytest.mark.parametrize("name", [slowly("given"), "masked", slowly("free")])
def test_equilibrium_is_where_descent_ends(name, seed, gain):
    drawn = GRAPHS[name].draw(seed, gain=gain)
    energy, (params, nodes, clamps) = drawn.energy, drawn.posed()
    found = infer(TIGHT, energy, params, nodes, clamps)
    expected = infer(DESCENT, energy, params, nodes, clamps)
    assert np.all(succeeded(found)) and np.all(succeeded(expected))
    both = [examples(energy, params, each.nodes, clamps) for each in (found, expected)]
    assert_close(*both, rtol=1e-10)
    assert_close(found.nodes, expected.nodes, atol=1e-6)
    _, _, grads = value_and_grads(energy, params, expected.nodes, clamps)
    assert_close(
        jax.tree.leaves(learned(found, params, clamps)), jax.tree.leaves(grads), atol=1e-6
    )


# --- unusual sizes ---


def tiny(batch=3, given=("x", "y"), masked=(), prior=("w",), **sizes):
    """x -> h -> y, and w -> u besides: a free leaf, and a root with nothing else to do."""
    sizes = dict(x=3, h=4, y=2, w=2, u=3) | sizes
    parents = {"h": ("x",), "y": ("h",), "u": ("w",)}
    return Graph(parents, sizes, {}, given, masked, prior, (), batch)


CORNERS = {
    "one example of one unit each": tiny(1, x=1, h=1, y=1, w=1, u=1),
    "nothing given": tiny(given=(), prior=("w", "x")),
    "only an input": tiny(given=("x",)),
    "70 units, some of them given": tiny(given=("x",), masked=("y",), y=70),
}


SELDOM = CORNERS.keys() - {"nothing given"}


@pytest.mark.parametrize("corner", [slowly(c) if c in SELDOM else c for c in CORNERS])
def test_unusual_networks(corner):
    drawn = CORNERS[corner].draw(0)
    energy, (params, nodes, clamps) = drawn.energy, drawn.posed()
    found = infer(TIGHT, energy, params, nodes, clamps)
    expected = infer(DESCENT, energy, params, nodes, clamps)
    assert np.all(succeeded(found))
    assert_close(found.nodes, expected.nodes, atol=1e-6)
    _, _, grads = value_and_grads(energy, params, expected.nodes, clamps)
    found = learned(found, params, clamps)
    assert_close(jax.tree.leaves(found), jax.tree.leaves(grads), atol=1e-6)


def test_everything_given():
    drawn = tiny(given=("x", "h", "y", "w", "u")).draw(0)
    with pytest.raises(ValueError, match="nothing to infer"):
        jpc.Equilibrium()(drawn.energy, *drawn.posed())


def test_dictionaries_may_leave_out_what_is_none():
    drawn = tiny().draw(0)
    energy, (params, nodes, clamps) = drawn.energy, drawn.posed()
    method = jpc.Equilibrium(max_steps=0)
    expected = infer(method, energy, params, nodes, clamps)
    fewer = [{n: z for n, z in tree.items() if z is not None} for tree in (nodes, clamps)]
    found = infer(method, energy, params, *fewer)
    assert_close(found.nodes, expected.nodes)
    lessons = learned(found, params, fewer[1]), learned(expected, params, clamps)
    assert_close(*map(jax.tree.leaves, lessons))


@pytest.mark.parametrize("size", [1.0, 1e8])
def test_a_large_root_with_a_flat_prior(size):
    """Does not make the errors of others small: there is no gradient left, as in NumPy."""
    drawn = tiny(prior=()).draw(0)
    drawn.states["w"] *= size
    energy, (params, nodes, clamps) = drawn.energy, drawn.posed()
    found = infer(TIGHT, energy, params, nodes, clamps)
    _, grads, _ = value_and_grads(energy, params, found.nodes, clamps)
    assert np.all(succeeded(found))
    assert_close(grads["h"], np.zeros_like(grads["h"]), atol=1e-7)


@pytest.mark.slow
def test_single_precision():
    """Is as good as its digits: the same answers as in double precision."""
    drawn = GRAPHS["masked"].draw(0)
    energy, posed = drawn.energy, drawn.posed()
    expected = infer(TIGHT, energy, *posed)
    found = infer(jpc.Equilibrium(rtol=1e-4), *to(jnp.float32, (energy, *posed)))
    assert np.all(succeeded(found))
    assert all(z.dtype == jnp.float32 for z in jax.tree.leaves(found.nodes))
    assert_close(found.nodes, expected.nodes, rtol=1e-3, atol=1e-3)
    grads = [learned(each, posed[0], posed[2]) for each in (found, expected)]
    assert_close(*map(jax.tree.leaves, grads), rtol=1e-3, atol=1e-3)


# --- cycles, sums, and misuse ---


def cycle():
    """x -> a <-> b -> y."""
    graph = Graph(
        {"a": ("b", "x"), "b": ("a",), "y": ("b",)},
        dict(x=2, a=3, b=2, y=2),
        losses={},
        given=("x", "y"),
        masked=(),
        prior=(),
        precise=("a",),
    )
    return graph.draw(0)


def test_cycles_can_be_descended():
    """By two methods that agree, on the energy of NumPy."""
    drawn = cycle()
    energy, posed = drawn.energy, drawn.posed()
    assert_close(value_and_grads(energy, *posed)[0], drawn.value())
    flow = jpc.GradientFlow(t1=1000.0, rtol=1e-6)
    one, other = (infer(method, energy, *posed) for method in (DESCENT, flow))
    assert np.all(succeeded(one)) and np.all(succeeded(other))
    assert_close(one.nodes, other.nodes, atol=1e-5)


def test_cycles_have_no_errors_to_solve_for():
    drawn = cycle()
    energy, posed = drawn.energy, drawn.posed()
    for fn in (jpc.EPCEnergy(energy), lambda *args: TIGHT(energy, *args)):
        with pytest.raises(ValueError, match=r"'a' is predicted by 'b'.*without cycles"):
            fn(*posed)


def test_graphs_that_share_states_add_up():
    """In any order, also where the first one predicts from what the second one does."""
    drawn = tiny().draw(0)
    params, nodes, clamps = drawn.posed()
    given = {name: clamps[name] for name in ("x", "y")}
    first, second = jpc.GraphEnergy({"h": ["x"]}), jpc.GraphEnergy({"y": ["h"]})
    found = []
    for energy in (first + second, second + first, jpc.GraphEnergy({"h": ["x"], "y": ["h"]})):
        posed = (params, *jpc.pose(energy, params, given))
        inferred = infer(jpc.Equilibrium(max_steps=0), energy, *posed)
        found.append((inferred.nodes, learned(inferred, params, posed[2])))
    for nodes, grads in found[:-1]:
        assert_close(nodes, found[-1][0])
        assert_close(grads["h"], found[-1][1]["h"])


def test_two_predictions_of_one_state_are_descended():
    """To the middle of both, and not solved for."""
    energy = jpc.GraphEnergy({"h": ["x"]}) + jpc.GraphEnergy({"h": ["y"]})
    params = {"h": lambda z: z}
    x, y = jnp.ones((2, 3)), 3 * jnp.ones((2, 3))
    posed = (params, {"h": jnp.zeros((2, 3))}, {"x": x, "y": y})
    assert_close(infer(DESCENT, energy, *posed).nodes["h"], 2 * x, atol=1e-9)
    for fn in (jpc.EPCEnergy(energy), lambda *args: TIGHT(energy, *args)):
        with pytest.raises(TypeError, match="Two energies predict the state 'h'"):
            fn(*posed)


class Odd(jpc.AbstractNetworkEnergy):
    """Predicts from what is not there."""

    def network(self, params):
        return {"x": jpc.Node(precision=0.0), "h": jpc.Node(params["h"], ("other",))}


X, H = jnp.ones((3, 3)), jnp.ones((3, 4))
PLAIN = jpc.GraphEnergy({"h": ["x"]})
PARAMS = {"h": tiny().draw(0).params["h"]}
MISUSES = {
    "both": (PLAIN, {"x": X, "h": H}, {"x": X}, "'x' is in both nodes and clamps"),
    "neither": (PLAIN, {"h": H}, {}, "'x' is in neither nodes nor clamps"),
    "half": (PLAIN, {"h": H}, {"x": jpc.Masked(X, X > 0)}, "'x' is given in part: put the rest"),
    "a list": (PLAIN, [None, H], [X, None], "'x' is in neither nodes nor clamps"),
    "no node": (Odd(), {"h": H}, {"x": X}, "'h' is predicted by 'other', which is not a node"),
    "no such prior": (
        PLAIN + jpc.GaussianPrior(1.0, node="y"),
        {"h": H},
        {"x": X},
        "'y' is in neither",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_named(misuse):
    energy, nodes, clamps, message = MISUSES[misuse]
    for fn in (energy, jpc.EPCEnergy(energy), lambda *args: TIGHT(energy, *args)):
        with pytest.raises(ValueError, match=message):
            fn(PARAMS, nodes, clamps)


def test_a_prior_on_what_is_predicted():
    energy = PLAIN + jpc.GaussianPrior(1.0, node="h")
    for fn in (jpc.EPCEnergy(energy), lambda *args: TIGHT(energy, *args)):
        with pytest.raises(TypeError, match="a prior on the state 'h', which is predicted"):
            fn(PARAMS, {"h": H}, {"x": X})


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (dict(parents={"h": "x"}), TypeError, "must be a list of names"),
        (dict(parents={"h": ["x"]}, loss={"y": jpc.cross_entropy}), ValueError, "no state of"),
        (dict(parents={"h": ["x"]}, precision={"y": 2.0}), ValueError, "no state of the graph"),
    ],
)
def test_a_graph_that_is_none(kwargs, error, message):
    with pytest.raises(error, match=message):
        jpc.GraphEnergy(**kwargs)


# --- how a problem is posed ---


def test_a_feedforward_start_leaves_the_errors_of_what_is_given(graph):
    """And those of priors: in NumPy, all other states cost nothing."""
    drawn = graph.draw(0)
    states = {name: jnp.asarray(z) for name, z in drawn.states.items()}
    given = {name: states[name] for name in (*graph.given, *graph.masked)}
    masks = {name: jnp.asarray(mask) for name, mask in drawn.masks.items()}
    start = {name: states[name] for name in graph.prior}
    nodes, clamps = jpc.pose(drawn.energy, drawn.params, given, masks=masks, start=start)
    drawn.states = {n: np.array(z) for n, z in jpc.states(nodes, clamps).items()}
    for name, z in drawn.states.items():
        for i in range(graph.batch):
            known = drawn.given(name, i)
            assert_close(z[i][known], np.asarray(states[name])[i][known], rtol=0, atol=0)
            if name in graph.parents:
                assert_close(z[i][~known], drawn.predict(name, i)[~known], rtol=1e-13)
    assert all((nodes[name] is None) == (name in graph.given) for name in nodes)


def test_a_state_may_be_predicted_from_nothing():
    """A mean that is learned: the prior of a state. At equilibrium a linear one is in between."""
    energy = jpc.GraphEnergy({"x": [], "y": ["x"]}, precision={"x": 3.0})
    params, y = {"x": Constant(jnp.ones(2)), "y": lambda x: 2 * x}, 4 * jnp.ones((3, 2))
    nodes, clamps = jpc.pose(energy, params, {"y": y})
    assert_close(nodes["x"], np.ones((3, 2)))
    found = infer(jpc.Equilibrium(max_steps=0), energy, params, nodes, clamps)
    # 3 (x - 1) = 2 (4 - 2 x), and the mean learns from 3 (1 - x).
    assert_close(found.nodes["x"], np.full((3, 2), 11 / 7))
    assert_close(learned(found, params, clamps)["x"].mean, np.full(2, -12 / 7))


class Constant(eqx.Module):
    mean: jax.Array

    def __call__(self):
        return self.mean


MASK = X > 0
POSES = {
    "unknown": (dict(given={"q": X}), "given has 'q', which is no state of the network"),
    "unknown start": (dict(given={"x": X}, start={"q": X}), "start has 'q'"),
    "unknown mask": (dict(given={"x": X}, masks={"q": MASK}), "masks has 'q'"),
    "a mask alone": (dict(given={"x": X}, masks={"h": MASK}), "mask of 'h', which is not given"),
    "a start too": (dict(given={"x": X}, start={"x": X}), "'x' is given, so that it has no start"),
    "a mask of another shape": (dict(given={"x": X}, masks={"x": MASK[0]}), r"\(3, 3\), got bool"),
    "a mask of numbers": (dict(given={"x": X}, masks={"x": X}), "booleans.*got float64"),
    "nothing": (dict(given={}), "Nothing predicts 'x': give it, or say where to start it"),
    "a shape": (dict(given={"x": X, "h": X}), r"'h' has the shape \(3, 3\).*\(3, 4\)"),
    "a batch": (dict(given={"x": X, "h": H[:2]}), "'x' has 3, 'h' has 2"),
}


@pytest.mark.parametrize("how", POSES)
def test_a_problem_that_is_not_posed(how):
    kwargs, message = POSES[how]
    with pytest.raises(ValueError, match=message):
        jpc.pose(PLAIN, PARAMS, **kwargs)


def test_a_cycle_needs_a_start():
    drawn = cycle()
    given = {name: jnp.asarray(drawn.states[name]) for name in ("x", "y")}
    with pytest.raises(ValueError, match="'a': it is in a cycle, so give start"):
        jpc.pose(drawn.energy, drawn.params, given)
    with pytest.raises(ValueError, match="no callable that predicts 'a'"):
        jpc.pose(drawn.energy, {}, given)
