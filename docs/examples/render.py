"""Runs the examples, and makes their pages and notebooks.

    python docs/examples/render.py [NAME ...]

An example, examples/NAME.py, is a Python file of cells: `# %%` begins one of code,
`# %% [markdown]` one of text. They are run one after the other. What they print and draw goes to
docs/examples/NAME.md and its figures, and to a notebook beside it. `make examples` does all of
them, which takes a few minutes.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES, PAGES = ROOT / "examples", ROOT / "docs" / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))
# Examples compile more than they run, so XLA is to be quick rather than its programs.
QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "font.size": 10,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "jpc",
}


@dataclass
class Cell:
    """A cell of an example; `figures` are pairs of an SVG and a PNG, and what they show."""

    text: bool
    source: str
    printed: str = ""
    value: str = ""
    figures: list[tuple[bytes, bytes, str]] = field(default_factory=list)


# --- reading ---


def read(name: str) -> list[Cell]:
    """The cells of an example."""
    _, *parts = re.split(
        r"^# %%( \[markdown\])?\n", (EXAMPLES / f"{name}.py").read_text(), flags=re.MULTILINE
    )
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [
        _text(source) if markdown else Cell(False, source.strip()) for markdown, source in pairs
    ]


def _text(source: str) -> Cell:
    return Cell(True, re.sub(r"^# ?", "", source, flags=re.MULTILINE).strip())


# --- running ---


def run(cells: list[Cell], *, figures: bool = True) -> dict[str, Any]:
    """Runs the code, keeps in each cell what it printed and drew, and returns its names."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    names: dict[str, Any] = {"__name__": "__main__"}
    shown, plt.show = plt.show, lambda: None
    try:
        for cell in cells:
            if not cell.text:
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    cell.value = _execute(cell.source, names)
                cell.printed = printed.getvalue()
                if figures:
                    cell.figures = [_draw(plt.figure(number)) for number in plt.get_fignums()]
                plt.close("all")
    finally:
        plt.show = shown
    return names


def _execute(source: str, names: dict[str, Any]) -> str:
    """Returns how the last expression is printed, if the code ends with one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return "" if value is None else repr(value)


def _draw(figure: Any) -> tuple[bytes, bytes, str]:
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=80, metadata={"Software": None})
    said = [figure.get_suptitle(), *(_describe(axes) for axes in figure.axes)]
    return svg.getvalue(), png.getvalue(), "; ".join(dict.fromkeys(filter(None, said)))


def _describe(axes: Any) -> str:
    """What the labels of a plot say of it, for those who do not see it."""
    title, x, y = axes.get_title(), axes.get_xlabel(), axes.get_ylabel()
    over = f"{y} over {x}" if x and y else x or y
    return re.sub(r"\s+", " ", f"{title}: {over}" if title and over else title or over)


# --- writing ---


def page(name: str, cells: list[Cell]) -> str:
    """The page of the site."""
    title, *rest = cells
    parts = [linked(title.source), _downloads(name)]
    numbers = iter(range(1, 100))
    for cell in rest:
        parts.append(linked(cell.source) if cell.text else f"```python\n{cell.source}\n```")
        if said := (cell.printed + cell.value).rstrip():
            parts.append(f"``` {{ .text .output }}\n{said}\n```")
        parts += [f"![{said}](figures/{name}-{next(numbers)}.svg)" for _, _, said in cell.figures]
    return "\n\n".join(parts) + "\n"


def linked(text: str) -> str:
    """Links of an example lead to files of the repository: those of its page to pages."""
    return re.sub(r"\]\((\d\d_\w+)\.py\)", r"](\1.md)", text).replace("](../docs/", "](../")


def _downloads(name: str) -> str:
    python, notebook = (
        f"[{word}]({name}.{ending}){{ download }}"
        for word, ending in (("Python file", "py"), ("notebook", "ipynb"))
    )
    return (
        f'!!! note ""\n    Download it as a {python} or as a {notebook}. Made by running\n'
        f"    `examples/{name}.py`; `make examples` makes this page again."
    )


def notebook(cells: list[Cell]) -> dict[str, Any]:
    kernel = dict(display_name="Python 3", language="python", name="python3")
    every = [_noted(cell, i) for i, cell in enumerate(cells)]
    meta = dict(kernelspec=kernel, language_info=dict(name="python"))
    return dict(cells=every, metadata=meta, nbformat=4, nbformat_minor=5)


def _noted(cell: Cell, i: int) -> dict[str, Any]:
    lines = lambda text: text.splitlines(keepends=True)
    if cell.text:  # Its links lead out of the folder.
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\.(?:md|py)[^)]*\)", r"\1", cell.source)
        return dict(cell_type="markdown", id=f"cell-{i}", metadata={}, source=lines(plain))
    outputs: list[dict[str, Any]] = []
    if cell.printed:
        outputs.append(dict(output_type="stream", name="stdout", text=lines(cell.printed)))
    for _, png, said in cell.figures:
        data = {"image/png": base64.b64encode(png).decode(), "text/plain": [said]}
        outputs.append(dict(output_type="display_data", data=data, metadata={}))
    if cell.value:
        result: dict[str, Any] = {"text/plain": lines(cell.value)}
        outputs.append(
            dict(output_type="execute_result", data=result, metadata={}, execution_count=None)
        )
    return dict(
        cell_type="code",
        id=f"cell-{i}",
        metadata={},
        source=lines(cell.source),
        outputs=outputs,
        execution_count=None,
    )


def write(name: str, cells: list[Cell]) -> None:
    figures = PAGES / "figures"
    figures.mkdir(exist_ok=True)
    for old in figures.glob(f"{name}-*.svg"):
        old.unlink()
    every = [svg for cell in cells for svg, _, _ in cell.figures]
    for i, svg in enumerate(every, 1):
        (figures / f"{name}-{i}.svg").write_bytes(svg)
    (PAGES / f"{name}.md").write_text(page(name, cells))
    (PAGES / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    (PAGES / f"{name}.ipynb").write_text(json.dumps(notebook(cells), indent=1) + "\n")


def main() -> None:
    import matplotlib as mpl  # noqa: PLC0415

    os.environ.setdefault("XLA_FLAGS", QUICKLY)
    mpl.use("agg")
    mpl.rcParams.update(STYLE)
    for name in sys.argv[1:] or NAMES:
        cells, begin = read(name), time.perf_counter()
        run(cells)
        write(name, cells)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
