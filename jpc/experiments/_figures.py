"""The figures of the paper, declared: which cells each needs, at three sizes."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from ._cell import Cell

SOLVERS = ("euler", "heun")

# The settings that the paper selected: T and dt of Euler, T and dt of Heun.
SELECTED = {
    ("mnist", 3): ((20, 0.5), (20, 0.05)),
    ("mnist", 5): ((50, 0.5), (50, 0.05)),
    ("mnist", 10): ((200, 0.05), (200, 0.05)),
    ("fashion-mnist", 3): ((20, 0.5), (20, 0.1)),
    ("fashion-mnist", 5): ((200, 0.5), (200, 0.5)),
    ("fashion-mnist", 10): ((200, 0.05), (200, 0.05)),
    ("cifar10", 3): ((50, 0.05), (50, 0.05)),
    ("cifar10", 5): ((200, 0.05), (500, 0.5)),
    ("cifar10", 10): ((200, 0.1), (500, 0.1)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much of a figure is run.

    - `hidden`, `seeds`, `width`: which networks.
    - `steps`: of training; `None` is an epoch.
    - `points`: how often a network is looked at while it is trained.
    - `t1s`, `dts`: the grid of settings.
    - `theory_t1s`, `theory_hidden`: those of the linear networks.
    - `dataset`: in the place of all others.
    """

    hidden: Sequence[int] = (3, 5, 10)
    seeds: int = 3
    width: int = 300
    steps: int | None = None
    points: int = 30
    t1s: Sequence[int] = (5, 10, 20, 50, 100, 200, 500)
    dts: Sequence[float] = (0.5, 0.1, 0.05)
    theory_t1s: Sequence[int] = (100, 200, 500)
    theory_hidden: int = 10
    dataset: str | None = None


SIZES = {
    "smoke": Size(
        hidden=(2,), seeds=2, width=16, steps=6, points=2, t1s=(1, 2), dts=(0.5, 0.25),
        theory_t1s=(5, 50), theory_hidden=2, dataset="digits",
    ),
    "default": Size(hidden=(3,), seeds=2, steps=50, points=5, t1s=(5, 10, 20), dts=(0.5, 0.1)),
    "full": Size(),
}  # fmt: skip
"""The sizes of a figure, by name: a sketch in seconds, one in minutes, and that of the paper. Each
says how many networks there are, how wide they are, and for how many steps they train.
"""

Kind: TypeAlias = Literal["times", "accuracies", "grid", "theory", "gap"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the paper.

    **Attributes:** its `title`, the `datasets` that it is about, the `kind` of picture, and
    `make(size, dataset)`, a list of the networks that it needs.

    **Example:**

    ```python
    from jpc.experiments import FIGURES

    titles = {name: figure.title for name, figure in FIGURES.items()}
    ```
    """

    title: str
    kind: Kind
    datasets: Sequence[str]
    make: Callable[[Size, str], list[Cell]]

    def cells(self, size: Size) -> list[Cell]:
        """Each once; with another data set in the place of all others they are the same."""
        made = [cell for dataset in self.datasets for cell in self.make(size, dataset)]
        named = (dataclasses.replace(c, dataset=size.dataset or c.dataset) for c in made)
        return list(dict.fromkeys(named))


def _cell(size: Size, **own: Any) -> Cell:
    """With what a size says of all cells."""
    shared: dict[str, Any] = dict(steps=size.steps, points=size.points, width=size.width)
    return Cell(**shared | own)


def _selected(size: Size, dataset: str) -> list[Cell]:
    settings = {hidden: SELECTED.get((dataset, hidden), ((5, 0.5),) * 2) for hidden in size.hidden}
    return [
        _cell(size, measure="time", dataset=dataset, hidden=hidden, solver=solver, t1=t1, dt=dt,
              seed=seed)
        for hidden, pair in settings.items()
        for solver, (t1, dt) in zip(SOLVERS, pair, strict=True)
        for seed in range(size.seeds)
    ]  # fmt: skip


def _grid(size: Size, dataset: str) -> list[Cell]:
    # The highest accuracy of an epoch is near its end, but on CIFAR-10.
    points = size.points if dataset == "cifar10" else min(size.points, 5)
    choices = itertools.product(size.hidden, SOLVERS, size.t1s, size.dts, range(size.seeds))
    return [
        _cell(size, measure="accuracy", dataset=dataset, hidden=hidden, solver=solver, t1=t1,
              dt=dt, seed=seed, points=points)
        for hidden, solver, t1, dt, seed in choices
    ]  # fmt: skip


def _theory(size: Size, dataset: str) -> list[Cell]:
    linear = dict(
        measure="theory", hidden=size.theory_hidden, act="linear", solver="heun", dt=0.05
    )
    return [
        _cell(size, dataset=dataset, t1=t1, seed=seed, **linear)
        for t1, seed in itertools.product(size.theory_t1s, range(size.seeds))
    ]


def _gap(size: Size, dataset: str) -> list[Cell]:
    exact = dict(measure="gap", solver="equilibrium", t1=1, dt=1, points=1)
    return [
        _cell(size, dataset=dataset, hidden=hidden, seed=seed, **exact)
        for hidden, seed in itertools.product(size.hidden, range(size.seeds))
    ]


_ALL = ("mnist", "fashion-mnist", "cifar10")
_times = "Wall-clock time of inference at each training step, Euler against Heun"
_accuracies = "Test accuracies of the networks of fig1"
_grids = "Highest mean test accuracy for each T and dt, Euler and Heun"
_energies = "Theoretical energy against the energy reached by T, and test accuracies"
_gaps = "Extension of fig1: time to the same distance from equilibrium, for all methods"

FIGURES = {
    "fig1": Figure(title=_times, kind="times", datasets=_ALL, make=_selected),
    "fig1-gap": Figure(title=_gaps, kind="gap", datasets=_ALL, make=_gap),
    "fig2": Figure(title=_energies, kind="theory", datasets=("mnist",), make=_theory),
    "fig3": Figure(title=_accuracies, kind="accuracies", datasets=_ALL, make=_selected),
    "fig4": Figure(title=_grids, kind="grid", datasets=("mnist",), make=_grid),
    "fig5": Figure(title=_grids, kind="grid", datasets=("fashion-mnist",), make=_grid),
    "fig6": Figure(title=_grids, kind="grid", datasets=("cifar10",), make=_grid),
    "fig7": Figure(title=_energies, kind="theory", datasets=("fashion-mnist",), make=_theory),
}
"""The figures of the paper that [`jpc.experiments.reproduce`][] makes, and our extension of the
first, by name: each is a [`jpc.experiments.Figure`][].
"""
