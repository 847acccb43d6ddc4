"""Whole steps of training, against the parts they are made of and against NumPy."""

import dataclasses

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import (
    Chain,
    arrays,
    assert_close,
    log_softmax,
    make_problem,
    scalings,
    slowly,
    to,
    weights,
)

import jpc

PROBLEM = make_problem()
OPTIM = optax.adam(1e-2)
EULER = dict(ode_solver=dfx.Euler(), stepsize_controller=dfx.ConstantStepSize(), dt=0.125)
METRICS = ("activity_norms", "param_norms", "grad_norms", "calculate_accuracy")


def as_solver(options):
    """The same options in the words of `solve_inference`."""
    return {{"ode_solver": "solver"}.get(name, name): value for name, value in options.items()}


def init(model, skip_model=None):
    return OPTIM.init((eqx.filter(model, eqx.is_array), eqx.filter(skip_model, eqx.is_array)))


def norm_of_each(ws):
    return np.array([np.sqrt(np.sum(np.square(w))) for w in ws])


# --- make_pc_step ---


@dataclasses.dataclass
class Case:
    options: dict
    flow: dict = dataclasses.field(default_factory=dict)
    skips: bool = False
    chain: dict = dataclasses.field(default_factory=dict)


CASES = {
    "default": Case({}),
    "everything": Case(
        dict(
            loss_id="ce",
            param_type="mupc",
            gamma=2.0,
            output_energy_scaling=0.3,
            weight_decay=0.1,
            activity_decay=0.05,
        ),
        EULER | dict(max_t1=1.0),
        skips=True,
        chain=dict(
            loss="ce",
            scales=scalings("mupc", (3, 4, 4), skips=True, gamma=2.0),
            skips=True,
            precisions=[1, 1, 0.3],
        ),
    ),
}


@pytest.fixture(scope="module", params=[slowly("default"), "everything"])
def case(request):
    """A case, with the whole step and its parts."""
    case = CASES[request.param]
    skip_model = jpc.make_skip_model(3) if case.skips else None
    params, state = (PROBLEM.model, skip_model), init(PROBLEM.model, skip_model)
    case.step = jpc.make_pc_step(
        PROBLEM.model,
        OPTIM,
        state,
        PROBLEM.y,
        PROBLEM.x,
        skip_model=skip_model,
        **dict.fromkeys(METRICS, True),
        **case.flow,
        **case.options,
    )
    case.start = jpc.init_activities_with_ffwd(
        PROBLEM.model, PROBLEM.x, skip_model=skip_model, **case.options
    )
    flow = as_solver(case.flow)
    args = (params, case.start, PROBLEM.y, PROBLEM.x)
    case.end = jpc.solve_inference(*args, **flow, **case.options)
    args = (params, case.end, OPTIM, state, PROBLEM.y, PROBLEM.x)
    case.update = jpc.update_params(*args, **case.options)
    case.oracle = PROBLEM.chain(**case.chain)
    return case


def test_a_step_is_its_parts(case):
    assert_close(case.step["activities"], case.end, rtol=1e-12)
    for name in ("model", "skip_model", "opt_state"):
        assert_close(arrays(case.step[name]), arrays(case.update[name]), rtol=1e-12)
    assert case.step["optim"] is OPTIM
    assert (case.step["skip_model"] is None) == (not case.skips)


def test_loss_and_accuracy_are_of_the_feedforward_prediction(case):
    preds, y = case.oracle.feedforward(PROBLEM.x)[-1], np.asarray(PROBLEM.y)
    if case.oracle.loss == "ce":
        losses = [-np.sum(t * log_softmax(p)) for t, p in zip(y, preds, strict=True)]
    else:
        losses = [0.5 * np.sum((t - p) ** 2) for t, p in zip(y, preds, strict=True)]
    assert_close(case.step["loss"], np.mean(losses))
    assert_close(case.step["acc"], 100 * np.mean(preds.argmax(1) == y.argmax(1)))


def test_energies_are_those_of_the_layers_at_the_end(case):
    states = [np.asarray(z) for z in (PROBLEM.x, *case.step["activities"][:-1], PROBLEM.y)]
    assert_close(case.step["energies"], case.oracle.energies(states))


def test_norms_are_by_layer(case):
    step, decay = case.step, case.options.get("weight_decay", 0.0)
    states = [np.asarray(z) for z in (PROBLEM.x, *step["activities"][:-1], PROBLEM.y)]
    sizes = [np.mean(np.linalg.norm(z, axis=1)) for z in step["activities"]]
    assert_close(step["activity_norms"], np.array(sizes))
    assert_close(step["model_param_norms"], norm_of_each(weights(step["model"])))
    grads = zip(case.oracle.weight_grads(states), case.oracle.weights, strict=True)
    assert_close(step["model_grad_norms"], norm_of_each([g + decay * w for g, w in grads]))
    for name in ("skip_model_param_norms", "skip_model_grad_norms"):
        if case.skips:
            assert_close(step[name], np.zeros(3))  # Identities have no parameters.
        else:
            assert step[name] is None


