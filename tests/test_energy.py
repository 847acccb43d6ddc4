"""Energies against NumPy, finite differences and known limits."""

import functools as ft

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import (
    Chain,
    assert_close,
    equilibrate,
    log_softmax,
    make_conv_problem,
    make_problem,
    scalings,
    slowly,
    split,
    weights,
)
from jax.test_util import check_grads

import jpc

LOSSES = {"mse": jpc.squared_error, "ce": jpc.cross_entropy}
PROBLEM = make_problem()


# --- the energy of a chain ---


@pytest.mark.parametrize("act", ["linear", "tanh", "relu", "gelu"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("precision", [1.0, 0.3, [2.0, 0.5, 0.1]])
def test_energy_and_gradients_are_those_of_numpy(act, loss, precision):
    problem = make_problem(act)
    precisions = precision if isinstance(precision, list) else [precision] * 3
    chain, states = problem.chain(loss=loss, precisions=precisions), problem.states
    energy = jpc.PCEnergy(LOSSES[loss], jax.tree.map(jnp.asarray, precision))
    value, layerwise, grads, layers = found(energy, *problem.posed())
    assert_close(layerwise, list(chain.energies(states)))
    assert_close(value, chain.energy(states))
    grads = jax.tree.leaves(grads)
    assert_close([len(problem.x) * g for g in grads], chain.activity_grads(states)[1:])
    assert_close([layer.fn.layers[1].weight for layer in layers], chain.weight_grads(states))


@eqx.filter_jit
def found(energy, *posed):
    by_nodes, by_layers = jax.grad(energy, argnums=1)(*posed), eqx.filter_grad(energy)(*posed)
    return energy(*posed), energy.layerwise(*posed), by_nodes, by_layers


RUNS = make_problem("tanh", (3, 4, 4, 4, 5, 5, 5, 2))


def energy_and_gradients(*posed):
    return (
        jpc.PCEnergy().layerwise(*posed),
        jax.grad(jpc.PCEnergy(), argnums=1)(*posed),
        jax.tree.leaves(eqx.filter_grad(jpc.PCEnergy())(*posed)),
    )


def learning(layers, *states):
    """From errors that are given: any will do."""
    lesson = [(z, z) for z in eqx.combine(*states)]
    return jax.tree.leaves(eqx.filter_grad(jpc.LocalEnergy())(layers, lesson, states[1]))


def count_layers(fn):
    return str(jax.make_jaxpr(lambda: fn(*RUNS.posed()))()).count("name=_apply")


@pytest.mark.parametrize("problem", [RUNS, make_conv_problem()], ids=["runs", "convolutions"])
@pytest.mark.parametrize("fn", [energy_and_gradients, learning])
def test_equal_layers_at_once_are_the_same(problem, fn, monkeypatch):
    """As they are on an accelerator."""
    run = lambda: eqx.filter_jit(ft.partial(fn))(*problem.posed())  # Traced anew.
    apart = run()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with jax.default_matmul_precision("highest"):
        assert_close(run(), apart, rtol=1e-12)


def test_when_equal_layers_go_at_once(monkeypatch):
    """They learn at once on an accelerator, and predict at once there unless it rounds products
    in another way than those of a feedforward pass.
    """
    apart = [count_layers(fn) for fn in (energy_and_gradients, learning)]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rounded = [count_layers(fn) for fn in (energy_and_gradients, learning)]
    with jax.default_matmul_precision("highest"):
        precise = [count_layers(fn) for fn in (energy_and_gradients, learning)]
    assert rounded[0] == apart[0] > precise[0]
    assert apart[1] > rounded[1] == precise[1]


@pytest.mark.parametrize(
    ("param_type", "skips", "loss"),
    [
        ("sp", False, "mse"),
        ("mupc", True, "ce"),
        *(slowly(name, skips, "mse") for name in ("ntp", "mupc") for skips in (False, True)),
        slowly("sp", True, "mse"),
    ],
)
def test_options_make_the_same_energy(param_type, skips, loss):
    scales = scalings(param_type, (3, 4, 4), skips=skips, gamma=1.7)
    chain = PROBLEM.chain(loss=loss, scales=scales, skips=skips, precisions=[1, 1, 0.3])
    states, args = PROBLEM.states, (PROBLEM.activities, PROBLEM.y)
    params = (PROBLEM.model, jpc.make_skip_model(3) if skips else None)
    options = dict(
        x=PROBLEM.x, loss=loss, param_type=param_type, gamma=1.7, output_energy_scaling=0.3
    )
    layerwise = jpc.pc_energy_fn(params, *args, record_layers=True, **options)
    assert_close(layerwise, chain.energies(states))
    for reduction, size in (("sum", 1), ("mean", len(PROBLEM.y))):
        named = options | dict(reduction=reduction)
        energy, grads = jpc.compute_pc_activity_grad(params, *args, **named)
        assert_close(energy, chain.energy(states))
        expected = [*chain.activity_grads(states)[1:], np.zeros_like(PROBLEM.y)]
        assert_close(grads, [g / size for g in expected])
    model, _ = jpc.compute_pc_param_grads(params, *args, **options)
    assert_close(weights(model), chain.weight_grads(states))


def test_loss_has_two_names():
    args = (PROBLEM.params, PROBLEM.activities, PROBLEM.y)
    one, two = (jpc.pc_energy_fn(*args, x=PROBLEM.x, **{k: "ce"}) for k in ("loss", "loss_id"))
    assert_close(one, two, rtol=0, atol=0)


def test_an_input_that_is_not_given_is_the_first_activity():
    args = (PROBLEM.params, [PROBLEM.x, *PROBLEM.activities], PROBLEM.y)
    energy, grads = jpc.compute_pc_activity_grad(*args, reduction="sum")
    assert_close(energy, PROBLEM.chain().energy(PROBLEM.states))
    assert_close(grads[:-1], PROBLEM.chain().activity_grads(PROBLEM.states))


def test_neg_pc_activity_grad_is_the_vector_field():
    """Of the batch's mean energy, whichever way its arguments are given."""
    given, size = (PROBLEM.params, PROBLEM.y, PROBLEM.x), len(PROBLEM.y)
    eleven = ("mse", "sp", 0.0, 0.0, 0.0, None, 0.3, dfx.PIDController(rtol=1e-3, atol=1e-3))
    grads = PROBLEM.chain(precisions=[1, 1, 0.3]).activity_grads(PROBLEM.states)
    expected = [*(-g / size for g in grads[1:]), np.zeros_like(PROBLEM.y)]
    for args in ((*given, dict(output_energy_scaling=0.3)), (*given, *eleven)):
        assert_close(jpc.neg_pc_activity_grad(0.0, PROBLEM.activities, args), expected)
    with pytest.raises(ValueError, match=r"args must be \(params, y, x\), .* got 5 entries"):
        jpc.neg_pc_activity_grad(0.0, PROBLEM.activities, (*given, "mse", "sp"))


def test_layer_energies_are_in_chain_order():
    problem = make_problem(sizes=(3, 7, 2, 5, 4, 6))
    energies = jpc.pc_energy_fn(
        problem.params, problem.activities, problem.y, x=problem.x, record_layers=True
    )
    assert_close(energies, problem.chain().energies(problem.states))


@pytest.mark.parametrize("param_type", ["sp", "ntp", "mupc"])
@pytest.mark.parametrize("loss", LOSSES)
def test_feedforward_leaves_only_the_output_term(param_type, loss):
    """Exactly: without jit, which is free to round one expression in two ways."""
    layers = jpc.parameterise(
        PROBLEM.model, jpc.make_skip_model(3), fan_ins=[3, 4, 4], param_type=param_type, gamma=2.0
    )
    with jax.disable_jit():
        *hidden, prediction = jax.vmap(lambda z: jpc.feedforward(layers, z))(PROBLEM.x)
        nodes, clamps = jpc.clamp(hidden, PROBLEM.y, PROBLEM.x)
        *others, last = jpc.PCEnergy(LOSSES[loss]).layerwise(layers, nodes, clamps)
    of_batch = {"mse": jpc.mse_loss, "ce": jpc.cross_entropy_loss}[loss]
    assert others == [0.0, 0.0]
    assert_close(last, of_batch(prediction, PROBLEM.y))


def test_feedforward_initialisation_leaves_only_the_output_term():
    options = dict(param_type="mupc", gamma=2.0)
    skip_model = jpc.make_skip_model(3)
    args = (PROBLEM.model, PROBLEM.x)
    activities = jpc.init_activities_with_ffwd(*args, skip_model=skip_model, **options)
    scales = scalings("mupc", (3, 4, 4), skips=True, gamma=2.0)
    chain = PROBLEM.chain(scales=scales, skips=True)
    assert_close(activities, chain.feedforward(PROBLEM.x)[1:])
    energies = jpc.pc_energy_fn(
        (PROBLEM.model, skip_model),
        activities,
        PROBLEM.y,
        x=PROBLEM.x,
        record_layers=True,
        **options,
    )
    assert np.all(energies[:-1] < 1e-30)
    assert_close(energies[-1], jpc.mse_loss(activities[-1], PROBLEM.y))


def test_a_state_in_the_middle_can_be_clamped():
    """Clamped, z_2 cuts the chain: what is inferred below does not feel the output."""
    problem = make_problem(sizes=(3, 4, 4, 4, 2))
    layers, nodes, clamps = problem.posed()
    nodes[2], clamps[2] = None, nodes[2]
    energy = jpc.PCEnergy()
    assert_close(energy(layers, nodes, clamps), problem.chain().energy(problem.states))
    grads = jax.grad(energy, argnums=1)(layers, nodes, clamps)
    expected = problem.chain().activity_grads(problem.states)
    assert grads[2] is None
    assert_close([5 * grads[1], 5 * grads[3]], [expected[1], expected[3]])
    one = equilibrate(energy, layers, nodes, clamps)
    two = equilibrate(energy, layers, nodes, [*clamps[:-1], clamps[-1] + 1])
    assert_close(one[1], two[1])
    assert np.max(np.abs(one[3] - two[3])) > 1e-2


def test_cross_entropy_is_stable_for_large_logits():
    logits, target = jnp.array([1e4, 0.0, -1e4]), jnp.array([0.0, 1.0, 0.0])
    assert_close(jpc.cross_entropy(target, logits), 1e4)
    grad = jax.grad(jpc.cross_entropy, argnums=1)(target, logits)
    assert_close(grad, np.array([1.0, -1.0, 0.0]))


def test_losses_of_a_batch():
    logits, labels = np.random.default_rng(0).normal(size=(4, 3)), np.eye(3)[[0, 1, 2, 1]]
    args = (jnp.asarray(logits), jnp.asarray(labels))
    assert_close(jpc.mse_loss(*args), 0.5 * np.mean(np.sum((logits - labels) ** 2, axis=1)))
    log_p = np.stack([log_softmax(row) for row in logits])
    assert_close(jpc.cross_entropy_loss(*args), -np.mean(np.sum(labels * log_p, axis=1)))


def test_accuracy_is_in_percent():
    truths, preds = jnp.eye(3)[jnp.array([0, 1, 2, 1])], jnp.eye(3)[jnp.array([0, 1, 2, 0])]
    assert jpc.compute_accuracy(truths, 5 * preds - 2) == 75.0


@pytest.mark.parametrize("precision", [1.0, [2.0, 0.5, 0.1]])
def test_stiffness_is_a_precision_for_each_hidden_layer(precision):
    each = precision if isinstance(precision, list) else [precision] * 3
    by_hand = jpc.PCEnergy(precision=[10.0 * each[0], each[1], each[2]])
    assert_close(
        jpc.PCEnergy(precision=precision, stiffness=10.0).layerwise(*PROBLEM.posed()),
        by_hand.layerwise(*PROBLEM.posed()),
    )


def test_the_stiffest_network_has_an_energy():
    """In single precision, however deep."""
    precisions = jpc.PCEnergy(stiffness=1e6).precisions(40)
    assert np.isfinite(np.asarray(precisions, np.float32)).all() and precisions[-2:] == [1, 1]


def test_number_of_precisions_must_be_that_of_layers():
    for two in ([1.0, 2.0], jnp.ones(2)):
        with pytest.raises(ValueError, match=r"2 precisions.*3 layers"):
            jpc.PCEnergy(precision=two)(*PROBLEM.posed())


def test_precisions_may_be_an_array():
    in_array = jpc.PCEnergy(precision=jnp.array([1.0, 2.0, 3.0]))(*PROBLEM.posed())
    assert_close(in_array, jpc.PCEnergy(precision=[1.0, 2.0, 3.0])(*PROBLEM.posed()))


# --- every energy ---


def _amortised():
    problem = make_problem(seed=1)
    nodes = [problem.x, *problem.hidden, None]
    clamps = [None, *[z + 1 for z in problem.hidden], problem.y]
    return problem.layers, nodes, clamps


def _unsupervised():
    return PROBLEM.layers, *jpc.clamp([PROBLEM.x, *PROBLEM.hidden], PROBLEM.y)


def _images():
    problem = make_conv_problem()
    hidden = [0.1 * jr.normal(jr.key(i), z.shape) for i, z in enumerate(problem.hidden)]
    return problem.layers, *jpc.clamp(hidden, problem.y, problem.x)


PC = jpc.PCEnergy()
ENERGIES = {
    "mse": (PC, PROBLEM.posed),
    "ce": (jpc.PCEnergy(jpc.cross_entropy), PROBLEM.posed),
    "precisions": (jpc.PCEnergy(precision=[2.0, 0.5, 0.1]), PROBLEM.posed),
    "unsupervised": (PC, _unsupervised),
    "images": (PC, _images),
    "weight decay": (PC + jpc.WeightDecay(0.3), PROBLEM.posed),
    "spectral penalty": (PC + jpc.SpectralPenalty(0.3), PROBLEM.posed),
    "activity decay": (PC + jpc.ActivityDecay(0.3), PROBLEM.posed),
    "activity decay alone": (jpc.ActivityDecay(0.3), _unsupervised),
    "amortised": (jpc.AmortisedEnergy(), _amortised),
    "sum of sums": (
        (PC + jpc.WeightDecay(0.3)) + (jpc.ActivityDecay(0.2) + jpc.SpectralPenalty(0.1)),
        _images,
    ),
}
every_energy = pytest.mark.parametrize(("energy", "posed"), ENERGIES.values(), ids=ENERGIES.keys())


@every_energy
def test_jit_changes_nothing(energy, posed):
    assert_close(eqx.filter_jit(energy)(*posed()), energy(*posed()))


@every_energy
def test_gradients_are_finite_differences(energy, posed):
    layers, nodes, clamps = posed()
    arrays, static = eqx.partition(layers, eqx.is_inexact_array)
    of_both = jax.jit(lambda arrays, nodes: energy(eqx.combine(arrays, static), nodes, clamps))
    check_grads(of_both, (arrays, nodes), order=1, modes=["rev"], atol=1e-7, rtol=1e-6, eps=1e-5)


@every_energy
def test_energy_is_the_mean_of_examples(energy, posed):
    layers, nodes, clamps = posed()
    example = jax.jit(lambda z: energy.example(layers, *z))
    batch = jax.jit(lambda z: energy(layers, *z))
    examples = split((nodes, clamps))
    assert_close(energy(layers, nodes, clamps), np.mean([example(z) for z in examples]))
    singles = [jax.tree.map(lambda z: z[None], z) for z in examples]
    assert_close([batch(z) for z in singles], [example(z) for z in examples])


@every_energy
def test_terms_sum_to_the_energy(energy, posed):
    assert_close(sum(jax.tree.leaves(energy.layerwise(*posed()))), energy(*posed()))


def test_energies_add():
    posed, decay = PROBLEM.posed(), jpc.WeightDecay(0.3)
    assert_close((PC + decay)(*posed), PC(*posed) + decay(*posed))


def test_amortised_energy_is_that_of_numpy():
    layers, nodes, clamps = _amortised()
    chain = Chain([np.asarray(layer.fn.layers[1].weight) for layer in layers])
    expected = []
    for i, (a, z) in enumerate(zip(nodes[:-1], clamps[1:], strict=True), start=1):
        gaps = [t - chain.predict(i, g) for g, t in zip(np.asarray(a), np.asarray(z), strict=True)]
        expected.append(0.5 * np.mean(np.sum(np.square(gaps), axis=1)))
    assert_close(jpc.AmortisedEnergy().layerwise(layers, nodes, clamps), expected)


# --- penalties ---


class _Block(eqx.Module):
    """A custom module around a `Sequential` around linear layers."""

    inside: eqx.nn.Sequential

    def __call__(self, z):
        return self.inside(z)


class _Attention(eqx.Module):
    attention: eqx.nn.MultiheadAttention

    def __call__(self, z):
        return self.attention(z, z, z)


def _many_kinds():
    """Layers of many kinds, with their weights and their biases as we find them by name."""
    k1, k2, k3, k4 = jr.split(jr.key(0), 4)
    conv = eqx.nn.Conv2d(1, 2, 3, padding=1, key=k1)
    one, two = eqx.nn.Linear(4, 3, key=k2), eqx.nn.Linear(3, 4, key=k3)
    heads = eqx.nn.MultiheadAttention(2, 4, use_query_bias=True, use_output_bias=True, key=k4)
    vmapped = eqx.nn.Lambda(jax.vmap(jnp.tanh))
    model = [conv, _Block(eqx.nn.Sequential([one, vmapped, two])), _Attention(heads)]
    projections = [heads.query_proj, heads.key_proj, heads.value_proj, heads.output_proj]
    linear = [conv, one, two, *projections]
    return model, [m.weight for m in linear], [m.bias for m in linear if m.bias is not None]


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: [jpc.Layer(f) for f in m]])
def test_weight_decay_reaches_every_kind_of_layer(wrap):
    model, ws, bs = _many_kinds()
    assert len(ws) == 7 and len(bs) == 5
    value, grads = eqx.filter_value_and_grad(
        lambda model: jpc.WeightDecay(0.3).terms(wrap(model), [], [])
    )(model)
    assert_close(value, 0.15 * sum(np.sum(np.square(w)) for w in ws))
    by_shape = lambda trees: sorted(trees, key=lambda w: (w.shape, float(np.sum(w))))
    leaves = [g for g in jax.tree.leaves(grads) if np.any(g != 0)]
    assert_close(by_shape(leaves), by_shape([0.3 * w for w in ws]))


