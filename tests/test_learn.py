"""One step of descent, in the parameters and in the activities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_close, make_problem, scalings, weights

import jpc

PROBLEM = make_problem()
CHAIN, STATES = PROBLEM.chain(), PROBLEM.states
ARGS = (PROBLEM.params, PROBLEM.activities)
OPTIMS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw": optax.adamw(1e-2, weight_decay=0.1),
}


def by_hand(optim, steps, **options):
    """Steps of an optimiser on the list of NumPy's weights and gradients."""
    chain = PROBLEM.chain(**options)
    state = optim.init(chain.weights)
    for _ in range(steps):
        updates, state = optim.update(chain.weight_grads(STATES), state, chain.weights)
        chain.weights = [w + np.asarray(u) for w, u in zip(chain.weights, updates, strict=True)]
    return chain.weights


def arrays(model):
    return eqx.filter(model, eqx.is_array)


# --- parameters ---


@pytest.mark.parametrize("optim", OPTIMS.values(), ids=OPTIMS.keys())
def test_learn_is_a_step_of_the_optimiser(optim):
    model, nodes, clamps = PROBLEM.model, *PROBLEM.posed()[1:]
    state = optim.init(arrays(model))
    for _ in range(3):
        learned = jpc.learn(jpc.PCEnergy(), model, nodes, clamps, optim=optim, opt_state=state)
        model, state = learned.params, learned.opt_state
    assert_close(weights(model), by_hand(optim, 3))


@pytest.mark.parametrize("optim", OPTIMS.values(), ids=OPTIMS.keys())
@pytest.mark.parametrize("form", ["pair", "bare model"])
def test_update_params_is_a_step_of_the_optimiser(optim, form):
    model = PROBLEM.model
    state = optim.init((arrays(model), None) if form == "pair" else arrays(model))
    structure = jax.tree.structure(state)
    for _ in range(2):
        args = ((model, None), PROBLEM.activities, optim, state, PROBLEM.y, PROBLEM.x)
        update = jpc.update_params(*args)
        model, state = update["model"], update["opt_state"]
        assert update["optim"] is optim and update["skip_model"] is None
        assert jax.tree.structure(state) == structure
    assert_close(weights(model), by_hand(optim, 2))


def test_what_was_learned_shows_itself_in_a_line():
    """By hand: 3 x 4 weights and 4 biases."""
    layer, optim = eqx.nn.Linear(3, 4, key=jax.random.key(0)), optax.sgd(0.1)
    nodes, clamps = jpc.clamp([], jnp.ones((2, 4)), jnp.ones((2, 3)))
    learned = jpc.learn(
        jpc.PCEnergy(), [layer], nodes, clamps, optim=optim, opt_state=optim.init(layer)
    )
    assert repr(learned) == "Learned(16 parameters; params, opt_state, grads)"


def test_update_params_returns_its_gradients():
    state = OPTIMS["sgd"].init((arrays(PROBLEM.model), None))
    update = jpc.update_params(*ARGS, OPTIMS["sgd"], state, PROBLEM.y, PROBLEM.x)
    model, skip_model = update["grads"]
    assert_close(weights(model), CHAIN.weight_grads(STATES))
    assert skip_model is None


def test_update_params_takes_options_and_skips():
    optim = OPTIMS["sgd"]
    params = (PROBLEM.model, jpc.make_skip_model(3))
    update = jpc.update_params(
        params,
        PROBLEM.activities,
        optim,
        optim.init(arrays(params)),
        PROBLEM.y,
        PROBLEM.x,
        loss_id="ce",
        param_type="mupc",
        gamma=2.0,
        output_energy_scaling=0.3,
    )
    scales = scalings("mupc", (3, 4, 4), skips=True, gamma=2.0)
    expected = by_hand(optim, 1, scales=scales, skips=True, loss="ce", precisions=[1, 1, 0.3])
    assert_close(weights(update["model"]), expected)


def test_without_an_input_the_first_activity_stands_for_it():
    optim = OPTIMS["sgd"]
    state = optim.init(arrays(PROBLEM.model))
    activities = [PROBLEM.x, *PROBLEM.activities]
    update = jpc.update_params(PROBLEM.params, activities, optim, state, PROBLEM.y)
    assert_close(weights(update["model"]), by_hand(optim, 1))


