"""Half precision: data count as what they are in full precision, the rest is refused by name."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import make_problem

import jpc

PROBLEM = make_problem(batch=4)
OPTIM = optax.sgd(0.1)
STATE = OPTIM.init((eqx.filter(PROBLEM.model, eqx.is_array), None))


def halve(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_array(x) else x, tree)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_data_count_as_full(dtype):
    """They are numbers of full precision too: the energy is that of those, to the last bit."""
    x, y = (jnp.asarray(z).astype(dtype) for z in (PROBLEM.x, PROBLEM.y))
    acts = jpc.init_activities_with_ffwd(PROBLEM.model, x.astype(float))
    energy = ft.partial(jpc.pc_energy_fn, PROBLEM.params, acts)
    np.testing.assert_array_equal(energy(y, x=x), energy(y.astype(float), x=x.astype(float)))


def refused():
    layers, nodes, clamps = PROBLEM.posed()
    x, y, pc = PROBLEM.x, PROBLEM.y, jpc.PCEnergy()
    step = lambda model: jpc.make_pc_step(model, OPTIM, STATE, y, input=x)
    data = (np.asarray(x), np.asarray(y))
    begin = lambda model: dict(model=model, optim=OPTIM, opt_state=STATE)
    fit = lambda model: jpc.fit(
        jpc.make_pc_step, begin(model), data, epochs=1, batch_size=4, key=jr.key(0)
    )
    flow = jpc.GradientFlow()
    return {
        "model": [(step, PROBLEM.model), (fit, PROBLEM.model)],
        "params": [(lambda z: pc(z, nodes, clamps), layers)]
        + [
            (lambda z, m=m: m(pc, z, nodes, clamps), layers)
            for m in (flow, jpc.Descent(0.1), jpc.Equilibrium())
        ],
        "nodes": [
            (lambda z: pc(layers, z, clamps), nodes),
            (lambda z: flow(pc, layers, z, clamps), nodes),
        ],
        "clamps": [(lambda z: flow(pc, layers, nodes, z), clamps)],
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["model", "params", "nodes", "clamps"])
def test_the_rest_is_refused_by_name(name, dtype):
    for call, value in refused()[name]:
        with pytest.raises(TypeError, match=rf"{name}.* must be float32 or float64, got {dtype}"):
            call(halve(value, dtype))
