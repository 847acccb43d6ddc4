"""Runs that end early, and go on: with the bits of those that do not."""

import contextlib
import functools as ft
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from helpers import arrays, assert_close, slowly

import jpc
from jpc._claim import InUseError, hold
from jpc._fit import checkpoint, differ, fingerprint, loop, run, store

DATA = tuple(np.random.default_rng(0).normal(size=(2, 20, 3)))
STATE = dict(total=jnp.zeros(3), chain=jr.key(7), empty=jnp.zeros((0, 2)), rate=0.5)


def step(total, chain, empty, rate, output, input, key):
    """A step with what is hard to save: a key, an empty array, a number that is no array."""
    chain, now = jr.split(chain)
    noise = jr.normal(key, (3,)) + jr.normal(now, (3,))
    total = rate * total + jnp.mean(input * output, axis=0) + noise
    state = dict(total=total, chain=chain, empty=empty, rate=rate)
    return state | dict(loss=total, size=jnp.sum(total))


def fit(folder=None, state=STATE, data=DATA, saving=None, **options):
    if folder is not None:
        options["checkpoints"] = jpc.Checkpoints(folder, **(dict(resume=True) | (saving or {})))
    given = dict(epochs=4, batch_size=4, key=jr.key(1), progress=False) | options
    return jpc.fit(step, state, data, **given)


def plain(fitted):
    """All that must be the same."""
    state = fitted.state | dict(chain=jr.key_data(fitted.state["chain"]))
    return arrays(state), [record["loss"] for record in fitted.history]


def assert_same_bits(fitted, expected):
    assert_close(plain(fitted), plain(expected), rtol=0, atol=0)


def numbers(folder):
    return sorted(int(entry.name) for entry in Path(folder).iterdir() if entry.name.isdigit())


# --- killed ---

SCRIPT = Path(__file__).with_name("train_and_save.py")


def start(*args):
    """What one of the processes compiled others need not."""
    environment = os.environ | dict(
        PYTHONPATH=str(Path(jpc.__file__).parents[1]),
        JAX_ENABLE_X64="1",
        JAX_PLATFORMS="cpu",
        JAX_COMPILATION_CACHE_DIR=str(Path(args[0]).parent / "programs"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.1",
    )
    return subprocess.Popen([sys.executable, str(SCRIPT), *map(str, args)], env=environment)


def kill_after(number, folder, out, delay):
    """Kills a run some time after it has saved a checkpoint, mostly while it saves another."""
    process = start(out, folder)
    while process.poll() is None and (not folder.exists() or max([0, *numbers(folder)]) < number):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("when", [(1, 17), (1, 9, 17, 25)], ids=len)
def test_killed_runs_end_with_the_same_bits(tmp_path, when):
    folder, rng = tmp_path / "run", np.random.default_rng(0)
    expected = start(tmp_path / "expected.npz")
    for number in when:
        kill_after(number, folder, tmp_path / "killed.npz", rng.uniform(0, 0.15))
    assert start(tmp_path / "killed.npz", folder).wait() == 0 == expected.wait()
    with np.load(tmp_path / "killed.npz") as got, np.load(tmp_path / "expected.npz") as whole:
        assert got.files == whole.files and len(got.files) > 4
        for name in got.files:
            np.testing.assert_array_equal(got[name], whole[name])
    assert len(numbers(folder)) == 2 == len(list(folder.iterdir()))


# --- stopped and resumed ---


BATCHES = [tuple(x[i : i + 4] for x in DATA) for i in range(0, 20, 4)]


@pytest.mark.parametrize("data", [DATA, BATCHES], ids=["arrays", "batches"])
def test_a_run_goes_on_for_more_epochs(tmp_path, data):
    expected = fit(data=data)
    fit(tmp_path, data=data, epochs=2)
    fitted = fit(tmp_path, data=data)
    assert_same_bits(fitted, expected)
    assert [record["epoch"] for record in fitted.history] == [1, 2, 3, 4]
    assert_same_bits(fit(tmp_path, data=data), expected)  # With nothing left to do.


@pytest.mark.parametrize("data", [DATA, BATCHES], ids=["arrays", "batches"])
def test_ctrl_c_in_the_middle_of_an_epoch(tmp_path, data, monkeypatch):
    monkeypatch.setattr(run, "CHUNK_SECONDS", 0.0)
    saver, when = jpc._fit.checkpoint.Saver, iter(range(100))

    def interrupt(self, snapshot, original=saver.after_chunk):
        if next(when) == 6:
            signal.raise_signal(signal.SIGINT)
        original(self, snapshot)

    monkeypatch.setattr(saver, "after_chunk", interrupt)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"Saved in .*resume=True"):
        fit(tmp_path, data=data)
    assert signal.getsignal(signal.SIGINT) is before
    assert numbers(tmp_path)[-1] % 6 not in (0, 5)  # Five steps and the end of each epoch.
    assert_same_bits(fit(tmp_path, data=data), fit(data=data))


