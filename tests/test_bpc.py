"""Bidirectional predictive coding and predictive dendrites against NumPy, finite differences,
other methods of inference, and predictive coding in either direction.
"""

import functools as ft

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import SIZES, Chain, assert_close, make_problem, scalings, slowly, weights
from jax.test_util import check_grads
from test_docs import run

import jpc

DOWN = make_problem()
UP = make_problem(sizes=SIZES[::-1], seed=1)
MODELS = (DOWN.model, UP.model[::-1])
X, Y, HIDDEN = DOWN.x, DOWN.y, DOWN.hidden
STATES = [np.asarray(z) for z in (X, *HIDDEN, Y)]
DEPTH, BATCH = len(SIZES) - 1, len(X)
SUPERVISED = jpc.clamp(HIDDEN, Y, X)
FREE = jpc.clamp([X, *HIDDEN], Y)
MASK = jnp.array([True, False, True, True, False])
ACTIVITIES = [*HIDDEN, 7.0 + Y]  # The last entry does not matter.


# --- NumPy ---


class Both:
    """Two chains in NumPy, with the weights a and b; the upward one counts from the output."""

    def __init__(self, a=1.0, b=1.0, **options):
        self.a, self.b = a, b
        self.down = Chain([np.asarray(w) for w in weights(MODELS[0])], **options)
        self.up = Chain([np.asarray(w) for w in weights(MODELS[1])][::-1], **options)

    def energies(self, states):
        up = self.up.energies(states[::-1])[::-1]
        return [*(self.a * self.down.energies(states)), *(self.b * up)]

    def activity_grads(self, states, source=1.0):
        """Of each example's own energy in z_0 ... z_{L-1}: what predicts a state pulls at it, and
        so does, times `source`, what it predicts.
        """
        e = self.errors(self.down, states)
        d = self.errors(self.up, states[::-1])[::-1]
        grads = []
        for i, z in enumerate(states[:-1]):
            grad = self.b * d[i] + (self.a * e[i] if i else 0)
            grad = grad - source * self.a * self.pull(self.down, i + 1, z, e[i + 1])
            if i:
                grad -= source * self.b * self.pull(self.up, DEPTH - i + 1, z, d[i - 1])
            grads.append(grad)
        return grads

    def errors(self, chain, states):
        """Of z_1 ... z_L in the order of the chain; nothing predicts its z_0."""
        made = [
            np.stack([chain.predict(i, z) for z in states[i - 1]]) for i in range(1, DEPTH + 1)
        ]
        return [None, *(z - p for z, p in zip(states[1:], made, strict=True))]

    def pull(self, chain, layer, states, errors):
        pairs = zip(states, errors, strict=True)
        return np.stack([chain.jacobian(layer, z).T @ e for z, e in pairs])

    def weight_grads(self, states):
        up = self.up.weight_grads(states[::-1])[::-1]
        down = self.down.weight_grads(states)
        return [self.a * g for g in down], [self.b * g for g in up]


def test_energy_and_gradients_are_those_of_numpy():
    numpy, energy = Both(0.3, 2.0), jpc.BPCEnergy(0.3, 2.0)
    expected = numpy.activity_grads(STATES)
    assert_close(jax.tree.leaves(energy.layerwise(MODELS, *SUPERVISED)), numpy.energies(STATES))
    grads = jax.grad(energy, argnums=1)(MODELS, *FREE)
    assert_close(grads, [g / BATCH for g in expected])
    grads = jax.grad(energy, argnums=1)(MODELS, *SUPERVISED)
    assert_close(grads, [g / BATCH for g in expected[1:]])
    learned = eqx.filter_grad(energy)(MODELS, *SUPERVISED)
    assert_close([weights(model) for model in learned], numpy.weight_grads(STATES))


def test_gradients_are_finite_differences():
    known = jpc.Masked(X, jr.bernoulli(jr.key(5), 0.5, X.shape))
    nodes, clamps = [1 + X, *HIDDEN, None], [known, None, None, Y]
    arrays, static = eqx.partition(MODELS, eqx.is_inexact_array)
    energy = lambda arrays, nodes: jpc.BPCEnergy(0.3, 2.0)(
        eqx.combine(arrays, static), nodes, clamps
    )
    check_grads(jax.jit(energy), (arrays, nodes), order=1, modes=["rev"], atol=1e-7, rtol=1e-6)


