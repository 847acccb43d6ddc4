"""Outputs and inputs that are given in part: `mask` and `input_mask` of the paper's calls.

The oracles are in NumPy. A linear network is a Gaussian, and its equilibrium the mean of what is
not given, conditional on what is. For the others there are the equations of `helpers.Chain`, with
the units that are given held fixed.
"""

import re

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close, log_softmax, make_problem, slowly, weights

import jpc

BATCH, NAN = 5, float("nan")
SGD, SHORT = optax.sgd(1.0), jpc.Descent(0.125, 6)
EXACT = jpc.Equilibrium(rtol=1e-9)
PRIOR = jpc.PCEnergy() + jpc.GaussianPrior(1.0)

LINEAR = make_problem("linear", (3, 4, 5, 4), gain=1.5)
PROBLEM = make_problem("tanh", (3, 4, 4))
CHAIN = PROBLEM.chain()
X, Y = np.asarray(PROBLEM.x), np.asarray(PROBLEM.y)
START = [PROBLEM.hidden[0], jr.normal(jr.key(7), Y.shape)]
STATE = SGD.init(eqx.filter((PROBLEM.model, None), eqx.is_array))
HALF = np.tile(np.array([True, False, True, False]), (BATCH, 1))
# Of each example other units: all of the first one, none of the second.
EACH = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0]], dtype=bool)
INPUT = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=bool)
LABELLED = np.array([True, False, False, True, True])


def spoil(array, mask):
    """NaN in what is not given."""
    return np.where(mask, np.asarray(array), NAN)


def step(y=Y, x=X, model=PROBLEM.model, state=STATE, inference=SHORT, **options):
    return jpc.make_pc_step(model, SGD, state, y, x, inference=inference, **options)


# --- the mean of a Gaussian ---


def conditional_mean(chain, states, known):
    """The states of a linear chain with z_0 ~ N(0, I) and errors ~ N(0, I), where `known` says
    which units are given, as the mean of the others.
    """
    sizes = [z.shape[1] for z in states]
    ends = np.cumsum(sizes)
    blocks = [slice(end - n, end) for end, n in zip(ends, sizes, strict=True)]
    shift = np.eye(ends[-1])
    for w, below, above in zip(chain.matrices(), blocks[:-1], blocks[1:], strict=True):
        shift[above, below] = -w
    cov = np.linalg.inv(shift) @ np.linalg.inv(shift).T
    z, known = np.concatenate(states, axis=1), np.concatenate(known, axis=1)
    for row, given in zip(z, known, strict=True):
        gain = cov[np.ix_(~given, given)] @ np.linalg.inv(cov[np.ix_(given, given)])
        row[~given] = gain @ row[given]
    return [z[:, block] for block in blocks]


def expect(mask, input_mask):
    states, hidden = LINEAR.states, [np.zeros(z.shape, bool) for z in LINEAR.hidden]
    return conditional_mean(LINEAR.chain(), states, [input_mask, *hidden, mask])


WHOLE_INPUT = np.ones((BATCH, 3), bool)
METHODS = {
    "equilibrium": (dict(inference=EXACT), 1e-7),
    "descent": (dict(inference=jpc.Descent(optax.sgd(0.1), steps=3000)), 1e-7),
    "flow": (
        dict(max_t1=300.0, stepsize_controller=dfx.PIDController(1e-6, 1e-6), reduction="sum"),
        1e-4,
    ),
}


