"""Runs that end early, and go on: with the bits of those that do not."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers import arrays, assert_close

import jpc
from jpc._fit import run

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
    environment = os.environ | dict(
        PYTHONPATH=str(Path(jpc.__file__).parents[1]), JAX_ENABLE_X64="1", JAX_PLATFORMS="cpu"
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


def test_killed_runs_end_with_the_same_bits(tmp_path):
    folder, rng = tmp_path / "run", np.random.default_rng(0)
    expected = start(tmp_path / "expected.npz")
    for number in (1, 9, 17, 25):
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
    ("batch_size", dict(batch_size=5), r"\['batch_size'\] was 4, and is now 5"),
    ("key", dict(key=jr.key(2)), r"\['key'\]\[1\] was 1, and is now 2"),
    ("examples", dict(data=tuple(x[:19] for x in DATA)), r"\['examples'\] was 20, and is now 19"),
    ("shape", dict(state=STATE | dict(empty=jnp.zeros((0, 3)))),
     r"\['state'\]\['empty'\] was float64\[0, 2\], and is now float64\[0, 3\]"),
    ("type", dict(state=STATE | dict(empty=jnp.zeros((0, 2), "float32"))), r"was float64\[0, 2\]"),
    ("constant", dict(state=STATE | dict(rate=0.1)), r"\['rate'\] was 0.5, and is now 0.1"),
    ("metrics", dict(metrics=()), r"\['sums'\]\['loss'\] was float64\[3\], and is now missing"),
    ("stop", dict(stop=jpc.EarlyStopping("size"), metrics=("loss", "size")),
     r"\['best'\].* was missing"),
    ("config", dict(saving=dict(config=dict(name="b", sizes=[3, 4]))),
     r"\['config'\]\['name'\] was 'a', and is now 'b'"),
    ("no config", dict(saving=dict(config=None)), r"\['name'\] was 'a', and is now missing"),
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


# Of the reads that Orbax has begun it leaves those behind that fail after the first one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", [0.1, 0.3, 0.5, 0.7, 0.9, "cut", "gone"])
def test_what_is_damaged_is_refused_by_name(saved, tmp_path, how):
    """Each of its files in turn. Some are not needed; then the bits are those of the run."""
    expected, refused = fit(epochs=2), []
    for i, path in enumerate(files(saved)):
        folder = tmp_path / str(i)
        shutil.copytree(saved, folder)
        spoil(folder / path.relative_to(saved), how)
        try:
            fitted = fit(folder, epochs=2, saving=CONFIG)
        except ValueError as error:
            assert f"The checkpoint {folder}/12 is damaged" in str(error), error
            assert "delete that folder" in str(error)
            refused.append(path)
        else:
            assert_same_bits(fitted, expected)
    gc.collect()  # Here rather than in another test.
    parts = [path.relative_to(saved / "12").parts[0] for path in refused]
    assert parts.count("notes") >= 1 and parts.count("arrays") >= 2


def test_the_one_before_is_still_there(saved, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    shutil.rmtree(folder / "12")
    assert_same_bits(fit(folder, saving=CONFIG), fit())


@pytest.mark.parametrize("options", [dict(keep=0), dict(every=1.5), dict(config={1j})])
def test_misuse_is_answered(tmp_path, options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        jpc.Checkpoints(tmp_path, **options)


def test_without_orbax(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[train\]'"):
        fit(tmp_path)