def test_one_direction_alone_is_predictive_coding():
    reverse = lambda posed: tuple(entries[::-1] for entries in posed)
    layerwise = lambda *w: jpc.BPCEnergy(*w).layerwise(MODELS, *SUPERVISED)
    down = jpc.PCEnergy().layerwise(MODELS[0], *SUPERVISED)
    up = jpc.PCEnergy().layerwise(MODELS[1][::-1], *reverse(SUPERVISED))
    nothing = [0.0] * DEPTH
    assert_close(layerwise(1.0, 0.0), [*down, *nothing])
    assert_close(layerwise(0.0, 1.0), [*nothing, *up[::-1]])


@pytest.mark.slow
def test_methods_agree_on_the_equilibrium():
    """Of BFGS `test_variants.py` asks the same."""
    energy = jpc.BPCEnergy(0.5, 1.0)
    slow, flow = (
        method(energy, MODELS, *FREE)
        for method in (
            jpc.Descent(optax.sgd(0.2, momentum=0.8), 400),
            jpc.GradientFlow(t1=60.0, dt0=0.3, controller=dfx.ConstantStepSize()),
        )
    )
    assert jnp.all(slow.stats["gradient_norm"] < 1e-12)
    assert_close(flow.nodes, slow.nodes, rtol=0, atol=1e-7)


# --- predictive dendrites ---


@pytest.mark.parametrize("source", [0.0, 0.25, 1.0])
def test_dendrites_are_those_of_numpy(source):
    energy = jpc.BPCEnergy(0.3, 2.0, source)
    expected = Both(0.3, 2.0).activity_grads(STATES, source)
    value, grads = jax.value_and_grad(energy, argnums=1)(MODELS, *FREE)
    assert_close(grads, [g / BATCH for g in expected])
    full = jpc.BPCEnergy(0.3, 2.0)
    assert value == full(MODELS, *FREE)
    learned = [eqx.filter_grad(f)(MODELS, *FREE) for f in (energy, full)]
    assert_close(*learned, rtol=0, atol=0)


# One state z_1 between 0 and 10: F = z^2 + (10 - 10 z)^2 / 2, which is 1 at z = 1 and 50 at z = 0,
# where both predictions of z are.
STEEP = ([lambda z: 0 * z, lambda z: 10 * z], [lambda z: 0 * z, lambda z: 0 * z])
STEEP_POSED = jpc.clamp([jnp.ones((1, 1))], jnp.full((1, 1), 10.0), jnp.zeros((1, 1)))
DENDRITES = jpc.BPCEnergy(source_gradient=0.0)


@pytest.mark.parametrize(
    ("energy", "method"),
    [
        slowly(DENDRITES, jpc.GradientFlow(t1=6.0, dt0=0.1, controller=dfx.ConstantStepSize())),
        (0.5 * DENDRITES + jpc.ActivityDecay(0.0), jpc.Descent(0.1, 60)),
    ],
)
def test_an_energy_may_grow_if_it_does_not_descend(energy, method):
    ended = method(energy, STEEP, *STEEP_POSED)
    assert_close(ended.nodes, [jnp.zeros((1, 1))], atol=1e-2)
    assert energy(STEEP, ended.nodes, STEEP_POSED[1]) > 20 * energy(STEEP, *STEEP_POSED)
    assert jnp.all(ended.result != jpc.RESULTS.diverged)
    assert not energy.descends()


def test_an_energy_that_descends_may_not_grow():
    energy = 2.0 * jpc.BPCEnergy() + jpc.ActivityDecay(0.1)
    assert energy.descends()
    with pytest.raises(RuntimeError, match="diverged"):
        jpc.Descent(0.1, 3)(energy, STEEP, *STEEP_POSED)


