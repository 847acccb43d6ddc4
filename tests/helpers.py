"""Small problems, and predictive coding written from its equations in plain NumPy.

Nothing in `Chain` uses JAX or the package: explicit loops over examples and layers, so that it
can be an oracle of both.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jpc

SIZES = (3, 4, 4, 2)


# --- predictive coding in NumPy ---


def _gelu(z):
    """The approximation by a tanh, like `jax.nn.gelu`."""
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def _gelu_slope(z):
    tanh = np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
    return 0.5 * (1 + tanh) + 0.5 * z * (1 - tanh**2) * inner


_ACTS: dict[str, tuple[Callable, Callable]] = {
    "linear": (lambda z: z, np.ones_like),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "gelu": (_gelu, _gelu_slope),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(z.dtype)),
}


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.sum(np.exp(shifted)))


def scalings(param_type, fan_ins, *, skips=False, gamma=1.0):
    """The table of `api.md`, by hand."""
    depth, last = len(fan_ins), len(fan_ins) - 1
    scales = []
    for i, n in enumerate(fan_ins):
        if param_type == "sp":
            scale = 1.0
        elif i == last:
            scale = 1 / n if param_type == "mupc" else 1 / np.sqrt(n)
        elif i == 0:
            scale = 1 / np.sqrt(n)
        else:
            scale = 1 / np.sqrt(n * depth) if skips else 1 / np.sqrt(n)
        scales.append(scale / gamma if i == last else scale)
    return scales


@dataclasses.dataclass
class Chain:
    """f_l(z) = s_l (W_l phi(z) + b_l) [+ z], with phi the identity for l = 1, and

        F_l = p_l / 2 ||z_l - f_l(z_{l-1})||^2,   or p_L CE(z_L, f_L(z_{L-1})) at the output.

    Layers are counted from 1, states from 0; a state is an array with the batch first.
    """

    weights: list
    act: str = "tanh"
    biases: list | None = None
    scales: list | None = None
    skips: bool = False
    precisions: list | None = None
    loss: str = "mse"

    def __post_init__(self):
        self.depth = len(self.weights)
        self.biases = self.biases or [np.zeros(len(w)) for w in self.weights]
        self.scales = self.scales or [1.0] * self.depth
        self.precisions = self.precisions or [1.0] * self.depth
        self.phi, self.dphi = _ACTS[self.act]

    def skips_at(self, layer):
        return self.skips and 1 < layer < self.depth

    def activated(self, layer, z):
        return z if layer == 1 else self.phi(z)

    def predict(self, layer, z):
        """f_l(z) for one example."""
        w, b = self.weights[layer - 1], self.biases[layer - 1]
        out = self.scales[layer - 1] * (w @ self.activated(layer, z) + b)
        return out + z if self.skips_at(layer) else out

    def jacobian(self, layer, z):
        slope = np.ones_like(z) if layer == 1 else self.dphi(z)
        matrix = self.scales[layer - 1] * self.weights[layer - 1] * slope[None, :]
        return matrix + np.eye(len(z)) if self.skips_at(layer) else matrix

    def feedforward(self, x):
        """The states z_0 ... z_L of a feedforward pass."""
        states = [np.asarray(x)]
        for layer in range(1, self.depth + 1):
            states.append(np.stack([self.predict(layer, z) for z in states[-1]]))
        return states

    def energy_of(self, layer, target, prediction):
        if layer == self.depth and self.loss == "ce":
            value = -np.sum(target * log_softmax(prediction))
        else:
            value = 0.5 * np.sum((target - prediction) ** 2)
        return self.precisions[layer - 1] * value

    def pull_of(self, layer, target, prediction):
        """Minus the gradient of F_l in the prediction: the (precision-weighted) error."""
        if layer == self.depth and self.loss == "ce":
            error = target - np.sum(target) * np.exp(log_softmax(prediction))
        else:
            error = target - prediction
        return self.precisions[layer - 1] * error

    def energies(self, states):
        """F_1 ... F_L, each a mean over the batch."""
        total, batch = np.zeros(self.depth), len(states[0])
        for i in range(batch):
            for layer in range(1, self.depth + 1):
                prediction = self.predict(layer, states[layer - 1][i])
                total[layer - 1] += self.energy_of(layer, states[layer][i], prediction)
        return total / batch

    def energy(self, states):
        return self.energies(states).sum()

    def activity_grads(self, states):
        """The gradient of each example's own energy in z_0 ... z_{L-1}."""
        grads = [np.zeros_like(z) for z in states[:-1]]
        for i in range(len(states[0])):
            for layer in range(1, self.depth + 1):
                z, target = states[layer - 1][i], states[layer][i]
                pull = self.pull_of(layer, target, self.predict(layer, z))
                grads[layer - 1][i] -= self.jacobian(layer, z).T @ pull
                if layer < self.depth:
                    grads[layer][i] += pull
        return grads

    def weight_grads(self, states):
        """The gradient of the mean energy in W_1 ... W_L."""
        grads = [np.zeros_like(w) for w in self.weights]
        batch = len(states[0])
        for i in range(batch):
            for layer in range(1, self.depth + 1):
                z, target = states[layer - 1][i], states[layer][i]
                pull = self.pull_of(layer, target, self.predict(layer, z))
                outer = np.outer(pull, self.activated(layer, z))
                grads[layer - 1] -= self.scales[layer - 1] * outer / batch
        return grads

    def euler(self, states, dt, steps):
        """Euler's method on the flow of z_1 ... z_{L-1}, the ends clamped."""
        states = list(states)
        for _ in range(steps):
            grads = self.activity_grads(states)
            for layer in range(1, self.depth):
                states[layer] = states[layer] - dt * grads[layer]
        return states

    def matrices(self):
        """The matrices of a linear chain, scalings and skips included."""
        zeros = [np.zeros(w.shape[1]) for w in self.weights]
        return [self.jacobian(layer, z) for layer, z in enumerate(zeros, start=1)]


