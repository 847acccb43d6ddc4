"""The step for any energy, and what a user's own variant meets on its way."""

import functools as ft
import traceback

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close, make_problem, slowly
from jax.test_util import check_grads
from scipy import stats

import jpc

PROBLEM = make_problem()
MODEL, X, Y = PROBLEM.model, PROBLEM.x, PROBLEM.y
OPTIM = optax.adam(1e-2)
ENERGY, INFERENCE = jpc.PCEnergy(), jpc.Descent(0.1, 5)
CHORDS = jpc.Equilibrium(chords=2, max_steps=0)


def pose(params, output, input, key):
    del key
    return jpc.clamp(jpc.feedforward_batch(params, input)[:-1], output, input)


STEP = ft.partial(jpc.make_step, energy=ENERGY, inference=INFERENCE, pose=pose)


def assert_bits(one, other):
    assert_close(one, other, rtol=0, atol=0)


def begin(params=MODEL):
    state = OPTIM.init(eqx.filter(params, eqx.is_inexact_array))
    return dict(params=params, optim=OPTIM, opt_state=state)


# --- the step ---


def test_a_chain_is_the_papers_step():
    step = STEP(**begin(), output=Y, input=X, record=jpc.Record(ENERGY.terms, length=5))
    state = OPTIM.init((eqx.filter(MODEL, eqx.is_array), None))
    kept = dict(inference=INFERENCE, record_energies=True)
    paper = jpc.make_pc_step(MODEL, OPTIM, state, Y, X, **kept)
    assert_close(arrays(step["params"]), arrays(paper["model"]))
    assert_close(jnp.stack(step["energies"]), paper["energies"][:, -1])
    assert_close(step["energy"], np.sum(paper["energies"][:, -1]))
    assert_close(step["nodes"][1:-1], paper["activities"][:-1])
    course = jnp.stack([jnp.mean(term, axis=1) for term in step["trajectory"].values])
    assert_close(course, paper["energies"])


def test_parameters_are_what_transform_makes_of_them():
    """Weights of norm one: the chain rule through it, by hand."""
    unit = lambda w: w / jnp.linalg.norm(w)
    normalise = lambda params: jax.tree.map(lambda w: unit(w) if w.ndim == 2 else w, params)
    model = [eqx.nn.Linear(3, 4, key=jr.key(0)), eqx.nn.Linear(4, 2, key=jr.key(1))]
    start = lambda params, *batch: pose(normalise(params), *batch)
    step = STEP(**begin(model), output=Y, input=X, transform=normalise, pose=start)
    assert_close(step["nodes"], STEP(**begin(normalise(model)), output=Y, input=X)["nodes"])
    nodes, clamps = step["nodes"], pose(model, Y, X, None)[1]
    energy = lambda params: ENERGY(normalise(params), nodes, clamps)
    expected = jax.jit(jax.grad(energy))(model)
    assert_close(arrays(step["grads"]), arrays(expected))


def test_graphs_train_in_fit_and_resume(tmp_path):
    energy = jpc.GraphEnergy({"h": ["x"], "y": ["h", "x"]})
    linear = ft.partial(eqx.nn.Linear, use_bias=False)
    one, two = linear(4, 2, key=jr.key(1)), linear(3, 2, key=jr.key(2))
    params = {"h": linear(3, 4, key=jr.key(0)), "y": Sum(one, two)}

    def given(params, output, input, key):
        return jpc.pose(energy, params, {"x": input, "y": output})

    step = ft.partial(jpc.make_step, energy=energy, inference=CHORDS, pose=given)
    named = dict(batch_size=5, key=jr.key(3), metrics=("energy",), progress=False)
    state, data = begin(params), (np.asarray(X), np.asarray(Y))
    whole = jpc.fit(step, state, data, epochs=4, **named)
    assert whole.history[-1]["energy"] < whole.history[0]["energy"]
    for epochs in (2, 4):
        saved = jpc.Checkpoints(tmp_path, resume=epochs == 4)
        again = jpc.fit(step, state, data, epochs=epochs, checkpoints=saved, **named)
    assert_bits(arrays(again.state), arrays(whole.state))


class Sum(eqx.Module):
    one: eqx.nn.Linear
    two: eqx.nn.Linear

    def __call__(self, h, x):
        return self.one(jnp.tanh(h)) + self.two(x)


@pytest.mark.parametrize(("changed", "kind", "message"), [
    (dict(energy="pc"), TypeError, "energy must be something like jpc.PCEnergy()"),
    (dict(inference=jpc.Equilibrium), TypeError, "inference must be something like"),
    (dict(optim="adam"), TypeError, "optim must be something like optax.adam"),
    (dict(opt_state=()), ValueError, "opt_state is not a state of this optimiser for params"),
    (dict(output=np.full((5, 2), np.nan)), RuntimeError, "output is not finite"),
])  # fmt: skip
def test_misuse_is_answered(changed, kind, message):
    with pytest.raises(kind, match=message):
        STEP(**(begin() | dict(output=Y, input=X) | changed))


