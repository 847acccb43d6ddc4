"""Temporal predictive coding against least squares, Kalman's filter and smoother, and its own
update rules, all of them in NumPy.
"""

import functools as ft
import runpy
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close
from test_docs import run as run_page

import jpc

STEPS, BATCH, LATENT, SEEN = 8, 3, 3, 2
RNG = np.random.default_rng(0)
A = 0.9 * np.linalg.qr(RNG.normal(size=(LATENT, LATENT)))[0]
C = RNG.normal(size=(SEEN, LATENT))
START = RNG.normal(size=(BATCH, LATENT))
EXACT = jpc.Equilibrium(chords=2, max_steps=0)
QUICK = jpc.Descent(optax.sgd(0.1), 4)
MASK = RNG.uniform(size=(STEPS, BATCH, SEEN)) < 0.7


def linear(matrix):
    layer = eqx.nn.Linear(*matrix.shape[::-1], use_bias=False, key=jr.key(0))
    return eqx.tree_at(lambda layer: layer.weight, layer, jnp.asarray(matrix))


def simulate(rng, start, steps, A=A, C=C, R=1.0):
    """States and observations of a linear-Gaussian system, with the time first."""
    z, states, seen = start, [], []
    for _ in range(steps):
        z = z @ A.T + rng.normal(size=z.shape)
        states.append(z)
        seen.append(z @ C.T + np.sqrt(R) * rng.normal(size=(len(z), len(C))))
    return np.stack(states), np.stack(seen)


X = simulate(RNG, START, STEPS)[1]
PARAMS = [linear(A), linear(C)]


# --- oracles ---


def least_squares(matrices, precisions, start, x):
    """The states of one sequence at which the energy is least: all rows of errors, each times
    the root of its precision, in one system. Only what is not NaN is observed.
    """
    sizes = [len(m) for m in matrices]
    width, steps = sum(sizes[:-1]), len(x)
    at = lambda layer, t: t * width + sum(sizes[:layer])
    rows, targets = [], []
    for t in range(steps):
        for i, (matrix, p) in enumerate(zip(matrices, precisions, strict=True)):
            for k, root in enumerate(np.sqrt(np.broadcast_to(p, sizes[i]))):
                row, target = np.zeros(steps * width), 0.0
                if i + 1 < len(matrices):
                    row[at(i, t) + k] = -1
                elif np.isnan(x[t, k]):
                    continue
                else:
                    target = x[t, k]
                if i == 0 and t == 0:
                    target = -matrix[k] @ start
                else:
                    first = at(0, t - 1) if i == 0 else at(i - 1, t)
                    row[first : first + matrix.shape[1]] += matrix[k]
                rows.append(root * row)
                targets.append(root * target)
    found = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]
    return found.reshape(steps, width)[:, : sizes[0]]


def filter_by_least_squares(matrices, precisions, start, x):
    estimates = []
    for seen in x:
        start = least_squares(matrices, precisions, start, seen[None])[0]
        estimates.append(start)
    return np.array(estimates)


def each(oracle, matrices, precisions, start, x):
    """An oracle for each sequence of a batch."""
    found = [oracle(matrices, precisions, s, x[:, i]) for i, s in enumerate(start)]
    return np.stack(found, axis=1)


def kalman(m, P, x, Q, R):
    """Kalman's filter of one sequence, and the smoother of Rauch, Tung and Striebel."""
    means, covs, priors = [], [], []
    for seen in x:
        m, P = A @ m, A @ P @ A.T + Q
        priors.append((m, P))
        known = ~np.isnan(seen)
        H, noise = C[known], R[np.ix_(known, known)]
        K = P @ H.T @ np.linalg.inv(H @ P @ H.T + noise)
        m, P = m + K @ (seen[known] - H @ m), P - K @ H @ P
        means.append(m)
        covs.append(P)
    smooth = [means[-1]]
    for t in reversed(range(len(x) - 1)):
        G = covs[t] @ A.T @ np.linalg.inv(priors[t + 1][1])
        smooth.append(means[t] + G @ (smooth[-1] - priors[t + 1][0]))
    return np.array(means), np.array(smooth[::-1])


# --- filtering ---


