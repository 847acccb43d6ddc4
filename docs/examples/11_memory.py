# %% [markdown]
# # An associative memory
#
# You hear three notes, and the whole song comes back. An associative memory stores
# things, and recalls each of them from a part. In this example a predictive coding
# network stores images of digits. Then you show it the upper halves.
#
# What you will see: you need not build anything new. To store is to learn, and to recall
# is to infer.

# %%
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer images.
COUNTS = (16,) if SMALL else (16, 32, 64, 128)
LATENT, HIDDEN = 64, 128

digits = jpc.data.load("digits", flatten=True, normalise=False)

# %% [markdown]
# ## The network
#
# The network is a generative chain: latent units (its causes), hidden units, pixels. Only
# the pixels are given. A prior pulls the latent units towards zero, so that the network
# prefers simple explanations. The hidden units are more precise than the pixels, because
# they should follow the latent units.

# %%
energy = jpc.PCEnergy(precision=[10.0, 1.0]) + jpc.GaussianPrior(0.1)


def rest(model, count):
    """Latents of zero, and what the network predicts from them."""
    latents = jnp.zeros((count, LATENT))
    return [latents, *jpc.init_activities_with_ffwd(model, latents)]


# %% [markdown]
# ## Storing
#
# Each image gets latent values of its own, which are inferred. The network learns to
# generate the images from them. Inference continues where it was the last time, so ten
# steps are enough.


# %%
def store(images, updates=300):
    model = jpc.make_mlp(jax.random.key(0), LATENT, HIDDEN, 2, 64, "tanh", use_bias=True)
    optim = optax.adam(optax.cosine_decay_schedule(3e-3, updates))
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    states = rest(model, len(images))
    few = jpc.Descent(optax.adam(0.05), 10, throw=False)
    for _ in range(updates):
        step = jpc.make_pc_step(
            model,
            optim,
            opt_state,
            images,
            activities=states,
            energy=energy,
            inference=few,
        )
        model, opt_state, states = step["model"], step["opt_state"], step["activities"]
    return model


images = jnp.asarray(digits.train[0][: COUNTS[0]])
model = store(images)

# %% [markdown]
# ## Recalling
#
# A mask says which pixels are given. The others are free, like the latent units, and
# inference finds all of them together.


# %%
def recall(model, images, mask):
    steps = 300
    rate = optax.cosine_decay_schedule(0.3, steps, 0.01)
    inferred = jpc.solve_inference(
        (model, None),
        rest(model, len(images)),
        images,
        mask=mask,
        energy=energy,
        inference=jpc.Descent(optax.adam(rate), steps),
    )
    return jnp.where(mask, images, inferred[-1])


def is_right(recalled, images):
    """Whether the stored image that is nearest, in the hidden half, is the right one."""
    difference = recalled[:, None, 32:] - images[None, :, 32:]
    nearest = jnp.argmin(jnp.sum(difference**2, axis=2), axis=1)
    return nearest == jnp.arange(len(images))


upper = jnp.broadcast_to(jnp.arange(64) < 32, images.shape)
recalled = recall(model, images, upper)
wrong = jnp.mean((recalled - images)[:, 32:] ** 2)
mean = jnp.mean((jnp.mean(images, axis=0) - images)[:, 32:] ** 2)
print(
    f"{int(is_right(recalled, images).sum())} of {len(images)} images are recalled rightly"
)
print(f"error of a hidden pixel {wrong:.4f}; of the mean image {mean:.4f}")

# %%
rows = {"stored": images, "shown": jnp.where(upper, images, 0.5), "recalled": recalled}
figure, axes = plt.subplots(3, 10, figsize=(7.5, 2.4), layout="constrained")
for line, (title, row) in zip(axes, rows.items()):
    for axis, picture in zip(line, row):
        axis.imshow(np.reshape(picture, (8, 8)), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(title, fontsize=9, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# Compare the first row with the last. To recall the last row, the network had only the
# second row, and the weights that it had learned.
#
# ## How much fits?
#
# The network has 64 latent units. Let us store more and more images.

# %%
shares = []
for count in COUNTS:
    images = jnp.asarray(digits.train[0][:count])
    upper = jnp.broadcast_to(jnp.arange(64) < 32, images.shape)
    shares.append(
        100 * float(is_right(recall(store(images), images, upper), images).mean())
    )
    print(f"{count:4d} stored: {shares[-1]:3.0f} % are recalled rightly")

plt.figure(figsize=(5, 3), layout="constrained")
plt.semilogx(COUNTS, shares, "o-", color="#4c72b0")
plt.axvline(LATENT, linestyle=":", color="k", label="as many as latents")
plt.xticks(COUNTS, COUNTS)
plt.minorticks_off()
plt.xlabel("images stored")
plt.ylabel("recalled rightly, %")
plt.ylim(0, 105)
plt.legend()
plt.show()

# %% [markdown]
# The memory has a limit. It keeps all of 16 images, and loses some of 32, half as many as
# there are latent units. Beyond that the network still knows what digits look like, but
# it no longer knows each of these.
#
# ## What to try next
#
# - Show every second pixel instead of the upper half: `jnp.arange(64) % 2 == 0`.
# - Give all pixels, with noise added, and infer without a mask. The network then predicts
#   the clean image.
# - [Associative memory](../docs/variants/memory.md) has the same with MNIST and CIFAR-10,
#   and what to watch out for.
