from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._formats import Raw, Shape, parse_batches, parse_digits, parse_idx


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set as it was published.

    - `shape`: of an image, as channels, height and width; `white`: its largest value.
    - `mean`, `std`: of each channel, over all training images in [0, 1].
    - `classes`: the names of the labels.
    - `parse`: makes training and test data of the contents of the files.
    - `contents`: the files and the SHA-256 of what is in them, not compressed.
    - `places`: where they may be below a root: a folder that has them, plain or gzipped, or a
      tar archive.
    - `downloads`: the files to download, below a root, and the SHA-256 of each.
    - `mirrors`: addresses before the names of these files.
    """

    shape: Shape
    white: int = 255
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes], Shape], tuple[Raw, Raw]]
    contents: Mapping[str, str]
    places: tuple[str, ...]
    downloads: Mapping[str, str]
    mirrors: tuple[str, ...]


IDX = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def _checked(names: Iterable[str], *checksums: str) -> dict[str, str]:
    return dict(zip(names, checksums, strict=True))


DIGITS = Source(
    shape=(1, 8, 8),
    white=16,
    mean=(0.30580269767745305,),
    std=(0.37640518086328556,),
    classes=tuple("0123456789"),
    parse=parse_digits,
    contents={"digits.bin": "d8121ca7764eccfaef1df6bc4589c6527c58fcbab0cb1b079e79f97f8cb8219a"},
    places=(str(Path(__file__).parent / "digits"),),  # The same below every root.
    downloads={},
    mirrors=(),
)

MNIST = Source(
    shape=(1, 28, 28),
    mean=(0.1306604762738429,),
    std=(0.3081078038564627,),
    classes=tuple("0123456789"),
    parse=parse_idx,
    contents=_checked(
        IDX,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    places=("mnist", "MNIST/raw"),
    downloads=_checked(
        [f"mnist/{name}.gz" for name in IDX],
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

FASHION_MNIST = Source(
    shape=(1, 28, 28),
    mean=(0.28604059698879547,),
    std=(0.3530242445149226,),
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    parse=parse_idx,
    contents=_checked(
        IDX,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    places=("fashion-mnist", "FashionMNIST/raw"),
    downloads=_checked(
        [f"fashion-mnist/{name}.gz" for name in IDX],
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
)

CIFAR10 = Source(
    shape=(3, 32, 32),
    mean=(0.4913996786151961, 0.48215840839460783, 0.44653091444546567),
    std=(0.24703223246328201, 0.24348512800005556, 0.2615878417279645),
    classes=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    parse=parse_batches,
    contents={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    places=(
        "cifar-10-batches-bin",
        "cifar10/cifar-10-batches-bin",
        "cifar10",
        "cifar-10-binary.tar.gz",
        "cifar10/cifar-10-binary.tar.gz",
    ),
    downloads={
        "cifar10/cifar-10-binary.tar.gz": (
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        )
    },
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://cave.cs.toronto.edu/kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ),
)

SOURCES = {"digits": DIGITS, "mnist": MNIST, "fashion-mnist": FASHION_MNIST, "cifar10": CIFAR10}
NAMES: tuple[str, ...] = tuple(SOURCES)
"""The published data sets: `"digits"`, `"mnist"`, `"fashion-mnist"` and `"cifar10"`."""


def source_of(name: Any) -> Source:
    """The source of a data set, by its name."""
    if not (isinstance(name, str) and name in SOURCES):
        names = ", ".join(SOURCES)
        raise ValueError(f"There is no data set {name!r}. Write one of {names}, or a path.")
    return SOURCES[name]