# --- problems ---


@dataclasses.dataclass
class Problem:
    """A model, data, and random hidden states z_1 ... z_{L-1}."""

    model: list
    x: jax.Array
    y: jax.Array
    hidden: list
    act: str = "tanh"

    @property
    def params(self):
        return (self.model, None)

    @property
    def states(self):
        return [np.asarray(z) for z in (self.x, *self.hidden, self.y)]

    @property
    def activities(self):
        """As the paper's calls take them; the last entry does not matter."""
        return [*self.hidden, jnp.full_like(self.y, 7.0)]

    @property
    def weights(self):
        return weights(self.model)

    @property
    def layers(self):
        return [jpc.Layer(layer) for layer in self.model]

    def chain(self, **options):
        return Chain([np.asarray(w) for w in self.weights], self.act, **options)

    def posed(self):
        """The arguments of an energy of the core."""
        return self.layers, *jpc.clamp(self.hidden, self.y, self.x)


def weights(model):
    return [layer.layers[1].weight for layer in model]


def make_problem(act="tanh", sizes=SIZES, *, batch=5, seed=0, gain=1.0):
    """W_l phi(z_{l-1}), with one-hot outputs so that every loss applies."""
    *keys, k_x, k_y, k_z = jr.split(jr.key(seed), len(sizes) + 2)
    acts = ["linear", *[act] * (len(sizes) - 2)]
    linears = [
        eqx.nn.Linear(n, m, use_bias=False, key=k)
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    linears = [eqx.tree_at(lambda m: m.weight, m, gain * m.weight) for m in linears]
    model = [
        eqx.nn.Sequential([eqx.nn.Lambda(jpc.get_act_fn(a)), m])
        for a, m in zip(acts, linears, strict=True)
    ]
    x = jr.normal(k_x, (batch, sizes[0]))
    y = jax.nn.one_hot(jr.randint(k_y, (batch,), 0, sizes[-1]), sizes[-1])
    hidden_keys = jr.split(k_z, len(sizes))
    hidden = [jr.normal(k, (batch, n)) for k, n in zip(hidden_keys, sizes[1:-1], strict=False)]
    return Problem(model, x, y, hidden, act)


def make_conv_problem(batch=3, seed=0):
    """A chain of images: states of rank 3, convolutions with biases, no activation on z_0."""
    channels, side = (1, 2, 1), 3
    *keys, k_x, k_y = jr.split(jr.key(seed), 4)
    first, last = (
        eqx.nn.Conv2d(n, m, kernel_size=3, padding=1, key=k)
        for k, n, m in zip(keys, channels[:-1], channels[1:], strict=True)
    )
    model = [first, eqx.nn.Sequential([eqx.nn.Lambda(jnp.tanh), last])]
    x = jr.normal(k_x, (batch, channels[0], side, side))
    y = jr.normal(k_y, (batch, channels[-1], side, side))
    return Problem(model, x, y, [jnp.zeros((batch, channels[1], side, side))])


# --- the core ---


def infer(inference, energy, params, nodes, clamps, **kwargs):
    """Runs it, jitted, with numbers as arrays so that those that differ share a compilation."""
    inference = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, inference)
    return _infer(inference, energy, params, nodes, clamps, **kwargs)


@eqx.filter_jit
def _infer(inference, *args, **kwargs):
    return inference(*args, **kwargs)


@eqx.filter_jit
def equilibrate(energy, params, nodes, clamps, steps=20):
    """The equilibrium of a smooth problem, by Newton's method on the whole batch at once."""
    flat, unravel = ravel_pytree(nodes)
    total = lambda flat: energy(params, unravel(flat), clamps)

    def step(_, flat):
        return flat - jnp.linalg.solve(jax.hessian(total)(flat), jax.grad(total)(flat))

    return unravel(jax.lax.fori_loop(0, steps, step, flat))


def slowly(*values, **named):
    """A case that waits for `make slow`."""
    return pytest.param(*values, marks=pytest.mark.slow, **named)


def split(batch):
    """A tree of arrays as a list of trees, one for each example."""
    leaves, structure = jax.tree.flatten(batch)
    return [jax.tree.unflatten(structure, z) for z in zip(*leaves, strict=True)]


def to(dtype, tree):
    """Its real arrays in another precision."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


def assert_close(got, expected, *, rtol=1e-10, atol=1e-12):
    """Two trees have the same leaves, in order, shape and value."""
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def arrays(tree):
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))