def test_saving_changes_nothing(tmp_path, monkeypatch):
    expected = fit()
    monkeypatch.setattr(run, "CHUNK_SECONDS", 0.0)
    assert_same_bits(fit(tmp_path, saving=dict(seconds=0.0, keep=2)), expected)
    assert numbers(tmp_path) == [22, 24]  # 19 steps and 3 epochs; 20 steps and 4 epochs.


def test_early_stopping_goes_on_where_it_was(tmp_path):
    test = dict(test=DATA, evaluate=lambda total, **_: dict(loss=jnp.sum(total)))
    stop = jpc.EarlyStopping(patience=4)
    whole = fit(epochs=12, stop=stop, **test)
    for epochs in (3, 5, 12):
        fitted = fit(tmp_path, epochs=epochs, stop=stop, **test)
    assert_same_bits(fitted, whole)


def test_how_often_and_how_many(tmp_path):
    fit(tmp_path, epochs=7, saving=dict(every=2, keep=2))
    assert numbers(tmp_path) == [36, 42]  # Five steps and an end for each of 6 and 7 epochs.


# --- refused ---


def test_nothing_is_overwritten(tmp_path):
    fit(tmp_path, epochs=1)
    with pytest.raises(FileExistsError, match=r"of an earlier run: .*resume=True"):
        fit(tmp_path, saving=dict(resume=False))
    assert numbers(tmp_path) == [6]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    fit(folder, epochs=2, saving=dict(config=dict(name="a", sizes=[3, 4])))
    return folder


