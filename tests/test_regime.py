"""Where a rule stands between backpropagation and equilibrium."""

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
