from .run import AbstractTest


class Validated(AbstractTest):
    """A test, and the same of other data, whose metrics have `val_` before their names."""

    def __init__(self, test: AbstractTest, other: AbstractTest):
        self._test, self._other = test, other
        self.names = (*test.names, *map(_rename, other.names))

    def __call__(self, state, key):
        found = self._other(state, key)
        return self._test(state, key) | {_rename(name): value for name, value in found.items()}

    def fingerprint(self):
        return self._test.fingerprint() | dict(validation=self._other.fingerprint()["test"])


def _rename(name: str) -> str:
    return "val_" + name.removeprefix("test_")
