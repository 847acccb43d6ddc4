"""What is loaded, against what was written, scikit-learn and the published statistics."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from data_helpers import TRAIN, assert_loaded, sha256, tarball, tiny, write

import jpc.data
from jpc.data._source import SOURCES
from jpc.data._split import stratified

DATA_DIR = os.environ.get("JPC_DATA_DIR")
SHARED = Path(__file__).parents[2] / "shared" / "data"
LAYOUTS = {
    "mnist-gz": ("mnist", "mnist/{}.gz", gzip.compress),
    "mnist-plain": ("mnist", "mnist/{}", bytes),
    "mnist-torchvision": ("mnist", "MNIST/raw/{}", bytes),
    "fashion-mnist-gz": ("fashion-mnist", "fashion-mnist/{}.gz", gzip.compress),
    "fashion-mnist-torchvision": ("fashion-mnist", "FashionMNIST/raw/{}.gz", gzip.compress),
    "cifar10": ("cifar10", "cifar-10-batches-bin/{}", bytes),
    "cifar10-folder": ("cifar10", "cifar10/cifar-10-batches-bin/{}", bytes),
    "cifar10-flat": ("cifar10", "cifar10/{}", bytes),
}
ARCHIVES = ["cifar-10-binary.tar.gz", "cifar10/cifar-10-binary.tar.gz"]


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """Nothing of this machine's is found."""
    monkeypatch.delenv("JPC_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a small stand-in for a data set in its place."""

    def put(name, **changes):
        data = tiny(name, **changes)
        monkeypatch.setitem(SOURCES, name, data.source)
        return data

    return put


# The digits.


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    test = stratified(labels, 360)
    data = jpc.data.load("digits", normalise=False, flatten=True)
    for (x, y), part in ((data.train, ~test), (data.test, test)):
        np.testing.assert_array_equal(x, np.float32(pixels[part] / 16))
        np.testing.assert_array_equal(y, labels[part])


def test_digits_are_always_split_the_same():
    data = jpc.data.load("digits")
    assert data.train[0].shape == (1437, 1, 8, 8) and data.test[0].shape == (360, 1, 8, 8)
    of_each = [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    np.testing.assert_array_equal(np.bincount(data.test[1]), of_each)
    assert sha256(data.test[1].astype(np.uint8).tobytes()).startswith("fd2f243d1cfb0500")


def test_normalised_training_images_have_mean_0_and_std_1():
    images = jpc.data.load("digits").train[0].astype(np.float64)
    np.testing.assert_allclose((images.mean(), images.std()), (0, 1), atol=1e-6)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_restore_undoes_normalisation_and_flattening(flatten, as_array):
    data = jpc.data.load("digits", flatten=flatten)
    plain = jpc.data.load("digits", normalise=False).test[0]
    np.testing.assert_allclose(data.restore(as_array(data.test[0])), plain, atol=1e-6)
    np.testing.assert_allclose(data.restore(data.test[0][3]), plain[3:4], atol=1e-6)
    assert data.restore(np.full(64, 100.0)).max() == 1 and data.restore(-data.test[0]).min() == 0


def test_restore_goes_channel_by_channel(stand_in, tmp_path):
    data = stand_in("cifar10", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    write(tmp_path, data.downloads)
    loaded = jpc.data.load("cifar10", root=tmp_path)
    expected = [
        (data.test[0][:, c] / 255 - m) / s
        for c, (m, s) in enumerate([(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)])
    ]
    np.testing.assert_allclose(loaded.test[0], np.stack(expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(loaded.restore(loaded.test[0]), data.test[0] / 255, atol=1e-6)


# Validation.


@pytest.mark.parametrize("validation, count", [(1, 1), (287, 287), (0.2, 287), (1436, 1436)])
def test_validation_is_a_part_of_the_training_data(validation, count):
    whole = jpc.data.load("digits", flatten=True)
    data = jpc.data.load("digits", flatten=True, validation=validation)
    assert data.validation is not None and len(data.validation[0]) == count
    rows = lambda parts: sorted(np.concatenate([np.c_[x, y] for x, y in parts]).tolist())
    assert rows([data.train, data.validation]) == rows([whole.train])
    np.testing.assert_array_equal(data.test[0], whole.test[0])
    np.testing.assert_array_equal(data.mean, whole.mean)
    again = jpc.data.load("digits", flatten=True, validation=validation).validation
    np.testing.assert_array_equal(data.validation[0], again[0])


@pytest.mark.parametrize("count", [0, 1, 10, 333, 999, 1000])
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_stratified_is_in_proportion_to_the_classes(count, classes):
    labels = np.random.default_rng(0).integers(0, classes, 1000) ** 2  # Not every number occurs.
    chosen = stratified(labels, count)
    assert chosen.sum() == count
    for label in np.unique(labels):
        share = count * np.mean(labels == label)
        assert abs(chosen[labels == label].sum() - share) <= 1


def test_stratified_is_random():
    chosen = np.flatnonzero(stratified(np.zeros(10_000, int), 5_000))
    assert abs(chosen.mean() - 5_000) < 150  # Its standard deviation is 29.
    assert 2_300 < np.sum(np.diff(chosen) == 1) < 2_700  # 2,500 expected, standard deviation 25.


@pytest.mark.parametrize("validation", [-1, -0.5, 1437, 2000, 3.5, float("nan")])
def test_validation_that_does_not_fit(validation):
    with pytest.raises(ValueError, match="1437 training examples: write a number"):
        jpc.data.load("digits", validation=validation)


# Files.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, stand_in, tmp_path):
    name, path, pack = LAYOUTS[layout]
    data = stand_in(name)
    write(tmp_path, {path.format(file): pack(contents) for file, contents in data.files.items()})
    assert_loaded(jpc.data.load(name, root=tmp_path, normalise=False), data)
    assert jpc.data.where(name, tmp_path) == (tmp_path / path).parent


@pytest.mark.parametrize("path", ARCHIVES)
def test_archives(path, stand_in, tmp_path):
    data = stand_in("cifar10")
    write(tmp_path, {path: tarball(data.files)})
    assert_loaded(jpc.data.load("cifar10", root=tmp_path, normalise=False), data)
    assert jpc.data.where("cifar10", tmp_path) == tmp_path / path


def test_flattened_images_and_validation_of_files(stand_in, tmp_path):
    data = stand_in("mnist")
    write(tmp_path, data.downloads)
    loaded = jpc.data.load("mnist", root=tmp_path, flatten=True, normalise=False, validation=0.2)
    chosen = stratified(data.train[1], TRAIN // 5)
    flat = np.float32(data.train[0].reshape(TRAIN, -1)) / np.float32(255)
    np.testing.assert_array_equal(loaded.train[0], flat[~chosen])
    np.testing.assert_array_equal(loaded.validation[0], flat[chosen])
    np.testing.assert_array_equal(loaded.validation[1], data.train[1][chosen])


def flip(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


OF_FILES = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "a-web-page": lambda data: b"<html>Please log in</html>",
    "one-bit": lambda data: flip(data, len(data) // 2),
}
OF_CONTENTS = {
    "magic-number": lambda data: flip(data, 3),
    "number-of-examples": lambda data: flip(data, 7),
    "last-byte": lambda data: data[:-1],
    "too-long": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", [*OF_FILES, *OF_CONTENTS])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_file_is_named(layout, damage, stand_in, tmp_path):
    name, path, pack = LAYOUTS[layout]
    files = stand_in(name).files
    written = {path.format(file): pack(contents) for file, contents in files.items()}
    victim, contents = list(written)[1], list(files.values())[1]
    unchanged = lambda data: data
    broken = pack(OF_CONTENTS.get(damage, unchanged)(contents))
    written[victim] = OF_FILES.get(damage, unchanged)(broken)
    write(tmp_path, written)
    with pytest.raises(ValueError, match=r"is damaged: .*Delete it") as info:
        jpc.data.load(name, root=tmp_path)
    assert str(tmp_path / victim) in str(info.value)


@pytest.mark.parametrize("damage", OF_FILES)
def test_a_damaged_archive_is_named(damage, stand_in, tmp_path):
    data = stand_in("cifar10")
    write(tmp_path, {ARCHIVES[0]: OF_FILES[damage](tarball(data.files))})
    with pytest.raises(ValueError, match=r"is damaged: .*Delete it") as info:
        jpc.data.load("cifar10", root=tmp_path)
    assert str(tmp_path / ARCHIVES[0]) in str(info.value)


def test_an_archive_without_a_batch_is_named(stand_in, tmp_path):
    files = dict(stand_in("cifar10").files)
    del files["data_batch_3.bin"]
    write(tmp_path, {ARCHIVES[0]: tarball(files)})
    with pytest.raises(ValueError, match=r"tar\.gz is damaged: .*data_batch_3\.bin"):
        jpc.data.load("cifar10", root=tmp_path)


def test_images_of_one_set_with_labels_of_another(stand_in, tmp_path):
    data = stand_in("mnist")
    labels = data.files["t10k-labels-idx1-ubyte"]
    write(tmp_path, data.downloads)
    write(tmp_path, {"mnist/train-labels-idx1-ubyte.gz": gzip.compress(labels)})
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        jpc.data.load("mnist", root=tmp_path)


@pytest.mark.parametrize("call", [jpc.data.load, jpc.data.where, jpc.data.fetch])
def test_unknown_names(call):
    with pytest.raises(ValueError, match=r"'imagenet'.*digits, mnist, fashion-mnist, cifar10"):
        call("imagenet")


def test_the_core_imports_neither_data_nor_pooch():
    code = (
        "import sys, jpc; assert 'jpc.data' not in sys.modules;"
        "import jpc.data; jpc.data.load('digits'); assert 'pooch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The real data.


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A folder with the three data sets, or the test is skipped."""
    if DATA_DIR:
        return Path(DATA_DIR)
    if not (SHARED / "unpack.py").exists():
        pytest.skip("no data: set JPC_DATA_DIR")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, SHARED / "unpack.py", folder], check=True)
    return folder


MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, train, test, mean, std",
    [
        ("mnist", MNIST_TRAIN, MNIST_TEST, [0.1307], [0.3081]),
        ("fashion-mnist", [6000] * 10, [1000] * 10, [0.2860], [0.3530]),
        ("cifar10", [5000] * 10, [1000] * 10, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_real_data_have_the_published_statistics(real, name, train, test, mean, std):
    if jpc.data.where(name, real) is None:
        pytest.skip(f"no {name} in JPC_DATA_DIR")
    data = jpc.data.load(name, root=real, download=False)
    np.testing.assert_array_equal(np.bincount(data.train[1]), train)
    np.testing.assert_array_equal(np.bincount(data.test[1]), test)
    assert data.train[0].shape == (sum(train), *data.shape)
    np.testing.assert_allclose((data.mean, data.std), (mean, std), atol=5e-5)
    for channel in range(data.shape[0]):
        pixels = data.train[0][:, channel]
        np.testing.assert_allclose(pixels.mean(dtype=np.float64), 0, atol=1e-6)
        np.testing.assert_allclose(np.mean(pixels**2, dtype=np.float64), 1, atol=1e-5)
