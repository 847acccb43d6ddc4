"""`fit` against a plain Python loop over the same steps, and against closed forms."""

import functools as ft
import io
import json
import re
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import rich
from helpers import arrays, assert_close, slowly
from rich.console import Console

import jpc
import jpc.data
from jpc._fit import loop as loop_module, progress, run, score_state

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(22, 3)), RNG.integers(0, 2, 22)
Y = np.eye(2)[LABELS]
KEY, SIZE = jr.key(3), 4
MODEL = jpc.make_mlp(jr.key(0), 3, 4, 3, 2, "tanh")
ADAM = optax.adam(1e-2)
STATE = dict(model=MODEL, optim=ADAM, opt_state=ADAM.init(eqx.filter(MODEL, eqx.is_array)))
STEP = ft.partial(jpc.make_pc_step, inference=jpc.Descent(optax.sgd(0.1), 3))


def fit(step=STEP, state=STATE, data=(X, Y), **options):
    given = dict(epochs=2, batch_size=SIZE, key=KEY, progress=False) | options
    return jpc.fit(step, state, data, **given)


def keys(epoch):
    """Of the order, the steps and the test of an epoch, as documented."""
    return [jr.fold_in(key, epoch) for key in jr.split(KEY, 3)]


def shuffled(epoch, data=(X, Y)):
    """The batches of an epoch, in order."""
    order = jr.permutation(keys(epoch)[0], len(data[1]))
    rows = order[: len(order) // SIZE * SIZE].reshape(-1, SIZE)
    return [tuple(None if x is None else x[np.asarray(row)] for x in data) for row in rows]


def loop(step, state, epochs=2, batches=shuffled):
    """What `fit` is to do, one call of the step after the other."""
    results = []
    for epoch in range(epochs):
        for i, (x, y) in enumerate(batches(epoch)):
            key = jr.fold_in(keys(epoch)[1], i)
            results.append(step(**state, output=y, input=x, key=key))
            state = {name: results[-1][name] for name in state}
    return state, results


def assert_same_bits(tree, expected):
    assert_close(arrays(tree), arrays(expected), rtol=0, atol=0)


def assert_same(tree, expected):
    assert_close(arrays(tree), arrays(expected), rtol=1e-11, atol=1e-12)


def metrics(fitted):
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in fitted.history]


# --- steps of closed form ---


def count(total, output, input, key):
    """A step that adds up what it sees."""
    del key
    seen = jnp.sum(output) + (0 if input is None else jnp.sum(input))
    return dict(total=total + seen, loss=jnp.mean(output), parts=(seen, jnp.stack([seen, 1.0])))


COUNT = dict(total=jnp.asarray(0.0))


def noisy(total, output, input, key):
    del output, input
    return dict(total=total + jr.normal(key), loss=total)


# --- training ---


def test_fit_is_a_loop_over_steps():
    fitted = fit(metrics=("loss", "energies"))
    state, results = loop(STEP, STATE)
    assert_same(fitted.state, state)
    per_epoch = len(results) // 2
    for record, part in zip(
        fitted.history, (results[:per_epoch], results[per_epoch:]), strict=True
    ):
        assert np.isclose(record["loss"], np.mean([r["loss"] for r in part]), rtol=1e-12)
        assert np.allclose(record["energies"], np.mean([r["energies"] for r in part], axis=0))
    assert [(r["epoch"], r["step"]) for r in fitted.history] == [(1, 5), (2, 10)]


def test_the_state_that_was_given_is_left_alone():
    before = [np.array(x) for x in arrays(STATE)]
    fit()
    assert_close(arrays(STATE), before, rtol=0, atol=0)


def test_epochs_leave_out_other_examples():
    seen = [fit(count, COUNT, (X, Y), epochs=n).state["total"] for n in (1, 2)]
    orders = [np.asarray(jr.permutation(keys(n)[0], 22)) for n in (0, 1)]
    total = lambda order: X[order[:20]].sum() + Y[order[:20]].sum()
    assert set(orders[0][20:]) != set(orders[1][20:])
    assert np.isclose(seen[0], total(orders[0]))
    assert np.isclose(seen[1], total(orders[0]) + total(orders[1]))


