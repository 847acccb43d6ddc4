"""Nothing is lost, nothing waits without a word, nothing said is cut. Kills are in test_cli.py,
and many of them in faults/kill.py.
"""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import install_import_hook
from typer.testing import CliRunner

import jpc
from jpc._claim import LOCK, InUseError, hold, is_running, was_killed
from jpc._fit import checkpoint, loop, progress as progress_module
from jpc._fit.clock import CompileClock
from jpc._fit.store import Store

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc.cli import (
        cache,
        check,
        evaluate as evaluate_module,
        interrupt,
        safe,
        train as train_module,
    )
    from jpc.cli.app import app
    from jpc.cli.config import ConfigError
    from jpc.cli.folder import RunFolder, take_folder

ROOT = Path(__file__).parents[1]
CONFIG = check.make_config({})


@pytest.fixture(autouse=True)
def strict_jax_afterwards():
    yield
    jax.config.update("jax_enable_x64", True)


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


class TestFolders:
    def test_no_two_runs_get_the_same(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        together = threading.Barrier(8)

        def begin(_):
            together.wait()
            with take_folder(None, "digits", overwrite=False) as folder:
                folder.begin(CONFIG)
                together.wait()
                return folder.path

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(begin, range(8)))) == 8

    def test_one_that_is_in_use_is_refused(self, tmp_path):
        def take(overwrite):
            with take_folder(tmp_path / "run", "digits", overwrite=overwrite):
                pass

        with take_folder(tmp_path / "run", "digits", overwrite=False) as folder:
            folder.begin(CONFIG)
            folder.append(dict(epoch=1))
            assert is_running(folder.path) and not was_killed(folder.path)
            with pytest.raises(InUseError, match=f"in use by another run .process {os.getpid()}"):
                take(overwrite=True)
            result = invoke("train", "--resume", folder.path)
            assert (result.exit_code, "in use" in result.stderr) == (2, True)
        assert not (folder.path / LOCK).exists()
        with pytest.raises(ConfigError, match="has a run in it"):
            take(overwrite=False)
        assert len(folder.read_metrics()) == 1

    def test_nothing_is_left_of_what_did_not_begin(self, tmp_path):
        with take_folder(tmp_path / "run", "digits", overwrite=False):
            pass
        assert not list(tmp_path.iterdir())

    def test_a_run_that_was_killed_says_so(self, tmp_path, monkeypatch):
        folder = RunFolder(tmp_path)
        folder.begin(CONFIG)
        folder.append(dict(epoch=1))
        (tmp_path / LOCK).write_text("1")  # With nobody to hold it.
        assert was_killed(tmp_path)
        monkeypatch.setattr(evaluate_module, "evaluate_run", lambda folder, data: dict(run="x"))
        said = invoke("eval", tmp_path).stderr
        assert (
            said
            == f"{tmp_path} was interrupted after 1 of 20 epochs: jpc train --resume {tmp_path}\n"
        )
        with hold(tmp_path):
            assert "is still running" in invoke("eval", tmp_path).stderr
        assert invoke("eval", tmp_path).stderr == ""


FAULTS = {
    "full": (OSError(errno.ENOSPC, "No space left on device"), "{run}: No space left on device"),
    "gone": (
        FileNotFoundError(errno.ENOENT, "No such file or directory", "metrics.jsonl"),
        "metrics.jsonl: No such file or directory",
    ),
    "read-only": (
        OSError(errno.EROFS, "Read-only file system", "report.html"),
        "report.html: Read-only file system",
    ),
}