def test_a_minimiser_does_not_claim_an_equilibrium_that_it_has_not_found():
    ended = jpc.Minimise(throw=False)(DENDRITES, STEEP, *STEEP_POSED)
    assert jnp.all(ended.stats["gradient_norm"] > 0.1)
    assert jnp.all(ended.result == jpc.RESULTS.stopped_early)


# --- the paper's calls ---

WEIGHTS = dict(forward_energy_weight=0.3, backward_energy_weight=2.0)


def test_energy_function_is_that_of_numpy():
    energies = Both(0.3, 2.0).energies(STATES)
    energy = ft.partial(jpc.bpc_energy_fn, *MODELS, **WEIGHTS)
    assert_close(energy(ACTIVITIES, Y, x=X), np.sum(energies))
    assert_close(energy(ACTIVITIES, Y, x=X, record_layers=True), np.asarray(energies))
    assert_close(energy([X, *ACTIVITIES], Y), np.sum(energies))
    units = jr.bernoulli(jr.key(5), 0.5, X.shape)
    some, rest = jnp.where(units, X, jnp.nan), jnp.where(units, 7.0, X)
    assert_close(energy([rest, *ACTIVITIES], Y, x=some, input_mask=units), np.sum(energies))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_activity_gradients_are_those_of_numpy(reduction):
    own = Both(0.3, 2.0).activity_grads(STATES)
    expected = own if reduction == "sum" else [g / BATCH for g in own]
    how = WEIGHTS if reduction == "mean" else WEIGHTS | dict(reduction="sum")
    _, grads = jpc.compute_bpc_activity_grad(*MODELS, [X, *ACTIVITIES], Y, **how)
    assert_close(grads, [*expected, np.zeros_like(Y)])


def test_one_step_of_each_kind():
    """The steps of gradient descent by hand."""
    numpy, optim = Both(0.3, 2.0), optax.sgd(0.5)
    grads = [*numpy.activity_grads(STATES), np.zeros_like(Y)][1:]
    state = optim.init(ACTIVITIES)
    moved = jpc.update_bpc_activities(*MODELS, ACTIVITIES, optim, state, Y, X, **WEIGHTS)
    hidden = [z - 0.5 * g / BATCH for z, g in zip(HIDDEN, grads[:-1], strict=True)]
    assert_close(moved["grads"], [g / BATCH for g in grads])
    assert_close(moved["activities"][:-1], hidden)
    assert_close(moved["activities"][-1], jax.vmap(MODELS[0][-1])(hidden[-1]))
    assert_close(moved["energy"], np.sum(numpy.energies(STATES)))
    states = [optim.init(eqx.filter(model, eqx.is_array)) for model in MODELS]
    learned = jpc.update_bpc_params(*MODELS, ACTIVITIES, optim, optim, *states, Y, X, **WEIGHTS)
    expected = numpy.weight_grads(STATES)
    assert_close([weights(model) for model in learned["grads"]], expected)
    for model, new, by_hand in zip(MODELS, learned["models"], expected, strict=True):
        steps = zip(weights(model), by_hand, strict=True)
        assert_close(weights(new), [w - 0.5 * g for w, g in steps])
    grads = jpc.compute_bpc_param_grads(*MODELS, ACTIVITIES, Y, x=X, **WEIGHTS)
    assert_close(grads, learned["grads"])


def test_scalings_and_skips_are_those_of_numpy():
    """Each direction in its own order."""
    numpy = Both()
    for chain in (numpy.down, numpy.up):
        fan_ins = [w.shape[1] for w in chain.weights]
        chain.scales, chain.skips = scalings("mupc", fan_ins, skips=True), True
    options = dict(param_type="mupc", skip_model=jpc.make_skip_model(DEPTH))
    energies = jpc.bpc_energy_fn(*MODELS, ACTIVITIES, Y, x=X, record_layers=True, **options)
    assert_close(energies, np.asarray(numpy.energies(STATES)))