def test_metrics_may_be_trees():
    (record,) = fit(count, COUNT, epochs=1, metrics=("parts", "loss")).history
    _, results = loop(count, COUNT, epochs=1)
    mean = np.mean([r["parts"][0] for r in results])
    assert np.isclose(record["parts"][0], mean) and np.allclose(record["parts"][1], [mean, 1.0])
    assert json.loads(json.dumps(record)) == record


def test_every_step_has_its_own_key():
    fitted, (state, _) = fit(noisy, COUNT), loop(noisy, COUNT)
    assert_same(fitted.state, state)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_bits_do_not_depend_on_what_goes_on_around_them(seconds, monkeypatch):
    expected = fit(epochs=3)
    monkeypatch.setattr(run, "CHUNK_SECONDS", seconds)
    seen = []
    more = dict(test=(X, LABELS), evaluate=jpc.evaluate_discriminative, callbacks=[seen.append])
    fitted = fit(epochs=3, **more)
    assert_same_bits(fitted.state, expected.state)
    assert seen == fitted.history
    assert [r["loss"] for r in seen] == [r["loss"] for r in expected.history]


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if "backend_compile" in event else None
)


@pytest.mark.parametrize("data", [(X, Y), [(X[:SIZE], Y[:SIZE])] * 7], ids=["arrays", "batches"])
def test_nothing_is_compiled_twice(data, tmp_path, monkeypatch):
    """Whatever the chunks are, with whatever epoch a run begins."""
    traced, after = [], []

    def step(**given):
        traced.append(None)
        return count(**given)

    options = dict(test=data, evaluate=lambda total, **_: dict(total=total))
    options |= dict(checkpoints=jpc.Checkpoints(tmp_path, resume=True))
    fit(step, COUNT, data, epochs=2, **options)
    first = len(traced)
    monkeypatch.setattr(run, "CHUNK_SECONDS", 1e9)  # Chunks of 1 step, of 10, ...
    note = lambda _: after.append((len(traced), len(COMPILED)))
    fit(step, COUNT, data, epochs=6, callbacks=[note], **options)
    assert len(COMPILED) > 0
    assert after == [(first + 1, after[0][1])] * 4  # The check of the shapes, and no more.


def test_schedules_are_those_of_the_optimiser():
    rates = optax.exponential_decay(0.5, transition_steps=1, decay_rate=0.9)
    optim = optax.sgd(rates)

    def step(weight, opt_state, output, input, key):
        del output, input, key
        updates, opt_state = optim.update(jnp.ones(()), opt_state)
        return dict(weight=weight + updates, opt_state=opt_state, loss=weight)

    state = dict(weight=jnp.zeros(()), opt_state=optim.init(jnp.zeros(())))
    fitted = fit(step, state)
    assert np.isclose(fitted.state["weight"], -0.5 * sum(0.9**i for i in range(10)))


def test_labels_become_one_hot():
    assert_same_bits(fit(data=(X, LABELS)).state, fit().state)
    wider = lambda total, output, **_: dict(total=total + output.shape[1], loss=total)
    assert fit(wider, COUNT, (X, LABELS), classes=7).state["total"] == 7 * 10
    assert fit(wider, COUNT, (LABELS, LABELS + 1)).state["total"] == 3 * 10


def test_unsupervised_and_stochastic():
    step = ft.partial(jpc.make_pc_step, layer_sizes=(3, 4, 4, 2), inference=Jitter())
    batches = lambda epoch: shuffled(epoch, (None, Y))
    fitted = fit(step, data=(None, Y), metrics=("loss", "energies"))
    assert_same(fitted.state, loop(step, STATE, batches=batches)[0])
    assert "loss" not in fitted.history[0] and len(fitted.history[0]["energies"]) == 3


class Jitter(jpc.AbstractInference):
    """Random inference, which no start determines."""

    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        nodes = jax.tree.map(lambda z: z + jr.normal(key, z.shape), nodes)
        return jpc.Inferred(nodes, jpc.RESULTS.successful, {})


def test_hybrid():
    generator, amortiser = jpc.make_mlp(KEY, 2, 4, 3, 3, "tanh"), MODEL
    states = [ADAM.init(eqx.filter(model, eqx.is_array)) for model in (generator, amortiser)]
    state = dict(generator=generator, amortiser=amortiser, optims=[ADAM] * 2, opt_states=states)
    step = ft.partial(jpc.make_hpc_step, inference=Jitter())
    fitted = fit(step, state, (Y, X), metrics=("losses",), epochs=1)
    batches = lambda epoch: shuffled(epoch, (Y, X))
    expected, results = loop(step, state, epochs=1, batches=batches)
    assert_same(fitted.state, expected)
    mean = np.mean([r["losses"] for r in results], axis=0)
    assert np.allclose(fitted.history[0]["losses"], mean)