class TestFaults:
    @pytest.fixture
    def failing(self, monkeypatch):
        """Makes training end in an error after an epoch, with a checkpoint or without one."""

        def fail_with(error, saved):
            def train(task, folder, *, resume, progress):
                folder.begin(CONFIG)
                folder.append(dict(epoch=1))
                if saved:
                    (folder.checkpoints / "7").mkdir(parents=True)
                raise error

            monkeypatch.setattr(train_module, "prepare", lambda config, *, progress: None)
            monkeypatch.setattr(train_module, "train", train)

        return fail_with

    @pytest.mark.parametrize("kind", FAULTS)
    def test_are_one_line_and_leave_the_run(self, kind, failing, tmp_path):
        (error, message), run = FAULTS[kind], tmp_path / "run"
        failing(error, saved=True)
        result = invoke("train", "--quiet", "--out", run)
        left = f"The run so far is safe; resume with: jpc train --resume {run}"
        assert result.exit_code == 1
        assert result.stderr == f"jpc: {message.format(run=run)}. {left}\n"
        assert len(RunFolder(run).read_metrics()) == 1
        assert not was_killed(run)

    def test_saved_is_said_only_if_it_is(self, failing, tmp_path):
        for saved, message in ((True, "saved; resume with: jpc train"), (False, "Nothing was")):
            failing(KeyboardInterrupt(), saved)
            result = invoke("train", "--quiet", "--out", tmp_path / str(saved))
            assert result.exit_code == 130
            assert result.stderr.startswith(message)
            assert ("--resume" in result.stderr) == saved

    def test_a_place_that_cannot_be_written_to(self, failing, tmp_path):
        (tmp_path / "file").write_text("mine")
        failing(RuntimeError(), saved=False)
        result = invoke("train", "--quiet", "--out", tmp_path / "file" / "run")
        assert result.exit_code == 1
        assert re.fullmatch(r"jpc: .*file.*: (File exists|Not a directory)\n", result.stderr)

    def test_checkpoints_that_cannot_be_written(self, tmp_path, monkeypatch):
        store = Store(tmp_path / "checkpoints", keep=2)
        tree = dict(x=jnp.ones(3))
        store.write(1, tree, {})

        def fail(*args, **options):
            raise ValueError("RESOURCE_EXHAUSTED: no room\nand a stack")

        monkeypatch.setattr(store._writer, "save", fail)
        with pytest.raises(OSError, match=r"checkpoints/2 could not be written: RES.*no room\.$"):
            store.write(2, tree, {})
        spoken = ValueError("RESOURCE_EXHAUSTED: Failed [os_error_code='28'] [spec='...']")
        monkeypatch.setattr(store._writer, "save", Mock(side_effect=spoken))
        with pytest.raises(OSError, match=r"No space left on device: .*checkpoints/2"):
            store.write(2, tree, {})
        store.close()
        after = Store(tmp_path / "checkpoints", keep=2)
        assert after.numbers() == [1]
        after.close()

    @pytest.mark.parametrize("name", ["metrics.jsonl", "data.json", "config.toml"])
    def test_files_that_are_damaged(self, name, tmp_path):
        folder = RunFolder(tmp_path)
        data = dict(dataset=str(tmp_path / "x.csv"), task="discriminative")
        own = {"data": data, "training": {"batch_size": 4, "epochs": 1}}
        folder.begin(check.make_config(own | {"optimiser": {"learning_rate": 0.1}}))
        folder.append(dict(epoch=1))
        folder.data.write_text("{}")
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:1] + b"\xff" + content[1:])
        result = invoke("predict", tmp_path, tmp_path / "x.csv")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
        assert re.match(rf"jpc: {tmp_path}/{name} is (damaged|not TOML): ", result.stderr)

    def test_what_is_left_of_a_folder_that_is_gone(self, tmp_path):
        """And that a library has made again."""
        with take_folder(tmp_path / "run", "digits", overwrite=False) as folder:
            (folder.checkpoints / "7").mkdir(parents=True)
        assert safe._what_is_left(folder, "safe") == "The folder of the run is gone."

    def test_messages_are_whole(self, failing, tmp_path):
        failing(RuntimeError("None of these has it:\n  a\n  b\nPut it there."), saved=False)
        result = invoke("train", "--quiet", "--out", tmp_path / "run")
        expected = "jpc: None of these has it:\n  a\n  b\nPut it there.\n(--debug shows where.)\n"
        assert (result.exit_code, result.stderr) == (1, expected)

    def test_what_is_missing_is_listed(self, tmp_path, monkeypatch):
        for name in ("JPC_DATA_DIR", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, str(tmp_path))
        monkeypatch.setitem(sys.modules, "pooch", None)
        load = lambda *_, **__: jpc.data.load("mnist", download=False)
        with pytest.raises(FileNotFoundError) as caught:
            load()
        monkeypatch.setattr(train_module, "prepare", load)
        result = invoke("train", "--dataset", "mnist", "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert result.stderr == f"jpc: {caught.value}\n"
        assert str(tmp_path) in result.stderr and "JPC_DATA_DIR" in result.stderr


STATE = dict(w=jnp.ones(2))
DATA = (np.ones((8, 2)), np.ones((8, 2)))


def step(w, *, input, output, key):
    return dict(w=w * (1 - 0.1 * jnp.mean(input)), loss=jnp.sum(w))


def fit(step=step, **options):
    given = dict(epochs=2, batch_size=4, key=jax.random.key(0), progress=False) | options
    return jpc.fit(step, STATE, DATA, **given)


class TestInterrupts:
    def interrupt(self, **_):
        signal.raise_signal(signal.SIGINT)
        return {}

    def test_before_the_first_step(self, tmp_path):
        """There is nothing to wait for."""
        saver = checkpoint.Saver(jpc.Checkpoints(tmp_path), {}, dict, loop.Devices())
        with (
            contextlib.closing(saver),
            pytest.raises(KeyboardInterrupt, match="Nothing was saved"),
        ):
            signal.raise_signal(signal.SIGINT)

    def test_after_the_steps_of_an_epoch(self, tmp_path):
        """What is done is saved at once, and the test is made later."""
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="Saved in"):
            fit(inspect=self.interrupt, checkpoints=jpc.Checkpoints(tmp_path))
        assert signal.getsignal(signal.SIGINT) is handler
        with pytest.raises(KeyboardInterrupt, match="Saved in"):  # And again, where it was.
            fit(inspect=self.interrupt, checkpoints=jpc.Checkpoints(tmp_path, resume=True))
        resumed = fit(checkpoints=jpc.Checkpoints(tmp_path, resume=True))
        np.testing.assert_array_equal(resumed.state["w"], fit().state["w"])
        assert [record["step"] for record in resumed.history] == [2, 4]

    @pytest.mark.parametrize("becomes", [None, ImportError])
    def test_are_not_lost(self, becomes, tmp_path):
        """Others may ignore what is raised, as JAX does, or make another error of it."""

        def swallow(**_):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                if becomes is not None:
                    raise becomes from None
            return {}

        with pytest.raises(KeyboardInterrupt, match="Saved in"):
            fit(inspect=swallow, checkpoints=jpc.Checkpoints(tmp_path))

    def test_what_is_said_outlives_the_main_threads_leaving(self, monkeypatch):
        """The thread may be late. Errors, and an end without any, change what is said back."""
        monkeypatch.setattr(interrupt, "_farewell", before := lambda: "stopped")
        said = lambda: "The same command goes on."
        for error, left in ((ValueError, before), (KeyboardInterrupt, said)):
            with pytest.raises(error), interrupt.farewell(said):
                assert interrupt._farewell is said
                raise error
            assert interrupt._farewell is left
        with interrupt.farewell(before):
            pass
        assert interrupt._farewell is said

    def test_are_answered_while_the_main_thread_cannot(self):
        """A library call holds it, as the compiler does."""
        program = f"""
import ctypes, signal, sys
sys.path.insert(0, {str(ROOT / "jpc" / "cli")!r})
from interrupt import answer_interrupts
answer_interrupts()
signal.signal(signal.SIGINT, lambda *_: None)
print("ready", flush=True)
while True:
    ctypes.CDLL(None).usleep(600_000_000)
"""
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process = subprocess.Popen([sys.executable, "-c", program], **pipes)
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        assert "Ctrl-C again stops at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.communicate()

    @pytest.mark.parametrize(
        "handler, said",
        [("default_int_handler", b"saved\n"), ("SIG_IGN", b""), ("getsignal(signal.SIGINT)", b"")],
    )
    def test_a_scheduler_that_ends_a_process_interrupts_it(self, handler, said):
        """Once: a second interruption would not let it save anything. In the background, too, and
        at once if nobody has anything to save.
        """
        program = f"""
import signal, sys, time
sys.path.insert(0, {str(ROOT / "jpc" / "cli")!r})
from interrupt import answer_interrupts
answer_interrupts()
signal.signal(signal.SIGINT, signal.{handler})
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("saved", flush=True)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == said
        assert process.returncode == (0 if said else 130)

    def test_end_a_command_that_is_still_being_imported(self):
        """Also where what is raised gets lost."""
        program = """