def test_spectral_penalty_is_the_distance_from_orthogonality():
    model, ws, _ = _many_kinds()
    matrices = [np.asarray(w).reshape(len(w), -1) for w in ws]
    gaps = [np.eye(w.shape[1]) - w.T @ w for w in matrices]
    expected = 0.15 * sum(np.sum(gap**2) for gap in gaps)
    assert_close(jpc.SpectralPenalty(0.3).terms(model, [], []), expected)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
    assert_close(jpc.SpectralPenalty(0.3).terms([jnp.asarray(rotation)], [], []), 0.0)


def test_activity_decay_is_that_of_the_inferred_states():
    states = [np.asarray(z) for z in PROBLEM.hidden]
    expected = 0.15 * sum(np.mean(np.sum(z**2, axis=1)) for z in states)
    assert_close(jpc.ActivityDecay(0.3)(*PROBLEM.posed()), expected)


@pytest.mark.parametrize(
    ("option", "penalty"),
    [
        ("weight_decay", jpc.WeightDecay),
        ("spectral_penalty", jpc.SpectralPenalty),
        ("activity_decay", jpc.ActivityDecay),
    ],
)
def test_penalties_are_options_too(option, penalty):
    args = (PROBLEM.params, PROBLEM.activities, PROBLEM.y)
    bare, penalised = (
        jpc.pc_energy_fn(*args, x=PROBLEM.x, **options) for options in ({}, {option: 0.3})
    )
    assert_close(penalised - bare, penalty(0.3)(*PROBLEM.posed()))
    layers = jpc.pc_energy_fn(*args, x=PROBLEM.x, record_layers=True, **{option: 0.3})
    assert_close(layers, PROBLEM.chain().energies(PROBLEM.states))


