"""What comes from outside does no harm: files that lie, names that would run or hide something."""

import ast
import csv
import gzip
import hashlib
import html.parser
import io
import os
import re
import shutil
import struct
import tarfile
import threading
import xml.etree.ElementTree as ET
import zipfile
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook
from PIL import Image
from typer.testing import CliRunner

import jpc
from jpc._lines import read_lines
from jpc.data import _formats
from jpc.data._own import DataError, read_own, table

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc.cli.app import app
    from jpc.cli.text import escape, plain

ROOT = Path(jpc.__file__).parent
pytestmark = pytest.mark.timeout(120)  # What takes long here takes very long.


@pytest.fixture(autouse=True)
def strict_jax_afterwards():
    yield
    jax.config.update("jax_enable_x64", True)


def refuse(path, message):
    with pytest.raises(DataError, match=message):
        read_own(path)


# --- nothing is run ---

FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "eval"}
FORBIDDEN |= {"exec", "extractall", "os.system", "os.popen"}


@pytest.mark.parametrize("part", sorted({path.parent for path in ROOT.rglob("*.py")}))
def test_nothing_unpickles_or_evaluates(part):
    nodes = [node for path in part.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            named = {name for module in modules for name in module.split(".")}
            assert not named & FORBIDDEN, node.lineno
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert not {name, ast.unparse(node.func)} & FORBIDDEN, node.lineno
            given = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
            assert not (given.get("allow_pickle") or given.get("shell")), node.lineno
            assert name != "load" or "allow_pickle" in given or not _is_numpy(node), node.lineno


def _is_numpy(node):
    return getattr(getattr(node.func, "value", None), "id", "") in ("np", "numpy")


# --- arrays ---


def npy(shape, dtype="<f8", content=b""):
    file = io.BytesIO()
    header = dict(descr=dtype, fortran_order=False, shape=shape)
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


LIES = {
    "terabytes": (npy((2**20, 2**20)), "1.1e+12 numbers in memory"),
    "long words": (npy((2**10,), f"<U{2**28}"), "1.1e+12 bytes"),
    "overflow": (npy((2**40, 2**40)), "1.2e+24 numbers"),
    "too short": (npy((2**20,), content=bytes(80)), r"shorter than its header says, \(1048576,\)"),
    "negative": (npy((-1, 2**20)), "is damaged"),
    "objects": (npy((3,), "|O", b"cos\nsystem\n(S'false'\ntR."), "pickles"),
    "a long header": (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "not an array|damaged"),
}


@pytest.mark.parametrize("kind", LIES)
def test_arrays_that_lie(kind, tmp_path):
    content, message = LIES[kind]
    (tmp_path / "x.npy").write_bytes(content)
    refuse(tmp_path / "x.npy", message.replace("+", r"\+"))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    refuse(tmp_path / "x.npz", message.replace("+", r"\+"))


def test_many_arrays_that_are_too_much_together(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", **{f"x{i}": np.zeros(100) for i in range(20)})
    monkeypatch.setattr("jpc.data._own.found.MOST_BYTES", 10_000)
    refuse(tmp_path / "x.npz", r"x.npz would be 1\.6e\+04 numbers")


# --- tables ---


def test_a_line_without_an_end(tmp_path):
    (tmp_path / "x.csv").write_text("1," * 2**23)
    refuse(tmp_path / "x.csv", "row of 16,777,216 letters")


def test_a_million_columns(tmp_path):
    (tmp_path / "x.csv").write_text("1," * 999_999 + "1\n")
    refuse(tmp_path / "x.csv", r"line 1: 1,000,000 columns, more than 100,000\. Save it as \.npz")


def test_many_columns_that_are_not_too_many(tmp_path):
    row = ",".join(["1"] * 50_000) + "\n"
    (tmp_path / "x.csv").write_text(row * 3)
    assert read_own(tmp_path / "x.csv").parts["train"].inputs.shape == (3, 49_999)


def test_a_row_that_goes_on_over_many_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_LONGEST", 1000)
    (tmp_path / "x.csv").write_text("1,2\n" * 500 + '"a\n",' * 500)
    refuse(tmp_path / "x.csv", r"after line 500: a row of 1,00\d letters")


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    refuse(tmp_path / "x.csv", "no such file")


def test_a_device_is_no_file(tmp_path):
    (tmp_path / "x.csv").symlink_to("/dev/zero")
    refuse(tmp_path / "x.csv", "no such file")


# --- images ---


def png(width, height):
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    )


@pytest.mark.parametrize("size", [(50_000, 50_000), (9_000, 9_000), (2**31 - 1, 2**31 - 1)])
def test_images_of_absurd_size(size, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(png(*size))
    refuse(tmp_path, "x.png has .* pixels: scale it down|x.png has too many pixels|cannot be read")


def test_an_image_is_what_it_is_called(tmp_path):
    """What Pillow gives to other programs, such as PostScript, is not read."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    refuse(tmp_path, "not an image, or one of an unknown format")


# --- archives ---


def test_archives_stay_where_they_are(tmp_path):
    """Nothing is written, whatever the names in it are, and checksums come before use."""
    good, bad = b"good", b"evil"
    path = tmp_path / "inside" / "x.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name in ("../../evil", "/tmp/jpc-evil", "folder/data.bin"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(good if name.endswith("bin") else bad))
        link = tarfile.TarInfo("link.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    sums = {"data.bin": hashlib.sha256(good).hexdigest()}
    assert _formats.read(path, sums) == {"data.bin": good}
    assert {p.name for p in tmp_path.rglob("*")} == {"inside", "x.tar.gz"}
    assert not Path("/tmp/jpc-evil").exists()
    with pytest.raises(ValueError, match="SHA-256"):
        _formats.read(path, {"link.bin": sums["data.bin"]})


@pytest.mark.parametrize("kind", ["file", "archive"])
def test_what_unpacks_to_too_much(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(_formats, "_MOST_BYTES", 10_000)
    if kind == "file":
        place = tmp_path
        (place / "x.gz").write_bytes(gzip.compress(bytes(10**6)))
    else:
        place = tmp_path / "x.tar.gz"
        with tarfile.open(place, "w:gz") as archive:
            info = tarfile.TarInfo("x")
            info.size = 10**6
            archive.addfile(info, io.BytesIO(bytes(10**6)))
    with pytest.raises(ValueError, match=r"damaged: it has more than 10,000 bytes"):
        _formats.read(place, {"x": "0"})


# --- what changes while it is read ---


@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("ending", ["csv", "npz", "npy", "images"])
def test_data_that_changes_while_it_is_read(ending, vanishes, tmp_path, monkeypatch):
    path = tmp_path / f"x.{ending}"
    rows = np.ones((8, 3))
    if ending == "csv":
        np.savetxt(path, rows, delimiter=",")
    elif ending == "images":
        path = tmp_path / "a" / "x.png"
        path.parent.mkdir()
        Image.fromarray(np.ones((8, 8), np.uint8)).save(path)
    elif ending == "npz":
        np.savez(path, x=rows, y=rows)
    else:
        np.save(path, rows)

    touch = lambda: os.utime(path, ns=(1, threading.get_ident()))
    change = (lambda: path.unlink(missing_ok=True)) if vanishes else touch
    for place in ("csv.reader", "numpy.load", "PIL.Image.open"):
        module, _, name = place.rpartition(".")
        original = getattr(__import__(module, fromlist=[name]), name)
        spoiled = lambda *args, _original=original, **named: (change(), _original(*args, **named))[
            1
        ]
        monkeypatch.setattr(place, spoiled)
    refuse(tmp_path if ending == "images" else path, "changed while it was read")


def test_a_change_that_sets_the_time_back(tmp_path, monkeypatch):
    path, read = tmp_path / "x.csv", csv.reader
    np.savetxt(path, np.ones((8, 3)), delimiter=",")

    def change(*args, **named):
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.write_text(path.read_text().replace("1", "2"))
        os.utime(path, ns=times)
        return read(*args, **named)

    monkeypatch.setattr("csv.reader", change)
    refuse(path, "changed while it was read")


# --- runs of somebody else ---

DEEP, OWN = "[" * 100_000, '[data]\ndataset = "x.csv"\n'
RUNS = [
    ("metrics.jsonl", DEEP + "\n", "history", "metrics.jsonl is damaged"),
    ("metrics.jsonl", "3\n", "history", "metrics.jsonl is damaged: .* of no epoch"),
    ("metrics.jsonl", '{"loss": 1}\n', "history", "metrics.jsonl is damaged: .* of no epoch"),
    ("metrics.jsonl", "not json\n", "history", "metrics.jsonl is damaged"),
    ("config.toml", f"a = {DEEP}", "config", "config.toml is not TOML of ours: it is nested"),
    ("config.toml", "\0", "config", "config.toml is not TOML"),
    ("config.toml", OWN, "data", "config.toml does not say the task"),
    ("config.toml", f'{OWN}task = "regression"', "data", "does not say the epochs"),
    ("data.json", DEEP, "data", "data.json is damaged"),
    ("data.json", '{"sha256": "0"}', "data", "x.csv is not what it was when"),
]


@pytest.mark.parametrize(("name", "content", "asked", "message"), RUNS)
def test_a_run_that_is_not_one(name, content, asked, message, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    own = f'[data]\ndataset = "{tmp_path}/x.csv"\ntask = "discriminative"\n'
    own += "[training]\nbatch_size = 4\nepochs = 1\n[optimiser]\nlearning_rate = 0.1\n"
    (tmp_path / "config.toml").write_text(own)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        getattr(jpc.load_run(tmp_path), asked)


@pytest.mark.parametrize("content", [DEEP, "3", "{"])
def test_a_sweep_that_is_not_one(content, tmp_path):
    (tmp_path / "sweep.json").write_text(content)
    said = invoke("sweep", "--seeds", 2, "--out", tmp_path, "--epochs", 1)
    assert said.exit_code == 2 and f"{tmp_path}/sweep.json is damaged" in said.output


@pytest.mark.parametrize("line", [DEEP, "3"])
def test_lines_that_are_no_results(line, tmp_path):
    (tmp_path / "x.jsonl").write_text(f'{line}\n{{"a": 1}}\n')
    with pytest.warns(UserWarning, match="no results: 1"):
        assert read_lines(tmp_path / "x.jsonl", lambda entry: entry["a"]) == [1]


# --- names ---

NAMES = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "javascript:alert(1)",
    "\x1b[2J\x1b]0;title\x07red",
    "right\u202eleft",
    "$\\frac{1}$ & ]]> -->",
]


def test_text_does_nothing():
    for name in NAMES:
        said = plain(name + "\n\tx")
        assert all(c.isprintable() or c in "\n\t" for c in said)
        assert not re.search("[<>\"']", escape(name))
    assert plain("Grüße, 数字, 5 °C\n") == "Grüße, 数字, 5 °C\n"
    assert plain("\x1b\x9b\udcff") == "\\x1b\\x9b\\udcff"


class Strict(html.parser.HTMLParser):
    """Notes what could run or load something."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "iframe", "object", "embed", "link", "base", "form", "a", "use"):
            self.found.append(tag)
        for name, value in attrs:
            loads = name in ("src", "href", "xlink:href") and not value.startswith(
                "data:image/png"
            )
            if name.startswith("on") or loads or "javascript:" in (value or ""):
                self.found.append((tag, name, value))


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    """A short run on data whose names are hostile, in a folder whose name is."""
    place = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    quote = lambda cell: '"' + cell.replace('"', '""') + '"'
    rows = [[f"{x:.3f}" for x in rng.normal(size=3)] + [quote(NAMES[i % 6])] for i in range(60)]
    head = ["a", quote(NAMES[0] + NAMES[3]), quote(NAMES[1]), quote(NAMES[2])]
    data = place / f"{NAMES[3]}.csv"
    data.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n")
    run = place / NAMES[1].replace("/", "")
    small = ["--depth", 2, "--width", 4, "--epochs", 1, "--inference", "descent", "--steps", 2]
    small += ["--activity-decay", 1e-9]  # Quick to compile.
    return run, data, invoke("train", "--dataset", data, "--out", run, *small)


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], color=True)