@pytest.mark.parametrize("name", [slowly(m) if m == "flow" else m for m in METHODS])
def test_what_is_missing_of_the_output_is_its_conditional_mean(name):
    options, tolerance = METHODS[name]
    for mask in (HALF, EACH):
        expected = expect(mask, WHOLE_INPUT)
        start = jpc.init_activities_with_ffwd(LINEAR.model, LINEAR.x)
        y = spoil(LINEAR.y, mask)
        end = jpc.solve_inference(LINEAR.params, start, y, LINEAR.x, mask=mask, **options)
        assert_close(end[:-1], expected[1:-1], rtol=0, atol=tolerance)
        completed = np.where(mask, y, end[-1])
        assert_close(completed, expected[-1], rtol=0, atol=tolerance)
        # In the units that are free, the last activity is their prediction.
        predicted = np.asarray(end[-2]) @ np.asarray(LINEAR.weights[-1]).T
        assert_close(end[-1], predicted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mask", [slowly(None), EACH])
def test_what_is_missing_of_the_input_is_its_conditional_mean(mask):
    """An associative memory: the input of some units and the output, of all or of some."""
    expected = expect(np.ones_like(EACH) if mask is None else mask, INPUT)
    x = spoil(LINEAR.x, INPUT)
    named = dict(mask=mask, input_mask=INPUT, energy=PRIOR)
    state = SGD.init(eqx.filter((LINEAR.model, None), eqx.is_array))
    answer = step(LINEAR.y, x, LINEAR.model, state, inference=EXACT, **named)
    assert len(answer["activities"]) == 4
    assert_close(answer["activities"][:-1], expected[:-1], rtol=0, atol=1e-7)
    assert_close(answer["activities"][0][INPUT], x[INPUT], rtol=0, atol=0)
    # What is free of the output has no error to learn from, what is free of the input may have.
    grads = LINEAR.chain().weight_grads(expected)
    learned = [w - g for w, g in zip(LINEAR.weights, grads, strict=True)]
    assert_close(weights(answer["model"]), learned, rtol=0, atol=1e-7)


def test_the_gap_of_a_partial_problem():
    """The energy at equilibrium is that of NumPy, wherever it is measured from."""
    expected = expect(EACH, WHOLE_INPUT)
    start = jpc.init_activities_with_ffwd(LINEAR.model, LINEAR.x)
    args = (LINEAR.y, LINEAR.x)
    gap = jpc.equilibrium_gap(LINEAR.params, start, *args, mask=EACH)
    assert_close(gap["equilibrium_energy"], LINEAR.chain().energy(expected), rtol=1e-7)
    predicted = LINEAR.chain().feedforward(LINEAR.x)[-1]
    errors = np.where(EACH, np.asarray(LINEAR.y) - predicted, 0)
    assert_close(gap["energy"], 0.5 * np.mean(np.sum(errors**2, axis=1)))
    assert_close(gap["excess"], gap["energy"] - gap["equilibrium_energy"])
    assert gap["excess"] > 1e-3
    at = [jnp.asarray(z) for z in expected[1:]]
    gap = jpc.equilibrium_gap(LINEAR.params, at, *args, mask=EACH)
    assert abs(gap["excess"]) < 1e-7 and gap["gradient_error"] < 1e-6
    # A measure does not raise: it says which examples have none.
    far = LINEAR.y.at[0].set(1e200)
    result = jpc.equilibrium_gap(LINEAR.params, start, far, LINEAR.x, mask=EACH)["result"]
    assert (result == jpc.RESULTS.diverged).tolist() == [True] + [False] * 4


# --- the equations, with the units that are given held fixed ---


def descend_in_numpy(chain, states, known, rate, steps):
    """Descent in the free units; what is free of the output is a state like any other."""
    way = [states]
    for _ in range(steps):
        states = way[-1]
        below = states[-2]
        predictions = np.stack([chain.predict(chain.depth, z) for z in below])
        grads = [*chain.activity_grads(states), states[-1] - predictions]
        way.append(
            [
                np.where(given, z, z - rate * g)
                for z, g, given in zip(states, grads, known, strict=True)
            ]
        )
    return way


KNOWN = [INPUT, np.zeros((BATCH, 4), bool), EACH]
FIRST = [np.where(INPUT, X, 0.5), np.asarray(START[0]), np.where(EACH, Y, START[1])]
GIVEN = ([jnp.full_like(PROBLEM.x, 0.5), *START], spoil(Y, EACH), spoil(X, INPUT))
MASKS = dict(mask=EACH, input_mask=INPUT)


def seen(states):
    """As the paper's calls return them: the prediction in the units that are given."""
    predictions = np.stack([CHAIN.predict(2, z) for z in states[-2]])
    return [*states[:-1], np.where(EACH, predictions, states[-1])]


def test_energies_and_gradients_are_those_of_numpy():
    activities, y, x = GIVEN
    args = (PROBLEM.params, activities, y)
    energies = jpc.pc_energy_fn(*args, x=x, record_layers=True, **MASKS)
    assert_close(energies, CHAIN.energies(FIRST))
    traced = eqx.filter_jit(lambda masks: jpc.pc_energy_fn(*args, x=x, **masks))(MASKS)
    assert_close(traced, CHAIN.energy(FIRST))
    moved = descend_in_numpy(CHAIN, FIRST, KNOWN, 1.0, 1)[-1]
    energy, grads = jpc.compute_pc_activity_grad(*args, x=x, reduction="sum", **MASKS)
    assert_close(energy, CHAIN.energy(FIRST))
    assert_close(grads, [a - b for a, b in zip(FIRST, moved, strict=True)])
    mean = jpc.compute_pc_activity_grad(*args, x=x, **MASKS)[1]
    assert_close(grads, [BATCH * g for g in mean])
    back = jpc.neg_pc_activity_grad(0.0, activities, (PROBLEM.params, y, x, MASKS))
    assert_close(mean, [-g for g in back])
    grads = jpc.compute_pc_param_grads(*args, x=x, **MASKS)
    assert_close(weights(grads[0]), CHAIN.weight_grads(FIRST))


def test_a_step_of_inference_is_that_of_numpy():
    activities, y, x = GIVEN
    optim, state = optax.sgd(0.1), optax.sgd(0.1).init(activities)
    named = MASKS | dict(reduction="sum")
    end = jpc.update_activities(PROBLEM.params, activities, optim, state, y, x, **named)
    expected = descend_in_numpy(CHAIN, FIRST, KNOWN, 0.1, 1)[-1]
    assert_close(end["activities"], seen(expected))


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_recorded_activities_and_energies_are_those_of_numpy(reduction):
    activities, y, x = GIVEN
    dt = 0.125 * (BATCH if reduction == "mean" else 1)
    flow = jpc.GradientFlow(dfx.Euler(), 6 * dt, dt, dfx.ConstantStepSize(), reduction=reduction)
    kept = dict(record_activities=True, record_energies=True)
    answer = step(y, x, inference=flow, activities=activities, **kept, **MASKS)
    way = descend_in_numpy(CHAIN, FIRST, KNOWN, 0.125, 6)
    recorded = [np.stack(z) for z in zip(*map(seen, way), strict=True)]
    assert_close(answer["activities"], recorded)
    expected = np.stack([CHAIN.energies(states) for states in way], axis=1)
    assert_close(answer["energies"], expected)
    grads = CHAIN.weight_grads(way[-1])
    learned = [w - g for w, g in zip(PROBLEM.weights, grads, strict=True)]
    assert_close(weights(answer["model"]), learned)


def test_decay_is_of_what_is_inferred():
    """And not of what is given; that of the weights is as ever."""
    activities, y, x = GIVEN
    args = (PROBLEM.params, activities, y)
    free = [np.where(known, 0.0, z) for z, known in zip(FIRST, KNOWN, strict=True)]
    squares = sum(np.sum(z**2) for z in free) / BATCH
    energy = jpc.pc_energy_fn(*args, x=x, activity_decay=0.3, weight_decay=0.2, **MASKS)
    norms = sum(np.sum(np.square(w)) for w in PROBLEM.weights)
    assert_close(energy, CHAIN.energy(FIRST) + 0.15 * squares + 0.1 * norms)


def test_a_step_is_its_parts():
    """A short one, so that it ends far from equilibrium, with a decay of the activities."""
    _, y, x = GIVEN
    named = dict(activity_decay=0.1, output_energy_scaling=0.5, **MASKS)
    answer = step(y, x, **named)
    start = jpc.init_activities_with_ffwd(PROBLEM.model, x, **named)
    assert_close(start, CHAIN.feedforward(np.where(INPUT, X, 0.0)))
    end = jpc.solve_inference(PROBLEM.params, start, y, x, inference=SHORT, **named)
    assert_close(answer["activities"], end, rtol=1e-12)
    update = jpc.update_params(PROBLEM.params, end, SGD, STATE, y, x, **named)
    assert_close(arrays(answer["model"]), arrays(update["model"]), rtol=1e-12)


def test_given_units_stay_whatever_the_method_does_to_the_others():
    """Noise and weight decay move every entry of the nodes."""
    _, y, x = GIVEN
    adamw = optax.adamw(0.1, weight_decay=0.5)
    start = jpc.init_activities_with_ffwd(PROBLEM.model, x, input_mask=INPUT)
    moved = jpc.update_activities(PROBLEM.params, start, adamw, adamw.init(start), y, x, **MASKS)[
        "activities"
    ]
    noisy = step(y, x, inference=jpc.Langevin(0.1, 0.05), key=jr.key(0), **MASKS)["activities"]
    for activities in (moved, noisy):
        assert_close(activities[0][INPUT], X[INPUT], rtol=0, atol=0)
    assert np.all(np.asarray(noisy[0])[~INPUT] != 0)


# --- what does not change ---


def test_a_mask_of_everything_changes_nothing():
    """Nor does one that is `None`."""
    metrics = ("activity_norms", "grad_norms", "calculate_accuracy")
    whole, options = np.ones_like(EACH), dict.fromkeys(metrics, True)
    plain = step(**options)
    for mask in (whole, whole[:, 0], None):
        answer = step(mask=mask, **options)
        for name in ("model", "loss", "acc", "activities", "energies", *metrics[:1]):
            assert_close(arrays(answer[name]), arrays(plain[name]), rtol=1e-12)
        assert_close(answer["model_grad_norms"], plain["model_grad_norms"], rtol=1e-12)


@pytest.mark.parametrize("loss", [slowly("mse"), "ce"])
def test_examples_without_a_label_add_nothing(loss):
    """A batch in which some labels are missing learns from the others, by their own part."""
    some = step(spoil(Y, LABELLED[:, None]), loss=loss, mask=LABELLED, calculate_accuracy=True)
    labelled = step(Y[LABELLED], X[LABELLED], loss=loss, calculate_accuracy=True)
    moved, share = (
        [
            [b - a for a, b in zip(PROBLEM.weights, weights(answer["model"]), strict=True)]
            for answer in (some, labelled)
        ],
        np.mean(LABELLED),
    )
    assert_close(moved[0], [share * change for change in moved[1]])
    assert_close(some["loss"], share * labelled["loss"])
    assert_close(some["acc"], labelled["acc"])
    # Those without stay where the feedforward pass left them.
    there = [np.asarray(z)[~LABELLED] for z in some["activities"]]
    assert_close(there, [z[~LABELLED] for z in CHAIN.feedforward(X)[1:]], rtol=1e-12)
    if loss == "ce":  # The same examples, unit by unit.
        units = step(Y, loss=loss, mask=np.tile(LABELLED[:, None], (1, 4)))
        assert_close(weights(units["model"]), weights(some["model"]), rtol=1e-12)


def test_loss_and_accuracy_count_what_is_given():
    predictions = CHAIN.feedforward(X)[-1]
    answer = step(spoil(Y, EACH), mask=EACH, calculate_accuracy=True)
    losses = [
        0.5 * np.sum((t - p)[given] ** 2) for t, p, given in zip(Y, predictions, EACH, strict=True)
    ]
    assert_close(answer["loss"], np.mean(losses))
    # The first example is the only one that is given whole.
    assert_close(answer["acc"], 100.0 * (np.argmax(predictions[0]) == np.argmax(Y[0])))
    assert np.isnan(step(mask=HALF, calculate_accuracy=True)["acc"])
    entropic = step(mask=LABELLED, loss="ce")["loss"]
    losses = [-np.sum(t * log_softmax(p)) for t, p in zip(Y, predictions, strict=True)]
    assert_close(entropic, np.mean(np.where(LABELLED, losses, 0)))


def test_a_network_of_one_layer_completes_its_output():
    """Where there is nothing to infer without a mask."""
    model = LINEAR.model[:1]
    y = np.where(EACH, 1.0, NAN)
    state = SGD.init(eqx.filter((model, None), eqx.is_array))
    answer = step(y, LINEAR.x, model, state, mask=EACH)
    w, x = np.asarray(LINEAR.weights[0]), np.asarray(LINEAR.x)
    assert_close(answer["activities"], [x @ w.T])
    error = np.where(EACH, 1.0 - x @ w.T, 0.0)
    assert_close(weights(answer["model"]), [w + error.T @ x / BATCH])


# --- compilation ---


CALLS = []


def counted(z):
    CALLS.append(z)
    return jnp.tanh(z)


def test_another_mask_does_not_retrace():
    layers = [PROBLEM.model[0], eqx.nn.Sequential([eqx.nn.Lambda(counted), PROBLEM.model[1][1]])]
    y = jnp.asarray(Y)
    one = step(y, model=layers, mask=EACH)
    CALLS.clear()
    two = step(y, model=layers, mask=~EACH)
    assert not CALLS
    assert not np.array_equal(*(weights(answer["model"])[1] for answer in (one, two)))


# --- errors ---


RUNTIME = RuntimeError
ARGS = (PROBLEM.params, START, Y)
GENERATOR = AMORTISER = [eqx.nn.Linear(3, 3, key=jr.key(0)) for _ in range(2)]
PAIR = SGD.init(eqx.filter((GENERATOR, None), eqx.is_array))


def hybrid(**options):
    return jpc.make_hpc_step(GENERATOR, AMORTISER, [SGD, SGD], [PAIR, PAIR], X, **options)


def generate(**options):
    return jpc.test_generative_pc(GENERATOR, X, X, jr.key(0), (3, 3, 3), BATCH, **options)


def evaluate_hybrid(**options):
    sizes = (3, 3, 3)
    return jpc.test_hpc(GENERATOR, AMORTISER, X, X, jr.key(0), sizes, BATCH, **options)


CASES = {
    "shape": (lambda: step(mask=EACH[:, :2]), ValueError,
              r"mask has shape \(5, 2\), but the output \(5, 4\): give one boolean for each of "
              r"its units, or for each example, \(5,\)"),
    "shape of the input": (lambda: step(input_mask=EACH), ValueError,
                           r"input_mask has shape \(5, 4\), but the input \(5, 3\)"),
    "one for each unit": (lambda: step(mask=EACH[0]), ValueError, r"mask has shape \(4,\)"),
    "a boolean": (lambda: step(mask=True), ValueError, r"mask has shape \(\), but"),
    "numbers": (lambda: step(mask=EACH.astype(float)), TypeError,
                r"mask must be booleans, true for the units that are given, .*got float64 of "
                r"shape \(5, 4\)"),
    "indices": (lambda: step(input_mask=[0, 2]), TypeError,
                r"input_mask must be booleans, .*got int64 of shape \(2,\)"),
    "a string": (lambda: step(mask="all"), TypeError, "mask must be booleans, .*got 'all'"),
    "no input": (lambda: jpc.solve_inference(*ARGS, input_mask=INPUT), ValueError,
                 "input_mask says which units of the input are given: give the input too"),
    "no output": (lambda: step(y=None, mask=EACH), TypeError, "output must be an array"),
    "nothing": (lambda: step(mask=np.zeros_like(EACH)), RUNTIME,
                "mask is false everywhere: no unit of the output is given in this batch"),
    "nothing of the input": (lambda: step(input_mask=~WHOLE_INPUT), RUNTIME,
                             "input_mask is false everywhere: no unit of the input"),
    "NaN": (lambda: step(y=spoil(Y, EACH)), RUNTIME,
            "output is not finite.* If values are missing, say with mask which units are given"),
    "NaN in the input": (lambda: step(x=spoil(X, INPUT)), RUNTIME,
                         "input is not finite.* say with input_mask which units are given"),
    "NaN in a given unit": (lambda: step(y=spoil(Y, HALF), mask=EACH), RUNTIME,
                            "output is not finite"),
    "some classes": (lambda: step(mask=EACH, loss="ce"), RUNTIME,
                     "mask gives only some of the classes .*one boolean for each example"),
    "some classes of an energy": (
        lambda: jpc.pc_energy_fn(
            *ARGS, x=X, mask=EACH, energy=jpc.PCEnergy(jpc.cross_entropy)
        ), RUNTIME, "mask gives only some of the classes"),
    "too few activities": (
        lambda: jpc.pc_energy_fn(*ARGS, x=X, input_mask=INPUT), ValueError,
        r"2 layers with part of an input has 3 activities, z_0 \.\.\. z_2 .*, got 2"),
    "z_0": (lambda: jpc.pc_energy_fn(PROBLEM.params, [Y, *START], Y, x=X, input_mask=INPUT),
            ValueError, r"activity z_0 has shape \(5, 4\), .* but the input has \(3,\)"),
    "labels": (lambda: step(y=np.arange(BATCH), mask=LABELLED), ValueError, "jax.nn.one_hot"),
    "hybrid": (lambda: hybrid(mask=INPUT), ValueError,
               "jpc.make_hpc_step is for outputs and inputs that are given whole: leave out mask"),
    "test": (lambda: jpc.test_discriminative_pc(PROBLEM.model, Y, X, mask=EACH), ValueError,
             "test_discriminative_pc is for .* given whole: leave out mask"),
    "generative test": (lambda: generate(mask=INPUT, input_mask=INPUT), ValueError,
                        "test_generative_pc is for .*leave out mask and input_mask"),
    "hybrid test": (lambda: evaluate_hybrid(input_mask=INPUT), ValueError,
                    "test_hpc is for .*leave out input_mask"),
    "theory": (lambda: jpc.linear_equilib_energy(LINEAR.params, LINEAR.x, LINEAR.y, mask=EACH),
               ValueError, "closed form is for .*leave out mask"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_wrong_masks_are_answered(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind) as caught:
        jax.block_until_ready(arrays(call()))
    said = str(caught.value)
    if kind is RUNTIME:
        said = said.rpartition("EquinoxRuntimeError: ")[2].partition("\n\n")[0]
    assert re.search(message, said) and "\n" not in said, said
