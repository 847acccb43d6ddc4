"""Random graphs of predictions, in the words of the core and in plain NumPy."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from helpers import log_softmax

import jpc

# --- the core ---


@eqx.filter_jit
def value_and_grads(energy, params, nodes, clamps):
    """Of an energy: its value, and its gradients in the nodes and in the parameters."""
    value, by_nodes = jax.value_and_grad(energy, argnums=1)(params, nodes, clamps)
    return value, by_nodes, learning_gradient(energy, params, nodes, clamps)


@eqx.filter_jit
def learning_gradient(energy, params, nodes, clamps):
    return eqx.filter_grad(energy)(params, nodes, clamps)


def learned(inferred, params, clamps):
    """The gradient of the lesson of inference."""
    energy, nodes = inferred.lesson
    return learning_gradient(energy, params, nodes, clamps)


@eqx.filter_jit
def examples(energy, params, nodes, clamps):
    """The energy of each example."""
    return jax.vmap(lambda n, c: energy.example(params, n, c))(nodes, clamps)


def succeeded(inferred):
    return np.asarray(inferred.result == jpc.RESULTS.successful)


# --- graphs ---


def bernoulli(target, logits):
    return jnp.sum(jax.nn.softplus(logits) - target * logits)


def huber(target, prediction):
    gap = jnp.abs(target - prediction)
    return jnp.sum(jnp.where(gap < 1, 0.5 * gap**2, gap - 0.5))


def _huber(target, prediction):
    gap = np.abs(target - prediction)
    return np.where(gap < 1, 0.5 * gap**2, gap - 0.5)


# For one example: the sum in JAX, and what each unit adds to it in NumPy.
LOSSES = {
    "squared": (jpc.squared_error, lambda t, f: 0.5 * (t - f) ** 2),
    "ce": (jpc.cross_entropy, lambda t, f: -t * log_softmax(f)),
    "bernoulli": (bernoulli, lambda t, f: np.logaddexp(0, f) - t * f),
    "huber": (huber, _huber),
}


class Mix(eqx.Module):
    """The sum of W tanh(z) over its parents, and a bias."""

    weights: list
    bias: jax.Array

    def __call__(self, *parents):
        products = [w @ jnp.tanh(z) for w, z in zip(self.weights, parents, strict=True)]
        return sum(products, start=self.bias)


@dataclasses.dataclass
class Graph:
    """A graph of named states. What is given, and what in part, belongs to it; all numbers are
    drawn by `draw`, so that draws share compilations.
    """

    parents: dict
    sizes: dict
    losses: dict
    given: tuple
    masked: tuple
    prior: tuple
    precise: tuple  # Those with a precision for each unit.
    batch: int = 4

    def draw(self, seed, *, gain=1.0):
        rng = np.random.default_rng(seed)
        normal = lambda *shape: rng.normal(size=shape)
        weights = {
            name: [gain * normal(self.sizes[name], self.sizes[p]) / self.sizes[p] for p in parents]
            for name, parents in self.parents.items()
        }
        biases = {name: 0.5 * normal(self.sizes[name]) for name in self.parents}
        precisions = {
            name: np.exp(0.5 * normal(*([self.sizes[name]] if name in self.precise else [])))
            for name in (*self.parents, *self.prior)
        }
        states = {name: normal(self.batch, size) for name, size in self.sizes.items()}
        for name, loss in self.losses.items():
            if loss == "ce":
                states[name] = np.eye(self.sizes[name])[np.argmax(states[name], axis=1)]
            if loss == "bernoulli":
                states[name] = (states[name] > 0).astype(float)
        masks = {name: rng.random(states[name].shape) < 0.5 for name in self.masked}
        return Drawn(self, weights, biases, precisions, states, masks)


@dataclasses.dataclass
class Drawn:
    """A graph with its numbers: `states` has values for what is given and what is not."""

    graph: Graph
    weights: dict
    biases: dict
    precisions: dict
    states: dict
    masks: dict

    @property
    def energy(self):
        losses = {name: LOSSES[loss][0] for name, loss in self.graph.losses.items()}
        precisions = {name: jnp.asarray(p) for name, p in self.precisions.items()}
        return jpc.GraphEnergy(self.graph.parents, loss=losses, precision=precisions)

    @property
    def params(self):
        arrays = lambda xs: [jnp.asarray(x) for x in xs]
        return {n: Mix(arrays(self.weights[n]), jnp.asarray(self.biases[n])) for n in self.weights}

    def posed(self):
        """Started from the states that were drawn."""
        states = {name: jnp.asarray(z) for name, z in self.states.items()}
        given = {name: states[name] for name in (*self.graph.given, *self.graph.masked)}
        masks = {name: jnp.asarray(mask) for name, mask in self.masks.items()}
        start = {name: z for name, z in states.items() if name not in self.graph.given}
        return self.params, *jpc.pose(self.energy, self.params, given, masks=masks, start=start)

    def predict(self, name, i):
        """Of one example."""
        pairs = zip(self.weights[name], self.graph.parents[name], strict=True)
        return self.biases[name] + sum(w @ np.tanh(self.states[p][i]) for w, p in pairs)

    def given(self, name, i):
        """Which units are, of one example."""
        whole = np.full(self.states[name][i].shape, name in self.graph.given)
        return self.masks[name][i] if name in self.masks else whole

    def cost(self, name, i):
        """Each unit's own loss if it is given, and its squared error if it is not."""
        z, given = self.states[name][i], self.given(name, i)
        p = self.precisions.get(name, 0.0)
        if name not in self.graph.parents:
            return np.sum(np.where(given, 0, 0.5 * p * z**2))
        f = self.predict(name, i)
        loss = LOSSES[self.graph.losses.get(name, "squared")][1]
        return np.sum(p * np.where(given, loss(z, f), 0.5 * (z - f) ** 2))

    def value(self):
        """The energy, by its definition."""
        names, batch = self.graph.sizes, range(self.graph.batch)
        return np.mean([sum(self.cost(name, i) for name in names) for i in batch])


def make_graph(seed, middle):
    """Two roots, one of them free; two states in between, the second one `"given"`, `"masked"` or
    `"free"`; and heads with three losses, one of them given in part. An edge that skips states is
    as likely as any other.
    """
    rng = np.random.default_rng(seed)
    roots, inner, heads = ("a", "b"), ("h", "k"), ("u", "v", "w")
    before = {"h": roots, "k": (*roots, "h")} | dict.fromkeys(heads, (*roots, *inner))
    parents = {}
    for name, candidates in before.items():
        count = rng.integers(1, min(3, len(candidates)) + 1)
        parents[name] = tuple(rng.choice(candidates, size=count, replace=False).tolist())
    names = [str(name) for name in (*roots, *inner, *heads)]
    sizes = {name: int(size) for name, size in zip(names, rng.integers(1, 5, 7), strict=True)}
    losses = dict(zip(heads, rng.permutation(list(LOSSES))[:3].tolist(), strict=True))
    sizes |= {name: 3 for name, loss in losses.items() if loss == "ce"}
    free, known = rng.permutation(roots).tolist()
    # Which units of logits are given, cross-entropy has no say in.
    partly = next(name for name in heads if losses[name] != "ce")
    precise = [name for name in ("h", "k", free) if rng.random() < 0.7]
    precise += [name for name in heads if losses[name] == "squared"]
    given = [known, *(name for name in heads if name != partly), *["k"] * (middle == "given")]
    masked = [partly, *["k"] * (middle == "masked")]
    return Graph(parents, sizes, losses, tuple(given), tuple(masked), (free,), tuple(precise))