CONFIG = dict(config=dict(name="a", sizes=[3, 4]))
FOREIGN = [
    ("batch_size", dict(batch_size=5), r"run: the batch size: 4 then, 5 now\. Choose another"),
    ("key", dict(key=jr.key(2)), r"run: the key: another one\. .*resume='anyway'"),
    ("examples", dict(data=tuple(x[:19] for x in DATA)),
     r"run: the number of examples: 20 then, 19 now; the data: float64\[20, 3\], .* now\. "),
    ("data", dict(data=(DATA[0], DATA[1] + 1e-12)),
     r"run: the data: other numbers of the same shape\. "),
    ("both", dict(data=(DATA[0], DATA[1] + 1), batch_size=5),
     r"run: the batch size: 4 then, 5 now; the data: other numbers of the same shape\. "),
    ("order", dict(shuffle=False), r"run: shuffle: True then, False now\. "),
    ("initial state", dict(state=STATE | dict(total=jnp.ones(3))),
     r"run: the state to begin with: other numbers of the same shape\. "),
    ("test", dict(test=DATA, evaluate=lambda total, **_: dict(loss=jnp.sum(total))),
     r"run: the test data: none then, given now\. "),
    ("shape", dict(state=STATE | dict(empty=jnp.zeros((0, 3)))),
     r"\['state'\]\['empty'\] was float64\[0, 2\], and is now float64\[0, 3\]"),
    ("type", dict(state=STATE | dict(empty=jnp.zeros((0, 2), "float32"))), r"was float64\[0, 2\]"),
    ("constant", dict(state=STATE | dict(rate=0.1)), r"state\['rate'\]: 0.5 then, 0.1 now\. "),
    ("metrics", dict(metrics=()), r"run: the metrics\[0\]: 'loss' then, missing now\. "),
    ("stop", dict(stop=jpc.EarlyStopping("size"), metrics=("loss", "size")),
     r"run: the metrics\[1\]: missing then, 'size' now; when to stop: None then, the least size"),
    ("config", dict(saving=dict(config=dict(name="b", sizes=[3, 4]))),
     r"config\['name'\]: 'a' then, 'b' now\. "),
    ("no config", dict(saving=dict(config=None)),
     r"config\['name'\]: 'a' then, missing now; config"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [pytest.param(*c, id=i) for i, *c in FOREIGN])
def test_another_run_is_refused(saved, options, message):
    with pytest.raises(ValueError, match=rf"The checkpoint {saved}/12 is of another .*{message}"):
        fit(saved, **(dict(saving=CONFIG) | options))


def test_somebody_elses_checkpoint_is_refused(tmp_path):
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(3, args=ocp.args.StandardSave({"a": jnp.ones(2)}))
    with pytest.raises(ValueError, match=rf"The checkpoint {tmp_path}/3 is"):
        fit(tmp_path)


def files(folder):
    return sorted(path for path in (folder / "12").rglob("*") if path.is_file())


def spoil(path, how):
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[int(how * len(content))] ^= 1
        path.write_bytes(content)


SMALL = dict(epochs=1, batch_size=5, key=jr.key(1), progress=False)


def learn(folder, activation="tanh", rate=0.01, inference=None, resume=True, **options):
    """A network, small enough to be compiled in a moment."""
    model = jpc.make_mlp(jr.key(0), 3, 4, 2, 3, activation)
    optim = optax.sgd(rate)
    state = dict(model=model, optim=optim, opt_state=optim.init(eqx.filter(model, eqx.is_array)))
    inference = inference or jpc.Descent(optax.sgd(0.1), 3)
    step = ft.partial(jpc.make_pc_step, inference=inference)
    given = SMALL | dict(checkpoints=jpc.Checkpoints(folder, resume=resume)) | options
    test = dict(test=DATA, evaluate=options.get("evaluate", jpc.evaluate_discriminative))
    return jpc.fit(step, state, DATA, **(test | given))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    learn(folder)
    return folder


STEP = r"the step \(model, energy, inference or optimiser\)"
CHORDS = jpc.Equilibrium(chords=2, max_steps=0)
CROSS = ft.partial(jpc.evaluate_discriminative, loss_id="ce")
OTHERS = [
    ("activation", dict(activation="relu"), rf"{STEP}; how to evaluate\. Choose another folder"),
    ("rate", dict(rate=0.02), rf"{STEP}, a number in it: -0\.01 then, -0\.02 now\. "),
    ("steps", dict(inference=jpc.Descent(optax.sgd(0.1), 4)), rf"{STEP}\. "),
    ("step size", dict(inference=jpc.Descent(optax.sgd(0.2), 3)), rf"{STEP}, .*-0\.2 now\. "),
    ("inference", dict(inference=CHORDS), rf"{STEP}\. "),
    ("evaluate", dict(evaluate=CROSS), r"how to evaluate\. "),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [pytest.param(*c, id=i) for i, *c in OTHERS])
def test_another_experiment_is_refused(learned, options, message):
    with pytest.raises(ValueError, match=rf"{learned}/5 is of another run: {message}"):
        learn(learned, **options)


def test_another_jax_is_said(learned, monkeypatch):
    monkeypatch.setattr(sys.modules["jpc._fit.fit"], "made_with", lambda: dict(jax="0.0.1"))
    learn(learned)  # The program is the same one.
    with pytest.raises(
        ValueError, match=r"; perhaps for no other reason than jax: [\d.]+ then, 0.0"
    ):
        learn(learned, rate=0.02)


def test_another_experiment_goes_on_anyway(tmp_path):
    fit(tmp_path, epochs=1)
    other = dict(data=(DATA[0], DATA[1] + 1), key=jr.key(2))
    fitted = fit(tmp_path, epochs=2, saving=dict(resume="anyway"), **other)
    assert [record["epoch"] for record in fitted.history] == [1, 2]
    fit(tmp_path, epochs=3, **other)  # From now on it is that one.
    with pytest.raises(ValueError, match="the key: another one; the data: other numbers"):
        fit(tmp_path)
    with pytest.raises(ValueError, match=r"another state: .*Choose another folder"):
        fit(tmp_path, saving=dict(resume="anyway"), state=STATE | dict(empty=jnp.zeros((0, 3))))


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (0.5, 0.25, "0.5 then, 0.25 now"),
        (0.5, 0.5 + 2**-30, "0.5 then, 0.50000000093132257 now"),
        (1.0, 0.25, "0.25 now"),
    ],
)
def test_numbers_that_differ_are_told_apart(then, now, said):
    notes = (dict(form="f", numbers=[number, 1.0]) for number in (then, now))
    assert differ._say_numbers(*notes) == f", a number in it: {said}"


