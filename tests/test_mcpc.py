"""Monte Carlo predictive coding: samples, what is learned from them, and ancestral sampling. The
oracles are the closed forms of Gaussians.
"""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close, make_problem, split

import jpc

ENERGY = jpc.PCEnergy() + jpc.GaussianPrior(1.0)
DT = 0.02
SAMPLER = jpc.Langevin(2.0, DT)
SHORT = jpc.MonteCarlo(jpc.Descent(0.1, 5), jpc.Langevin(0.2, 0.05), 3)


class Affine(eqx.Module):
    """x = w z + b, with z ~ N(0, 1) and noise of variance 1: x ~ N(b, w^2 + 1)."""

    w: jax.Array
    b: jax.Array

    def __call__(self, z):
        return self.w * z + self.b


def affine(w, b=0.0):
    return [Affine(jnp.asarray(w), jnp.asarray(b))]


def pose(params, output, input, key):
    return jpc.clamp([jnp.zeros_like(output)], output, input)


# --- the posterior ---


def test_samples_are_of_the_posterior():
    """z given x = 3.25, where w = 2, has mean 1.3 and variance 0.2; Euler's steps add a factor to
    the variance, 1 / (1 - 5 dt / 2). Both to 4.5 standard errors, of chains that are independent.
    """
    chains = 4000
    method = jpc.MonteCarlo(jpc.Descent(0.2, 20), SAMPLER, 2)
    nodes, clamps = pose(None, jnp.full((chains, 1), 3.25), None, None)
    inferred = method(ENERGY, affine(2.0), nodes, clamps, key=jr.key(0))
    variance = 0.2 / (1 - 2.5 * DT)
    for samples in np.asarray(inferred.trajectory.values[0]):
        assert abs(np.mean(samples) - 1.3) < 4.5 * np.sqrt(variance / chains)
        assert abs(np.var(samples) - variance) < 4.5 * variance * np.sqrt(2 / chains)
    assert np.all(inferred.stats["steps"] == 120)
    assert_close(inferred.trajectory.ts, np.repeat([[1.0], [2.0]], chains, axis=1))


# --- learning ---


def learn_gaussian(step, data):
    """The mean and the variance of x that are learned, w and b from 1 and 0."""
    optim = optax.sgd(optax.exponential_decay(1.0, 150, 0.02))
    params = affine(1.0)
    state = dict(params=params, optim=optim, opt_state=optim.init(params))
    for key in jr.split(jr.key(1), 150):
        new = step(**state, output=data, key=key, energy=ENERGY, pose=pose)
        state = {name: new[name] for name in state}
    (layer,) = state["params"]
    return float(layer.b), float(layer.w) ** 2 + 1


@pytest.mark.slow
def test_a_gaussian_is_learned():
    """Its mean, and its variance v but for the size of the steps: where learning rests it is
    v / (1 + v dt / 2). From the peaks of the posteriors the variance has no bound.
    """
    data = 1 + jnp.sqrt(5.0) * jr.normal(jr.key(0), (500, 1))
    mean, variance = float(jnp.mean(data)), float(jnp.var(data))
    warm = jpc.Descent(0.02, 200)
    step = ft.partial(jpc.make_mcpc_step, warm=warm, sampler=SAMPLER, samples=10)
    learned = learn_gaussian(step, data)
    expected = variance / (1 + variance * DT / 2)
    np.testing.assert_allclose(learned, [mean, expected], rtol=0.02)
    peaks = learn_gaussian(ft.partial(jpc.make_step, inference=warm), data)
    assert abs(peaks[0] - mean) < 0.1 and peaks[1] > 3 * variance


PROBLEM = make_problem()
HOW = dict(warm=SHORT.warm, sampler=SHORT.sampler, samples=SHORT.samples)


def start(params, output, input, key):
    return jpc.clamp(PROBLEM.hidden, output, input)


