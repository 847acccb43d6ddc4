# %% [markdown]
# # Predictive coding from scratch
#
# Predictive coding fits into seventy lines of NumPy. In this example you write all of it:
# the energy, inference, learning, and a network that reads handwritten digits. There is
# no automatic differentiation and no library, so nothing is hidden.
#
# What you will see: the error starts at the output of the network, and inference spreads
# it over the layers. Then each layer learns from its own share.

# %%
import os
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np

import jpc.data  # For the images of digits only.

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer epochs.
EPOCHS = 2 if SMALL else 10

digits = jpc.data.load("digits", flatten=True)
(images, labels), (test_images, test_labels) = digits.train, digits.test
print(f"{len(images)} images to learn from, {len(test_images)} to test with")

# %% [markdown]
# ## A network that guesses
#
# Each layer predicts the next one: $f_\ell(z) = W_\ell \, \tanh(z) + b_\ell$. The first
# layer takes the pixels as they are.

# %%
rng = np.random.default_rng(0)
SIZES = (64, 64, 64, 10)  # Pixels, two hidden layers, ten labels.
weights = [rng.normal(size=(n, m)) / np.sqrt(m) for m, n in pairwise(SIZES)]
biases = [np.zeros(n) for n in SIZES[1:]]


def act(layer, z):
    return z if layer == 0 else np.tanh(z)


def slope(layer, z):
    return np.ones_like(z) if layer == 0 else 1 - np.tanh(z) ** 2


def predict(layer, z):
    """What a layer predicts the next state to be, for each example of a batch."""
    return act(layer, z) @ weights[layer].T + biases[layer]


# %% [markdown]
# In an ordinary network a state *is* its prediction. In predictive coding it does not have
# to be. The difference is the **prediction error**, and half the sum of all squared errors
# is the **energy**:
#
# $$e_\ell = z_\ell - f_\ell(z_{\ell-1}), \qquad F = \tfrac{1}{2} \sum_\ell \lVert e_\ell \rVert^2.$$


# %%
def find_errors(states):
    return [z - predict(i, states[i]) for i, z in enumerate(states[1:])]


def find_energies(states):
    """The energy of each layer, a mean over the batch."""
    return [0.5 * np.mean(np.sum(e**2, axis=1)) for e in find_errors(states)]


# %% [markdown]
# ## Inference: change the states
#
# The image is given at one end, and the label at the other. The states in between are
# free, and move down the energy. Two forces act on each of them:
#
# $$-\frac{\partial F}{\partial z_\ell} = -e_\ell + \phi'(z_\ell) \odot W_{\ell+1}^T e_{\ell+1}.$$
#
# The first pulls a state towards its prediction. The second pulls it to where it predicts
# the next state better. A state needs only its own error and that of the next state.


# %%
def start(x, y):
    """A forward pass, with the label in the place of the last prediction."""
    states = [x]
    for layer in range(len(weights)):
        states.append(predict(layer, states[-1]))
    return [*states[:-1], y]


def infer(states, steps=50, rate=0.1):
    """Walks down the energy, and keeps the energies on the way."""
    states, way = list(states), [find_energies(states)]
    for _ in range(steps):
        errors = find_errors(states)
        for i in range(1, len(states) - 1):
            back = slope(i, states[i]) * (errors[i] @ weights[i])
            states[i] = states[i] + rate * (back - errors[i - 1])
        way.append(find_energies(states))
    return states, np.array(way)


# %% [markdown]
# Run inference on one batch, before any training.

# %%
x, y = images[:32], np.eye(10)[labels[:32]]
states, way = infer(start(x, y))

print(f"energy before inference {way[0].sum():.3f}, after it {way[-1].sum():.3f}")

names, colours = (
    ["first layer", "second layer", "output"],
    ["#8fabd3", "#4c72b0", "#c44e52"],
)
plt.figure(figsize=(6, 3), layout="constrained")
plt.stackplot(range(len(way)), way.T, colors=colours, labels=names)
plt.xlabel("steps of inference")
plt.ylabel("energy")
plt.legend()
plt.show()

# %% [markdown]
# Look at the left edge: all of the energy is at the output (red), because a forward pass
# leaves no other errors. Then the total falls, and the hidden layers take over a part of
# it (blue). **Inference has shared the error out.**
#
# Is the formula for the forces right? Move one state a little, and compare with how the
# energy changes.

# %%
begin, size = start(x, y), 1e-5
errors = find_errors(begin)
force = slope(2, begin[2]) * (errors[2] @ weights[2]) - errors[1]
nudged = [z.copy() for z in begin]
nudged[2][0, 0] += size
change = (sum(find_energies(nudged)) - sum(find_energies(begin))) * len(x) / size
print(f"force {force[0, 0]:.5f}, minus the slope of the energy {-change:.5f}")

# %% [markdown]
# ## Learning: change the weights
#
# Now the states stay where they are, and the weights go down the same energy. The change
# of a weight is the error of the unit that it leads to, times the activity of the unit
# that it comes from:
#
# $$-\frac{\partial F}{\partial W_\ell} = e_\ell \, \phi(z_{\ell-1})^T.$$


# %%
def learn(states, rate=0.05):
    for i, error in enumerate(find_errors(states)):
        weights[i] += rate * error.T @ act(i, states[i]) / len(error)
        biases[i] += rate * error.mean(axis=0)


def accuracy():
    """The share of test images whose largest output is the right one, in percent."""
    z = test_images
    for layer in range(len(weights)):
        z = predict(layer, z)
    return 100 * np.mean(np.argmax(z, axis=1) == test_labels)


# %% [markdown]
# A step of training is both, one after the other.

# %%
scores = [accuracy()]
for _ in range(EPOCHS):
    for batch in np.array_split(rng.permutation(len(images)), len(images) // 16):
        states, _ = infer(start(images[batch], np.eye(10)[labels[batch]]), steps=20)
        learn(states)
    scores.append(accuracy())

print(f"test accuracy: {scores[0]:.1f} % before training, {scores[-1]:.1f} % after it")

plt.figure(figsize=(5, 3), layout="constrained")
plt.plot(scores, "o-", color="#4c72b0")
plt.xlabel("epochs")
plt.ylabel("test accuracy, %")
plt.show()

# %% [markdown]
# The network reads digits that it has never seen. It never ran backpropagation: each
# weight moved by what was known at its two ends.
#
# ## What to try next
#
# - Change `steps=20` in the training loop to 1, or to 100. Does the network need the
#   equilibrium to learn?
# - Add a third hidden layer to `SIZES`, and look at the first plot again. How far does
#   the error get in 50 steps?
# - [The next example](02_discriminative.py) trains the same network with the library: a
#   few lines, compiled, and with any solver. [Predictive coding in one
#   read](../docs/learn.md) explains why it works.
