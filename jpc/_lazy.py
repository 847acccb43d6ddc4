import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazily(package: str, module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that has the public names of one of its modules.
    That is imported with the first name that is asked for: it takes seconds, because of JAX, and
    `jpc --help` needs none.
    """

    def load() -> dict[str, Any]:
        public = vars(importlib.import_module(f"{package}.{module}")).items()
        found = {name: value for name, value in public if not name.startswith("_")}
        vars(sys.modules[package]).update(found | vars(sys.modules[package]))
        return found

    def get(name: str) -> Any:
        if name == "__all__":
            return list(load())
        if not name.startswith("__"):
            load()
        try:
            return vars(sys.modules[package])[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return get, lambda: sorted({*vars(sys.modules[package]), *load()})
