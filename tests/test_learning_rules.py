"""Rules of learning in the place of inference."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import arrays, assert_close, make_problem
from variants import BITS, ENERGIES, GRAPH, HEADS, MODEL, PRECISE, X, Y, chain

import jpc

DECAY = 0.3
EQUAL = {
    "backprop": jpc.Backprop(),
    "fixed prediction": jpc.FixedPrediction(),
    "Z-IL": jpc.ZIL(),
    "nudged loss": jpc.Nudged(kind="loss"),
}


def gradient(rule, energy, params, given):
    """What is learned."""
    nodes, clamps = given
    inferred = rule(energy, params, nodes, clamps)
    lesson, states = inferred.lesson or (energy, inferred.nodes)
    return eqx.filter_grad(lambda p: lesson(p, states, clamps))(params), inferred


def of_loss(energy, params, given):
    """By `jax.grad` of the energy at the feedforward states, which move with the parameters."""
    clamps = given[1]

    @eqx.filter_grad
    def grad(params):
        if isinstance(clamps, dict):
            known = {name: c for name, c in clamps.items() if c is not None}
            nodes, _ = jpc.pose(energy, params, known)
        else:
            z = [clamps[0], *jpc.feedforward_batch(params, clamps[0])]
            free = [n is not None for n in given[0]]
            nodes = [state if f else None for state, f in zip(z, free, strict=True)]
        return energy(params, nodes, clamps)

    return grad(params)


def close(one, other, tolerance=1e-12):
    assert_close(arrays(one), arrays(other), rtol=tolerance, atol=tolerance)


NAMES = ["pc", "ce", "huber", "precisions", "mupc", "masked", "penalties", "graph"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", EQUAL.values(), ids=EQUAL)
def test_equal_to_backpropagation(rule, name):
    variant = ENERGIES[name]
    found, inferred = gradient(rule, variant.energy, variant.params, variant.given)
    close(found, of_loss(variant.energy, variant.params, variant.given))
    assert np.all(inferred.result == jpc.RESULTS.successful)
