"""A method of inference that `fit` carries along, against a plain loop that does the same."""

import functools as ft
import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close, slowly

import jpc
from jpc import _checks as checks_module
from jpc._fit import loop as loop_module, run

RNG = np.random.default_rng(0)
SIZE, STEPS, REFRESH, KEY = 4, 7, 5, jr.key(3)
X, Y = RNG.normal(size=(SIZE * STEPS, 3)), np.eye(2)[RNG.integers(0, 2, SIZE * STEPS)]
ADAM = optax.adam(1e-2)


def begin(activation="tanh"):
    model = jpc.make_mlp(jr.key(0), 3, 6, 3, 2, activation)
    return dict(model=model, optim=ADAM, opt_state=ADAM.init(eqx.filter(model, eqx.is_array)))


def step_of(method):
    return ft.partial(jpc.make_pc_step, inference=method)


def fit(step, state=None, **options):
    given = dict(epochs=2, batch_size=SIZE, key=KEY, progress=False, shuffle=False) | options
    return jpc.fit(step, begin() if state is None else state, (X, Y), **given)


@pytest.fixture(autouse=True, scope="module")
def often():
    """A new matrix every five steps, in an epoch of seven."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "_REFRESH", REFRESH)
        jax.clear_caches()
        yield
    jax.clear_caches()


@ft.cache
def by_hand(which, epochs=2):
    """The state, and the share of examples that have converged in each epoch."""
    method, state, shares = METHODS[which], begin(), []
    for _ in range(epochs):
        told = []
        for i in range(STEPS):
            rows = slice(i * SIZE, (i + 1) * SIZE)
            batch = dict(output=Y[rows], input=X[rows])
            if i % REFRESH == 0:
                carried = step_of(method)(**state, **batch)["inference"]
            result = step_of(carried)(**state, **batch)
            state = {name: result[name] for name in state}
            told.append(float(result["converged"]))
        shares.append(np.mean(told))
    return state, shares


METHODS = [jpc.Equilibrium(), jpc.Equilibrium(chords=2, max_steps=0), jpc.Equilibrium(dense=1)]


@pytest.mark.parametrize(
    "which", [slowly(0), 1, slowly(2)], ids=["default", "two chords", "sketched"]
)
def test_a_matrix_is_carried_along(which):
    fitted, (state, shares) = fit(step_of(METHODS[which])), by_hand(which)
    assert_close(arrays(fitted.state), arrays(state), rtol=1e-11, atol=1e-12)
    assert_close([record["converged"] for record in fitted.history], shares, rtol=1e-12)
    assert set(fitted.state) == {"model", "optim", "opt_state"}


@pytest.mark.slow
def test_batches_of_an_iterator_are_no_different():
    batches = [(X[i : i + SIZE], Y[i : i + SIZE]) for i in range(0, len(X), SIZE)]
    options = dict(epochs=1, batch_size=SIZE, key=KEY, progress=False)
    fitted = jpc.fit(step_of(METHODS[1]), begin(), batches, **options)
    expected, _ = by_hand(1, epochs=1)
    assert_close(arrays(fitted.state), arrays(expected), rtol=1e-11, atol=1e-12)


def test_it_is_saved_in_the_middle_of_an_epoch(tmp_path, monkeypatch):
    """After the third step, with a matrix of the first."""
    step, expected = step_of(METHODS[1]), fit(step_of(METHODS[1]))
    monkeypatch.setattr(run, "CHUNK_SECONDS", 0.0)
    saver, when = jpc._fit.checkpoint.Saver, iter(range(100))

    def interrupt(self, snapshot, original=saver.after_chunk):
        if next(when) == 2:
            signal.raise_signal(signal.SIGINT)
        original(self, snapshot)

    monkeypatch.setattr(saver, "after_chunk", interrupt)
    saved = lambda: fit(step, checkpoints=jpc.Checkpoints(tmp_path, resume=True))
    with pytest.raises(KeyboardInterrupt):
        saved()
    assert_close(arrays(saved().state), arrays(expected.state), rtol=0, atol=0)


@pytest.mark.slow
def test_a_step_that_does_not_take_it_back_makes_its_own():
    def step(model, optim, opt_state, output, input, key):
        return jpc.make_pc_step(model, optim, opt_state, output, input, inference=METHODS[1])

    fitted, state = fit(step, epochs=1), begin()
    for i in range(0, len(X), SIZE):
        result = step(**state, output=Y[i : i + SIZE], input=X[i : i + SIZE], key=None)
        state = {name: result[name] for name in state}
    assert_close(arrays(fitted.state), arrays(state), rtol=1e-11, atol=1e-12)
    assert "converged" not in fitted.history[0]


def traced(method, state):
    batch = dict(output=Y[:SIZE], input=X[:SIZE])
    return eqx.filter_eval_shape(step_of(method), **state, **batch)


def test_by_default_descent_is_left_out_from_then_on():
    assert traced(jpc.Equilibrium(), begin())["inference"].max_steps == 0
    assert traced(jpc.Equilibrium(), begin("relu"))["inference"].max_steps == 0


@pytest.mark.slow
def test_own_matrices_and_other_methods_carry_nothing():
    assert traced(jpc.Descent(0.1, 3), begin())["inference"] is None
    assert traced(jpc.Equilibrium(shared=None), begin())["inference"] is None


def test_groups_of_an_accelerator_begin_with_a_new_one(monkeypatch):
    expected, _ = by_hand(1)
    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "accelerated", lambda: True)
        jax.clear_caches()
        state = fit(step_of(METHODS[1])).state
    jax.clear_caches()
    assert_close(arrays(state), arrays(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gain", [1.0, 2.0])
@pytest.mark.parametrize("loss", [slowly(jpc.squared_error), jpc.cross_entropy])
def test_what_is_certified_in_training_is_right(gain, loss):
    """Against inference to the end. Errors that are small beside those of the batch may be off by
    a part of these; and the estimate, by a factor of three.
    """
    scale = lambda w: gain * w if eqx.is_array(w) else w
    model = jax.tree.map(scale, jpc.make_mlp(jr.key(1), 3, 16, 4, 2, "tanh"))
    energy, method = jpc.PCEnergy(loss), jpc.Equilibrium(throw=False)
    posed = jpc.pose(energy, model, {0: jnp.asarray(X), 4: jnp.asarray(Y)})
    carried = method(energy, model, *posed).method
    found = carried(energy, model, *posed)
    exact = jpc.Equilibrium(chords=0, rtol=1e-9)(energy, model, *posed)
    errors = lambda inferred: np.concatenate([pair[1] for pair in inferred.lesson[1][1:]], axis=1)
    off = np.linalg.norm(errors(found) - errors(exact), axis=1)
    sizes = np.linalg.norm(errors(exact), axis=1)
    off = off / np.maximum(sizes, np.mean(sizes))
    converged = np.asarray(found.stats["converged"])
    assert converged.mean() > 0.5 and np.all(off[converged] < 0.03)
    assert jnp.all(exact.result == jpc.RESULTS.successful)


@pytest.mark.parametrize("gain", [slowly(1.0), 4.0])
def test_a_call_whose_first_try_is_not_enough_is_the_whole_program(gain):
    """A plain call first tries without descent. In somebody's program there is no such try."""
    scale = lambda w: gain * w if eqx.is_array(w) else w
    model = jax.tree.map(scale, jpc.make_mlp(jr.key(1), 3, 16, 4, 2, "tanh"))
    energy, method = jpc.PCEnergy(), jpc.Equilibrium()
    posed = jpc.pose(energy, model, {0: jnp.asarray(X), 4: jnp.asarray(Y)})
    called, again = method(energy, model, *posed), method(energy, model, *posed)
    whole = eqx.filter_jit(lambda *problem: method(energy, *problem))(model, *posed)
    alone = bool(jnp.any(called.stats["steps"] > 16))
    assert alone == (gain > 1)
    for other in (again, whole):
        assert jnp.all(called.result == other.result)
        assert_close(arrays(called.nodes), arrays(other.nodes), rtol=1e-6, atol=1e-8)
        assert_close(arrays(called.lesson), arrays(other.lesson), rtol=1e-6, atol=1e-8)


def test_what_is_compiled_in_haste_is_the_same(monkeypatch):
    """It is compiled with other options, and nothing else is."""
    asked = []

    def options(original=checks_module._in_haste):
        asked.append(original())
        return asked[-1]

    monkeypatch.setattr(checks_module, "_in_haste", options)

    @checks_module.checked_jit
    def double(x):
        return 2 * x

    plain = double(jnp.arange(3.0))
    assert not asked
    with checks_module.compiling_hastily():
        hasty = double(jnp.arange(3.0))
    assert_close(hasty, plain)
    assert [dict(options)["xla_backend_optimization_level"] for options in asked] == [0]