# --- numbers are traced, functions compared by what they do ---


class Counted(jpc.AbstractEnergy):
    """Counts how often it is traced."""

    energy: jpc.AbstractEnergy
    traces: list = eqx.field(static=True)

    def terms(self, params, nodes, clamps):
        self.traces.append(None)
        return self.energy.terms(params, nodes, clamps)


@pytest.mark.parametrize("other", [
    lambda traces: (Counted(2.0 * ENERGY, traces), INFERENCE),
    lambda traces: (Counted(ENERGY, traces), jpc.Descent(0.2, 5)),
])  # fmt: skip
def test_another_number_compiles_nothing(other):
    traces = Traces()
    nodes, clamps = pose(MODEL, Y, X, None)
    jpc.Descent(0.1, 5)(Counted(1.5 * ENERGY, traces), MODEL, nodes, clamps)
    jpc.Descent(0.1, 5)(Counted(ENERGY, traces), MODEL, nodes, clamps)
    before = len(traces)
    energy, method = other(traces)
    method(energy, MODEL, nodes, clamps)
    assert len(traces) == before


class Traces(list):
    """A list that is equal to itself only."""

    __hash__ = object.__hash__  # pyright: ignore

    def __eq__(self, other):
        return self is other


def test_an_optimiser_written_inline_compiles_once():
    traces, (nodes, clamps) = Traces(), pose(MODEL, Y, X, None)
    made = lambda rate: optax.chain(optax.clip(1.0), optax.sgd(rate, momentum=0.9))
    ends = []
    for rate in (0.1, 0.1, 0.2):
        method = jpc.Descent(made(rate), 3)
        ends.append(method(Counted(ENERGY, traces), MODEL, nodes, clamps).nodes)
        traces.append("end")
    first, second, third = "".join("e" if t else "." for t in traces).split("e")[:3]
    assert first and not second and third
    assert_bits(ends[0], ends[1])
    assert not np.allclose(ends[0][1], ends[2][1])


# --- energies are an algebra ---


def test_sums_and_multiples():
    nodes, clamps = pose(MODEL, Y, X, None)
    nodes = jax.tree.map(lambda z: z + 0.3, nodes)
    one, two = jpc.PCEnergy(), jpc.WeightDecay(0.1)
    value = lambda energy: energy(MODEL, nodes, clamps)
    assert_close(value(0.5 * one - two * 3.0), 0.5 * value(one) - 3 * value(two))


def test_equilibrium_takes_multiples_apart():
    """Twice an energy has the same equilibrium and twice the gradients, on the way there, too."""
    chords = jpc.Equilibrium(chords=2, max_steps=0)
    whole = jpc.PCEnergy(precision=[1.0, 2.0, 0.5]) + jpc.WeightDecay(0.1)
    parts = 2.0 * jpc.PCEnergy(precision=[0.5, 1.0, 0.25]) + 0.5 * jpc.WeightDecay(0.2)
    posed = (MODEL, *pose(MODEL, Y, X, None))
    (one, a), (two, b) = ((e, chords(e, *posed)) for e in (whole, parts))
    assert_close(a.nodes, b.nodes, rtol=1e-9)
    learned = lambda energy, nodes: eqx.filter_grad(energy)(MODEL, nodes, posed[2])
    grads = [eqx.filter_jit(learned)(*s.lesson) for s in (a, b)]
    assert_close(*map(arrays, grads), rtol=1e-9)
    assert_close(one(MODEL, a.nodes, posed[2]), two(MODEL, b.nodes, posed[2]))


@pytest.mark.parametrize("made", [lambda: ENERGY + 3, lambda: ENERGY - "one"])
def test_only_energies_add(made):
    with pytest.raises(TypeError, match="Only energies can be added"):
        made()


def test_only_numbers_multiply():
    with pytest.raises(TypeError, match="Only numbers multiply"):
        ENERGY * jnp.ones(3)


# --- losses ---


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "huber"])
def test_losses_are_logarithms_of_densities(name):
    """Up to what does not depend on the prediction, against sums over SciPy's."""
    target, p = np.array([0.0, 1.0, 3.0, 1.0]), np.array([0.3, -2.0, 1.5, 0.1])
    bits = np.minimum(target, 1)
    logs = {
        "bernoulli": lambda p: -stats.bernoulli.logpmf(bits, 1 / (1 + np.exp(-p))).sum(),
        "poisson": lambda p: -stats.poisson.logpmf(target, np.exp(p)).sum(),
        "huber": lambda p: sum(0.5 * e**2 if abs(e) < 1 else abs(e) - 0.5 for e in target - p),
    }[name]
    loss = getattr(jpc, name)
    given = jnp.asarray(bits if name == "bernoulli" else target)
    got = loss(given, jnp.asarray(p)) - loss(given, jnp.zeros(4))
    assert_close(got, logs(p) - logs(np.zeros(4)))