def test_a_step_learns_from_the_mean_of_the_samples():
    """The gradients are the mean of those at each of them."""
    optim = optax.sgd(0.1)
    state = (optim, optim.init(eqx.filter(PROBLEM.model, eqx.is_inexact_array)))
    named = dict(energy=jpc.PCEnergy(), pose=start, key=jr.key(0), **HOW)
    answer = jpc.make_mcpc_step(PROBLEM.model, *state, PROBLEM.y, PROBLEM.x, **named)
    *_, clamps = PROBLEM.posed()
    drawn = split(answer["trajectory"].values)
    assert_close(answer["nodes"], drawn[-1])
    assert not np.any(np.isclose(drawn[0][1], drawn[1][1]))
    grads = [PROBLEM.chain().weight_grads(jpc.states(z, clamps)) for z in drawn]
    expected = [np.mean(layer, axis=0) for layer in zip(*grads, strict=True)]
    assert_close(arrays(answer["grads"]), expected)
    # As any method of inference: the paper's step learns the same from it.
    named = dict(inference=SHORT, activities=PROBLEM.activities, key=jr.key(0))
    paper = jpc.make_pc_step(PROBLEM.model, *state, PROBLEM.y, PROBLEM.x, **named)
    assert_close(arrays(paper["model"]), arrays(answer["params"]))


# --- ancestral samples ---


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_ancestral_samples_are_those_of_the_closed_form(temperature):
    """Of a linear chain: of the covariance T W_2 (W_1 W_1' + I) W_2', and of mean 0, to 4.5
    standard errors.
    """
    count, model = 20_000, make_problem("linear", (2, 3, 2), gain=1.5).model
    first, second = (np.asarray(layer.layers[1].weight) for layer in model)
    expected = temperature * second @ (first @ first.T + np.eye(3)) @ second.T
    samples = np.asarray(jpc.sample(jr.key(0), model, (count, 2), temperature))
    assert samples.shape == (count, 2)
    variances = np.diag(expected)
    assert np.all(np.abs(np.mean(samples, axis=0)) < 4.5 * np.sqrt(variances / count))
    error = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    assert np.all(np.abs(np.cov(samples.T) - expected) < 4.5 * error)


def test_at_temperature_zero_there_is_no_noise():
    model = make_problem("tanh", (2, 3, 2)).model
    assert_close(jpc.sample(jr.key(0), model, (3, 2), 0.0), np.zeros((3, 2)))


# --- errors ---


CASES = {
    "no key": (lambda: SHORT(ENERGY, affine(1.0), *pose(0, jnp.ones((1, 1)), None, 0)),
               ValueError, "is random: give a key"),
    "record": (lambda: SHORT(ENERGY, affine(1.0), *pose(0, jnp.ones((1, 1)), None, 0),
                             record=jpc.Record(length=3), key=jr.key(0)),
               ValueError, "leave out record"),
    "sampler": (lambda: jpc.MonteCarlo(sampler=jpc.Descent(0.1)), TypeError,
                "sampler must be something like jpc.Langevin"),
    "warm": (lambda: jpc.MonteCarlo(warm=None), TypeError, "warm must be .*jpc.Descent"),
    "samples": (lambda: jpc.MonteCarlo(samples=0), ValueError, "positive integers, got samples=0"),
    "shape": (lambda: jpc.sample(jr.key(0), affine(1.0), 20), ValueError, r"\(100, 20\), got 20"),
    "size": (lambda: jpc.sample(jr.key(0), affine(1.0), (2, 0)), ValueError, r"got shape\[1\]=0"),
    "key": (lambda: jpc.sample(0.5, affine(1.0), (2, 1)), TypeError, "a single jax.random.key"),
    "temperature": (lambda: jpc.sample(jr.key(0), affine(1.0), (2, 1), -1.0), ValueError,
                    "temperature must be a finite number of at least 0, got -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_wrong_arguments_are_answered(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        call()
