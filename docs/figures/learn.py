"""The figures of docs/learn.md, and the data of the one that can be played with.

    python docs/figures/learn.py

Takes about two minutes on two cores, and writes its files next to itself.
"""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib as mpl
import numpy as np
import optax
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

import jpc
import jpc.data

HERE = Path(__file__).parent
BLUE, RED, GREY, GREEN = "#4c72b0", "#c44e52", "#777777", "#55a868"
LAYERS = ("#c9d6ea", "#8fabd3", "#4c72b0", "#c44e52")
mpl.rcParams.update({"font.size": 10, "svg.hashsalt": "jpc", "svg.fonttype": "path"})


def save(figure: Figure, name: str) -> None:
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def axes(width: float, height: float, columns: int = 1):
    figure = Figure(figsize=(width, height), layout="constrained")
    every = figure.subplots(1, columns, squeeze=False)[0]
    for axis in every:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, every


# --- the chain ---


def draw_chain() -> None:
    """States, predictions and errors."""
    figure = Figure(figsize=(5.2, 1.5), layout="constrained")
    axis = figure.subplots()
    axis.set(xlim=(-0.9, 10.2), ylim=(-1.3, 1.25), aspect="equal")
    axis.axis("off")
    for i in range(4):
        given = i in (0, 3)
        circle = Circle((3 * i, 0), 0.55, facecolor="#dddddd" if given else "white", edgecolor="k")
        axis.add_patch(circle)
        axis.text(3 * i, 0, f"$z_{i}$", **_centred())
        said, colour = {0: ("given: $x$", GREY), 3: ("given: $y$", GREY)}.get(
            i, ("inferred", BLUE)
        )
        axis.text(3 * i, 0.85, said, color=colour, **_centred())
        if i:
            arrow = FancyArrowPatch((3 * i - 2.4, 0), (3 * i - 0.6, 0), mutation_scale=14)
            arrow.set(arrowstyle="-|>", color="k")
            axis.add_patch(arrow)
            axis.text(3 * i - 1.5, 0.4, f"$f_{i}(z_{i - 1})$", **_centred())
            axis.text(3 * i, -0.85, f"$e_{i} = z_{i} - f_{i}(z_{i - 1})$", color=RED, **_centred())
    save(figure, "chain")


def _centred() -> dict:
    return dict(ha="center", va="center")


# --- two states: a landscape ---


class Scaled(eqx.Module):
    """A layer of one unit."""

    weight: float

    def __call__(self, z):
        return self.weight * jnp.tanh(z)


def draw_landscape() -> None:
    """The energy over two hidden states, the way of the flow, and where it ends."""
    layers = [lambda z: z, Scaled(1.5), Scaled(2.0)]
    x, y = jnp.full((1, 1), 0.4), jnp.full((1, 1), 1.9)
    energy = jpc.PCEnergy()
    start = jpc.feedforward_batch(layers, x)[:-1]
    nodes, clamps = jpc.clamp(start, y, x)
    both = lambda params, nodes, clamps: (nodes[1], nodes[2])
    keep = jpc.Record(both, length=200)
    flow = jpc.GradientFlow(t1=20.0)(energy, layers, nodes, clamps, record=keep)
    count = int(np.max(flow.trajectory.length))
    way = [np.asarray(z).reshape(len(z), -1)[:count, 0] for z in flow.trajectory.values]
    end = jpc.Equilibrium()(energy, layers, nodes, clamps).nodes

    one, two = np.meshgrid(np.linspace(-0.1, 1.6, 120), np.linspace(0.2, 1.9, 120))
    at = lambda a, b: energy(layers, *jpc.clamp([a[None, None], b[None, None]], y, x))
    values = jax.vmap(jax.vmap(at))(jnp.asarray(one), jnp.asarray(two))
    figure, (axis,) = axes(4.8, 3.8)
    levels = np.geomspace(float(values.min()) * 1.02, float(values.max()), 16)
    axis.contour(one, two, values, levels, colors=GREY, linewidths=0.6)
    axis.plot(*way, color=BLUE, linewidth=2.5, label="the way of the flow")
    axis.plot(way[0][0], way[1][0], "o", color="k", label="feedforward pass")
    there = dict(marker="*", markersize=13, linestyle="", color=RED)
    axis.plot(end[1].ravel(), end[2].ravel(), label="equilibrium, solved for", **there)
    axis.set(xlabel="$z_1$", ylabel="$z_2$")
    axis.legend(framealpha=1, edgecolor="white", fontsize=9, loc="lower right")
    save(figure, "landscape")


# --- digits ---


def digits() -> tuple[jax.Array, jax.Array]:
    found = jpc.data.load("digits", flatten=True)
    images, labels = found.train
    return jnp.asarray(images[:64]), jax.nn.one_hot(labels[:64], 10)


