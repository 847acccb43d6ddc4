"""Incremental predictive coding against NumPy, by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import SIZES, Chain, arrays, assert_close, make_problem, scalings, weights

import jpc

PROBLEM = make_problem()
SKIPS = jpc.make_skip_model(3)
STEPS, STEP_SIZE, RATE = 7, 0.1, 0.05
SGD, LEARN = optax.sgd(STEP_SIZE), optax.sgd(RATE)


def step(problem=PROBLEM, optim=LEARN, opt_state=None, **options):
    if opt_state is None:
        opt_state = optim.init(eqx.filter(problem.model, eqx.is_array))
    options = dict(activity_optim=SGD, steps=STEPS, input=problem.x) | options
    return jpc.make_ipc_step(problem.model, optim, opt_state, problem.y, **options)


def by_hand(chain: Chain, states, rate=RATE, first=1):
    """The layers' energies at every step, the gradients of the weights, and where it ends. States
    from `first` on are free.
    """
    states, energies, gradients = list(states), [], []
    for _ in range(STEPS):
        energies.append(chain.energies(states))
        pulls, grads = chain.activity_grads(states), chain.weight_grads(states)
        for i in range(first, chain.depth):
            states[i] = states[i] - STEP_SIZE * pulls[i]
        chain.weights = [w - rate * g for w, g in zip(chain.weights, grads, strict=True)]
        gradients.append(grads)
    return np.stack(energies, axis=1), gradients, states


def distance(got, expected):
    """The largest difference of two trees, relative to the largest number of the second."""
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True))
    return max(np.max(np.abs(a - b)) for a, b in pairs) / max(np.max(np.abs(b)) for _, b in pairs)


@pytest.mark.parametrize("skip_model", [None, SKIPS])
def test_weights_energies_and_activities_are_those_of_numpy(skip_model):
    options, made = {}, {}
    if skip_model is not None:
        options = dict(loss_id="ce", param_type="mupc", gamma=2.0, output_energy_scaling=0.5)
        made = dict(loss="ce", precisions=[1.0, 1.0, 0.5], skips=True)
        made["scales"] = scalings("mupc", SIZES[:-1], skips=True, gamma=2.0)
    chain = PROBLEM.chain(**made)
    start = [*chain.feedforward(PROBLEM.x)[:-1], PROBLEM.states[-1]]
    loss = Chain(chain.weights, **made | dict(precisions=None)).energies(start)[-1]
    energies, _, states = by_hand(chain, start)
    opt_state = LEARN.init(eqx.filter((PROBLEM.model, skip_model), eqx.is_array))
    result = step(opt_state=opt_state, skip_model=skip_model, **options)
    assert distance(weights(result["model"]), chain.weights) < 1e-15
    assert distance(result["energies"], energies) < 2e-15
    assert distance(result["activities"][:-1], states[1:-1]) < 2e-15
    prediction = [chain.predict(chain.depth, z) for z in states[-2]]
    assert_close(result["activities"][-1], np.stack(prediction))
    assert_close(result["loss"], loss)
    assert result["energies"].shape == (chain.depth, result["t_max"]) == (3, STEPS)


def test_the_input_is_inferred_too():
    chain, key = PROBLEM.chain(), jr.key(1)
    sizes = dict(layer_sizes=SIZES, key=key)
    start = jpc.init_activities_from_normal(key, SIZES, "unsupervised", len(PROBLEM.y))
    energies, _, states = by_hand(
        chain, [*map(np.asarray, start[:-1]), PROBLEM.states[-1]], first=0
    )
    result = step(input=None, **sizes)
    assert distance(weights(result["model"]), chain.weights) < 1e-15
    assert distance(result["energies"], energies) < 2e-15
    assert distance(result["activities"][:-1], states[:-1]) < 2e-15
    assert result["loss"] is None


def keep_gradients(steps):
    """An optimiser that learns nothing and keeps the gradients of all steps."""

    def init(params):
        return 0, jax.tree.map(lambda p: jnp.zeros((steps, *p.shape)), params)

    def update(grads, state, params=None):
        del params
        t, kept = state
        kept = jax.tree.map(lambda k, g: k.at[t].set(g), kept, grads)
        return jax.tree.map(jnp.zeros_like, grads), (t + 1, kept)

    return optax.GradientTransformation(init, update)


def test_every_step_learns_from_its_own_gradient():
    """Against NumPy, with weights that stay: those of predictive coding after 0, 1, ... steps.
    The state of the optimiser goes on with the next batch.
    """
    chain = PROBLEM.chain()
    start = [*chain.feedforward(PROBLEM.x)[:-1], PROBLEM.states[-1]]
    _, expected, _ = by_hand(chain, start, rate=0.0)
    optim = keep_gradients(2 * STEPS)
    first = step(optim=optim)
    second = step(optim=optim, opt_state=first["opt_state"])
    count, kept = second["opt_state"]
    assert count == 2 * STEPS
    twice = [np.stack(grads * 2) for grads in map(list, zip(*expected, strict=True))]
    assert distance(arrays(kept), twice) < 1e-15
    change = np.diff(twice[-1][:STEPS], axis=0)
    assert np.all(np.max(np.abs(change), axis=(1, 2)) > 1e-3)


def test_a_small_learning_rate_adds_up_the_gradients_of_predictive_coding():
    """NumPy's, at every step of inference with weights that stay."""
    chain, rate = PROBLEM.chain(), 1e-7
    start = [*chain.feedforward(PROBLEM.x)[:-1], PROBLEM.states[-1]]
    _, gradients, _ = by_hand(chain, start, rate=0.0)
    learned = weights(step(optim=optax.sgd(rate))["model"])
    moves = [(a - b) / rate for a, b in zip(PROBLEM.weights, learned, strict=True)]
    assert distance(moves, [sum(grads) for grads in zip(*gradients, strict=True)]) < 1e-6


def test_the_mean_of_a_batch_takes_steps_as_many_times_smaller():
    size = len(PROBLEM.x)
    sums, means = step(), step(activity_optim=optax.sgd(size * STEP_SIZE), reduction="mean")
    assert_close(arrays(means["model"]), arrays(sums["model"]), rtol=1e-13)
    assert_close(means["energies"], sums["energies"], rtol=1e-13)


def test_units_that_are_not_given_do_not_matter():
    """An output without a part is the same whatever is in it, and that part is inferred."""
    mask = jnp.asarray(np.arange(10).reshape(5, 2) % 3 > 0)
    other = make_problem()
    other.y = jnp.where(mask, other.y, 7.0)
    one, another = step(mask=mask), step(other, mask=mask)
    assert_close(arrays(one["model"]), arrays(another["model"]))
    assert jnp.all(one["activities"][-1][~mask] != 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(steps=0), ValueError, "steps=0"),
        (dict(activity_optim=0.1), TypeError, "activity_optim must be something like optax.sgd"),
        (dict(input=None), ValueError, "give key and layer_sizes"),
        (dict(max_t1=3), TypeError, "Unknown keyword max_t1"),
        (dict(opt_state=()), ValueError, "opt_state is not a state of this optimiser"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        step(**options)


def test_divergence_names_what_diverged():
    with pytest.raises(Exception, match="During learning, z_1 is not finite"):
        step(activity_optim=optax.sgd(1e200))
    with pytest.raises(Exception, match="After learning, layer 1 of model is not finite"):
        step(optim=optax.sgd(jnp.inf), steps=1)
