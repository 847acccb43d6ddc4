"""Downloads, from servers on this machine: some down, some damaged, some good."""

import contextlib
import socket
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from data_helpers import assert_loaded, tiny, write

import jpc.data
from jpc.data._source import SOURCES

pytest.importorskip("pooch")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Nothing of this machine's is found. The cache that is."""
    monkeypatch.delenv("JPC_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "home" / "jpc"


class Mirror:
    """A server. It says what it has been asked for."""

    def __init__(self, files, *, status=200, lost=0):
        self.requests, mirror = [], self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/")
                mirror.requests.append(name)
                self.send_response(status)
                self.send_header("Content-Length", str(len(files[name])))
                self.end_headers()
                self.wfile.write(files[name][: len(files[name]) - lost])

            def log_message(self, format, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def serve():
    """Starts mirrors, and stops them in the end."""
    with contextlib.ExitStack() as stack:

        def start(files, **options):
            mirror = Mirror({path.split("/")[-1]: x for path, x in files.items()}, **options)
            stack.enter_context(mirror.server)
            thread = threading.Thread(target=mirror.server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(mirror.server.shutdown)
            return mirror

        yield start


@pytest.fixture
def put(monkeypatch):
    """Puts a small stand-in, with these mirrors, in the place of a data set."""

    def put(data, *mirrors):
        urls = tuple(mirror if isinstance(mirror, str) else mirror.url for mirror in mirrors)
        monkeypatch.setitem(SOURCES, data.name, replace(data.source, mirrors=urls))

    return put


def closed_port():
    """An address where nobody answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def damaged(files):
    return {path: data[:-9] + b"x" + data[-8:] for path, data in files.items()}


def left_in(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_first_good_mirror_is_used(name, serve, put, home):
    data = tiny(name)
    wrong, good = serve(damaged(data.downloads)), serve(data.downloads)
    busy, spare = serve(data.downloads, status=503), serve(data.downloads)
    put(data, closed_port(), busy, wrong, good, spare)
    assert jpc.data.where(name) is None
    assert_loaded(jpc.data.load(name, normalise=False), data)
    files = [path.split("/")[-1] for path in data.downloads]
    assert busy.requests == wrong.requests == good.requests == files and not spare.requests
    assert left_in(home) == sorted(data.downloads)


def test_what_is_in_the_cache_is_not_downloaded_again(serve, put, home):
    data = tiny("mnist")
    mirror = serve(data.downloads)
    put(data, mirror)
    first, *rest = data.downloads
    write(home, {first: data.downloads[first]})
    assert jpc.data.fetch("mnist") == jpc.data.where("mnist") == home / "mnist"
    assert mirror.requests == [path.split("/")[-1] for path in rest]
    jpc.data.fetch("mnist")
    assert_loaded(jpc.data.load("mnist", normalise=False, download=False), data)
    assert len(mirror.requests) == len(rest)


def test_a_damaged_file_is_downloaded_again_once_deleted(serve, put, home):
    data = tiny("cifar10")
    put(data, serve(data.downloads))
    (path,) = data.downloads
    write(home, {path: data.downloads[path][:1000]})
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is damaged.*Delete it"):
        jpc.data.load("cifar10")
    (home / path).unlink()
    assert_loaded(jpc.data.load("cifar10", normalise=False), data)


def test_a_download_that_breaks_off_leaves_nothing(serve, put, home):
    data = tiny("mnist")
    mirror = serve(data.downloads, lost=100)
    put(data, mirror)
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\.gz: "):
        jpc.data.load("mnist")
    assert mirror.requests == ["train-images-idx3-ubyte.gz"] and left_in(home) == []


def test_offline_one_message_says_everything(serve, put, home, tmp_path, monkeypatch):
    data = tiny("mnist")
    nobody, wrong = closed_port(), serve(damaged(data.downloads))
    absent = serve(data.downloads, status=404)
    put(data, nobody, wrong, absent)
    monkeypatch.setenv("JPC_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(FileNotFoundError) as info:
        jpc.data.load("mnist", root=tmp_path / "root")
    message = str(info.value)
    for root in (tmp_path / "root", tmp_path / "data", home):
        assert f"{root}/mnist\n" in message and f"{root}/MNIST/raw\n" in message
    reasons = [line for line in message.splitlines() if line.startswith("  http")]
    for (url, reason), line in zip(
        [(nobody, "refused"), (wrong.url, "does not match"), (absent.url, "404")],
        reasons,
        strict=True,
    ):
        assert line.startswith(f"  {url}train-images-idx3-ubyte.gz: ") and reason in line
    assert all(f"\n  {path}\n" in message for path in data.downloads)
    assert message.endswith("set JPC_DATA_DIR to that folder.")
    # What it says to do does help.
    write(tmp_path / "data", data.downloads)
    assert_loaded(jpc.data.load("mnist", normalise=False), data)


def test_no_download_if_not_allowed(serve, put):
    data = tiny("mnist")
    mirror = serve(data.downloads)
    put(data, mirror)
    with pytest.raises(FileNotFoundError, match="download=False"):
        jpc.data.load("mnist", download=False)
    assert not mirror.requests


def test_where_to_look_first(put, home, tmp_path, monkeypatch):
    data = tiny("mnist")
    put(data)
    monkeypatch.setenv("JPC_DATA_DIR", str(tmp_path / "data"))
    for folder in (home, tmp_path / "data", tmp_path / "root"):
        assert jpc.data.where("mnist", tmp_path / "root") != folder / "mnist"
        write(folder, data.downloads)
        assert jpc.data.where("mnist", tmp_path / "root") == folder / "mnist"
    assert jpc.data.where("mnist") == tmp_path / "data" / "mnist"


def test_without_pooch(serve, put, tmp_path, monkeypatch):
    data = tiny("mnist")
    put(data, serve(data.downloads))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[train\]'.*JPC_DATA_DIR"):
        jpc.data.load("mnist")
    write(tmp_path, data.downloads)
    assert_loaded(jpc.data.load("mnist", root=tmp_path, normalise=False), data)


@pytest.mark.parametrize("terminal, progress", [(True, True), (True, False), (False, True)])
def test_the_progress_bar(terminal, progress, serve, put, monkeypatch, capsys):
    data = tiny("cifar10")
    put(data, serve(data.downloads))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    jpc.data.fetch("cifar10", progress=progress)
    assert ("100%" in capsys.readouterr().err) == (terminal and progress)
