"""Kills `jpc train` at random moments, lets it go on each time, and compares the parameters at the
end with those of a run that was left alone, bit for bit:

    python tests/faults/kill.py --moments 20
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TINY = ["--depth", 2, "--width", 8, "--batch-size", 256, "--inference", "descent", "--steps", 3]
EPOCHS = 12


def start(*args: object) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-m", "jpc", *map(str, args)], env=environment)


def finish(*args: object) -> None:
    """Runs the command to its end."""
    code = start(*args).wait()
    if code != 0:
        raise SystemExit(f"jpc {' '.join(map(str, args))} ended with {code}")


def kill_once(run: Path, epochs_before: int, delay: float) -> bool:
    """Begins a run and kills it some time after so many epochs; whether that came before its
    end.
    """
    process = start("train", *TINY, "--epochs", EPOCHS, "--out", run, "--quiet")
    while process.poll() is None and count(run) < epochs_before:
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    return process.wait() == -signal.SIGKILL


def count(run: Path) -> int:
    """How many epochs are done."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def parameters(run: Path) -> list[np.ndarray]:
    """The arrays of the newest checkpoint."""
    import jax  # noqa: PLC0415

    from jpc.cli.folder import RunFolder  # noqa: PLC0415
    from jpc.cli.train import prepare, restore  # noqa: PLC0415

    folder = RunFolder(run)
    state = restore(prepare(folder.read_config(), progress=False), folder)
    return [np.asarray(x) for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]


def epochs(run: Path) -> list[dict]:
    from jpc.cli.folder import RunFolder  # noqa: PLC0415

    times = ("seconds", "compile_seconds")
    records = RunFolder(run).read_metrics()
    return [{k: v for k, v in record.items() if k not in times} for record in records]


def main(moments: int, seed: int, folder: Path) -> int:
    """How many runs ended differently. A third of them is killed before the first epoch is done,
    a third between two, and a third when all are done: while the last things are evaluated and
    the report is written.
    """
    rng, whole, wrong = random.Random(seed), folder / "whole", 0
    finish("train", *TINY, "--epochs", EPOCHS, "--out", whole, "--quiet")
    expected = parameters(whole)
    for number in range(moments):
        run, done = folder / f"killed-{number}", (0, rng.randrange(EPOCHS), EPOCHS)[number % 3]
        killed = kill_once(run, done, rng.uniform(0, 0.3 if done else 6.0))
        begun, had = (run / "config.toml").exists(), count(run)
        again = ["--resume", run] if begun else [*TINY, "--epochs", EPOCHS, "--out", run]
        finish("train", *again, "--quiet")
        same = all(map(np.array_equal, parameters(run), expected))
        same = same and epochs(run) == epochs(whole)
        wrong += not same
        said = "the same bits" if same else "OTHER BITS"
        print(f"{'killed' if killed else 'over'} after {had} epochs: {said}", flush=True)
    print(f"{moments - wrong} of {moments} ended with the same bits")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(given.moments, given.seed, Path(folder)) > 0)