# --- batches ---


def in_batches(x=X, y=Y, size=SIZE):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def test_batches_come_in_their_order():
    """The last one, of two examples, is left out."""
    full = in_batches()[:-1]
    expected, _ = loop(STEP, STATE, batches=lambda epoch: full)
    fitted = fit(data=in_batches())
    assert_same(fitted.state, expected)
    assert fitted.history[-1]["step"] == 10
    labels = in_batches(y=LABELS)
    assert_same_bits(fit(data=labels, classes=2).state, fitted.state)
    assert_same_bits(fit(data=in_batches(jnp.asarray(X), jnp.asarray(Y))).state, fitted.state)


def test_a_function_makes_the_batches_of_an_epoch():
    fitted = fit(data=lambda epoch: iter(shuffled(epoch)))
    assert_same(fitted.state, loop(STEP, STATE)[0])


def test_chunks_of_an_iterator(monkeypatch):
    expected = fit(data=in_batches())
    monkeypatch.setattr(run, "CHUNK_SECONDS", 1e9)
    assert_same_bits(fit(data=in_batches()).state, expected.state)


# --- trees ---

WEIGHTS, TOKENS = RNG.uniform(size=22), RNG.integers(0, 9, (22, 5))


def weigh(total, output, input, key):
    """A step of trees: tokens, and a pair of a target and its weights."""
    del key
    target, weight = output
    seen = jnp.sum(input["x"] * weight[:, None]) + jnp.sum(target)
    as_given = jnp.issubdtype(input["tokens"].dtype, jnp.integer) and input["id"].ndim == 1
    assert as_given and input["mask"] is None
    return dict(total=total + seen + jnp.sum(input["tokens"]), loss=seen)


def tree_batch(rows):
    input = dict(x=X[rows], tokens=TOKENS[rows], id=LABELS[rows], mask=None)
    return input, (Y[rows], WEIGHTS[rows])


@pytest.mark.parametrize("iterated", [False, True])
def test_data_may_be_trees(iterated):
    """Against a loop over the same examples; integers in trees are no labels."""
    batches = lambda epoch: [tree_batch(rows) for rows, _ in shuffled(epoch, (np.arange(22), Y))]
    data = batches if iterated else tree_batch(np.arange(22))
    evaluate = lambda output, input, **_: dict(m=jnp.sum(input["x"][:, 0] * output[1]))
    test = [tree_batch(np.arange(4)), tree_batch(np.arange(4, 7))] if iterated else None
    test = test or tree_batch(np.arange(7))
    fitted = fit(weigh, COUNT, data, test=test, evaluate=evaluate)
    assert_same(fitted.state, loop(weigh, COUNT, batches=batches)[0])
    expected = np.mean(X[:7, 0] * WEIGHTS[:7])
    assert np.isclose(fitted.history[0]["test_m"], expected, rtol=1e-12)


def test_tokens_stay_integers():
    step = lambda total, output, **_: dict(
        total=total + jnp.issubdtype(output.dtype, jnp.integer) * output.shape[1], loss=total
    )
    assert fit(step, COUNT, (None, TOKENS)).state["total"] == 5 * 10


# --- order ---


def test_examples_in_their_order(tmp_path):
    """Digits that are appended; the last two examples are left out. Resumed, too."""
    append = lambda total, output, **_: dict(total=3 * total + jnp.sum(output), loss=total)
    data = (None, LABELS.astype(float))
    ordered = ft.partial(fit, append, COUNT, data, shuffle=False)
    expected = 0.0
    for epoch in range(2):
        for rows in np.arange(20).reshape(5, 4):
            expected = 3 * expected + LABELS[rows].sum()
        checkpoints = jpc.Checkpoints(tmp_path, resume=True)
        assert ordered(epochs=epoch + 1, checkpoints=checkpoints).state["total"] == expected
    with pytest.raises(ValueError, match="of another run: shuffle: False then, True now"):
        fit(append, COUNT, data, checkpoints=jpc.Checkpoints(tmp_path, resume=True))


