"""Files of people's own: what is read against what was written, and what is said of bad ones."""

import csv
import io
import json
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

import jpc.data
from jpc.data import DataError, load, read_like, read_schema

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(3, 2, (60, 3)), np.arange(60) % 3
WORDS = np.array(["red", "green", "blue"])[LABELS]
NUMBERS = X @ [1.0, -2.0, 0.5] + 100


def write_csv(path, rows, delimiter=",", encoding="utf-8"):
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def table(targets, header=("a", "b", "c", "kind")):
    rows = [[*row, target] for row, target in zip(X.tolist(), targets.tolist(), strict=True)]
    return [header, *rows] if header else rows


def write_images(folder, sizes, mode="L", ending="png"):
    """Two classes of grey levels."""
    for i, size in enumerate(sizes):
        path = folder / ("dark", "light")[i % 2] / f"{i:02}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        level = 40 + 150 * (i % 2) + i % 9
        Image.new(mode, size, level if mode == "L" else (level, 0, 255 - level)).save(path)
    return folder


def rows_of(dataset):
    """All examples in the units of the file, sorted."""
    parts = [np.c_[dataset.restore(x), y] for x, y in (dataset.train, dataset.test)]
    return sorted(np.concatenate(parts).round(4).tolist())


# Tables.


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("header", [("a", "b", "c", "kind"), None])
def test_tables(tmp_path, delimiter, encoding, header):
    path = write_csv(tmp_path / "my.csv", table(WORDS, header), delimiter, encoding)
    data = load(path)
    assert data.classes == ("blue", "green", "red")
    assert data.schema.features == (header or ())[:3]
    assert (len(data.train[1]), len(data.test[1])) == (48, 12)
    numbers = [data.classes.index(word) for word in WORDS]
    assert rows_of(data) == sorted(np.c_[X, numbers].round(4).tolist())
    assert np.bincount(data.test[1]).tolist() == [4, 4, 4]
    assert np.array_equal(load(path).test[0], data.test[0])  # Always the same ones.


def test_normalisation_is_that_of_the_training_part(tmp_path):
    data = load(write_csv(tmp_path / "my.csv", table(NUMBERS)))
    assert data.classes == () and data.schema.targets == ("kind",)
    for values in data.train:
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(values.std(axis=0), 1, atol=1e-5)
    mean = data.restore(data.train[0]).mean(axis=0)
    np.testing.assert_allclose(data.mean, mean, rtol=1e-5)
    found = np.concatenate([data.schema.decode(part[1])[:, 0] for part in (data.train, data.test)])
    np.testing.assert_allclose(sorted(found), sorted(NUMBERS), rtol=1e-5)
    plain = load(tmp_path / "my.csv", normalise=False)
    np.testing.assert_allclose(plain.train[0], data.restore(data.train[0]), rtol=1e-4, atol=1e-4)


def test_large_numbers_keep_their_digits(tmp_path):
    """Times in seconds, say: their differences are below the digits of float32."""
    times = 1.7e9 + np.arange(60)
    rows = [["t", "kind"], *zip(times.tolist(), WORDS.tolist(), strict=True)]
    x = load(write_csv(tmp_path / "my.csv", rows)).train[0]
    assert len(np.unique(x)) == len(x)


