"""Where a rule stands between backpropagation and equilibrium."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import arrays, assert_close, make_problem
from variants import ENERGIES

import jpc
import jpc._regime


def test_linear_network_by_hand(monkeypatch):
    """Eigenvalues, traces and angles in NumPy, in a network whose layers have precisions."""
    problem = make_problem(act="linear", batch=3)
    p = [0.7, 2.0, 1.3]
    energy = jpc.PCEnergy(precision=p)
    W = [np.asarray(w) for w in arrays(problem.model)]
    A = W[2] @ W[2].T / p[1] + W[2] @ W[1] @ W[1].T @ W[2].T / p[0]
    values = np.linalg.eigvalsh(np.eye(2) + p[2] * A)
    x, y = np.asarray(problem.x), np.asarray(problem.y)
    g = p[2] * (y - x @ W[0].T @ W[1].T @ W[2].T)
    lam = np.linalg.solve(np.eye(2) + p[2] * A, g.T).T

    def grads(d):
        z = [x, x @ W[0].T, x @ W[0].T @ W[1].T]
        back = [d @ W[2] @ W[1], d @ W[2], d]
        return [(b.T @ s).ravel() for b, s in zip(back, z, strict=True)]

    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    pairs = list(zip(grads(lam), grads(g), strict=True))
    found = jpc.regime((problem.model, None), y, x, energy=energy, inference=jpc.Nudged())
    assert_close(found["mean_eigenvalue"], np.full(3, values.mean()))
    assert_close(found["largest_eigenvalue"], np.full(3, values[-1]))
    assert_close(found["smallest_eigenvalue"], np.full(3, values[0]))
    assert_close(found["mean_sensitivity"], np.full(3, np.trace(A) / 2))
    assert_close(found["layer_cosines"], np.array([cosine(a, b) for a, b in pairs]))
    whole = cosine(*(np.concatenate(side) for side in zip(*pairs, strict=True)))
    assert_close(found["cosine"], whole)
    assert_close(found["angle"], np.degrees(np.arccos(whole)))
    assert_close(found["relaxed"], 1.0)
    assert found["successful"] == 1
    monkeypatch.setattr(jpc._regime, "DENSE", 1)
    # Probes of two units: their products are the trace and, for half of them, twice what is off
    # the diagonal, with either sign.
    free, clamps = [None, *problem.hidden, None], [problem.x, None, None, problem.y]
    posed = jpc._regime.Forward.of("it", (energy, problem.model, free, clamps), None)
    one = lambda tree: {n: None if z is None else z[0] for n, z in tree.items()}
    made = jpc._regime._spectrum(posed.unfolded, one(posed.v), one(posed.given), jnp.ones(()))
    assert abs(made.mean_eigenvalue - values.mean()) <= p[2] * abs(A[0, 1]) + 1e-12
    assert_close(made.largest_eigenvalue, values[-1], rtol=1e-3)


@pytest.mark.slow
def test_ends_of_the_scale():
    """Backpropagation is at an angle of 0 with nothing relaxed. A few steps relax a part. The
    penalty does not count.
    """
    variant = ENERGIES["graph"]
    energy = variant.energy + jpc.WeightDecay(5.0)
    at = lambda rule: jpc.measure_regime(energy, variant.params, *variant.given, inference=rule)
    first, step = at(jpc.Backprop()), at(jpc.Descent(0.1, 3))
    assert first["relaxed"] == 0 and first["cosine"] > 1 - 1e-12 and first["successful"] == 1
    assert 0 < step["relaxed"] < 1 and step["successful"] == 0
    assert 0.9 < step["cosine"] < 1 - 1e-6
    assert step["layer_cosines"].keys() == variant.params.keys()
    assert_close(step["mean_eigenvalue"], first["mean_eigenvalue"])


def test_the_estimates_of_a_large_output():
    """Of a matrix that is diagonal probes find the traces exactly, and powers the largest one."""
    p, weights = 1.3, np.diag([3.0, 1.0, 0.5])
    layers = [jax.tree_util.Partial(jnp.matmul, jnp.asarray(w)) for w in (np.eye(3), weights)]
    nodes, clamps = [None, jnp.zeros((1, 3)), None], [jnp.ones((1, 3)), None, jnp.ones((1, 3))]
    problem = (jpc.PCEnergy(precision=[1.0, p]), layers, nodes, clamps)
    posed = jpc._regime.Forward.of("it", problem, None)
    v, given = {1: jnp.zeros(3)}, {0: jnp.ones(3), 1: None, 2: jnp.ones(3)}
    factor, A = 0.7, np.diag(weights**2)
    S = 1 + factor * p * A
    exact, found = (
        fn(posed.unfolded, v, given, jnp.asarray(factor))
        for fn in (jpc._regime._spectrum, jpc._regime._estimate)
    )
    for spectrum in (exact, found):
        assert_close(spectrum.mean_eigenvalue, np.mean(S))
        assert_close(spectrum.mean_sensitivity, np.mean(A))
        assert_close(spectrum.largest_eigenvalue, np.max(S), rtol=1e-6)
    assert_close(exact.smallest_eigenvalue, np.min(S))
    assert np.isnan(found.smallest_eigenvalue)


def test_cosines_by_hand():
    """However small they are; of what does not learn at all it is 0, and that is at 90 degrees."""
    one, other = [jnp.array([3.0, 0.0]), jnp.array(4.0)], [jnp.array([0.0, 2.0]), jnp.array(1.0)]
    small = lambda tree: [1e-6 * x for x in tree]
    for a, b in ((one, other), (small(one), small(other))):
        assert_close(jpc._regime._cosine(a, b), 4 / (5 * np.sqrt(5)))
    assert jpc._regime._cosine(one, [jnp.zeros(2), jnp.zeros(())]) == 0
    degrees = [float(jpc._regime._degrees(jnp.asarray(c))) for c in (1.1, 0.5, 0.0, -1.0, -1.1)]
    assert_close(np.array(degrees), np.array([0.0, 60.0, 90.0, 180.0, 180.0]))


def test_a_finite_nudge_of_a_single_unit():
    """One hidden state, a loss that is no square, and the mean of a batch: where a nudge ends its
    energy is relaxed, and its examples are certified.
    """
    model = make_problem(sizes=(1, 1, 1)).model
    x, y = jnp.array([[0.5], [-1.0]]), jnp.array([[1.0], [0.0]])
    energy = jpc.PCEnergy(jpc.bernoulli)
    nodes, clamps = jpc.pose(energy, model, {0: x, 2: y})
    rule = jpc.Nudged(0.3, inference=jpc.Equilibrium(1e-6), sign="positive")
    found = jpc.measure_regime(energy, model, nodes, clamps, inference=rule)
    assert_close(found["relaxed"], 1.0, rtol=1e-4)
    assert found["successful"] == 1 and found["cosine"] > 0.99