# --- evaluation ---


@pytest.mark.parametrize("size", [3, slowly(4), slowly(22), 64])
@pytest.mark.parametrize("iterated", [False, True])
def test_every_example_of_the_test_set_counts_once(size, iterated):
    test = in_batches(y=LABELS, size=size) if iterated else (X, LABELS)
    evaluate = ft.partial(jpc.evaluate_discriminative, loss_id="ce")
    big = np.tile(X, (3, 1)), np.tile(LABELS, 3)
    idle = lambda output, input, key, **state: state | dict(loss=jnp.zeros(()))
    fitted = fit(idle, data=big, test=test, evaluate=evaluate, batch_size=size, epochs=1)
    loss, acc = jpc.test_discriminative_pc(MODEL, Y, X, loss_id="ce")
    (record,) = fitted.history
    assert np.allclose([record["test_loss"], record["test_acc"]], [loss, acc], rtol=1e-12)


def test_evaluation_has_a_key_for_each_example():
    evaluate = lambda total, output, input, key: dict(noise=jr.normal(key))
    noise = [
        fit(count, COUNT, batch_size=n, test=(X, Y), evaluate=evaluate).history[0]["test_noise"]
        for n in (3, 4)
    ]
    expected = np.mean([jr.normal(jr.fold_in(keys(0)[2], i)) for i in range(22)])
    assert np.allclose(noise, expected)


def test_a_state_is_scored_as_after_an_epoch():
    def evaluate(key, **given):
        return jpc.evaluate_discriminative(**given) | dict(noise=jr.normal(key, (2,)))

    test = (X, LABELS)
    state, (_, last) = fit(test=test, evaluate=evaluate)
    named = dict(batch_size=SIZE, key=keys(1)[2], classes=2)
    scores = score_state(evaluate, state, test, **named)
    assert set(scores) == {"test_loss", "test_acc", "test_noise"}
    assert last | scores == last


# --- stopping ---


@pytest.mark.parametrize(
    ("values", "options", "best", "stops"),
    [
        ([3.0, 2.0, 1.0], {}, 2, False),
        ([3.0, 1.0, 2.0], {}, 1, False),
        ([3.0, 1.0, 2.0, 1.0], {}, 1, True),
        ([3.0, 1.0, 2.0, 1.0], dict(patience=3), 1, False),
        ([1.0, 3.0, 2.0, 1.0], dict(minimise=False), 1, True),
        ([3.0, 2.9, 2.8], dict(min_delta=0.5), 0, True),
        ([float("nan"), 5.0, float("nan")], {}, 1, False),
    ],
)
def test_early_stopping(values, options, best, stops):
    stop = jpc.EarlyStopping("loss", **(dict(patience=2) | options))
    history = [dict(loss=value) for value in values]
    assert stop.best(history) == best and stop(history) == stops


def test_the_best_state_is_returned():
    step = lambda total, **_: dict(total=total + 1, loss=total)
    evaluate = lambda total, **_: dict(distance=jnp.abs(total - 16))
    stop = jpc.EarlyStopping("test_distance", patience=2)
    options = dict(test=(X, Y), evaluate=evaluate, epochs=20)
    fitted = fit(step, COUNT, stop=stop, **options)
    assert [r["test_distance"] for r in fitted.history] == [11, 6, 1, 4, 9]
    assert fitted.state["total"] == 15
    assert fit(step, COUNT, **options).state["total"] == 100


# --- progress ---


def test_lines_without_a_terminal(capsys):
    fit(count, COUNT, progress=True)
    lines = [re.sub(r"\d\.\d+", "N", line) for line in epoch_lines(capsys)]
    plain = [line.replace(", and N s to compile", "") for line in lines]  # If that took long.
    assert plain == [f"epoch {i}  loss N  (N s)" for i in (1, 2)]


def epoch_lines(capsys):
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if not line.startswith(("compiling ", "step "))]


def test_silence(capsys):
    fit(count, COUNT)
    assert capsys.readouterr() == ("", "")


def test_a_bar_in_a_terminal(monkeypatch):
    drawn = io.StringIO()
    console = Console(force_terminal=True, file=drawn, width=100)
    monkeypatch.setattr(rich, "get_console", lambda: console)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    fit(count, COUNT, progress=True)
    assert "epoch 2/2" in drawn.getvalue() and "10/10" in drawn.getvalue()
    assert re.search(r"epoch 1  loss 0.5  \(", drawn.getvalue())