def test_time_and_result_are_those_of_inference(case):
    assert_close(case.step["t1"], np.max(case.step["stats"]["t1"]))
    assert case.step["t_max"] is None
    expected = case.flow.get("max_t1", 20)
    assert 0 < case.step["t1"] <= expected
    early = case.step["result"] == jpc.RESULTS.stopped_early
    assert np.all(np.asarray(case.step["stats"]["t1"])[np.asarray(early)] == expected)


def test_by_default_a_long_inference_stops_early():
    args = (PROBLEM.model, OPTIM, init(PROBLEM.model), PROBLEM.y, PROBLEM.x)
    step = jpc.make_pc_step(*args, max_t1=2000, **dict.fromkeys(METRICS, True))
    assert step["t1"] < 1000
    assert np.all(step["result"] == jpc.RESULTS.successful)


def test_recording_is_over_time():
    """Euler from a feedforward pass, against NumPy, step by step."""
    args = (PROBLEM.model, OPTIM, init(PROBLEM.model), PROBLEM.y, PROBLEM.x)
    step = jpc.make_pc_step(
        *args, max_t1=0.625, record_activities=True, record_energies=True, reduction="sum", **EULER
    )
    chain = PROBLEM.chain()
    start = [*chain.feedforward(PROBLEM.x)[:-1], np.asarray(PROBLEM.y)]
    way = [chain.euler(start, 0.125, n) for n in range(6)]
    assert_close(step["energies"], np.stack([chain.energies(states) for states in way], axis=1))
    hidden = [states[1:-1] for states in way]
    assert_close(step["activities"][:-1], [np.stack(z) for z in zip(*hidden, strict=True)])
    assert step["t_max"] == 6
    assert_close(step["t1"], 0.625)


def assert_that_what_is_not_reached_does_not_learn(act):
    """In float32, where the errors of such layers could be rounding, and Adam makes a step of
    full size of any. Euler passes errors on by one layer a step.
    """
    key = jr.key(0)
    model = jpc.make_mlp(key, 30, 20, 6, 5, act)
    model, *data = to(jnp.float32, (model, jr.normal(key, (64, 5)), jr.normal(key, (64, 30))))
    step = jpc.make_pc_step(model, OPTIM, init(model), *data, max_t1=0.25, **EULER)
    before, after = weights(model), weights(step["model"])
    learned = [bool(np.any(a != b)) for a, b in zip(before, after, strict=True)]
    assert learned == [False] * 3 + [True] * 3, act


def test_what_inference_has_not_reached_does_not_learn():
    assert_that_what_is_not_reached_does_not_learn("tanh")


@pytest.mark.slow
@pytest.mark.optimised
def test_what_an_optimised_program_has_not_reached_does_not_learn():
    """Which rounds otherwise."""
    for act in ("linear", "tanh"):  # Not two tests, as each would be a process of its own.
        assert_that_what_is_not_reached_does_not_learn(act)


@pytest.mark.slow
def test_whole_numbers_take_the_precision_of_the_network():
    model, x = to(jnp.float32, (PROBLEM.model, PROBLEM.x))
    y = np.eye(PROBLEM.y.shape[1], dtype=int)[np.arange(len(x)) % 2]
    exact = jpc.Equilibrium(chords=2, max_steps=0, throw=False)
    step = jpc.make_pc_step(model, OPTIM, init(model), y, x, inference=exact)
    assert {z.dtype for z in step["activities"]} == {jnp.dtype(jnp.float32)}


def test_other_activities_to_start_from():
    args = (PROBLEM.model, OPTIM, init(PROBLEM.model), PROBLEM.y, PROBLEM.x)
    named = EULER | dict(activities=PROBLEM.activities, max_t1=0.5, reduction="sum")
    step = jpc.make_pc_step(*args, **named)
    expected = PROBLEM.chain().euler(PROBLEM.states, 0.125, 4)[1:-1]
    assert_close(step["activities"][:-1], expected)
    assert step["energies"].shape == (3,)
    names = ("acc", "activity_norms", "model_param_norms", "model_grad_norms")
    assert [step[name] for name in names] == [None] * 4  # They were not asked for.