def test_other_metrics_go_on_anyway(tmp_path):
    """They begin where the run goes on."""
    whole = fit(epochs=3, metrics=("size",))
    fit(tmp_path, epochs=1)
    anyway = dict(resume="anyway")
    fitted = fit(tmp_path, epochs=3, metrics=("size",), saving=anyway)
    assert "size" not in fitted.history[0] and "loss" not in fitted.history[1]
    assert [r["size"] for r in fitted.history[1:]] == [r["size"] for r in whole.history[1:]]
    stop = dict(stop=jpc.EarlyStopping("size", patience=9), metrics=("size",))
    with pytest.raises(ValueError, match=r"/18 has no best state, .*without stop="):
        fit(tmp_path, epochs=4, saving=anyway, **stop)


def test_other_metrics_of_half_an_epoch(tmp_path, monkeypatch):
    """Their mean is that of the steps after it: 4 and 6, or 6 alone."""
    count = lambda total, output, input, key: dict(total=total + 1, loss=total, size=2 * total)
    run_for = ft.partial(jpc.fit, count, dict(total=jnp.zeros(())), DATA, **SMALL)
    monkeypatch.setattr(run, "CHUNK_SECONDS", 0.0)
    for stopped, expected in ((2, 5.0), (3, 6.0)):
        folder = tmp_path / str(stopped)
        with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
            patch.setattr(checkpoint.Saver, "after_chunk", interrupt_at(stopped))
            run_for(checkpoints=jpc.Checkpoints(folder))
        saved = jpc.Checkpoints(folder, resume="anyway")
        fitted = run_for(checkpoints=saved, metrics=("size",))
        assert fitted.history[0]["size"] == expected
        assert fitted.state["total"] == 4


def interrupt_at(number, original=checkpoint.Saver.after_chunk):
    def interrupt(self, snapshot):
        if snapshot.total == number:
            signal.raise_signal(signal.SIGINT)
        original(self, snapshot)

    return interrupt


@pytest.mark.parametrize("carries", [True, slowly(False)])
def test_a_method_that_is_carried_along_comes_and_goes(tmp_path, carries, monkeypatch):
    """Also in the middle of an epoch: it learns at once, and not only after some steps."""
    methods = CHORDS, jpc.Descent(optax.sgd(0.1), 3)
    old, new = methods if carries else methods[::-1]
    monkeypatch.setattr(run, "CHUNK_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(checkpoint.Saver, "after_chunk", interrupt_at(2))
        learn(tmp_path, inference=old)
    with pytest.raises(ValueError, match=rf"/2 is of another run: {STEP}\. .*resume='anyway'"):
        learn(tmp_path, inference=new)
    fitted = learn(tmp_path, inference=new, resume="anyway")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(arrays(fitted.state["model"])))
    again = learn(tmp_path, inference=new)  # From now on it is that one.
    assert_close(arrays(again.state["model"]), arrays(fitted.state["model"]), rtol=0, atol=0)


def test_the_state_of_the_checkpoint_may_be_given(tmp_path):
    fitted = fit(tmp_path, epochs=2)
    fit(tmp_path, epochs=3, state=fitted.state)
    assert_same_bits(fit(tmp_path), fit())  # And the one at the beginning still may.


def test_other_batches_are_refused(tmp_path):
    fit(tmp_path, data=BATCHES, epochs=1)
    with pytest.raises(ValueError, match="the data: other numbers of the same shape"):
        fit(tmp_path, data=BATCHES[::-1])


def test_what_watches_may_change(tmp_path):
    fit(tmp_path, epochs=1)
    fitted = fit(tmp_path, inspect=lambda **_: dict(a=1), callbacks=[print])
    assert_same_bits(fitted, fit())


def test_how_an_array_lies_in_memory_does_not_matter():
    """Constants of a program may be every second number of something, or one number repeated."""
    digest = lambda x: fingerprint.digest_arrays([x])
    for array in (np.arange(12.0)[::-2], np.broadcast_to(3.0, (4,)), np.ones((3, 2)).T):
        assert digest(array) == digest(array.copy())
    assert digest(np.arange(4.0)) != digest(np.arange(4.0)[::-1])