def test_stiffness_is_an_option_too():
    args = (PROBLEM.params, PROBLEM.activities, PROBLEM.y)
    found = jpc.pc_energy_fn(*args, x=PROBLEM.x, stiffness=10.0, output_energy_scaling=0.3)
    assert_close(found, jpc.PCEnergy(precision=[10.0, 1.0, 0.3])(*PROBLEM.posed()))


# --- a known limit ---


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("act", ["tanh", slowly("linear")])
def test_learning_tends_to_backpropagation(loss, act):
    """At equilibrium, grad F / p = grad of the loss + O(p) for a small output precision p."""
    problem = make_problem(act)

    def of_feedforward(model):
        preds = jax.vmap(lambda z: jpc.feedforward(model, z)[-1])(problem.x)
        return jnp.mean(jax.vmap(LOSSES[loss])(problem.y, preds))

    flat = lambda model: np.concatenate([np.ravel(w) for w in weights(model)])
    backprop = flat(eqx.filter_grad(of_feedforward)(problem.model))
    *hidden, _ = jpc.init_activities_with_ffwd(problem.model, problem.x)
    start, clamps = jpc.clamp(hidden, problem.y, problem.x)

    def gap(precision):
        energy = jpc.PCEnergy(LOSSES[loss], [1.0, 1.0, jnp.asarray(precision)])
        nodes = equilibrate(energy, problem.model, start, clamps)
        grads = flat(eqx.filter_grad(energy)(problem.model, nodes, clamps)) / precision
        return np.linalg.norm(grads - backprop) / np.linalg.norm(backprop)

    coarse, fine = gap(1e-3), gap(1e-4)
    assert fine < 1e-3
    assert coarse / fine == pytest.approx(10, rel=0.05)