def test_nothing_in_a_report_runs(hostile_run):
    run, _, result = hostile_run
    assert result.exit_code == 0, result.output
    both = run.parent / "both.html"
    shutil.copytree(run, run.with_name("other$\\frac"))
    made = invoke("compare", run, run.with_name("other$\\frac"), "--report", both)
    assert made.exit_code == 0, made.output
    pages = [run / "report.html", both, *(run / "figures").glob("*.svg")]
    assert len(pages) > 3
    for page in pages:
        text = page.read_text()
        ET.fromstring(re.sub("<!DOCTYPE html>", "", text))
        strict = Strict()
        strict.feed(text)
        assert not strict.found, page
        assert page.suffix == ".svg" or "default-src 'none'" in text
    report = (run / "report.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in report and "\\x1b[2J" in report


def test_names_do_not_reach_the_terminal_raw(hostile_run):
    run, data, result = hostile_run
    others = [
        invoke("data", "describe", data),
        invoke("eval", run),
        invoke("compare", run),
        invoke("compare", run, "--plot", run.parent / "x.png"),
        invoke("eval", run.parent / NAMES[3]),
        invoke("train", "--dataset", data.with_name("\x1b[2Jgone.csv")),
        invoke("predict", run, data, "--out", run.parent / "\x1b[2J.csv"),
        invoke("train", "--resume", run.parent / NAMES[3]),
        invoke("train", "--activation", NAMES[3]),
    ]
    for each in [result, *others]:
        assert each.output and all(c.isprintable() or c in "\n\t" for c in each.output)
