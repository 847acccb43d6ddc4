"""One battery of properties for all variants in `variants.py`."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optimistix as optx
import pytest
from helpers import arrays, assert_close, to
from jax.test_util import check_grads
from variants import ENERGIES, STEPS

import jpc

GRADIENTS = {"pc", "mupc", "masked", "bidirectional", "graph", "penalties"}
GRADIENTS |= {"learned precisions", "a sequence"}


def some(registry, often):
    """The others wait for `make slow`."""
    marks = lambda name: () if name in often else pytest.mark.slow
    values = lambda variant: variant if isinstance(variant, tuple) else (variant,)
    return [pytest.param(*values(v), id=name, marks=marks(name)) for name, v in registry.items()]


def close(one, other, tolerance):
    assert_close(arrays(one), arrays(other), rtol=tolerance, atol=tolerance)


# --- energies ---


@pytest.mark.parametrize("variant", some(ENERGIES, GRADIENTS))
def test_gradients_are_finite_differences(variant):
    nodes, clamps = variant.given
    params, rest = eqx.partition(variant.params, eqx.is_inexact_array)
    value = jax.jit(lambda p, nodes: variant.energy(eqx.combine(p, rest), nodes, clamps))
    if variant.gradient:
        check_grads(value, (params, nodes), order=1, modes=["rev"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("variant", some(ENERGIES, {"masked"}))
def test_examples_do_not_know_of_each_other(variant):
    """The order of a batch does not matter, and each is inferred as it is by itself, in float64
    and, to its precision, in float32.
    """
    method = jpc.Descent(0.1, 5)
    infer = lambda params, given: method(variant.energy, params, *given)
    ended = infer(variant.params, variant.given)
    turned = infer(variant.params, jax.tree.map(lambda x: x[::-1], variant.given))
    close(jax.tree.map(lambda x: x[::-1], turned.nodes), ended.nodes, 1e-12)
    alone = infer(variant.params, jax.tree.map(lambda x: x[2:3], variant.given))
    close(alone.nodes, jax.tree.map(lambda x: x[2:3], ended.nodes), 1e-12)
    assert_close(
        variant.energy(variant.params, *jax.tree.map(lambda x: x[::-1], variant.given)),
        variant.energy(variant.params, *variant.given),
    )
    rough = infer(to(jnp.float32, variant.params), to(jnp.float32, variant.given))
    close(rough.nodes, ended.nodes, 1e-4)


@pytest.mark.parametrize("variant", some(ENERGIES, {"graph"}))
def test_every_method_that_fits_ends_at_the_same_states(variant):
    exact = jpc.Equilibrium(rtol=4e-5)  # Which chords reach.
    flow = jpc.GradientFlow(dfx.Tsit5(), 200.0, rtol=1e-9)
    other = jpc.Minimise(optx.BFGS(1e-11, 1e-11)) if variant.gradient else flow
    methods = [jpc.Descent(0.2, 600), other]
    if variant.exact:
        methods += [exact, jpc.InErrors(jpc.Descent(0.1, 600))]
    ends = [method(variant.energy, variant.params, *variant.given) for method in methods]
    for end in ends[1:]:
        close(end.nodes, ends[0].nodes, 1e-5)


@pytest.mark.parametrize("variant", some(ENERGIES, {"masked", "bidirectional", "graph"}))
def test_terms_are_recorded_from_the_start_to_the_end(variant):
    record = jpc.Record(variant.energy.terms, length=3)
    problem = (variant.energy, variant.params, *variant.given)
    ended = jpc.Descent(0.1, 3)(*problem, record=record)
    at = lambda i: jax.tree.map(lambda x: jnp.mean(x[i]), ended.trajectory.values)
    close(at(0), variant.energy.layerwise(*problem[1:]), 1e-12)
    now = variant.energy.layerwise(variant.params, ended.nodes, variant.given[1])
    close(at(-1), now, 1e-12)


# --- steps ---


@pytest.mark.parametrize(("step", "state", "data"), some(STEPS, {"hybrid"}))
def test_fit_stopped_and_resumed_ends_with_the_same_bits(step, state, data, tmp_path):
    named = dict(batch_size=2, key=jr.key(0), metrics=(), progress=False)
    whole = jpc.fit(step, state, data, epochs=2, **named)
    for epochs in (1, 2):
        saved = jpc.Checkpoints(tmp_path, resume=epochs > 1)
        again = jpc.fit(step, state, data, epochs=epochs, checkpoints=saved, **named)
    assert_close(arrays(again.state), arrays(whole.state), rtol=0, atol=0)
    moved = [np.any(a != b) for a, b in zip(arrays(whole.state), arrays(state), strict=True)]
    assert np.mean(moved) > 0.5


@pytest.mark.parametrize(("step", "state", "data"), some(STEPS, {"pc"}))
def test_a_step_maps_over_networks(step, state, data):
    """Two networks at once, under jit and vmap, and one after the other."""
    names = state.keys() - {"optim", "opt_state", "optims", "opt_states"}
    params, rest = eqx.partition(state, eqx.is_array)
    both = jax.tree.map(lambda x: jnp.stack([x, 0.9 * x]).astype(x.dtype), params)

    def learn(params):
        given = dict(input=data[0], output=data[1], key=jr.key(1))
        result = step(**eqx.combine(params, rest), **given)
        return eqx.filter({name: result[name] for name in names}, eqx.is_array)

    mapped = eqx.filter_jit(jax.vmap(learn))(both)
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], (both, mapped))
        close(one[1], learn(one[0]), 1e-9)
