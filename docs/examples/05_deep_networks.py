# %% [markdown]
# # Deep networks, and how far from backpropagation
#
# Predictive coding can be nearly the same as backpropagation, or something quite
# different. One number decides: the precision of the output. In this example you turn
# that knob in a network of eight layers, and measure what changes.
#
# What you will see: at one end predictive coding *is* backpropagation. At the other end a
# network learns to be sensitive instead of right. A different rule, nudging, is away from
# backpropagation without that problem.

# %%
import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with a smaller network.
DEPTH, EPOCHS, LARGEST = (3, 2, 1.0) if SMALL else (8, 8, 10.0)

digits = jpc.data.load("digits", flatten=True)
x = jnp.asarray(digits.train[0][:64])
y = jax.nn.one_hot(digits.train[1][:64], 10)
model = jpc.make_mlp(jax.random.key(0), 64, 64, DEPTH, 10, "tanh")
exact = jpc.Equilibrium(max_steps=0 if SMALL else 200, throw=False)

# %% [markdown]
# ## The knob
#
# The precision $p$ multiplies the error of the output. A small one asks politely: the
# states hardly move, and what each layer learns is what backpropagation would teach it. A
# large one insists, and the whole network gives way.
#
# `jpc.regime` measures where you are. It gives the angle between the two learning
# gradients, and the mean eigenvalue of the matrix $S$, by which the error is divided on
# its way back. Where $S$ is 1, predictive coding is backpropagation.

# %%
precisions = np.geomspace(1e-3, LARGEST, 9)
angles, eigenvalues = [], []
for p in precisions:
    found = jpc.regime(
        (model, None), y, x, inference=exact, output_energy_scaling=float(p)
    )
    angles.append(float(found["angle"]))
    eigenvalues.append(float(jnp.mean(found["mean_eigenvalue"])))
    share = f"{100 * found['successful']:.0f} % converged"
    print(
        f"p = {p:6.3f}: angle {angles[-1]:4.1f}°, eigenvalue {eigenvalues[-1]:.2f}, {share}"
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
left.semilogx(precisions, angles, "o-", color="#c44e52")
left.set(
    xlabel="precision of the output, $p$",
    ylabel="angle to backpropagation, degrees",
    ylim=0,
)
right.loglog(precisions, eigenvalues, "o-", color="#4c72b0")
right.set(xlabel="precision of the output, $p$", ylabel="mean eigenvalue of $S$")
plt.show()

# %% [markdown]
# Go from left to right in both plots. Up to 0.01 the angle is less than two degrees. Then
# the two rules part.
#
# ## Training at both ends
#
# Now train the same network by four rules: backpropagation, predictive coding at a small
# and at a large precision, and nudging. `jpc.Nudged(strength=1.0)` moves the target only
# a little, forwards and backwards, and takes the difference. Its strength says how far
# from backpropagation to be.

# %%
rules = {
    "backpropagation": dict(inference=jpc.Backprop()),
    "precision 0.01": dict(inference=exact, output_energy_scaling=0.01),
    "precision 1": dict(inference=exact, output_energy_scaling=1.0),
    "nudged": dict(inference=jpc.Nudged(strength=1.0)),
}


def train(options):
    optim = optax.adam(1e-3)
    fitted = jpc.fit(
        functools.partial(jpc.make_pc_step, **options),
        dict(
            model=model,
            optim=optim,
            opt_state=optim.init(eqx.filter(model, eqx.is_array)),
        ),
        digits.train,
        epochs=EPOCHS,
        batch_size=32,
        key=jax.random.key(1),
        test=digits.test,
        evaluate=jpc.evaluate_discriminative,
        progress=False,
    )
    return fitted.state["model"], [record["test_acc"] for record in fitted.history]


def find_sensitivity(model):
    """How much the output moves when all hidden states move a little."""
    found = jpc.regime((model, None), y, x, inference=jpc.Backprop())
    return float(jnp.mean(found["mean_sensitivity"]))


curves, sensitivities = {}, {"before training": find_sensitivity(model)}
for name, options in rules.items():
    trained, curves[name] = train(options)
    sensitivities[name] = find_sensitivity(trained)
    print(
        f"{name:16s} test {curves[name][-1]:5.1f} %, sensitivity {sensitivities[name]:8.1f}"
    )

# %%
colours = ["#999999", "#8fabd3", "#c44e52", "#55a868"]
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained")
for (name, curve), colour in zip(curves.items(), colours):
    left.plot(range(1, EPOCHS + 1), curve, "o-", color=colour, label=name, markersize=4)
left.set(xlabel="epochs", ylabel="test accuracy, %")
left.legend(fontsize=8)
right.barh(list(rules), [sensitivities[name] for name in rules], color=colours)
right.axvline(
    sensitivities["before training"], linestyle=":", color="k", label="before training"
)
right.set(xlabel="sensitivity after training", xscale="log")
right.invert_yaxis()
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# Look at the bars on the right. The energy at equilibrium falls if the error gets
# smaller, and also if the network gets more sensitive: small changes of its states then
# explain the error away. At a precision of 1 (red) the network learns much of the second.
# At 0.01, and with nudging, the sensitivity stays close to that of backpropagation.
#
# In this small network sensitivity costs little. In a deep convolutional network it costs
# much accuracy ([learning rules](../docs/variants/rules.md#deep-networks)).
#
# ## What to try next
#
# - Set `DEPTH` to 16. Which rule suffers?
# - Print `found["layer_angles"]`: which layers are furthest from backpropagation?
# - [How far from backpropagation?](../docs/variants/regime.md) asks the same question at
#   length.