QUARTIC = lambda t, p: jnp.sum((t - p) ** 4)
REPORTED = [("bernoulli", "loss_id"), (QUARTIC, "energy")]
REPORTED += [slowly(QUARTIC, "loss_id"), slowly("bernoulli", "energy")]
REPORTED += [slowly("huber", "loss_id"), slowly("huber", "energy")]


@pytest.mark.parametrize(("loss", "given"), REPORTED)
def test_the_loss_that_is_reported_is_the_one_that_is_trained(loss, given):
    fn = getattr(jpc, loss) if isinstance(loss, str) else loss
    options = {given: loss if given == "loss_id" else jpc.PCEnergy(fn) + jpc.WeightDecay(0.1)}
    expected = np.mean(jax.vmap(fn)(Y, jpc.feedforward_batch(MODEL, X)[-1]))
    step = jpc.make_pc_step(
        MODEL, OPTIM, begin()["opt_state"], Y, X, inference=INFERENCE, **options
    )
    assert_close(step["loss"], expected)
    assert_close(jpc.test_discriminative_pc(MODEL, Y, X, **options)[0], expected)


def test_what_an_energy_does_not_say_its_loss_does():
    energy = Counted(ENERGY, Traces())
    losses = [jpc.test_discriminative_pc(MODEL, Y, X, energy=energy, loss_id=name)[0]
              for name in ("mse", "ce")]  # fmt: skip
    assert_close(losses, [f(PROBLEM.chain().feedforward(X)[-1], Y)
                          for f in (jpc.mse_loss, jpc.cross_entropy_loss)])  # fmt: skip
    with pytest.raises(ValueError, match="Give either energy or loss_id"):
        jpc.test_discriminative_pc(MODEL, Y, X, energy=ENERGY, loss_id="ce")


# --- what the prototypes found broken ---


def test_descent_has_derivatives_in_reverse_mode():
    """Finite differences, through twenty steps."""
    nodes, _ = pose(MODEL, Y, X, None)

    def end(y):
        _, clamps = jpc.clamp(nodes[1:-1], jnp.asarray(y), X)
        return jpc.Descent(0.1, 20)(ENERGY, MODEL, nodes, clamps).nodes[1:-1]

    check_grads(end, (Y,), order=1, modes=["rev"], rtol=1e-6)


def test_an_error_has_the_stack_of_the_call_that_failed():
    nodes, clamps = pose(MODEL, Y, X, None)
    infer = lambda rate: jpc.Descent(rate, 50)(ENERGY, MODEL, nodes, clamps)

    def succeed():
        return infer(0.1)

    def fail(rate):
        return infer(rate)

    succeed()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"Inference diverged|is not finite") as info:
            fail(1.9)
        names = [frame.name for frame in traceback.extract_tb(info.tb)]
        assert "fail" in names and "succeed" not in names
        assert "stack" not in str(info.value)


@pytest.mark.parametrize("method", [INFERENCE, slowly(jpc.Langevin(0.1, 0.05))])
def test_states_of_a_graph_are_named_when_they_are_not_finite(method):
    energy = jpc.GraphEnergy({"h": ["x"], "y": ["h"]})
    params = {"h": MODEL[0], "y": MODEL[2]}
    nodes, clamps = jpc.pose(energy, params, {"x": X, "y": Y})
    nodes["h"] = nodes["h"].at[0].set(jnp.nan)
    with pytest.raises(RuntimeError, match="The state 'h' is not finite"):
        method(energy, params, nodes, clamps, key=jr.key(0))


def test_tokens_stay_integers():
    """Against the same network with the embedding's rows looked up by hand."""
    table = eqx.nn.Embedding(7, 3, key=jr.key(0))
    first = Tokens(table)
    model = [first, *jpc.make_mlp(jr.key(1), 12, 5, 2, 2, "tanh")]
    tokens = np.asarray(jr.randint(jr.key(2), (5, 4), 0, 7))
    rows = np.asarray(table.weight)[tokens].reshape(5, 12)
    states = jpc.init_activities_with_ffwd(model, tokens)
    assert_close(states[0], rows)
    state = OPTIM.init(eqx.filter(model, eqx.is_inexact_array))
    step = jpc.make_pc_step(model, OPTIM, state, Y, tokens, inference=INFERENCE)
    assert np.any(np.asarray(step["model"][0].table.weight) != np.asarray(table.weight))
    plain = jpc.init_activities_with_ffwd(model[1:], rows)
    assert_close(states[1:], plain)


class Tokens(eqx.Module):
    table: eqx.nn.Embedding

    def __call__(self, tokens):
        return jax.vmap(self.table)(tokens).reshape(-1)