import builtins, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background ignores it.
plain = builtins.__import__
def interrupted(name, *args):
    if name == "app":
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(20)
        except KeyboardInterrupt:
            pass
    return plain(name, *args)
builtins.__import__ = interrupted
from jpc.cli import main
main()
"""
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (130, "stopped\n")


class TestTimes:
    def test_spans_within_spans_count_once(self):
        clock = CompileClock()
        for span in ((1, 2), (3, 4), (0, 5), (6, 8), (7, 9), (10, 11)):
            clock.add(*map(float, span))
        assert clock.seconds() == 5 + 3 + 1

    def test_compiling_is_not_training(self):
        def slow(w, **named):
            time.sleep(1)  # Only while it is traced.
            return step(w, **named)

        first, second = fit(slow).history
        assert first["compile_seconds"] > 1 > first["seconds"]
        assert second["compile_seconds"] < 0.5

    def test_what_is_compiled_is_said_if_it_takes_long(self, capsys, monkeypatch):
        monkeypatch.setattr(progress_module, "_SHORT", 0.05)

        def slow(w, **named):
            time.sleep(0.2)
            return step(w, **named)

        fit(slow, progress=True)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "compiling the training step ..."
        assert re.search(r"^epoch 1 .*s, and [\d.]+ s to compile\)$", "\n".join(lines), re.M)

    def test_long_epochs_are_heard_of(self, capsys, monkeypatch):
        """Soon of the first steps, and of others now and then."""
        lines = progress_module.Lines(3, 5)
        lines.advance(1, 6)
        monkeypatch.setattr(progress_module, "_WHILE", -1.0)
        lines.advance(1, 7)
        lines.advance(1, 8)
        monkeypatch.setattr(progress_module, "_LONG", -1.0)
        lines.advance(1, 9)
        said = [f"step {step} of 15, epoch 2 of 3 ..." for step in (7, 9)]
        assert capsys.readouterr().out.splitlines() == said

    def test_later_work_is_told_if_it_takes_long(self, capsys, monkeypatch):
        monkeypatch.setattr(progress_module, "_WHILE", 0.05)

        def inspect(w):
            time.sleep(0.2)
            return {}

        fit(inspect=inspect, progress=True, epochs=2)
        lines = [line[:7] for line in capsys.readouterr().out.splitlines()]
        assert lines[-2:] == ["the dia", "epoch 2"]


class TestCache:
    def test_programs_have_no_callbacks(self):
        """Those of a network, that is: JAX keeps no others."""
        model = jpc.make_mlp(jax.random.key(0), 2, 3, 2, 2, "tanh")

        def net_step(model, *, input, output, key):
            return dict(model=model, loss=jpc.test_discriminative_pc(model, output, input)[0])

        arrays, rest = eqx.partition(dict(model=model), eqx.is_array)
        for checked in (False, True):
            recipe = loop.Recipe(
                net_step, rest, ("loss",), (None, None), 4, loop.Devices(), checked
            )
            program = str(eqx.filter_make_jaxpr(recipe)(arrays, DATA, jax.random.key(0))[0])
            assert ("callback" in program) == checked

    @pytest.fixture
    def fresh(self, tmp_path, monkeypatch):
        """As at the start of the command, with the user's caches here."""
        monkeypatch.setattr(cache.os, "environ", environment := dict(XDG_CACHE_HOME=str(tmp_path)))
        monkeypatch.setattr(cache.warnings, "showwarning", lambda *_, **__: pytest.fail("shown"))
        return environment

    def test_is_where_the_users_caches_are(self, fresh, tmp_path):
        cache.set_up_cache()
        assert fresh["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "jpc" / "compiled")

    def test_is_where_it_was_said_to_be(self, fresh, tmp_path):
        fresh["JAX_COMPILATION_CACHE_DIR"] = "elsewhere"
        cache.set_up_cache()
        assert fresh["JAX_COMPILATION_CACHE_DIR"] == "elsewhere" and not list(tmp_path.iterdir())

    def test_is_nowhere_if_there_is_no_place(self, fresh, tmp_path):
        (tmp_path / "jpc").write_text("a file")
        cache.set_up_cache()
        assert "JAX_COMPILATION_CACHE_DIR" not in fresh

    def test_forgets_the_oldest_and_the_damaged(self, fresh, tmp_path):
        cache.set_up_cache()
        folder = cache.cache_folder()
        for age, name in enumerate(("jit_c-1-cache", "jit_b-1-cache", "jit_a-1-cache")):
            (folder / name).write_bytes(zlib.compress(b"x"))
            os.utime(folder / name, (1000 - age, 1000 - age))
        cache.prune(folder, 2 * len(zlib.compress(b"x")))
        assert {entry.name for entry in folder.iterdir()} == {"jit_c-1-cache", "jit_b-1-cache"}
        said = "Error reading persistent compilation cache entry for 'jit_b': Error"
        cache.warnings.showwarning(UserWarning(said), UserWarning, "x.py", 1)
        assert {entry.name for entry in folder.iterdir()} == {"jit_c-1-cache"}
