"""The configuration as a file."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .check import check_tables
from .config import Config, ConfigError


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    tables = parse(path)
    try:
        check_tables(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return tables


def parse(path: Path) -> dict[str, Any]:
    """What is in a TOML file, whatever it is."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is not TOML of ours: it is nested too deeply.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None


def as_tables(config: Config) -> dict[str, dict[str, Any]]:
    """All options that matter, by table."""
    tables = dataclasses.asdict(config)
    return {
        table: {key: value for key, value in options.items() if value is not None}
        for table, options in tables.items()
    }


def write_tables(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables as TOML."""
    blocks = []
    for table, options in tables.items():
        lines = [f"{key} = {_value(value)}" for key, value in options.items()]
        blocks.append("\n".join([f"[{table}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