@pytest.mark.parametrize("widgets", [True, False])
def test_a_bar_in_a_notebook_that_has_widgets(monkeypatch, widgets):
    """Without them Rich would draw nothing. (With them it did, in a notebook, on 17 November.)"""
    console = types.SimpleNamespace(is_terminal=False, is_jupyter=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if widgets else None)
    assert progress._can_draw(console) is widgets


def test_what_a_notebook_shows_is_short():
    fitted = fit(count, COUNT)
    assert repr(fitted) == f"Fitted(2 epochs, loss {fitted.history[-1]['loss']:.4g}; total)"
    digits = jpc.data.load("digits")
    assert repr(digits).startswith("Dataset(digits: 1437 to train, 360 to test; images of 1 x 8")


def test_lines_without_rich(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    fit(count, COUNT, progress=True)
    assert len(epoch_lines(capsys)) == 2


# --- misuse ---

GENERATOR = (pair for pair in in_batches())
ERRORS = [
    ("iterator", lambda: fit(data=GENERATOR), TypeError, "spent after one epoch.*lambda epoch"),
    ("a number", lambda: fit(data=3), TypeError, r"pair of arrays \(input, output\).*got 3"),
    ("three arrays", lambda: fit(data=(X, Y, X)), TypeError,
     r"a pair .*got a tuple of 3: an array \(22, 3\), .*such as \(\(x, mask\), y\)"),
    ("a dictionary", lambda: fit(data=dict(x=X, y=Y)), TypeError, "data must be a pair"),
    ("not numbers", lambda: fit(data=({"x": X, "id": np.array(["a"] * 22)}, Y)), TypeError,
     r"data: the input\['id'\] must be an array of real numbers, got array"),
    ("a number in a tree", lambda: fit(data=(X, {"y": Y, "n": 22})), ValueError,
     r"output\['n'\] with no axis of examples, shape \(\)"),
    ("lengths in a tree", lambda: fit(data=((X, X[:5]), Y)), ValueError,
     r"input\[0\] with 22 examples, shape \(22, 3\); input\[1\] with 5 examples, .*; output with"),
    ("lengths in a batch", lambda: fit(data=[({"x": X[:4]}, Y[:3])]), ValueError,
     r"A batch of an iterator must be .*input\['x'\] with 4 .*output with 3 examples"),
    ("no data", lambda: fit(data=None), TypeError, "data must be a pair"),
    ("lengths", lambda: fit(data=(X, Y[:5])), ValueError,
     r"input with 22 examples, shape \(22, 3\); output with 5 examples, shape \(5, 2\)"),
    ("no output", lambda: fit(data=(X, None)), ValueError, r"\(None, output\), got.*no output"),
    ("empty", lambda: fit(data=(X[:0], Y[:0])), ValueError, r"0 examples, shape \(0, 3\)"),
    ("no batches", lambda: fit(data=[]), ValueError, "gave no batches"),
    ("not pairs", lambda: fit(data=[X, X]), TypeError, r"A batch of an iterator must be a pair"),
    ("large batches", lambda: fit(data=[(X, Y)]), ValueError, "a batch of 22 .*at most 4"),
    ("small batches", lambda: fit(count, COUNT, [(X[:3], Y[:3])]), ValueError, "no batch of"),
    ("batch_size", lambda: fit(batch_size=23), ValueError, "batch_size=23, but data has 22"),
    ("batch_size 0", lambda: fit(batch_size=0), ValueError, "batch_size=0"),
    ("epochs", lambda: fit(epochs=1.5), ValueError, "epochs=1.5"),
    ("key", lambda: fit(key=0), TypeError, r"single jax.random.key\(seed\), got 0"),
    ("labels", lambda: fit(data=(X, LABELS), classes=1), ValueError, "0 to 1, with classes=1"),
    ("negative", lambda: fit(data=(X, LABELS - 1)), ValueError, "labels from -1 to 0"),
    ("classes", lambda: fit(data=in_batches(y=LABELS)), ValueError, "integer labels.*classes="),
    ("a label later", lambda: fit(count, COUNT, in_batches(y=np.arange(22)), classes=9),
     ValueError, "labels from 8 to 11, with classes=9"),
    ("test labels", lambda: fit(data=(X, LABELS), test=(X, LABELS + 1), evaluate=count),
     ValueError, "test has labels from 1 to 2, with classes=2"),
    ("state", lambda: fit(state=MODEL), TypeError, r"state must be a dictionary .*dict\(model="),
    ("empty state", lambda: fit(state={}), TypeError, "state must be a dictionary"),
    ("input in it", lambda: fit(state=STATE | dict(input=X)), ValueError, "input cannot be in"),
    ("not a dictionary", lambda: fit(lambda **_: 3, COUNT), TypeError, "but this one a int"),
    ("lost", lambda: fit(lambda **_: dict(loss=1.0), COUNT), ValueError,
     "but total is not in the dictionary that this one returns: loss"),
    ("shape", lambda: fit(lambda total, **_: dict(total=jnp.ones(2), loss=total), COUNT),
     ValueError, r"\['total'\] was float64\[\], and is now float64\[2\]"),
    ("type", lambda: fit(lambda total, **_: dict(total=1, loss=total), COUNT), ValueError,
     r"\['total'\] was float64\[\], and is now 1"),
    ("a constant", lambda: fit(lambda n, **_: dict(n=n + 1, loss=jnp.ones(())), dict(n=1)),
     ValueError, r"nothing but arrays: \['n'\] was 1, and is now 2"),
    ("metrics", lambda: fit(count, COUNT, metrics=("acc",)), ValueError,
     "metrics has acc, but a step returns loss, parts, total"),
    ("test alone", lambda: fit(test=(X, Y)), ValueError, "evaluate how, .*give both"),
    ("evaluate alone", lambda: fit(evaluate=count), ValueError, "give both of them"),
    ("evaluate", lambda: fit(count, COUNT, test=(X, Y), evaluate=lambda **_: 3.0), TypeError,
     "evaluate must return a dictionary of arrays"),
    ("stop", lambda: fit(count, COUNT, stop=jpc.EarlyStopping("acc")), ValueError,
     "No metric 'acc' to stop by: there are loss"),
    ("sharding", lambda: fit(sharding=lambda name, x: None), ValueError, "give mesh too"),
    ("mesh", lambda: fit(mesh=8), TypeError, "mesh must be a jax.sharding.Mesh, got int"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), [pytest.param(*c, id=i) for i, *c in ERRORS])
def test_misuse_is_answered(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_run_time_errors_keep_their_words():
    spoilt = np.where(np.arange(22)[:, None] == 7, np.nan, X)
    with pytest.raises(RuntimeError, match=r"^input is not finite"):
        fit(data=(spoilt, Y), epochs=9)


def test_inspect_sees_the_state_after_each_epoch():
    """Against the loop, stopped there."""
    norm = lambda model, **rest: dict(norms=jpc.compute_param_norms((model, None))[0])
    history = fit(inspect=norm, epochs=3).history
    for epochs, record in enumerate(history, start=1):
        state, _ = loop(STEP, STATE, epochs)
        np.testing.assert_allclose(record["norms"], norm(**state)["norms"], rtol=1e-10)


# --- on an accelerator ---


@ft.cache
def plainly():
    return fit(epochs=3)


@pytest.fixture
def accelerated(monkeypatch):
    """As on a device with a host to wait for."""
    plain = plainly()
    monkeypatch.setattr(loop_module, "accelerated", lambda: True)
    jax.clear_caches()
    yield plain
    jax.clear_caches()


def test_groups_of_steps_and_late_checks_change_nothing(accelerated):
    grouped = fit(epochs=3)
    assert_same(grouped.state, accelerated.state)
    assert_close(*([r["loss"] for r in f.history] for f in (grouped, accelerated)), rtol=1e-12)


def test_late_checks_find_what_is_not_finite(accelerated):
    spoilt = np.where(np.arange(22)[:, None] == 7, np.nan, X)
    with pytest.raises(RuntimeError, match=r"state\['model'\]\[0\].* is not finite .*step 0 of"):
        fit(data=(spoilt, Y), epochs=9)


def test_late_checks_find_that_inference_failed(accelerated):
    descent = jpc.Descent(optax.sgd(10.0), 3)
    with pytest.raises(RuntimeError, match="Or inference failed"):
        fit(ft.partial(jpc.make_pc_step, inference=descent))