PRECISIONS = [np.array([2.0, 0.5, 1.0]), np.array([3.0, 0.7])]
PRECISE = jpc.PCEnergy(precision=[jnp.asarray(p) for p in PRECISIONS])
HOLES = np.where(MASK, X, np.nan)
MASKED = jpc.Masked(jnp.asarray(HOLES), jnp.asarray(MASK))


def test_filtering_is_least_squares_at_each_step():
    estimates = jpc.filter_sequence(PRECISE, EXACT, PARAMS, START, X)
    expected = each(filter_by_least_squares, [A, C], PRECISIONS, START, X)
    assert_close(estimates, expected, rtol=0, atol=1e-12)


def descend(start, x):
    """z <- z - eta ((z - A z_before) - C'(x - C z)) four times, from the prediction on. What is
    not observed (NaN) starts from its prediction too, and x <- x - eta (x - C z).
    """
    before, estimates = start, []
    for given in x:
        prior = z = before @ A.T
        known, seen = ~np.isnan(given), np.where(np.isnan(given), z @ C.T, given)
        for _ in range(4):
            error = seen - z @ C.T
            z = z - 0.1 * ((z - prior) - error @ C)
            seen = np.where(known, seen, seen - 0.1 * error)
        before = z
        estimates.append(z)
    return np.array(estimates)


@pytest.mark.parametrize(("given", "x"), [(X, X), (MASKED, HOLES)], ids=["whole", "missing"])
def test_filtering_by_steps_of_descent(given, x):
    estimates = jpc.filter_sequence(jpc.PCEnergy(), QUICK, PARAMS, START, given)
    assert_close(estimates, descend(START, x), rtol=0, atol=1e-12)


def test_kalman_by_the_covariance_that_it_settles_at():
    """In coordinates in which the predictive covariance and that of the noise are one."""
    Q, R, P = 0.5 * np.eye(LATENT), np.array([[1.0, 0.3], [0.3, 0.6]]), np.eye(LATENT)
    for _ in range(500):
        after = P - P @ C.T @ np.linalg.solve(C @ P @ C.T + R, C @ P)
        P = A @ after @ A.T + Q
    root, noise = np.linalg.cholesky(P), np.linalg.cholesky(R)
    white = lambda matrix, x: np.linalg.solve(matrix, x.reshape(-1, len(matrix)).T).T
    params = [linear(np.linalg.solve(root, A @ root)), linear(np.linalg.solve(noise, C @ root))]
    seen = white(noise, X).reshape(X.shape)
    ones = jpc.PCEnergy(precision=[jnp.ones(LATENT), jnp.ones(SEEN)])
    found = jpc.filter_sequence(ones, EXACT, params, white(root, START), seen)
    before = np.linalg.solve(A, np.linalg.solve(A, P - Q).T)  # Whose prediction has P.
    expected = [kalman(s, before, X[:, i], Q, R)[0] for i, s in enumerate(START)]
    assert_close(found @ root.T, np.stack(expected, axis=1), rtol=0, atol=1e-10)


def test_the_tracking_task(monkeypatch):
    """Of the authors: the errors of Kalman's filter and of tPC that others measured."""
    benchmarks = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(benchmarks)
    task = runpy.run_path(str(benchmarks / "temporal.py"))
    transition, seen = task["constant_acceleration"](), task["TRACKING_C"]
    states, x = task["simulate"](transition, seen, range(10), 1000)
    params = [linear(transition), linear(seen)]
    found = jpc.filter_sequence(jpc.PCEnergy(), EXACT, params, np.zeros((10, 3)), x)
    assert_close(found, task["closed_form"](transition, seen, x), rtol=0, atol=1e-12)
    assert abs(np.mean(task["score"](np.asarray(found), states)) - 2.91) < 0.32
    means = task["kalman"](transition, seen, x)[0]
    assert abs(np.mean(task["score"](means, states)) - 2.10) < 0.14


class Noise(jpc.AbstractInference):
    """Adds noise to the prediction, and nothing else."""

    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        nodes = jax.tree.map(lambda z: z + jr.normal(key, z.shape), nodes)
        return jpc.Inferred(nodes, jpc.RESULTS.successful, {})


