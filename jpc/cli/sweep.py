"""Many runs: each is a folder of `jpc train`, trained by a process of its own."""

import contextlib
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from .._files import write_whole
from . import INTERRUPTED
from .advice import duration
from .config import ConfigError
from .grid import Setting, Sweep, as_args, check_settings, describe_setting

Result = dict[str, Any]


class Run(NamedTuple):
    """One of them: what it is called, its options, and the folder it is in."""

    name: str
    given: Setting
    path: Path


class Job(NamedTuple):
    """One that is going on."""

    process: subprocess.Popen
    said: IO[str]
    errors: IO[str]


class SweepFolder:
    """Where a sweep is: a folder for each run, and what came out of those that ended, a line
    for each.
    """

    def __init__(self, path: Path):
        self.path = path
        self._options, self._results = path / "sweep.json", path / "results.jsonl"

    def begin(self, sweep: Sweep) -> None:
        """Takes the folder, or goes on in it: if the options that all runs share are the same."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path} is a file: name a folder.")
        if not self._options.is_file():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ConfigError(f"--out {self.path} has files in it that are not of a sweep.")
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self._options, json.dumps(sweep.fixed))
            return
        try:
            before = dict(json.loads(self._options.read_text()))
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(f"{self._options} is damaged: name another folder.") from None
        for name in [*before, *sweep.fixed]:
            if before.get(name) != sweep.fixed.get(name):
                raise ConfigError(
                    f"--out {self.path} has a sweep with another {name.replace('_', '-')} "
                    f"({before.get(name, 'by default')}): name another folder."
                )

    def runs(self, sweep: Sweep) -> list[Run]:
        every = [given for s in sweep.settings() for given in sweep.with_seeds(s)]
        check_settings(every)
        names = [_name({k: given[k] for k in (*sweep.axes, "seed")}) for given in every]
        return [Run(n, g, self.path / n) for n, g in zip(names, every, strict=True)]

    def results(self) -> dict[str, Result]:
        """What came out, by the name of the run."""
        lines = self._results.read_text().splitlines() if self._results.is_file() else []
        found = {}
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # Killed while it was written.
                entry = json.loads(line)
                found[entry["name"]] = entry
        return {name: entry for name, entry in found.items() if (self.path / name).is_dir()}

    def note(self, name: str, result: Result) -> None:
        with self._results.open("a") as file:
            file.write("\n" + json.dumps(dict(name=name, **result)))
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def locked(self) -> Iterator[int | None]:
        """Held by this process and by the runs that it starts: whoever of them lives on."""
        try:
            import fcntl  # noqa: PLC0415
        except ImportError:  # On Windows.
            yield None
            return
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"{self.path} is being worked on by another process: wait until it has ended."
                ) from None
            yield file.fileno()


def _name(setting: Setting) -> str:
    """A name that can be that of a folder: `learning-rate-0.01,seed-0`."""
    said = describe_setting(setting).replace(", ", ",").replace(" ", "-")
    return re.sub(r"[^\w.,+=-]", "_", said)


def choose_sweep_folder(out: Path | None, sweep: Sweep, kind: str) -> SweepFolder:
    """The same one for the same sweep, unless one is given."""
    if out is not None:
        return SweepFolder(out)
    named = json.dumps([sweep.fixed, sweep.axes, sweep.draws], sort_keys=True)
    digest = hashlib.sha256(named.encode()).hexdigest()[:6]
    dataset = re.sub(r"[^\w.-]", "_", str(sweep.fixed.get("dataset", "digits")))
    return SweepFolder(Path("runs") / f"{dataset}-{kind}-{digest}")


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    *,
    jobs: int = 1,
    tell: Callable[[str], Any] = lambda text: None,
    start: Callable[..., Job] | None = None,
) -> dict[str, Result]:
    """Does the runs that are not done, several at a time.

    **Returns:**

    What came out of each, by its name: the `record` of its last epoch (or of its best one), or
    an `error`.
    """
    runs = folder.runs(sweep)
    folder.begin(sweep)
    with folder.locked() as lock:
        done = folder.results()
        left = [run for run in runs if run.name not in done]
        before = "" if len(left) == len(runs) else f", {len(runs) - len(left)} of them done before"
        tell(f"{folder.path}: {len(runs)} runs{before}")

        def begin(run: Run, lock: int | None) -> Job:
            tell(f"training {run.name} ({run.path / 'report.html'}) ...")
            return (start or start_run)(run, lock)

        began, ended = time.monotonic(), _run_all(left, jobs, begin, lock)
        for count, (run, result) in enumerate(ended, start=1):
            done[run.name] = result
            if "again" not in result:
                folder.note(run.name, result)
            rest = (time.monotonic() - began) / count * (len(left) - count)
            after = f"; about {duration(rest)} left" if count < len(left) else ""
            tell(f"{len(runs) - len(left) + count}/{len(runs)}  {_say(run, result)}{after}")
    return {run.name: done[run.name] for run in runs}


def _say(run: Run, result: Result) -> str:
    if "error" in result:
        again = " (the same command goes on with it)" if "again" in result else ""
        return f"{run.name}: failed: {result['error']}{again}"
    record = result["record"]
    name = "test_acc" if "test_acc" in record else "test_loss"
    return f"{run.name}: {name} {record[name]:.4g} after {record['epoch']} epochs"


def start_run(run: Run, lock: int | None) -> Job:
    """A run that began goes on."""
    began = (run.path / "config.toml").is_file()
    where = ["--resume", str(run.path)] if began else [*as_args(run.given), "--out", str(run.path)]
    said, errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-m", "jpc", "train", *where, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=errors,
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,  # Ctrl-C is passed on, once.
    )
    return Job(process, said, errors)


def _run_all(
    runs: Sequence[Run], jobs: int, start: Callable[..., Job], lock: int | None
) -> Iterator[tuple[Run, Result]]:
    waiting, going = list(runs), {}
    try:
        while waiting or going:
            while waiting and len(going) < jobs:
                run = waiting.pop(0)
                going[run.name] = run, start(run, lock)
            ended = [name for name, (_, job) in going.items() if job.process.poll() is not None]
            for name in ended:
                run, job = going.pop(name)
                yield run, _result(job)
            time.sleep(0 if ended else 0.05)
    except BaseException:
        _end([job.process for _, job in going.values()])
        raise


def _end(processes: Sequence[subprocess.Popen]) -> None:
    """Lets them save what they have; a second Ctrl-C does not wait for that."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        raise


def _result(job: Job) -> Result:
    """The record that a run printed, or what it complained about last."""
    said, errors = map(_read_and_close, (job.said, job.errors))
    if job.process.returncode == 0:
        return dict(record=_plain(json.loads(said)))
    code = job.process.returncode
    if code < 0 or code == INTERRUPTED:
        why = "interrupted" if code > 0 else f"ended by {signal.Signals(-code).name}"
        return dict(error=why, again=True)
    return dict(error=_complaint(errors) or f"exit code {code}")


def _complaint(errors: str) -> str:
    """The last thing that was complained about, all of it in a line."""
    lines = [line.strip() for line in errors.strip().splitlines()]
    began = [i for i, line in enumerate(lines) if line.startswith("jpc: ")] or [len(lines) - 1]
    return " ".join(lines[began[-1] :]).removeprefix("jpc: ")


def _read_and_close(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a record, not its lists."""
    return {k: v for k, v in record.items() if isinstance(v, int | float)}


def command_of(given: Setting) -> str:
    return shlex.join(["jpc", "train", *as_args(given)])
