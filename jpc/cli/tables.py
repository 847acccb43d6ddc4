"""Which networks of a table of `jpc bench` are meant."""

from collections.abc import Callable, Sequence
from typing import Any

from .._suggest import did_you_mean
from ..bench import NETWORKS, RULES, SUITES, bench as bench
from .config import ConfigError


def list_tables() -> dict[str, str]:
    return {name: suite.title for name, suite in SUITES.items()}


def choose_cells(
    table: str, size: str, networks: Sequence[str], rules: Sequence[str], seeds: int | None
) -> Callable[[Any], bool]:
    """Whether a cell of a table is one of those that were asked for. All are, without names."""
    _check("table", table, [*SUITES, "list"])
    for name in networks:
        _check("network", name, list(NETWORKS))
    for name in rules:
        _check("rule", name, list(RULES))

    def wanted(cell: Any) -> bool:
        return (
            cell.network in (networks or [cell.network])
            and cell.rule in (rules or [cell.rule])
            and (seeds is None or cell.seed < seeds)
        )

    cells = SUITES[table].cells(size)
    if not any(map(wanted, cells)):
        has = [dict.fromkeys(getattr(c, name) for c in cells) for name in ("network", "rule")]
        raise ConfigError(
            f"{table} has no such network at this size: it has {', '.join(has[0])}, trained by "
            f"{', '.join(has[1])} (with --full, more)."
        )
    return wanted


def _check(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        said = did_you_mean(name, known)
        raise ConfigError(f"{name!r} is no {what}: there are {', '.join(known)}.{said}")
