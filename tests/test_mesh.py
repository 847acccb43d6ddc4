"""Several devices, simulated by the CPU, learn what one device does."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jpc

SCRIPT = Path(__file__).with_name("train_on_devices.py")
SELDOM = ["flow", "equilibrium", "hybrid", "batches"]
CASES = ["split"]
TWICE = ["batches", "split"]


def start(out, devices, cases, *, of=1, **options):
    """A process that has so many devices, or its share of them if it is one of several."""
    out.mkdir(exist_ok=True)
    environment = os.environ | dict(
        PYTHONPATH=str(Path(jpc.__file__).parents[1]),
        JAX_ENABLE_X64="1",
        JAX_PLATFORMS="cpu",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",  # They take longer than the training.
        XLA_FLAGS="--xla_cpu_use_fusion_emitters=false "
        f"--xla_force_host_platform_device_count={devices // of}",
    )
    args = [
        sys.executable,
        "-W",
        "error",
        SCRIPT,
        out,
        devices,
        ",".join(cases),
        of,
        *options.values(),
    ]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen([str(arg) for arg in args], env=environment, **pipes)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def finish(**processes):
    """What each of them said."""
    said = {name: process.communicate(timeout=300)[0] for name, process in processes.items()}
    assert not any(process.returncode for process in processes.values()), said
    return said


def run(folder, cases):
    """The folder of two runs, and what each of them said."""
    one, eight = start(folder / "one", 1, cases), start(folder / "eight", 8, cases)
    return folder, finish(one=one, eight=eight)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run(tmp_path_factory.mktemp("mesh"), CASES)


@pytest.fixture(scope="module")
def more_runs(tmp_path_factory):
    return run(tmp_path_factory.mktemp("mesh"), SELDOM)


@pytest.fixture(scope="module")
def processes(runs):
    """Two of them, with two devices each."""
    folder, port = runs[0] / "two", free_port()
    both = [start(folder, 4, TWICE, of=2, process=i, port=port) for i in (0, 1)]
    return folder, finish(first=both[0], second=both[1])


def assert_same(folder, other, case):
    with np.load(folder / "one" / f"{case}.npz") as one, np.load(other / f"{case}.npz") as many:
        assert one.files == many.files and len(one.files) > 4
        for name in one.files:
            np.testing.assert_allclose(many[name], one[name], rtol=1e-10, atol=1e-12)
    histories = [json.loads((x / f"{case}.json").read_text()) for x in (folder / "one", other)]
    for one, many in zip(*histories, strict=True):
        assert one.keys() == many.keys()
        for name in one:
            np.testing.assert_allclose(many[name], one[name], rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_eight_devices_learn_what_one_does(runs, case):
    folder, _ = runs
    assert_same(folder, folder / "eight", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SELDOM)
def test_eight_devices_learn_so_by_any_step(more_runs, case):
    folder, said = more_runs
    assert_same(folder, folder / "eight", case)
    assert "SPMD" not in said["eight"]


@pytest.mark.slow
@pytest.mark.parametrize("case", TWICE)
def test_two_processes_learn_what_one_does(runs, more_runs, processes, case):
    one = more_runs if case in SELDOM else runs
    assert_same(one[0], processes[0], case)


def test_the_compiler_does_not_complain(runs):
    """As it does where all of an array has to go to one device."""
    _, said = runs
    assert "SPMD" not in said["eight"]


@pytest.mark.slow
def test_only_the_first_process_shows_progress(processes):
    _, said = processes
    done = re.findall(r"^epoch 2 ", said["first"], re.MULTILINE)
    assert len(done) == 2 and "epoch" not in said["second"]


def test_batches_must_be_shared_out_evenly():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1] * 8), ("data",))
    data = np.ones((20, 3)), np.ones((20, 2))
    options = dict(epochs=1, batch_size=12, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"batch_size=12 .*the 8 devices of .* axis 'data'"):
        jpc.fit(lambda **state: state, dict(a=1), data, mesh=mesh, **options)