def test_a_scale_is_not_learned():
    scales = [jnp.asarray(s) for s in (0.5, 0.7, 0.9)]
    layers = [jpc.Layer(fn, scale=s) for fn, s in zip(PROBLEM.model, scales, strict=True)]
    optim, (_, nodes, clamps) = OPTIMS["sgd"], PROBLEM.posed()
    learned = jpc.learn(
        jpc.PCEnergy(), layers, nodes, clamps, optim=optim, opt_state=optim.init(arrays(layers))
    )
    assert_close([layer.scale for layer in learned.params], scales, rtol=0, atol=0)
    expected = by_hand(optim, 1, scales=[0.5, 0.7, 0.9])
    assert_close(weights([layer.fn for layer in learned.params]), expected)


def test_a_state_of_another_model_is_refused():
    optim = OPTIMS["adam"]
    other = make_problem(sizes=(3, 5, 5, 2)).model
    for state in (optim.init(arrays(other)), OPTIMS["sgd"].init(arrays(PROBLEM.model))):
        with pytest.raises(ValueError, match=r"opt_state .* optim.init\(eqx.filter\(model, "):
            jpc.update_params(*ARGS, optim, state, PROBLEM.y, PROBLEM.x)
        with pytest.raises(ValueError, match=r"opt_state .* optim.init\(activities\)"):
            jpc.update_activities(*ARGS, optim, state, PROBLEM.y, PROBLEM.x)


def learn_by(optim, state):
    _, nodes, clamps = PROBLEM.posed()
    return jpc.learn(jpc.PCEnergy(), PROBLEM.model, nodes, clamps, optim=optim, opt_state=state)


def test_optimisers_that_need_more_than_gradients():
    """They are refused by what they are; what else goes wrong in one is its own."""
    search = optax.lbfgs()
    with pytest.raises(TypeError, match=r"a line search .*take one that needs gradients only"):
        learn_by(search, search.init(arrays(PROBLEM.model)))

    def update(grads, state, params):
        raise TypeError("out of order")

    broken = optax.GradientTransformation(optax.sgd(0.1).init, update)
    with pytest.raises(TypeError, match=r"^out of order"):
        learn_by(broken, broken.init(arrays(PROBLEM.model)))
    others = optax.multi_transform({"a": optax.sgd(0.1)}, ["a"])
    with pytest.raises(ValueError, match="opt_state is not a state of this optimiser"):
        learn_by(others, ())


# --- activities ---


@pytest.mark.parametrize(("reduction", "scale"), [("sum", 1), ("mean", 1 / 5)])
def test_update_activities_is_a_step_of_gradient_descent(reduction, scale):
    optim, activities = optax.sgd(0.1), PROBLEM.activities
    state, states = optim.init(activities), STATES
    for _ in range(2):
        update = jpc.update_activities(
            PROBLEM.params, activities, optim, state, PROBLEM.y, PROBLEM.x, reduction=reduction
        )
        assert_close(update["energy"], CHAIN.energy(states))
        grads = [scale * g for g in CHAIN.activity_grads(states)[1:]]
        assert_close(update["grads"][:-1], grads)
        activities, state = update["activities"], update["opt_state"]
        states = CHAIN.euler(states, 0.1 * scale, 1)
        assert_close(activities[:-1], states[1:-1])
        assert_close(activities[-1], np.stack([CHAIN.predict(3, z) for z in states[-2]]))


def test_update_activities_takes_any_optimiser():
    """Adam's first step has the learning rate's size and the gradient's sign."""
    optim = optax.adam(1e-2, eps=0.0, eps_root=0.0)
    state = optim.init(PROBLEM.activities)
    update = jpc.update_activities(*ARGS, optim, state, PROBLEM.y, PROBLEM.x)
    signs = [np.sign(g) for g in CHAIN.activity_grads(STATES)[1:]]
    expected = [z - 1e-2 * s for z, s in zip(PROBLEM.hidden, signs, strict=True)]
    assert_close(update["activities"][:-1], expected)


def test_the_names_of_predictive_coding():
    assert jpc.update_pc_params is jpc.update_params
    assert jpc.update_pc_activities is jpc.update_activities