def test_a_checkpoint_without_a_fingerprint_goes_on(tmp_path, monkeypatch):
    write = store.Store.write

    def forget(self, number, tree, notes):
        write(self, number, tree, {k: v for k, v in notes.items() if k != "identity"})

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "write", forget)
        fit(tmp_path, epochs=2)
    with pytest.warns(UserWarning, match="earlier version of jpc.* not compared"):
        fitted = fit(tmp_path)
    assert_same_bits(fitted, fit())


def test_large_arrays_are_sampled(monkeypatch):
    monkeypatch.setattr(fingerprint, "MOST_BYTES", 80)
    array = np.arange(40.0).reshape(20, 2)
    digest = lambda x: fingerprint.digest_arrays((x,))["sha256"]
    for row, seen in ((0, True), (19, True), (1, False)):
        other = array.copy()
        other[row] += 1
        assert (digest(other) != digest(array)) == seen
        assert digest(jnp.asarray(other)) == digest(other)


# Of the reads that Orbax has begun it leaves those behind that fail after the first one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", [0.3, *map(slowly, (0.1, 0.5, 0.7, 0.9)), "cut", "gone"])
def test_what_is_damaged_is_passed_over_by_name(saved, tmp_path, how):
    """Each of its files in turn. Some are not needed. The bits are those of the run."""
    expected, refused = fit(epochs=2), []
    for i, path in enumerate(files(saved)):
        folder = tmp_path / str(i)
        shutil.copytree(saved, folder)
        spoil(folder / path.relative_to(saved), how)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = fit(folder, epochs=2, saving=CONFIG)
        assert_same_bits(fitted, expected)
        said = [str(w.message) for w in caught if "checkpoint" in str(w.message)]
        if said:
            assert said[0].startswith(f"The checkpoint {folder}/12 is damaged ("), said
            assert said[0].endswith(f"Went on from the one before it, {folder}/6.")
            assert len(said) == 1 and len(said[0]) < 500
            refused.append(path)
            assert numbers(folder) == [6, 12]
            assert len(list(folder.glob("damaged-12-*"))) == 1
    gc.collect()  # Here rather than in another test.
    parts = [path.relative_to(saved / "12").parts[0] for path in refused]
    assert parts.count("notes") >= 1 and parts.count("arrays") >= 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_whole_is_left(saved, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    for number in (6, 12):
        (folder / str(number) / "notes" / "metadata").write_text("{")
    with pytest.raises(
        ValueError, match=r"12 is damaged .*No other one is whole: .* to begin anew"
    ):
        fit(folder, saving=CONFIG)
    assert numbers(folder) == [6, 12]
    gc.collect()


def test_one_process_at_a_time(tmp_path):
    def meanwhile(_):
        with pytest.raises(InUseError, match=rf"{tmp_path} is in use by another run"):
            fit(tmp_path)

    fit(tmp_path, epochs=2, callbacks=[meanwhile])
    assert numbers(tmp_path) == [6, 12] and len(list(tmp_path.iterdir())) == 2
    with hold(tmp_path):  # To look at it is no harm.
        assert_same_bits(fit(tmp_path, epochs=2), fit(epochs=2))


def test_what_was_saved_since_is_not_overwritten(tmp_path):
    fit(tmp_path, epochs=1)
    saver = checkpoint.Saver(jpc.Checkpoints(tmp_path, resume=True), {}, dict, loop.Devices())
    with contextlib.closing(saver):
        saver._found = [3]
        with pytest.raises(InUseError, match=r"has saved in .* since: start again"):
            saver.begin()


def test_a_clock_that_jumps(tmp_path, monkeypatch):
    """Backwards, by an hour at each look."""
    hours = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: 3600 * 10**9 * next(hours))
    fit(tmp_path, epochs=2)
    assert_same_bits(fit(tmp_path), fit())


def test_the_one_before_is_still_there(saved, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    shutil.rmtree(folder / "12")
    assert_same_bits(fit(folder, saving=CONFIG), fit())


MISUSE = [dict(keep=0), dict(every=1.5), dict(config={1j}), dict(resume="yes")]


@pytest.mark.parametrize("options", MISUSE)
def test_misuse_is_answered(tmp_path, options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        jpc.Checkpoints(tmp_path, **options)


def test_without_orbax(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[train\]'"):
        fit(tmp_path)