def test_dendrites_have_calls_of_their_own():
    own = Both(0.3, 2.0).activity_grads(STATES, 0.25)[1:]
    problem = (*MODELS, ACTIVITIES, Y, X)
    options = WEIGHTS | dict(lateral_model=None, stop_gradient_on_extra_errors=True)
    _, grads = jpc.compute_pdm_activity_grad(*problem, bpc_terms_factor=0.25, **options)
    assert_close(grads[:-1], [g / BATCH for g in own])
    optim = optax.sgd(0.5)
    start = (*MODELS, ACTIVITIES, optim, optim.init(ACTIVITIES), Y, X)
    moved = jpc.update_pdm_activities(*start, bpc_terms_factor=0.25, **options)
    assert_close(moved["grads"], grads)
    learned = jpc.compute_bpc_param_grads(*problem[:-1], x=X, **WEIGHTS)
    assert_close(jpc.compute_pdm_param_grads(*problem, **options), learned)
    states = [optim.init(eqx.filter(model, eqx.is_array)) for model in MODELS]
    updated = jpc.update_pdm_params(*problem[:3], optim, optim, *states, Y, X, **options)
    assert_close(updated["grads"], learned)


# --- the step ---


def _begin(models=MODELS, optim=optax.sgd(0.1)):
    states = [optim.init(eqx.filter(model, eqx.is_array)) for model in models]
    names = ("top_down_model", "bottom_up_model")
    return dict(zip(names, models, strict=True)) | dict(optims=[optim] * 2, opt_states=states)


STEPS = 3
STEP = ft.partial(jpc.make_bpc_step, **_begin(), output=Y, inference=jpc.Descent(0.1, STEPS))
GIVEN = ft.partial(STEP, input=X)


def test_a_step_infers_from_the_bottom_up_sweep_and_learns():
    step, numpy = GIVEN(), Both()
    sweep = numpy.up.feedforward(Y)[::-1]
    z = [np.asarray(X), *sweep[1:]]
    for _ in range(STEPS):
        grads = [0, *numpy.activity_grads(z)[1:], 0]
        z = [state - 0.1 * g for state, g in zip(z, grads, strict=True)]
    assert_close(step["activities"][:-1], z[1:-1])
    assert_close(jax.tree.leaves(step["energies"]), numpy.energies(z))
    half = lambda error: 0.5 * np.mean(np.sum(np.square(error), axis=1))
    made = numpy.down.feedforward(X)[-1]
    assert_close(step["losses"], (half(made - Y), half(sweep[0] - X)))
    expected = numpy.weight_grads(z)
    assert_close([weights(g) for g in step["grads"]], expected)
    for name, by_hand in zip(("top_down_model", "bottom_up_model"), expected, strict=True):
        old = weights(_begin()[name])
        new = [w - 0.1 * g for w, g in zip(old, by_hand, strict=True)]
        assert_close(weights(step[name]), new)


def test_some_labels_may_be_missing():
    """Examples with a label end as in a batch where all have one, those without as in a batch
    where none has, and all count alike for learning, which is NumPy's.
    """
    labels = jnp.where(MASK[:, None], X, jnp.nan)
    mixed = STEP(input=labels, input_mask=MASK)
    given, free, none = GIVEN(), STEP(), jnp.zeros(BATCH, bool)
    rows = MASK[:, None]
    expected = jax.tree.map(
        lambda a, b: jnp.where(rows, a, b), [X, *given["activities"]], free["activities"]
    )
    assert_close(mixed["activities"], expected)
    z = [np.asarray(state) for state in (*expected[:-1], Y)]
    assert_close([weights(g) for g in mixed["grads"]], Both().weight_grads(z))
    assert_close(STEP(input=labels, input_mask=none)["grads"], free["grads"])


@pytest.mark.slow
def test_training_improves_both_directions():
    """The code of the page on bidirectional predictive coding, as it is printed."""
    names = run("variants/bpc.md")
    first, *_, last = names["fitted"].history
    assert np.sum(last["energies"]) < np.sum(first["energies"])
    assert last["test_loss"] < first["test_loss"]
    assert last["test_acc"] > 90
    assert names["digits"].shape == (10, 64)


