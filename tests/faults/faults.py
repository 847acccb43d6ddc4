"""What goes wrong around a run, for real: a full disk, a folder that vanishes or is read-only,
damaged checkpoints, many processes in one folder, data that changes while it is read, a clock
that jumps. Each run is `jpc train`; it must end with a line that says what was wrong, and then go
on to the bits of a run that was left alone:

    python tests/faults/faults.py [NAME ...]

A disk to fill is mounted, and `chattr` makes a folder that root cannot write to; where that is not
allowed these are left out.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kill import TINY, count, epochs, parameters

EPOCHS, SOME = 30, 5
JUMP = """
import itertools, time
looks, then = itertools.count(1), time.time()
time.time = lambda: then + HOURS * 3600 * next(looks)
time.time_ns = lambda: int(1e9 * time.time())
from jpc.cli import main
main()
"""


class Outcome(NamedTuple):
    """Whether all went as it should, and what was said."""

    good: bool
    said: str


def start(*args: object, code: str | None = None) -> subprocess.Popen:
    command = ["-m", "jpc"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *command, *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    )


def begin(run: Path) -> subprocess.Popen:
    """A run of which some epochs are done, and more are not."""
    process = start("train", *TINY, "--epochs", EPOCHS, "--out", run, "--quiet")
    while process.poll() is None and count(run) < SOME:
        time.sleep(0.002)
    return process


def end(process: subprocess.Popen) -> tuple[int, str]:
    said = process.communicate(timeout=300)[1]
    return process.returncode, said.strip()


def resumed(run: Path, whole: Path) -> bool:
    """Whether a run goes on, to the same bits."""
    code, said = end(start("train", "--resume", run, "--quiet"))
    same = code == 0 and all(map(np.array_equal, parameters(run), parameters(whole)))
    if not same or epochs(run) != epochs(whole):
        print(f"resumed: {code}, {said}", file=sys.stderr)
    return same and epochs(run) == epochs(whole)


def one_line(process: subprocess.Popen, *words: str) -> tuple[bool, str]:
    """Whether a run ended with one line that has one of some words in it."""
    code, said = end(process)
    line = "\n" not in said and said.startswith("jpc: ")
    good = code == 1 and line and any(word in said for word in words)
    return good, said if code == 1 else f"exit {code}: {said}"


def file_too_large(run: Path, whole: Path) -> Outcome:
    process = begin(run)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, 100))
    good, said = one_line(process, "File too large", "could not be written")
    return Outcome(good and resumed(run, whole), said)


def vanished(run: Path, whole: Path) -> Outcome:
    process = begin(run)
    away = run.with_name("away")
    run.rename(away)
    good, said = one_line(process, "No such file", "is gone")
    shutil.rmtree(run, ignore_errors=True)
    away.rename(run)
    return Outcome(good and resumed(run, whole), said)


def checkpoints_vanished(run: Path, whole: Path) -> Outcome:
    """The run is lost, and says so; unless it was just saving, and has saved once more."""
    process = begin(run)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    good, said = one_line(process, "No such file")
    return Outcome(good and ("Nothing was saved" in said or resumed(run, whole)), said)


def full_disk(run: Path, whole: Path) -> Outcome:
    """One of a few megabytes."""
    disk = run.parent / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", disk], check=True)
    try:
        process = begin(disk / "run")
        fill(disk)
        good, said = one_line(process, "No space left", "could not be written")
        (disk / "filler").unlink()
        return Outcome(good and resumed(disk / "run", whole), said)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def read_only(run: Path, whole: Path) -> Outcome:
    """Even root cannot write then."""
    process = begin(run)
    subprocess.run(["chattr", "-R", "+i", run], check=True)
    try:
        good, said = one_line(process, "not permitted", "could not be written")
    finally:
        subprocess.run(["chattr", "-R", "-i", run], check=True)
    return Outcome(good and resumed(run, whole), said)


def damaged(run: Path, whole: Path) -> Outcome:
    """Each file of the newest checkpoint in turn, cut short or with a bit that is another one."""
    process = begin(run)
    process.kill()
    end(process)
    rng, good, warned, lines = np.random.default_rng(0), True, 0, []
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    for i, path in enumerate(sorted(p for p in newest.rglob("*") if p.is_file())):
        copy = run.with_name(f"damaged-{i}")
        shutil.copytree(run, copy)
        file = copy / path.relative_to(run)
        content = bytearray(file.read_bytes())
        if i % 3 == 0 or not content:
            content = content[: len(content) // 2]
        else:
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        code, said = end(start("train", "--resume", copy, "--quiet"))
        same = code == 0 and all(map(np.array_equal, parameters(copy), parameters(whole)))
        plain = not said or ("is damaged" in said and "Went on from the one before it" in said)
        good, warned = good and same and plain, warned + bool(said)
        lines += [line for line in said.splitlines() if "damaged" in line][:1]
    return Outcome(good and warned > 2, f"{warned} of {i + 1} files were needed; {lines[0]}")


def together(number: int):
    def try_it(run: Path, whole: Path) -> Outcome:
        """One of them trains, and the others say why not."""
        given = ["train", *TINY, "--epochs", EPOCHS, "--out", run, "--quiet"]
        ended = [end(p) for p in [start(*given) for _ in range(number)]]
        again = [end(p) for p in [start("train", "--resume", run, "--quiet")] * 1]
        refused = [said for code, said in ended if code == 2 and said.count("\n") == 0]
        clear = all("in use" in said or "has a run in it" in said for said in refused)
        winners = [code for code, _ in ended].count(0)
        good = winners == 1 and len(refused) == number - 1 and clear and again[0][0] == 0
        return Outcome(good and resumed(run, whole), refused[0] if refused else str(ended))

    return try_it


def resumed_together(run: Path, whole: Path) -> Outcome:
    process = begin(run)
    process.kill()
    end(process)
    ended = [end(p) for p in [start("train", "--resume", run, "--quiet") for _ in range(4)]]
    said = [said for code, said in ended if code == 2]
    good = [code for code, _ in ended].count(0) >= 1 and all("in use" in line for line in said)
    good = good and all(code in (0, 2) for code, _ in ended)
    return Outcome(good and resumed(run, whole), said[0] if said else "nothing")


def data_changes(change: Callable[[Path], None]):
    def try_it(run: Path, whole: Path) -> Outcome:
        """From when it is first opened."""
        del whole
        data = run.with_suffix(".csv")
        data.write_text("".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(400_000)))
        process = start("data", "describe", data)
        while process.poll() is None and not is_open(process.pid, data):
            time.sleep(0.001)
        while process.poll() is None:
            change(data)
            time.sleep(0.02)
        code, said = end(process)
        line = said.count("\n") == 0 and "changed while it was read" in said
        return Outcome(code in (1, 2) and line, said)

    return try_it


def is_open(pid: int, path: Path) -> bool:
    try:
        return path in [file.resolve() for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False


def grow(data: Path) -> None:
    with data.open("a") as file:
        file.write("1,2,1\n")


def cut(data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2)


def clock_jumps(hours: int):
    def try_it(run: Path, whole: Path) -> Outcome:
        """At each look."""
        given = ["train", *TINY, "--epochs", EPOCHS, "--out", run, "--quiet"]
        code, said = end(start(*given, code=JUMP.replace("HOURS", str(hours))))
        return Outcome(code == 0 and not said and resumed(run, whole), said or "nothing")

    return try_it


FAULTS: dict[str, Callable[[Path, Path], Outcome]] = {
    "file-too-large": file_too_large,
    "full-disk": full_disk,
    "read-only": read_only,
    "vanished": vanished,
    "checkpoints-vanished": checkpoints_vanished,
    "damaged": damaged,
    "two-processes": together(2),
    "eight-processes": together(8),
    "resumed-together": resumed_together,
    "data-grows": data_changes(grow),
    "data-is-cut": data_changes(cut),
    "data-vanishes": data_changes(lambda data: data.unlink(missing_ok=True)),
    "clock-jumps-back": clock_jumps(-1),
    "clock-jumps-ahead": clock_jumps(24),
}


def is_allowed(name: str) -> bool:
    """Whether this machine lets us mount a disk, or forbid ourselves to write."""
    with tempfile.TemporaryDirectory() as folder:
        tries = {
            "full-disk": (["mount", "-t", "tmpfs", "none"], ["umount"]),
            "read-only": (["chattr", "+i"], ["chattr", "-i"]),
        }
        if name not in tries:
            return True
        done, undone = ([*command, folder] for command in tries[name])
        quiet = dict(stderr=subprocess.DEVNULL)
        if shutil.which(done[0]) is None or subprocess.run(done, check=False, **quiet).returncode:
            return False
        return subprocess.run(undone, check=False, **quiet).returncode == 0


def main(names: list[str], folder: Path) -> int:
    """How many faults ended badly."""
    whole, wrong = folder / "whole", 0
    code, said = end(start("train", *TINY, "--epochs", EPOCHS, "--out", whole, "--quiet"))
    assert code == 0, said
    for name in names:
        if not is_allowed(name):
            print(f"{name:22}  left out: this machine does not let us", flush=True)
            continue
        (folder / name).mkdir()
        outcome = FAULTS[name](folder / name / "run", whole)
        wrong += not outcome.good
        line = outcome.said.replace(str(folder), "")
        good, shown = ("good", line[:300]) if outcome.good else ("BAD", line)
        print(f"{name:22}  {good:4}  {shown}", flush=True)
    print(f"{len(names) - wrong} of {len(names)} good")
    return wrong


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(sys.argv[1:] or list(FAULTS), Path(place)) > 0)