def network() -> list:
    return jpc.make_mlp(jr.key(0), 64, 64, 4, 10, "tanh")


def spreading() -> tuple[np.ndarray, np.ndarray]:
    """Times of inference, and the energies there: a row for each layer."""
    (x, y), model = digits(), network()
    times = np.round(np.linspace(0.0, 12.0, 61), 2)
    chain = jpc.PCEnergy()
    layers = [jpc.Layer(layer) for layer in model]
    nodes, clamps = jpc.clamp(jpc.feedforward_batch(layers, x)[:-1], y, x)
    terms = jpc.Record(chain.terms, ts=times)
    flow = jpc.GradientFlow(t1=12.0)(chain, layers, nodes, clamps, record=terms)
    each = jax.tree.leaves(flow.trajectory.values)
    return times, np.stack([np.mean(np.asarray(term), axis=1) for term in each])


def draw_spreading() -> None:
    """The energy of each layer during inference, and the same for the page to play with."""
    times, energies = spreading()
    figure, (axis,) = axes(6.4, 3.0)
    axis.stackplot(times, energies[::-1], colors=LAYERS[::-1], labels=_labels(4)[::-1])
    axis.set(xlabel="time of inference", ylabel="energy", xlim=(0, times[-1]))
    beside = dict(bbox_to_anchor=(1.02, 1.0), loc="upper left", reverse=True)
    axis.legend(frameon=False, fontsize=9, title="error of", **beside)
    save(figure, "spreading")
    rounded = [[float(f"{value:.4g}") for value in row] for row in energies]
    told = json.dumps(dict(times=times.tolist(), energies=rounded))
    (HERE / "spreading.js").write_text(f"window.spreading = {told};\n")


def _labels(count: int) -> list[str]:
    return [f"layer {i}" if i < count else "the output" for i in range(1, count + 1)]


def draw_regime() -> None:
    """How far from backpropagation, by the precision of the output."""
    (x, y), model = digits(), network()
    precisions = np.geomspace(1e-4, 1e2, 13)
    found = [
        jpc.regime((model, None), y, x, inference=jpc.Equilibrium(), output_energy_scaling=p)
        for p in map(float, precisions)
    ]
    figure, (left, right) = axes(7.4, 2.9, 2)
    eigenvalues = [float(jnp.mean(f["mean_eigenvalue"])) for f in found]
    left.loglog(precisions, eigenvalues, color=BLUE, marker="o", markersize=3)
    left.set(xlabel="precision of the output, $p$", ylabel="mean eigenvalue of $S$")
    right.semilogx(precisions, [float(f["angle"]) for f in found], color=RED, marker="o", ms=3)
    right.set(xlabel="precision of the output, $p$", ylabel="angle to backpropagation", ylim=0)
    right.yaxis.set_major_formatter("{x:.0f}°")
    save(figure, "regime")


def draw_learning() -> None:
    """Training on digits by backpropagation, and by predictive coding at two precisions."""
    found = jpc.data.load("digits", flatten=True)
    figure, (axis,) = axes(5.2, 3.0)
    rules = {
        "backpropagation": (dict(inference=jpc.Backprop()), GREY),
        "predictive coding, $p = 0.1$": (
            dict(inference=jpc.Equilibrium(), output_energy_scaling=0.1),
            BLUE,
        ),
        "predictive coding, $p = 1$": (dict(inference=jpc.Equilibrium()), RED),
    }
    for name, (options, colour) in rules.items():
        runs = [_train(found, options, seed) for seed in range(3)]
        epochs = 1 + np.arange(len(runs[0]))
        axis.plot(epochs, np.mean(runs, axis=0), color=colour, label=name)
        axis.fill_between(epochs, np.min(runs, 0), np.max(runs, 0), color=colour, alpha=0.2, lw=0)
    axis.set(xlabel="epochs", ylabel="test accuracy, %", ylim=(80, 100))
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    save(figure, "learning")


def _train(found, options: dict, seed: int) -> list[float]:
    model = jpc.make_mlp(jr.key(seed), 64, 64, 4, 10, "tanh")
    optim = optax.adam(1e-3)
    fitted = jpc.fit(
        lambda **given: jpc.make_pc_step(**given, **options),
        dict(model=model, optim=optim, opt_state=optim.init(eqx.filter(model, eqx.is_array))),
        found.train,
        epochs=10,
        batch_size=32,
        key=jr.key(10 + seed),
        test=found.test,
        evaluate=jpc.evaluate_discriminative,
        progress=False,
    )
    return [record["test_acc"] for record in fitted.history]


if __name__ == "__main__":
    draw_chain()
    draw_landscape()
    draw_spreading()
    draw_regime()
    draw_learning()