def test_a_key_for_each_step():
    key = jr.key(0)
    found = jpc.filter_sequence(jpc.PCEnergy(), Noise(), PARAMS, 0 * START, X, key=key)
    noise = found - np.concatenate([0 * START[None], found[:-1]]) @ A.T
    expected = jax.vmap(lambda key: jr.normal(key, START.shape))(jr.split(key, STEPS))
    assert_close(noise, expected, rtol=0, atol=1e-12)


# --- smoothing ---


@pytest.mark.parametrize("mask", [MASK, MASK | True], ids=["missing", "whole"])
def test_smoothing_is_kalmans(mask):
    """And its last estimate that of Kalman's filter, whose covariance starts at zero."""
    seen = jpc.Masked(jnp.asarray(X), jnp.asarray(mask))
    method = jpc.Equilibrium(chords=2, max_steps=0, shared=None)
    estimates = np.asarray(jpc.smooth_sequence(PRECISE, method, PARAMS, START, seen))
    Q, R = (np.diag(1 / p) for p in PRECISIONS)
    for i, start in enumerate(START):
        x, nothing = np.where(mask, X, np.nan)[:, i], np.zeros((LATENT, LATENT))
        filtered, smooth = kalman(start, nothing, x, Q, R)
        assert_close(estimates[:, i], smooth, rtol=0, atol=1e-8)
        assert_close(estimates[-1, i], filtered[-1], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_deeper_chains():
    """With a layer between the state and what is observed."""
    matrices = [A, RNG.normal(size=(4, LATENT)), RNG.normal(size=(SEEN, 4))]
    energy, params = jpc.PCEnergy(precision=[1.0, 2.0, 0.5]), [linear(m) for m in matrices]
    found = jpc.smooth_sequence(energy, EXACT, params, START, X)
    expected = each(least_squares, matrices, [1.0, 2.0, 0.5], START, X)
    assert_close(found, expected, rtol=0, atol=1e-10)
    method = jpc.Descent(optax.sgd(0.05), 4000)
    found = jpc.filter_sequence(energy, method, params, START, X)
    expected = each(filter_by_least_squares, matrices, [1.0, 2.0, 0.5], START, X)
    assert_close(found, expected, rtol=0, atol=1e-10)


def test_the_energy_of_a_sequence_is_the_sum_of_its_steps():
    """Also with a loss of its own, and at states that are no equilibrium."""
    energy = jpc.PCEnergy(jpc.huber, [2.0, 0.5])
    whole, errors = jpc.SequenceEnergy(energy, STEPS), RNG.normal(size=(BATCH, STEPS, LATENT))
    nodes, clamps = [None, jnp.asarray(errors), None], [jnp.asarray(START), None]
    clamps.append(jnp.asarray(X.swapaxes(0, 1)))
    states = [START]
    for t in range(STEPS):
        states.append(states[-1] @ A.T + errors[:, t])
    flat = lambda x: jnp.asarray(np.reshape(x, (STEPS * BATCH, -1)))
    given = [flat(states[:-1]), None, flat(X)]
    expected = STEPS * energy(PARAMS, [None, flat(states[1:]), None], given)
    assert np.isclose(whole(PARAMS, nodes, clamps), expected, rtol=1e-12)
    found = jax.vmap(lambda n, c: whole.states(PARAMS, n, c))(nodes, clamps)[0]
    assert_close(found[:, -1], states[-1], rtol=1e-12)


# --- learning ---

SGD = optax.sgd(0.1)


def begin(params=PARAMS, optim=SGD, **more):
    opt_state = optim.init(eqx.filter(params, eqx.is_inexact_array))
    return dict(params=params, optim=optim, opt_state=opt_state) | more


STEP = ft.partial(jpc.make_tpc_step, energy=PRECISE, inference=EXACT)


def test_learning_is_hebbian():
    """dA = mean P e_z z_before', dC = mean R e_x z', over the batch and over time."""
    result = STEP(**begin(), output=X.swapaxes(0, 1), input=START)
    z = each(filter_by_least_squares, [A, C], PRECISIONS, START, X)
    assert_close(result["estimates"], z.swapaxes(0, 1), rtol=0, atol=1e-12)
    assert_close(result["carry"], z[-1], rtol=0, atol=1e-12)
    before = np.concatenate([START[None], z[:-1]])
    errors, (p_z, p_x) = [z - before @ A.T, X - z @ C.T], PRECISIONS
    mean = lambda e, z: np.einsum("tbi,tbj->ij", e, z) / (STEPS * BATCH)
    expected = [A + 0.1 * mean(p_z * errors[0], before), C + 0.1 * mean(p_x * errors[1], z)]
    assert_close([layer.weight for layer in result["params"]], expected, rtol=0, atol=1e-12)
    pairs = zip(PRECISIONS, errors, strict=True)
    energies = [0.5 * np.mean(np.sum(p * e**2, axis=-1)) for p, e in pairs]
    assert_close(result["energies"], energies, rtol=1e-10)
    assert np.isclose(result["energy"], sum(energies)) and result["stats"]["steps"].shape == (3, 8)


def test_a_learned_system_predicts():
    """Held-out observations, one step ahead: almost as well as the system itself does."""
    rng, zeros = np.random.default_rng(1), np.zeros((64, LATENT))
    true = [A, rng.normal(size=(4, LATENT))]
    x = simulate(rng, zeros, 40, *true, R=0.1)[1]
    params = [linear(0.3 * np.eye(LATENT)), linear(0.5 * rng.normal(size=(4, LATENT)))]
    state, data = begin(params, optax.adam(5e-2)), (zeros[:48], x[:, :48].swapaxes(0, 1))
    options = dict(epochs=30, batch_size=16, key=jr.key(0), metrics=("energy",), progress=False)
    method = jpc.Descent(optax.sgd(0.05), 20)
    step = ft.partial(STEP, energy=jpc.PCEnergy(), inference=method)
    fitted = jpc.fit(step, state, data, **options)

    def ahead(A, C):
        """By the closed form (I + C'C)^-1 (C'x + A z_before)."""
        z, errors = zeros[48:], []
        for seen in x[:, 48:]:
            errors.append(seen - z @ A.T @ C.T)
            z = np.linalg.solve(np.eye(LATENT) + C.T @ C, (seen @ C + z @ A.T).T).T
        return np.mean(np.square(errors))

    learned = [np.asarray(layer.weight) for layer in fitted.state["params"]]
    begun = [np.asarray(layer.weight) for layer in params]
    assert fitted.history[-1]["energy"] < 0.2 * fitted.history[0]["energy"]
    assert ahead(*learned) < 1.15 * ahead(*true) < 0.5 * ahead(*begun)


# --- streams ---

PIECE = 4
PIECEWISE = ft.partial(STEP, energy=jpc.PCEnergy(), inference=QUICK)


def cut(stream):
    """Streams, with the time first, in pieces: all first ones, then all second ones."""
    pieces = stream.reshape(-1, PIECE, *stream.shape[1:])
    return pieces.swapaxes(1, 2).reshape(-1, PIECE, *stream.shape[2:])


def run(data, epochs=1, optim=SGD):
    state = begin(optim=optim, carry=START)
    options = dict(batch_size=BATCH, key=jr.key(0), metrics=("energy",), progress=False)
    return jpc.fit(PIECEWISE, state, data, epochs=epochs, shuffle=False, **options)


def test_a_stream_in_pieces_is_the_stream():
    """As long as nothing is learned."""
    fitted, z = run((None, cut(X)), optim=optax.sgd(0.0)), descend(START, X)
    assert_close(fitted.state["carry"], z[-1], rtol=0, atol=1e-12)
    errors = [z - np.concatenate([START[None], z[:-1]]) @ A.T, X - z @ C.T]
    energy = sum(0.5 * np.mean(np.sum(e**2, axis=-1)) for e in errors)
    assert np.isclose(fitted.history[0]["energy"], energy, rtol=1e-12)


def test_streams_begin_anew():
    """Each epoch, where the mask of the input says so; against a loop."""
    first = np.arange(len(cut(X))) < BATCH
    mask = np.broadcast_to(first[:, None], (len(first), LATENT))
    value = np.where(mask, np.tile(START, (len(first) // BATCH, 1)), np.nan)
    data = jpc.Masked(jnp.asarray(value), jnp.asarray(mask)), cut(X)
    fitted, state = run(data, epochs=2), begin()
    for _ in range(2):
        carry = START
        for piece in cut(X).reshape(-1, BATCH, PIECE, SEEN):
            result = PIECEWISE(**state, output=piece, input=carry)
            state, carry = {name: result[name] for name in state}, result["carry"]
    assert_close(arrays(fitted.state["params"]), arrays(state["params"]), rtol=0, atol=1e-13)
    assert_close(fitted.state["carry"], carry, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_the_page_of_the_documentation():
    """Of all states, those that are smoothed have the least energy."""
    names = run_page("variants/temporal.md")
    (f, g), x = names["params"], np.asarray(names["x"])
    predict = lambda layer, z: z @ np.asarray(layer.weight).T + np.asarray(layer.bias)

    def energy(z):
        before = np.concatenate([names["start"][None], z[:-1]])
        e_z, e_x = z - predict(f, before), x - predict(g, z)
        return np.mean(np.sum(e_z**2, axis=-1) / 2 + np.sum(e_x**2, axis=-1))

    least, filtered = energy(np.asarray(names["smoothed"])), energy(np.asarray(names["estimates"]))
    nudged = energy(np.asarray(names["smoothed"]) + 1e-3 * RNG.normal(size=(40, 2, 3)))
    assert least < nudged < filtered < 1.1 * least
    assert np.isclose(names["fitted"].history[0]["energy"], filtered, rtol=0.1)


# --- misuse ---


def infer(energy=None, inference=EXACT, params=PARAMS, start=START, x=X, by=jpc.filter_sequence):
    return by(energy or jpc.PCEnergy(), inference, params, start, x)


Y = X.swapaxes(0, 1)
ERRORS = [
    ("energy", lambda: infer(energy=3), TypeError, r"energy must be something like jpc.PCEnergy"),
    ("smoothed energy", lambda: infer(energy=jpc.GaussianPrior(1.0), by=jpc.smooth_sequence),
     TypeError, r"energy must be something like jpc.PCEnergy\(\)"),
    ("inference", lambda: infer(inference="exact"), TypeError, r"something like jpc.Equilibrium"),
    ("one layer", lambda: infer(params=PARAMS[:1]), ValueError, "at least two layers, got 1"),
    ("transition", lambda: infer(params=[linear(C), linear(A[:, :2])]), ValueError,
     r"first layer .*makes \(2,\) of the shape \(3,\)"),
    ("layers", lambda: infer(params=[linear(A), linear(A[:, :2])]), ValueError,
     r"Layer 2 of params cannot take z_1, of shape \(3,\)"),
    ("observations", lambda: infer(x=X[:, :, :1]), ValueError,
     r"observations of shape \(2,\) .*those of one step have shape \(3, 1\)"),
    ("batch", lambda: infer(x=Y, by=jpc.smooth_sequence), ValueError,
     r"shape \(2,\) .*there are 3 .*one step have shape \(8, 2\)"),
    ("nan", lambda: infer(inference=QUICK, x=HOLES), RuntimeError,
     "observations is not finite"),
    ("no start", lambda: STEP(**begin(), output=Y), ValueError, "Nothing says where"),
    ("no carry", lambda: STEP(**begin(), output=Y, input=jpc.Masked(jnp.ones(3), jnp.ones(3) > 0)),
     ValueError, "Nothing says where"),
    ("two starts", lambda: STEP(**begin(carry=START), output=Y, input=START), ValueError,
     "both say where the sequences start"),
    ("shapes of a start", lambda: STEP(
        **begin(carry=START), output=Y, input=jpc.Masked(jnp.ones(3), jnp.ones(3) > 0)),
     ValueError, r"carry has shape \(3, 3\), .*got \(3,\) and \(3,\)"),
    ("axes", lambda: STEP(**begin(), output=X[0, 0], input=START), ValueError,
     r"output needs axes for the time and the batch, got \(2,\)"),
    ("opt_state", lambda: STEP(**begin() | dict(opt_state=3), output=Y, input=START), ValueError,
     "opt_state is not a state of this optimiser for params"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), [pytest.param(*c, id=i) for i, *c in ERRORS])
def test_misuse_is_answered(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
