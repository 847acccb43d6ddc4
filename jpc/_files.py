import contextlib
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that is always whole to those who read it."""
    data = content.encode() if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
