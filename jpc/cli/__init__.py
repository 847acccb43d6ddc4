"""The `jpc` command: `jpc train`, `jpc eval`, `jpc compare`, `jpc data`, `jpc info`."""

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from .app import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"jpc: the command needs {error.name}: pip install 'jpc[train]'.")
    app(prog_name="jpc")
