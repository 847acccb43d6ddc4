"""Strict JAX, and every annotation of the package checked at run time."""

import gc
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from jaxtyping import install_import_hook

# Tests compile far more than they run, so XLA is to be quick rather than its programs.
_QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _QUICKLY)
_MAPS = pathlib.Path("/proc/self/maps")
gc.set_threshold(50_000, 20, 20)  # Tracing makes many objects, and few cycles.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

with install_import_hook("jpc", "beartype.beartype"):
    import jpc._api
    import jpc.data._api  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def forget(request):
    """Files share programs, unless a test patches what others may have traced, up to a point: a
    process crashes at 65,530 pieces of memory, of which each program has three or more.
    """
    yield
    mine = (item for item in request.session.items if item.path == request.path)
    patched = any("monkeypatch" in item.fixturenames for item in mine)
    if patched or not _MAPS.exists() or len(_MAPS.read_bytes().splitlines()) > 20_000:
        jax.clear_caches()


def pytest_pyfunc_call(pyfuncitem):
    """Those that look at rounding run in a process that optimises, as users' do."""
    if pyfuncitem.get_closest_marker("optimised") is None or os.environ["XLA_FLAGS"] != _QUICKLY:
        return None
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    env = dict(os.environ, XLA_FLAGS="--xla_backend_optimization_level=3")
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    named = dict(env=env, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True)
    ran = subprocess.run(command, check=False, **named)
    assert ran.returncode == 0, ran.stdout
    return True