def test_unsupervised_steps_infer_the_input():
    key, sizes, state = jr.key(3), (3, 4, 4, 2), init(PROBLEM.model)
    options = EULER | dict(max_t1=1.0)
    step = jpc.make_pc_step(
        PROBLEM.model, OPTIM, state, PROBLEM.y, key=key, layer_sizes=sizes, sigma=0.5, **options
    )
    start = jpc.init_activities_from_normal(key, sizes, "unsupervised", 5, 0.5)
    end = jpc.solve_inference(PROBLEM.params, start, PROBLEM.y, **as_solver(options))
    update = jpc.update_params(PROBLEM.params, end, OPTIM, state, PROBLEM.y)
    assert len(step["activities"]) == 4
    assert_close(step["activities"], end, rtol=1e-12)
    assert_close(arrays(step["model"]), arrays(update["model"]), rtol=1e-12)
    assert step["loss"] is None and step["acc"] is None
    states = [np.asarray(z) for z in (*end[:-1], PROBLEM.y)]
    assert_close(step["energies"], PROBLEM.chain().energies(states))


def test_random_activities_are_normal():
    for mode, sizes in (("supervised", [300, 200]), ("unsupervised", [100, 300, 200])):
        start = jpc.init_activities_from_normal(jr.key(0), (100, 300, 200), mode, 50, 0.3)
        assert [z.shape for z in start] == [(50, n) for n in sizes]
        assert [float(np.std(z)) for z in start] == pytest.approx([0.3] * len(start), rel=0.05)
        assert abs(np.corrcoef(start[-1][:, :50].ravel(), start[-2][:, :50].ravel())[0, 1]) < 0.1


# --- make_hpc_step ---


GENERATOR = make_problem(sizes=(2, 4, 5, 3), seed=1)
AMORTISER = make_problem(sizes=(3, 5, 4, 2), seed=2).model
DATA, LABELS = GENERATOR.y, GENERATOR.x
MIRROR = Chain([np.asarray(w) for w in weights(AMORTISER)])


def test_the_amortiser_guesses_in_the_order_of_the_generator():
    guesses = jpc.init_activities_with_amort(AMORTISER, GENERATOR.model, DATA)
    states = MIRROR.feedforward(DATA)[:0:-1]
    chain = GENERATOR.chain()
    assert_close(guesses, [*states, np.stack([chain.predict(3, z) for z in states[-1]])])


@pytest.mark.parametrize("supervised", [True, False])
def test_amortiser_energy_is_that_of_numpy(supervised):
    """Guesses a, answers z*: F_l = 1/2 ||z*_{L-l} - q_l(a_{l-1})||^2, and its gradients."""
    random = lambda seed: [
        jr.normal(k, (5, n)) for k, n in zip(jr.split(jr.key(seed), 4), (2, 4, 5, 3), strict=True)
    ]
    equilib, guesses = random(10), random(11)
    y = LABELS if supervised else None
    args = (AMORTISER, equilib[1:] if supervised else equilib, guesses, DATA, y)
    answers = [LABELS if supervised else equilib[0], *equilib[1:3]][::-1]
    starts = [DATA, *guesses[2:0:-1]]
    energies, grads = np.zeros(3), [np.zeros_like(w) for w in MIRROR.weights]
    for layer, (a, z) in enumerate(zip(starts, answers, strict=True), start=1):
        for guess, answer in zip(np.asarray(a), np.asarray(z), strict=True):
            error = answer - MIRROR.predict(layer, guess)
            energies[layer - 1] += 0.5 * np.sum(error**2) / 5
            grads[layer - 1] -= np.outer(error, MIRROR.activated(layer, guess)) / 5
    assert_close(jpc.hpc_energy_fn(*args), energies.sum())
    assert_close(jpc.hpc_energy_fn(*args, record_layers=True), energies)
    assert_close(weights(jpc.compute_hpc_param_grads(*args)), grads)