@pytest.mark.parametrize("first", [1.7e12, 2.0**53])
def test_large_numbers_that_differ_little_are_normalised(tmp_path, first):
    """Milliseconds of a minute vary by less than the digits of float32, and are not constant."""
    rows = [["t", "kind"], *([f"{first + i:.0f}", "xy"[i // 2 % 2]] for i in range(0, 80, 2))]
    x = load(write_csv(tmp_path / "my.csv", rows)).train[0]
    np.testing.assert_allclose((x.mean(), x.std()), (0, 1), atol=0.1)


@pytest.mark.parametrize("first", [10**6, 10**15, 10**18])
@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_classes_that_are_long_codes(tmp_path, first, ending):
    """They differ in their last digits only."""
    codes, path = [first + i for i in range(3)], tmp_path / f"my.{ending}"
    labels = [codes[i % 3] for i in range(60)]
    if ending == "npz":
        np.savez(path, x=X, y=np.array(labels))
    else:
        write_csv(path, table(np.array(labels)))
    data = load(path)
    assert data.classes == tuple(map(str, codes))
    new = read_like(path, data.schema)
    encoded = data.schema.encode(new.targets, "my")
    np.testing.assert_array_equal(encoded, [i % 3 for i in range(60)])


def test_constant_columns_do_no_harm(tmp_path):
    rows = [["a", "b", "kind"], *([0.1, i, "xy"[i % 2]] for i in range(20))]
    assert np.abs(load(write_csv(tmp_path / "my.csv", rows)).train[0][:, 0]).max() < 1e-9


@pytest.mark.parametrize("target, header", [("a", True), ("1", True), ("1", False)])
def test_the_target_is_named(tmp_path, target, header):
    rows = [[word, *row] for word, row in zip(WORDS, X.tolist(), strict=True)]
    rows = [["a", "b", "c", "d"], *rows] if header else rows
    data = load(write_csv(tmp_path / "my.csv", rows), target=target)
    assert (len(data.classes), data.shape) == (3, (3,))


def test_row_numbers_are_not_learned(tmp_path):
    """Pandas and R write them in front; here they would give the classes away."""
    rows = table(np.sort(WORDS))
    rows = [["", *rows[0]], *([i, *row] for i, row in enumerate(rows[1:]))]
    data = load(write_csv(tmp_path / "my.csv", rows))
    assert data.shape == (3,) and "row numbers" in str(data)
    new = read_like(write_csv(tmp_path / "new.csv", table(WORDS)[1:]), data.schema)
    assert new.targets is not None
    rows[0] = ["", 0, 1, 2, 3]  # What Pandas calls columns without names.
    data = load(write_csv(tmp_path / "my.csv", rows))
    assert (data.schema.features, data.schema.targets) == (("0", "1", "2"), ("3",))


def test_a_header_may_have_years_and_a_first_row_is_no_header(tmp_path):
    heads = [["2001", "b", "2003", "kind"], [2019, 2020, 2021, 2022], [0, 1, 2, 3]]
    for first, rows in (*((head, 60) for head in heads), ([1.5, 2, 3, "red"], 61)):
        data = load(write_csv(tmp_path / "my.csv", [first, *table(WORDS, None)]))
        assert len(data.train[1]) + len(data.test[1]) == rows


KINDS = {
    "few whole numbers": (LABELS, 3),
    "whole numbers with a point": (LABELS.astype(float) + 1, 3),
    "many whole numbers": (np.arange(60) // 2, 0),
    "fractions": (LABELS / 2, 0),
    "words": (WORDS, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_classes_or_regression(tmp_path, kind):
    targets, classes = KINDS[kind]
    path = write_csv(tmp_path / "my.csv", table(targets))
    assert len(load(path).classes) == classes
    if kind == "few whole numbers":
        assert load(path, regression=True).classes == ()
    if kind == "many whole numbers":
        assert len(load(path, regression=False).classes) == 30


GOOD = "a,b,kind\n" + "".join(f"{i}.5,{i * i % 7},{'xy'[i % 2]}\n" for i in range(20))
BAD_TABLES = {
    GOOD + "1,2\n": "line 22: 2 cells, but line 1 has 3",
    GOOD.replace("3.5,2", "3.5,two"): "line 5, column 'b': 'two' is not a number",
    GOOD.replace("3.5,2", '"3,5",2'): "line 5, column 'a': '3,5' .* Write 3.5",
    GOOD.replace("3.5,2", "3.5,"): "line 5, column 'b': empty",
    GOOD.replace("3.5,2", "3.5,NaN"): "line 5, column 'b': 'NaN' is not a number",
    GOOD.replace("a,b", "day,b").replace(".5,", "-01-02,"): "line 2.*'0-01-02' is a date",
    "a,b,kind\n" + "".join(f"n{i},{i},x\n" for i in range(20)): "line 2.*'n0' is one of 20 diff",
    GOOD.replace("3.5,2", "inf,2"): "line 5, column 'a': 'inf' is not a number",
    GOOD.replace("3.5,2,y", "3.5,2,"): "line 5, column 'kind': no label",
    GOOD.replace("3.5,2", '3.5,"2'): "after line 4: a quotation mark",
    "a,b,kind\n" + "1,,x\n2,,y\n" * 10: "the column 'b' is empty",
    "a,b,kind\n" + "1,2,\n" * 10: "the column 'kind' is empty",
    "a,y\n" + "".join(f"{i},{i * 1.7}\n" for i in range(30)) + "5,1.x\n": "line 32.*'1.x' is not",
    "1.5,?,x\n" + "2.5,1,y\n" * 10: "line 1, column '2': '\\?' is not a number",
    GOOD.replace("a,b", "a,a"): "two columns are called 'a'",
    "": "is empty",
    "a,b,c\n": "no rows",
    "a\n1\n2\n": "one column",
    "# mine\n" + GOOD: "one column, '# mine' in its first line.*semicolons or tabs",
    GOOD.replace("\n", ",\n"): "the last column, which has no name, is empty.*the comma off",
    GOOD.replace("3.5,2", '"3,500",2'): "'3,500' .* Write 3.500, with a point, or 3500",
    GOOD.replace("3.5,2", "1e200,2"): "'a': numbers too large",
    "a,y\n" + "".join(f"{i},7.5\n" for i in range(30)): "y is 7.5 everywhere",
    "a,y\n" + "".join(f"{i},{i}.5e200\n" for i in range(30)): "'y': numbers too large",
    "a,b\n1,x\n2,y\n": "2 examples: at least 5",
    "a,b\n" + "1,x\n" * 20: "one class",
    "a,b\n" + "".join(f"{i},n{i}\n" for i in range(30)): "30 different targets in 30 examples",
    "a,b\n" + "".join(f"{i},£{i}\n" for i in range(30)): "classes; write numbers as 1234.5",
    GOOD + "# end\n": "line 22: 1 cell, but line 1 has 3",
}


@pytest.mark.parametrize("text", BAD_TABLES, ids=BAD_TABLES.values())
def test_bad_tables(tmp_path, text):
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises(DataError, match=f"my.csv.*{BAD_TABLES[text]}") as error:
        load(tmp_path / "my.csv")
    assert "\n" not in str(error.value)


COLOURS = np.array(["red", "green", "blue", "red"])
MIXED = [["size", "colour", "n", "kind"]]
MIXED += [[f"{i}.5", COLOURS[i % 4], i % 5, "xy"[i % 2]] for i in range(40)]


@pytest.mark.parametrize("header", [True, False])
def test_words_have_a_feature_each(tmp_path, header):
    """Against one-hot rows that are made another way."""
    data = load(write_csv(tmp_path / "my.csv", MIXED[0 if header else 1 :]), normalise=False)
    names = ("size", "colour") if header else ("x1", "x2")
    words = [f"{names[1]} = {word}" for word in ("blue", "green", "red")]
    assert data.schema.inputs == [names[0], *words, "n" if header else "x3"]
    hot = np.array(
        [[f"{row[1]}" == word for word in ("blue", "green", "red")] for row in MIXED[1:]]
    )
    whole = np.c_[[float(row[0]) for row in MIXED[1:]], hot, [row[2] for row in MIXED[1:]]]
    seen = np.concatenate([data.train[0], data.test[0]])
    assert sorted(seen.tolist()) == sorted(np.float32(whole).tolist())
    assert "3 of them for the words of" in str(data)
    again = read_schema(json.loads(json.dumps(data.schema.as_dict())))
    new = read_like(
        write_csv(tmp_path / "new.csv", [MIXED[0], *MIXED[3:5]][0 if header else 1 :]), again
    )
    np.testing.assert_array_equal(new.inputs, np.float32(whole[2:4]))
    write_csv(tmp_path / "new.csv", [MIXED[0], *MIXED[3:5], ["1", "pink", "2", "x"]])
    with pytest.raises(DataError, match="line 4, column 'colour': 'pink' was not learned"):
        read_like(tmp_path / "new.csv", load(write_csv(tmp_path / "my.csv", MIXED)).schema)


def test_decimal_commas(tmp_path):
    text = GOOD.replace(",", ";")
    (tmp_path / "points.csv").write_text(text)
    (tmp_path / "commas.csv").write_text(text.replace(".", ","))
    points, commas = (load(tmp_path / f"{name}.csv") for name in ("points", "commas"))
    np.testing.assert_array_equal(points.train[0], commas.train[0])


def test_several_targets(tmp_path):
    rows = [["a", "u", "b", "v"], *([*x, n] for x, n in zip(X.tolist(), NUMBERS, strict=True))]
    data = load(write_csv(tmp_path / "my.csv", rows), target="u,v")
    assert (data.schema.targets, data.schema.features) == (("u", "v"), ("a", "b"))
    found = np.concatenate([data.schema.decode(part[1]) for part in (data.train, data.test)])
    np.testing.assert_allclose(sorted(found.tolist()), sorted(np.c_[X[:, 1], NUMBERS].tolist()))
    new = read_like(tmp_path / "my.csv", data.schema)
    np.testing.assert_allclose(new.targets, np.c_[X[:, 1], NUMBERS])
    write_csv(tmp_path / "words.csv", table(WORDS))
    with pytest.raises(DataError, match="column 'kind': several targets are numbers"):
        load(tmp_path / "words.csv", target=("a", "kind"))


def test_no_targets(tmp_path):
    """Every column is a feature, but those that are named."""
    path = write_csv(tmp_path / "my.csv", table(NUMBERS))
    data = load(path, target=(), leave_out=["b"])
    assert (data.schema.features, data.schema.targets, data.classes) == (
        ("a", "c", "kind"),
        (),
        (),
    )
    assert data.train[1].shape == (48, 0) and "no targets" in str(data)
    assert read_like(path, data.schema).targets is None
    np.savez(tmp_path / "my.npz", x=X, y=LABELS)
    assert load(tmp_path / "my.npz", target=()).schema.targets == ()
    folder = write_images(tmp_path / "pics", [(6, 6)] * 20)
    assert load(folder / "dark", target=()).train[0].shape == (8, 1, 6, 6)
    for wrong, message in ((dict(leave_out=["z"]), "no column 'z'"),
                           (dict(image_size=8), "no folder of images: leave out image_size"),
                           (dict(leave_out=["a", "b", "c"]), "no column left")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            load(path, **wrong)


# Arrays.


def whole(**arrays):
    return lambda path: np.savez(path, **arrays)


ARRAYS = {
    "x, y": (dict(x=X, y=LABELS), (3,), ("0", "1", "2")),
    "X, Y": (dict(X=X, Y=WORDS), (3,), ("blue", "green", "red")),
    "sklearn": (dict(data=X, target=LABELS, target_names=["u", "v", "w"]), (3,), ("u", "v", "w")),
    "savez(x, y)": (dict(arr_0=X, arr_1=LABELS), (3,), ("0", "1", "2")),
    "one-hot": (dict(x=X, y=np.eye(3)[LABELS]), (3,), ("0", "1", "2")),
    "one-hot flags": (dict(x=X, y=np.eye(3, dtype=bool)[LABELS]), (3,), ("0", "1", "2")),
    "bool": (dict(x=X, y=LABELS == 1), (3,), ("False", "True")),
    "bytes": (dict(x=X, y=WORDS.astype("S")), (3,), ("blue", "green", "red")),
    "column": (dict(x=X[:, 0], y=NUMBERS[:, None]), (1,), ()),
    "several numbers": (dict(x=X, y=np.c_[NUMBERS, X[:, 0]]), (3,), ()),
    "grey": (dict(images=np.zeros((60, 5, 4)), labels=LABELS), (1, 5, 4), ("0", "1", "2")),
    "colour": (dict(images=np.zeros((60, 5, 4, 3)), labels=LABELS), (3, 5, 4), ("0", "1", "2")),
    "channels first": (dict(x=np.zeros((60, 3, 5, 4)), y=LABELS), (3, 5, 4), ("0", "1", "2")),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays(tmp_path, kind):
    arrays, shape, classes = ARRAYS[kind]
    np.savez(tmp_path / "my.npz", **arrays)
    data = load(tmp_path / "my.npz")
    assert (data.shape, data.classes) == (shape, classes)
    assert len(data.train[1]) == 48
    flat = load(tmp_path / "my.npz", flatten=True, validation=8)
    assert flat.train[0].shape == (40, np.prod(shape)) and len(flat.validation[1]) == 8


@pytest.mark.parametrize("names", ["x_train y_train x_test y_test x_val y_val",
                                   "train_images train_labels test_images test_labels "
                                   "val_images val_labels"])  # fmt: skip
def test_parts_that_are_given(tmp_path, names):
    parts = (X[:40], LABELS[:40], X[40:50], LABELS[40:50], X[50:], LABELS[50:])
    np.savez(tmp_path / "my.npz", **dict(zip(names.split(), parts, strict=True)))
    data = load(tmp_path / "my.npz", normalise=False)
    for part, (x, y) in zip((data.train, data.test, data.validation), zip(parts[::2], parts[1::2],
                            strict=True), strict=True):  # fmt: skip
        np.testing.assert_array_equal(part[0], np.float32(x))
        np.testing.assert_array_equal(part[1], y)
    with pytest.raises(ValueError, match="validation data already"):
        load(tmp_path / "my.npz", validation=3)


@pytest.mark.parametrize("dtype, high", [(np.uint8, 255), (float, 1), (float, 16)])
def test_images_are_restored(tmp_path, dtype, high):
    images = (RNG.random((20, 6, 5)) * high).astype(dtype)
    np.savez(tmp_path / "my.npz", x_train=images, y_train=np.arange(20) % 2, x_test=images,
             y_test=np.arange(20) % 2)  # fmt: skip
    data = load(tmp_path / "my.npz", flatten=True)
    scale = images.max() if high == 16 else high
    np.testing.assert_allclose(data.restore(data.test[0])[:, 0], images / scale, atol=1e-5)
    np.testing.assert_allclose((data.train[0].mean(), data.train[0].std()), (0, 1), atol=1e-5)


def test_npy_pairs(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "other.npy", NUMBERS)
    with pytest.raises(DataError, match="no targets"):
        load(tmp_path / "x.npy")
    assert load(tmp_path / "x.npy", target="other.npy").classes == ()
    np.save(tmp_path / "y.npy", LABELS)
    assert len(load(tmp_path / "x.npy").classes) == 3
    for name, rows in (("train", slice(40)), ("test", slice(40, 60))):
        np.save(tmp_path / f"X_{name}.npy", X[rows])
        np.save(tmp_path / f"y_{name}.npy", LABELS[rows])
    data = load(tmp_path / "X_train.npy")
    assert (len(data.train[1]), len(data.test[1])) == (40, 20)


def test_functions(tmp_path, monkeypatch):
    (tmp_path / "my_own_data.py").write_text(
        "import numpy as np\nx = np.arange(40.0).reshape(20, 2)\n"
        "def pair(): return x, ['a', 'b'] * 10\n"
        "def parts(): return (x, x[:, :1]), (x[:5], x[:5, :1])\n"
        "def named(): return dict(inputs=x, labels=np.arange(20) % 2)\n"
        "def wrong(): return x\n"
        "def needs(n): return x\n"
        "def uneven(): return [[1], [1, 2]] * 10, [0, 1] * 10\n"
        "def fails(): return {}['k']\n"
        "def leaves(): raise SystemExit(3)\n"
    )
    (tmp_path / "my_script.py").write_text("raise ValueError('no disk')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert load("my_own_data:pair").classes == ("a", "b")
    assert len(load("my_own_data:parts").test[1]) == 5
    assert load("my_own_data:named").classes == ("0", "1")
    wrong = dict(
        wrong="must return",
        uneven="uneven, 'x' is no array: .* inhomogeneous",
        none="no attribute 'none'",
        x="x is of type ndarray: name a function",
        needs="needs is called without arguments: .*'n'",
    )
    for name, message in wrong.items():
        with pytest.raises(DataError, match=message):
            load(f"my_own_data:{name}")
    failing = {"my_own_data:fails": "KeyError: 'k'", "my_own_data:leaves": "SystemExit: 3",
               "my_script:f": "ValueError: no disk"}  # fmt: skip
    for name, message in failing.items():
        with pytest.raises(RuntimeError, match=f"{name} failed: {message}"):
            load(name)


def test_what_is_left_out_is_said(tmp_path):
    np.savez(tmp_path / "my.npz", x=X, y=LABELS, ids=LABELS, weights=NUMBERS)
    assert "(without its keys 'ids', 'weights')" in str(load(tmp_path / "my.npz"))
    assert "keys 'y', 'ids', 'weights'" in load(tmp_path / "my.npz", target=()).note
    folder = write_images(tmp_path / "pics", [(6, 6)] * 20)
    assert load(folder).note == ""
    (folder / "dark" / "00.png").rename(folder / "lost.png")
    said = "1 image is in no class folder, and left out"
    assert load(folder).note == said and len(load(folder).train[1]) == 15
    (folder / "light" / "01.png").rename(folder / "too.png")
    assert "2 images are in no class folder" in load(folder).note


def test_the_only_class_has_its_name(tmp_path):
    for i in range(6):
        (tmp_path / "all" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / "all" / "ab"[i % 2] / f"{i}.png")
    with pytest.raises(DataError, match="one class only, 'all': there is nothing to learn"):
        load(tmp_path)


def pickled(path):
    np.savez(path, x=X, y=np.array([{}] * 60, dtype=object))


def huge(path):
    header = io.BytesIO()
    about = dict(descr="<f8", fortran_order=False, shape=(10**9, 1000))
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())


def cut(path):
    np.savez(path, x=X, y=LABELS)
    path.write_bytes(path.read_bytes()[:-300])


def flipped(path):
    np.savez(path, x=X, y=LABELS)
    data = bytearray(path.read_bytes())
    data[400] ^= 255
    path.write_bytes(data)


BAD_ARRAYS = {
    "key 'y' holds Python objects": pickled,
    "key 'x' would be 1e\\+12 numbers": huge,
    "damaged: File is not": cut,
    "damaged: Bad CRC-32 for file 'x": flipped,
    "not an npz": lambda path: path.write_text("hello"),
    "the keys are 'foo', 'bar'. Call them x and y": whole(foo=X, bar=LABELS),
    "no targets": whole(x=X),
    "no targets of its test data. Call them y_test": whole(x_train=X, y_train=LABELS, x_test=X),
    "has key 'y_test', but no inputs x_test": whole(x_train=X, y_train=LABELS, y_test=LABELS),
    "'x' has the shape \\(60, 3\\), 'y' \\(20,\\)": whole(x=X, y=LABELS[:20]),
    "'x' and 'images' may both be": whole(x=X, images=X, y=LABELS),
    "'x' is not finite at \\[3, 1\\]": whole(x=np.where(X[3, 1] == X, np.nan, X), y=LABELS),
    "'x' is of type complex": whole(x=X + 1j, y=LABELS),
    "'x' has the shape \\(0, 3\\)": whole(x=X[:0], y=LABELS[:0]),
    "inputs of the shape \\(60, 3, 1, 1, 1\\)": whole(x=X[..., None, None, None], y=LABELS),
    "has test data, but none to train": whole(x_test=X, y_test=LABELS),
    "parts are words, those of others": whole(x_train=X, y_train=LABELS, x_test=X, y_test=WORDS),
    "2 is none of the classes 'a', 'b', the numbers 0": whole(x=X, y=LABELS, classes=["a", "b"]),
    "two classes have the same name": whole(x=X, y=LABELS, classes=["a", "b", "a"]),
    "those to train with have \\(3,\\)": whole(x_train=X, y_train=LABELS, x_test=X[:, :2],
                                               y_test=LABELS),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_bad_arrays(tmp_path, message):
    BAD_ARRAYS[message](tmp_path / "my.npz")
    with pytest.raises(DataError, match=f"my.npz.*{message}"):
        load(tmp_path / "my.npz")


# Folders of images.


def test_folders_of_images(tmp_path):
    folder = write_images(tmp_path / "pics", [(8, 6)] * 20)
    (folder / "notes.txt").write_text("mine")
    (folder / "preview.png").write_text("not read")
    (folder / "dark" / ".hidden.png").write_text("nor this")
    data = load(folder)
    assert (data.shape, data.classes) == ((1, 6, 8), ("dark", "light"))
    levels = [data.restore(part[0]).max() for part in (data.train, data.test)]
    assert max(levels) == pytest.approx(198 / 255)
    assert load(folder, image_size=4).shape == (1, 4, 4)


def test_images_of_different_sizes_are_scaled(tmp_path):
    folder = write_images(tmp_path, [(8, 6), (100, 120), (64, 64)] * 4, "RGB", "jpg")
    data = load(folder)
    assert data.shape == (3, 32, 32) and "scaled to 32 x 32" in str(data)


def test_folders_for_training_and_testing(tmp_path):
    write_images(tmp_path / "train", [(5, 5)] * 12)
    write_images(tmp_path / "test", [(5, 5)] * 4)
    data = load(tmp_path)
    assert (len(data.train[1]), len(data.test[1])) == (12, 4)


def test_sixteen_bits_are_not_cut_off(tmp_path):
    for i in range(10):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        pixels = np.full((4, 4), 60_000 if i % 2 else 30_000, np.uint16)
        Image.fromarray(pixels).save(tmp_path / "ab"[i % 2] / f"{i}.png")
    data = load(tmp_path)
    levels = np.unique(data.restore(data.train[0]).round(2))
    np.testing.assert_allclose(levels, [30 / 65.535, 60 / 65.535], atol=0.01)


def test_bad_folders(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no images"):
        load(tmp_path / "none")
    np.save(tmp_path / "none" / "x.npy", X)
    with pytest.raises(DataError, match=r"no images.*Did you mean .*none.x\.npy"):
        load(tmp_path / "none")
    folder = write_images(tmp_path / "pics", [(60, 60)] * 12)
    broken = folder / "light" / "03.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot be read"):
        load(folder)
    broken.write_text("hello")
    with pytest.raises(DataError, match=r"03\.png cannot be read: not an image"):
        load(folder)
    with pytest.raises(DataError, match="in no class folder"):
        load(folder / "dark")
    Image.fromarray(np.full((60, 60), 0.5, np.float32)).save(folder / "dark" / "0.tiff")
    with pytest.raises(DataError, match=r"0\.tiff has fractions"):
        load(folder)
    with pytest.raises(ValueError, match="image_size must be a whole number of at least 1"):
        load(folder, image_size=0)
    with pytest.raises(DataError, match=r"03\.png is one image: give a folder"):
        load(broken)


def test_what_is_not_read(tmp_path):
    (tmp_path / "my.xlsx").write_text("")
    with pytest.raises(DataError, match="xlsx is not read"):
        load(tmp_path / "my.xlsx")
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"no data set 'mnits'.*or a path"):
        load("mnits")
    with pytest.raises(ValueError, match="target= is for data of your own"):
        load("digits", target="y")


# New data for an old network.


def test_a_schema_survives_json(tmp_path):
    schema = load(write_csv(tmp_path / "my.csv", table(NUMBERS))).schema
    again = read_schema(json.loads(json.dumps(schema.as_dict())))
    assert again.as_dict() == schema.as_dict()


@pytest.mark.parametrize("columns", ["kind c b a", "c a b", "extra b a c", None])
def test_new_tables(tmp_path, columns):
    """By their names in any order, or by their places."""
    data = load(write_csv(tmp_path / "my.csv", table(WORDS)))
    names = dict(zip("abc", X.T.tolist(), strict=True)) | dict(kind=WORDS, extra=["?"] * 60)
    chosen = (columns or "a b c kind").split()
    rows = list(map(list, zip(*(names[name] for name in chosen), strict=True)))
    new = read_like(write_csv(tmp_path / "new.csv", [chosen, *rows] if columns else rows),
                    data.schema)  # fmt: skip
    np.testing.assert_allclose(new.inputs, (X - data.mean) / data.std, rtol=1e-5)
    assert (new.targets is None) == ("kind" not in chosen)


def test_new_data_that_does_not_fit(tmp_path):
    schema = load(write_csv(tmp_path / "my.csv", table(WORDS))).schema
    for rows, message in (
        ([["a", "b"], [1, 2]], "no column 'c': there are 'a', 'b'"),
        ([[1.5, 2]], "2 cells, but the network takes 3 features"),
        ([["a", "b", "c"], [1, 2, "x"]], "line 2, column 'c': 'x'"),
        ([["a", "b", "c"], [1, 2, 3], [1, "1e200", 3]], "'b': example 2 is too large"),
    ):
        with pytest.raises(DataError, match=message):
            read_like(write_csv(tmp_path / "new.csv", rows), schema)
    new = read_like(write_csv(tmp_path / "new.csv", [["a", "b", "c", "kind"], [1, 2, 3, "pink"]]),
                    schema)  # fmt: skip
    with pytest.raises(DataError, match="'pink' is not a class; there are blue, green, red"):
        schema.encode(new.targets, "new.csv")


@pytest.mark.parametrize("kind", ["", "pink", "?"])
@pytest.mark.parametrize("header", [True, False])
def test_targets_that_are_not_wanted_are_not_looked_at(tmp_path, kind, header):
    """As in a table that is yet to be filled in."""
    schema = load(write_csv(tmp_path / "my.csv", table(WORDS)[0 if header else 1 :])).schema
    rows = [["a", "b", "c", "kind"], *([*x, kind] for x in X.tolist())]
    path = write_csv(tmp_path / "new.csv", rows[0 if header else 1 :])
    new = read_like(path, schema, targets=False)
    assert new.targets is None
    np.testing.assert_allclose(new.inputs, schema.normalise(X), rtol=1e-6)


@pytest.mark.parametrize("targets", [LABELS, np.eye(3)[LABELS], np.array([*"uvw"])[LABELS]])
def test_new_labels_with_the_names_of_their_classes(tmp_path, targets):
    """As in the file that the network learned from; in another order, too."""
    for name, names in (("my.npz", "uvw"), ("new.npz", "wvu")):
        named = dict(classes=[*names]) if targets.dtype.kind != "U" else {}
        np.savez(tmp_path / name, x=X, y=targets, **named)
    schema = load(tmp_path / "my.npz").schema
    for name, known in (("my.npz", LABELS), ("new.npz", 2 - LABELS)):
        if targets.dtype.kind != "U" or name == "my.npz":
            new = read_like(tmp_path / name, schema)
            np.testing.assert_array_equal(schema.encode(new.targets, name), known)


def test_new_images(tmp_path):
    """One image, a flat folder, and arrays of other types are the same pixels."""
    folder = write_images(tmp_path / "pics", [(6, 6)] * 20)
    schema = load(folder).schema
    one = read_like(folder / "light" / "01.png", schema)
    flat = read_like(folder / "light", schema)
    assert one.names == ["01.png"] and one.targets is None and flat.names[0] == "01.png"
    np.testing.assert_array_equal(one.inputs[0], flat.inputs[0])
    pixels = np.asarray(Image.open(folder / "light" / "01.png"))[None]
    for name, array in (("bytes", pixels), ("floats", pixels / 255)):
        np.savez(tmp_path / f"{name}.npz", x=array)
        found = read_like(tmp_path / f"{name}.npz", schema).inputs
        np.testing.assert_allclose(found, one.inputs, atol=1e-5)
    np.savez(tmp_path / "far.npz", x=100 * pixels.astype(int))
    with pytest.raises(DataError, match="pixels from 19100 to 19100, but 0 to 255"):
        read_like(tmp_path / "far.npz", schema)


def test_published_names_win(tmp_path, monkeypatch):
    """Somebody's folder with the name of a data set has a path."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "digits", [(8, 8)] * 20)
    assert len(load("digits").classes) == 10
    assert load("./digits").classes == ("dark", "light")
    assert not jpc.data.is_own("mnist")
