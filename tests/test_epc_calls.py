"""Predictive coding in its errors, against NumPy by hand and against predictive coding in its
states.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import SIZES, Chain, assert_close, equilibrate, make_problem, scalings, to, weights

import jpc

PROBLEM = make_problem()
PARAMS, X, Y = PROBLEM.params, PROBLEM.x, PROBLEM.y
ERRORS = [0.3 * z for z in PROBLEM.hidden]


def unfold(chain, errors, x):
    """z_0 ... z_{L-1}, by hand: z_l = f_l(z_{l-1}) + e_l."""
    states = [np.asarray(x)]
    for layer, e in enumerate(errors, start=1):
        states.append(np.stack([chain.predict(layer, z) for z in states[-1]]) + np.asarray(e))
    return states


def error_grads(chain, errors, x, y):
    """Of each example's own energy in z_0, e_1 ... e_{L-1}: what the output pulls at, back
    through the layers, and each error itself.
    """
    states = unfold(chain, errors, x)
    grads = [np.zeros_like(states[0]), *map(np.array, errors)]
    for i in range(len(x)):
        last = chain.predict(chain.depth, states[-1][i])
        back = -chain.pull_of(chain.depth, np.asarray(y[i]), last)
        for layer in range(chain.depth, 0, -1):
            back = chain.jacobian(layer, states[layer - 1][i]).T @ back
            grads[layer - 1][i] += back
    return grads


SETTINGS = {
    "plain": (None, {}, {}),
    "scaled": (
        jpc.make_skip_model(3),
        dict(loss_id="ce", param_type="mupc", output_energy_scaling=0.5),
        dict(
            loss="ce",
            precisions=[1.0, 1.0, 0.5],
            skips=True,
            scales=scalings("mupc", SIZES[:-1], skips=True),
        ),
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_energy_and_gradients_are_those_of_numpy(setting):
    skip_model, options, made = SETTINGS[setting]
    chain, params = PROBLEM.chain(**made), (PROBLEM.model, skip_model)
    states = [*unfold(chain, ERRORS, X), np.asarray(Y)]
    # Here the original says `loss`, and `loss_id` elsewhere: both are known everywhere.
    named = {name.replace("loss_id", "loss"): value for name, value in options.items()}
    layers = jpc.epc_energy_fn(params, ERRORS, Y, x=X, record_layers=True, **named)
    assert_close(layers, chain.energies(states))
    value, grads = jpc.compute_epc_error_grad(params, ERRORS, Y, x=X, **options)
    assert_close(value, chain.energy(states))
    expected = error_grads(chain, ERRORS, X, Y)[1:]
    assert_close(grads, [g / len(X) for g in expected])
    learned, skips = jpc.compute_epc_param_grads(params, ERRORS, Y, x=X, **options)
    assert_close(weights(learned), chain.weight_grads(states))
    assert jax.tree.leaves(skips) == []


def test_each_example_has_its_own_gradient():
    _, own = jpc.compute_epc_error_grad(PARAMS, ERRORS, Y, x=X, reduction="sum")
    assert_close(own, error_grads(PROBLEM.chain(), ERRORS, X, Y)[1:])


def test_without_errors_only_the_output_learns():
    """By definition each layer learns from its own error; the derivative of the energy with its
    errors held fixed would be backpropagation.
    """
    zeros = jpc.init_epc_errors(SIZES, len(X))
    first, second, last = weights(jpc.compute_epc_param_grads(PARAMS, zeros, Y, x=X)[0])
    assert not np.any(first) and not np.any(second) and np.any(last)


def test_small_errors_keep_their_digits():
    """What is learned in single precision, against double: states are a million times larger
    than these errors.
    """
    errors = to(jnp.float32, [1e-6 * e for e in ERRORS])
    singles = to(jnp.float32, (PROBLEM.model, X, Y))
    doubles = to(jnp.float64, (*singles, errors))
    single = jpc.compute_epc_param_grads((singles[0], None), errors, singles[2], x=singles[1])
    double = jpc.compute_epc_param_grads((doubles[0], None), doubles[3], doubles[2], x=doubles[1])
    for got, expected in zip(weights(single[0]), weights(double[0]), strict=True):
        assert np.linalg.norm(got - expected) < 1e-6 * np.linalg.norm(expected)


def test_penalties_are_learned_from_too():
    plain, decayed = (
        weights(jpc.compute_epc_param_grads(PARAMS, ERRORS, Y, x=X, **options)[0])
        for options in ({}, dict(weight_decay=0.1))
    )
    expected = [g + 0.1 * w for g, w in zip(plain, PROBLEM.weights, strict=True)]
    assert_close(decayed, expected)


def test_errors_of_the_layers_that_are_inferred():
    given, free = (jpc.init_epc_errors(SIZES, 5, mode) for mode in ("supervised", "unsupervised"))
    assert [e.shape for e in given] == [(5, 4), (5, 4)]
    assert [e.shape for e in free] == [(5, 3), (5, 4), (5, 4)]
    assert not any(np.any(e) for e in [*given, *free])
    images = jpc.init_epc_errors([(1, 8, 8), (4, 4, 4), 10], 2)
    assert [e.shape for e in images] == [(2, 4, 4, 4)]


def infer(params, errors, y, x, optim, steps, **options):
    state = optim.init(errors)
    for _ in range(steps):
        moved = jpc.update_epc_errors(params, errors, optim, state, y, x, **options)
        errors, state = moved["errors"], moved["opt_state"]
    return errors


def test_the_equilibrium_is_that_of_the_states():
    """Against Newton's method in the states: what is inferred, and what is learned from it."""
    nodes, clamps = jpc.clamp(PROBLEM.hidden, Y, X)
    ends = equilibrate(jpc.PCEnergy(), PROBLEM.layers, nodes, clamps)
    z = [*ends[1:-1], Y]
    zeros = jpc.init_epc_errors(SIZES, len(X))
    errors = infer(PARAMS, zeros, Y, X, optax.sgd(0.5), 150, reduction="sum")
    assert_close(unfold(PROBLEM.chain(), errors, X)[1:], z[:-1], rtol=1e-8, atol=1e-8)
    learned, expected = (
        weights(grads[0])
        for grads in (
            jpc.compute_epc_param_grads(PARAMS, errors, Y, x=X),
            jpc.compute_pc_param_grads(PARAMS, z, Y, x=X),
        )
    )
    assert_close(learned, expected, rtol=1e-8, atol=1e-8)