def test_evaluation_is_that_of_numpy():
    inputs = jax.nn.one_hot(jnp.arange(BATCH) % SIZES[0], SIZES[0])
    scores = jpc.evaluate_bpc(*MODELS, Y, inputs)
    guess, made = Both().up.feedforward(Y)[-1], Both().down.feedforward(inputs)[-1]
    right = np.argmax(guess, axis=1) == np.argmax(inputs, axis=1)
    loss = 0.5 * np.mean(np.sum((made - Y) ** 2, axis=1))
    assert_close(scores, dict(acc=100 * np.mean(right), loss=loss))


# --- errors ---

ENERGY = ft.partial(jpc.bpc_energy_fn, *MODELS, ACTIVITIES, Y, x=X)
LABELS = jnp.arange(BATCH)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: GIVEN(bottom_up_model=MODELS[1][1:]), "3 layers and bottom_up_model 2"),
        (lambda: GIVEN(bottom_up_model=MODELS[1][::-1]), r"Layer 3 of bottom_up_model.*\[::-1\]"),
        (lambda: GIVEN(bottom_up_model=None), "bottom_up_model must be a list of layers"),
        (lambda: GIVEN(optims=optax.sgd(0.1)), "lists of two"),
        (lambda: GIVEN(opt_states=[None, None]), "state of this optimiser for top_down_model"),
        (lambda: GIVEN(output=None), "output must be an array"),
        (lambda: GIVEN(output=Y[:, :1]), r"Layer 3 of bottom_up_model cannot take z_3.*\(1,\)"),
        (lambda: GIVEN(input=X[:, :2]), "layer 1 of bottom_up_model makes"),
        (lambda: GIVEN(input=X[:2]), "same batch size"),
        (lambda: GIVEN(input=LABELS), "one_hot"),
        (lambda: GIVEN(input=None, input_mask=MASK), "give the input too"),
        (lambda: GIVEN(input_mask=MASK[:2]), "input_mask has shape"),
        (lambda: GIVEN(input_mask=LABELS), "must be booleans"),
        (lambda: GIVEN(inference=0.1), "inference must be"),
        (lambda: GIVEN(reduction="sum"), "no reduction"),
        (lambda: GIVEN(forward_weight=1.0), "Unknown keyword forward_weight"),
        (lambda: GIVEN(forward_energy_weight=-1.0), "forward_energy_weight must be"),
        (lambda: GIVEN(energy=jpc.BPCEnergy(), forward_energy_weight=1.0), "not both"),
        (lambda: GIVEN(inference=jpc.Equilibrium()), "use GradientFlow, Descent"),
        (lambda: ENERGY(x=None), "without an input have 4 activities"),
        (lambda: ENERGY(input_mask=MASK), "with an input have 4 activities"),
        (lambda: ENERGY(skip_model=[None]), "skip_model has 1 entries"),
        (lambda: ENERGY(param_type="np"), "Unknown param_type"),
        (
            lambda: jpc.bpc_energy_fn(*MODELS, [HIDDEN[0][:, :2], *ACTIVITIES[1:]], Y, x=X),
            "activity z_1 has shape",
        ),
        (
            lambda: jpc.compute_pdm_param_grads(*MODELS, ACTIVITIES, Y, X, lateral_gamma=0.1),
            "lateral_gamma is not supported",
        ),
        (lambda: jpc.BPCEnergy()(MODELS, *jpc.clamp(HIDDEN[1:], Y, X)), "there are 3 states"),
    ],
)
def test_errors_say_what_is_wrong(call, says):
    with pytest.raises((TypeError, ValueError), match=says):
        call()


def test_numbers_that_are_not_finite_are_named():
    with pytest.raises(RuntimeError, match=r"input is not finite.*input_mask"):
        ENERGY(x=X.at[0, 0].set(jnp.nan))


def test_the_models_must_mirror_each_other():
    wide = make_problem(sizes=(3, 4, 5, 2)).model
    with pytest.raises(ValueError, match="Layer 2 of top_down_model makes a z_2 of shape"):
        jpc.bpc_energy_fn(wide, MODELS[1], ACTIVITIES, Y, x=X)
