"""Whole tasks on small real data: scikit-learn's digits, 8 x 8 images of ten classes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import slowly
from sklearn.datasets import load_digits

import jpc

BATCH, TRAIN, TEST = 50, 500, 200
CLASSES, PIXELS, WIDTH = 10, 64, 32


@pytest.fixture(scope="module")
def digits():
    """Centred images and one-hot labels, to train and to test on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))[: TRAIN + TEST]
    images = jnp.asarray(images[order] / 8 - 1)
    labels = jnp.asarray(np.eye(CLASSES)[labels[order]])
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def batches(images, labels, epochs):
    for _ in range(epochs):
        for i in range(0, TRAIN, BATCH):
            yield images[i : i + BATCH], labels[i : i + BATCH]


def make(seed, input_dim, output_dim, depth=3):
    """A network, an optimiser, its state."""
    model = jpc.make_mlp(jr.key(seed), input_dim, WIDTH, depth, output_dim, "tanh", True)
    optim = optax.adam(5e-3)
    return model, optim, optim.init((eqx.filter(model, eqx.is_array), None))


def test_supervised_discriminative(digits):
    train, (images, labels) = digits
    model, optim, state = make(0, PIXELS, CLASSES)
    before, chance = jpc.test_discriminative_pc(model, labels, images)
    for x, y in batches(*train, epochs=4):
        step = jpc.make_pc_step(model, optim, state, y, x, calculate_accuracy=True)
        model, state = step["model"], step["opt_state"]
    after, accuracy = jpc.test_discriminative_pc(model, labels, images)
    assert chance < 30
    assert accuracy > 80
    assert after < before / 2


OWN: Any = dict(reduction="sum")  # Each example follows its own flow, and gets there in time.
SIZES = (CLASSES, WIDTH, WIDTH, PIXELS)


@pytest.mark.slow
def test_supervised_generative(digits):
    """From labels to images: images look like their class, labels are found by inference."""
    train, (images, labels) = digits
    model, optim, state = make(1, CLASSES, PIXELS)
    means = np.asarray(train[1].T @ train[0] / train[1].sum(axis=0)[:, None])
    gap = lambda preds: np.mean((np.asarray(preds) - np.asarray(labels) @ means) ** 2)
    before = gap(jpc.init_activities_with_ffwd(model, labels)[-1])
    for image, label in batches(*train, epochs=6):
        step = jpc.make_pc_step(model, optim, state, image, label, **OWN)
        model, state = step["model"], step["opt_state"]
    args = (model, images, labels, jr.key(0), SIZES, TEST)
    accuracy, preds = jpc.test_generative_pc(*args, max_t1=50, **OWN)
    assert preds.shape == (TEST, PIXELS)
    assert gap(preds) < before / 4
    assert accuracy > 50


@pytest.mark.parametrize("direction", ["images", slowly("labels")])
def test_unsupervised(digits, direction):
    """No input: what is clamped is explained better and better, images or labels."""
    train, _ = digits
    data = train[0] if direction == "images" else train[1]
    sizes = (8, WIDTH, data.shape[1])
    model, optim, state = make(2, 8, data.shape[1], depth=2)
    energies = []
    for i, (output, _) in enumerate(batches(data, data, epochs=3)):
        random = dict(key=jr.key(i), layer_sizes=sizes, batch_size=BATCH)
        step = jpc.make_pc_step(model, optim, state, output, **random)
        model, state = step["model"], step["opt_state"]
        energies.append(float(np.sum(step["energies"])))
    assert np.mean(energies[-5:]) < 0.5 * np.mean(energies[:5])


@pytest.mark.slow
def test_hybrid(digits):
    train, (images, labels) = digits
    generator, optim, gen_state = make(3, CLASSES, PIXELS)
    amortiser, _, amort_state = make(4, PIXELS, CLASSES)
    optims, states, losses = [optim, optim], (gen_state, amort_state), []
    for image, label in batches(*train, epochs=12):
        step = jpc.make_hpc_step(
            generator, amortiser, optims, states, image, label, max_t1=20, **OWN
        )
        generator, amortiser = step["generator"], step["amortiser"]
        states = step["opt_states"]
        losses.append(step["losses"])
    args = (generator, amortiser, images, labels, jr.key(0), SIZES, TEST)
    amortised, hybrid, generative, preds = jpc.test_hpc(*args, max_t1=50, **OWN)
    assert amortised > 75
    assert hybrid > 50
    assert generative > 50
    assert preds.shape == (TEST, PIXELS)
    first, last = (np.mean(part, axis=0) for part in (losses[:5], losses[-5:]))
    assert np.all(last < first / 2)


def test_accuracies_are_those_of_the_arg_max(digits):
    """What the evaluations report, from their parts."""
    _, (images, labels) = digits
    generator, amortiser = make(3, CLASSES, PIXELS)[0], make(4, PIXELS, CLASSES)[0]
    key, guess = jr.key(0), jpc.init_activities_with_amort(amortiser, generator, images)
    results = jpc.test_hpc(
        generator, amortiser, images, labels, key, SIZES, TEST, max_t1=50, **OWN
    )
    random = jpc.init_activities_from_normal(key, SIZES, "unsupervised", TEST)
    solve = lambda z: jpc.solve_inference((generator, None), z, images, max_t1=50, **OWN)[0]
    found = [guess[0], solve(guess), solve(random)]
    hits = [100 * np.mean(np.argmax(z, 1) == np.argmax(labels, 1)) for z in found]
    np.testing.assert_allclose(results[:3], hits)
    preds = jax.vmap(lambda z: jpc.feedforward(generator, z)[-1])(labels)
    np.testing.assert_allclose(results[3], preds, rtol=1e-10)