def test_the_input_is_inferred_too():
    """One step from z_0 and errors, by hand."""
    free, rate, size = [X, *ERRORS], 0.1, len(X)
    expected = error_grads(PROBLEM.chain(), ERRORS, X, Y)
    optim = optax.sgd(rate)
    moved = jpc.update_epc_errors(PARAMS, free, optim, optim.init(free), Y)
    assert_close(moved["grads"], [g / size for g in expected])
    stepped = [z - rate * g / size for z, g in zip(free, expected, strict=True)]
    assert_close(moved["errors"], stepped)
    assert_close(moved["energy"], jpc.epc_energy_fn(PARAMS, ERRORS, Y, x=X))


def test_updates_return_what_the_next_one_takes():
    optim = optax.adam(0.1)
    moved = jpc.update_epc_errors(PARAMS, ERRORS, optim, optim.init(ERRORS), Y, input=X)
    assert moved.keys() == {"energy", "errors", "grads", "optim", "opt_state"}
    learn = optax.sgd(0.1)
    state = learn.init((eqx.filter(PROBLEM.model, eqx.is_array), None))
    learned = jpc.update_epc_params(PARAMS, moved["errors"], learn, state, Y, input=X)
    assert learned.keys() == {"model", "skip_model", "grads", "optim", "opt_state"}
    steps = zip(PROBLEM.weights, weights(learned["grads"][0]), strict=True)
    assert_close(weights(learned["model"]), [w - 0.1 * g for w, g in steps])