@pytest.mark.parametrize("supervised", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_hybrid_step_is_its_parts(supervised):
    options, y = EULER | dict(max_t1=1.0), LABELS if supervised else None
    models = (GENERATOR.model, AMORTISER)
    states = tuple(init(model) for model in models)
    step = jpc.make_hpc_step(*models, [OPTIM, OPTIM], states, DATA, y, **options)

    guesses = jpc.init_activities_with_amort(AMORTISER, GENERATOR.model, DATA)
    start = guesses[1:] if supervised else guesses
    args = (GENERATOR.params, start, DATA, y)
    end = jpc.solve_inference(*args, **as_solver(options))
    update = jpc.update_params(GENERATOR.params, end, OPTIM, states[0], DATA, y)
    grads = jpc.compute_hpc_param_grads(AMORTISER, end, guesses, DATA, y)
    updates, state = OPTIM.update((grads, None), states[1])
    amortiser = eqx.apply_updates(AMORTISER, updates[0])

    assert_close(step["activities"], (guesses, end), rtol=1e-12)
    assert_close(arrays(step["generator"]), arrays(update["model"]), rtol=1e-12)
    assert_close(arrays(step["amortiser"]), arrays(amortiser), rtol=1e-12)
    assert_close(arrays(step["opt_states"]), arrays((update["opt_state"], state)), rtol=1e-12)
    assert_close(step["t1"], 1.0)

    chain, inputs = GENERATOR.chain(), LABELS if supervised else guesses[0]
    preds = chain.feedforward(inputs)[-1]
    target = LABELS if supervised else end[0]
    half = lambda a, b: 0.5 * np.mean(np.sum((np.asarray(a) - np.asarray(b)) ** 2, axis=1))
    assert_close(step["losses"], (half(DATA, preds), half(target, guesses[0])))
    chained = [np.asarray(z) for z in ([LABELS, *end] if supervised else end)]
    energies = chain.energies([*chained[:-1], np.asarray(DATA)])
    amortised = jpc.hpc_energy_fn(AMORTISER, end, guesses, DATA, y, record_layers=True)
    assert_close(step["energies"], (energies, amortised))


# --- a number does not retrace ---


CALLS = []


def counted(z):
    CALLS.append(z)
    return jnp.tanh(z)


COUNTED = [
    PROBLEM.model[0],
    *(eqx.nn.Sequential([eqx.nn.Lambda(counted), m.layers[1]]) for m in PROBLEM.model[1:]),
]
INJECTED = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
NUMBERS = dict(
    max_t1=(2, 3.5),
    dt=(0.1, 0.2),
    rtol=(1e-3, 1e-4),
    sigma=(0.1, 0.2),
    gamma=(1.0, 2),
    output_energy_scaling=(1.0, 0.3),
    stiffness=(10, 2.5),
    weight_decay=(0.1, 0.2),
    spectral_penalty=(0.1, 0.2),
    activity_decay=(0.1, 0.2),
    learning_rate=(0.1, 0.2),
    key=(jr.key(0), jr.key(1)),
    output=(PROBLEM.y, PROBLEM.y + 1),
)


def counted_step(learning_rate, rtol, output, last=None, **numbers):
    """A step without an input and with every number, and how often it called a layer."""
    CALLS.clear()
    last = last or dict(model=COUNTED, opt_state=INJECTED.init(eqx.filter(COUNTED, eqx.is_array)))
    hyperparams = dict(learning_rate=jnp.asarray(learning_rate))
    state = last["opt_state"]._replace(hyperparams=hyperparams)
    controller = dfx.PIDController(rtol=rtol, atol=1e-3)
    options = dict(layer_sizes=(3, 4, 4, 2), stepsize_controller=controller)
    step = jpc.make_pc_step(last["model"], INJECTED, state, output, **options, **numbers)
    return step, len(CALLS)


@pytest.mark.parametrize("name", NUMBERS)
def test_another_number_does_not_retrace(name):
    numbers = {name: first for name, (first, _) in NUMBERS.items()}
    one, _ = counted_step(**numbers)
    two, calls = counted_step(**numbers | {name: NUMBERS[name][1]})
    assert calls == 0
    # And it does matter.
    assert not np.array_equal(weights(one["model"])[1], weights(two["model"])[1])


def test_the_next_step_does_not_retrace():
    numbers = {name: first for name, (first, _) in NUMBERS.items()}
    step, _ = counted_step(**numbers)
    _, calls = counted_step(**numbers, last=step)
    assert calls == 0


def test_any_inference_and_any_energy_without_retracing():
    args = (COUNTED, OPTIM, init(COUNTED), PROBLEM.y, PROBLEM.x)
    for dt, precisions, retraced in (
        (0.125, [2.0, 0.5, 0.3], True),
        (0.25, [1.0, 3.0, 0.1], False),
    ):
        CALLS.clear()
        flow = jpc.GradientFlow(dfx.Euler(), 4 * dt, dt, dfx.ConstantStepSize())
        energy = jpc.PCEnergy(jpc.cross_entropy, precisions)
        step = jpc.make_pc_step(*args, inference=flow, energy=energy)
        assert bool(CALLS) == retraced
        chain = PROBLEM.chain(loss="ce", precisions=precisions)
        start = [*chain.feedforward(PROBLEM.x)[:-1], np.asarray(PROBLEM.y)]
        states = chain.euler(start, dt, 4)
        assert_close(step["activities"][:-1], states[1:-1])
        assert_close(step["energies"], chain.energies(states))
        updates, _ = OPTIM.update(chain.weight_grads(states), OPTIM.init(chain.weights))
        expected = [w + u for w, u in zip(chain.weights, updates, strict=True)]
        assert_close(weights(step["model"]), expected)