def orthogonal(key, size, depth):
    """A chain that neither shrinks nor blows up what goes through it."""
    model = jpc.make_mlp(key, size, size, depth, size, "tanh")
    make = jax.nn.initializers.orthogonal()
    draw = lambda i, w: make(jr.fold_in(key, i), w.shape) if eqx.is_array(w) else w
    return [jax.tree.map(lambda w, i=i: draw(i, w), layer) for i, layer in enumerate(model)]


def test_the_first_of_twenty_layers_moves_at_once():
    """In the states (NumPy's) a signal goes one layer a step, and a tenth of it each time; in the
    errors it is everywhere after the first. That the errors after many steps are an equilibrium,
    the gradient in the states says.
    """
    depth, size, rate = 20, 16, 0.1
    model = orthogonal(jr.key(0), size, depth)
    chain = Chain([np.asarray(w) for w in weights(model)])
    x, y = jr.normal(jr.key(1), (2, 2, size))
    start = [*chain.feedforward(x)[:-1], np.asarray(y)]
    moved = chain.euler(start, rate, 20)
    problem = ((model, None), jpc.init_epc_errors([size] * (depth + 1), len(x)), y, x)
    errors, ends = (infer(*problem, optax.sgd(rate), n, reduction="sum") for n in (20, 250))
    settled = [*unfold(chain, ends, x), np.asarray(y)]
    assert all(np.max(np.abs(g)) < 1e-8 for g in chain.activity_grads(settled)[1:])
    # The first layer predicts from x, so that its error is how far it has moved.
    norm = np.linalg.norm
    assert norm(errors[0]) > 0.9 * norm(ends[0])
    assert norm(errors[0] - ends[0]) < 0.1 * norm(ends[0])
    assert norm(moved[1] - start[1]) < 1e-10 * norm(ends[0])


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ([ERRORS[:1], Y, X], {}, ValueError, "3 layers with an input has 2 errors, e_1 ... e_2"),
        ([ERRORS, Y, None], {}, ValueError, "without an input has 3 errors, z_0 ... e_2"),
        ([ERRORS[::-1], Y[:, :1], X], {}, ValueError, "output z_3 has shape"),
        ([[ERRORS[0], ERRORS[1][:, :3]], Y, X], {}, ValueError, "error of z_2 has shape"),
        ([[ERRORS[0][:2], ERRORS[1]], Y, X], {}, ValueError, "the same batch size"),
        ([0.0, Y, X], {}, TypeError, "errors must be a list of arrays"),
        ([ERRORS, Y, X], dict(mask=Y > 0), ValueError, "leave out mask"),
        ([ERRORS, Y, X], dict(activity_decay=1.0), TypeError, "no error coordinates"),
        ([[jnp.nan * ERRORS[0], ERRORS[1]], Y, X], {}, Exception, r"errors\[0\] is not finite"),
    ],
)
def test_what_does_not_fit_is_refused(args, options, error, message):
    errors, y, x = args
    with pytest.raises(error, match=message):
        jpc.epc_energy_fn(PARAMS, errors, y, x=x, **options)


def test_a_network_of_one_layer_and_a_strange_state_are_refused():
    with pytest.raises(ValueError, match="nothing to infer"):
        jpc.epc_energy_fn((PROBLEM.model[:1], None), [], PROBLEM.hidden[0], x=X)
    with pytest.raises(ValueError, match="opt_state is not a state of this optimiser for errors"):
        jpc.update_epc_errors(PARAMS, ERRORS, optax.adam(1.0), (), Y, X)
    with pytest.raises(ValueError, match="Unknown mode"):
        jpc.init_epc_errors(SIZES, 5, "free")
