# %% [markdown]
# # Data of your own
#
# In this example you train a network on a table of your own, a CSV file with numbers and
# words. You load it, train, compare with backpropagation, look at the mistakes, and use
# the network on new rows.
#
# What you will see: the library works out the columns, and a table needs no more code
# than a published data set.

# %%
import csv
import functools
import os
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer epochs.
EPOCHS = 4 if SMALL else 20

# %% [markdown]
# ## A table
#
# If you have a file of your own, use that. Here we make one: flowers of three kinds, with
# two lengths, a colour, and a number that says nothing.

# %%
rng = np.random.default_rng(0)
KINDS, COLOURS = ["iris", "lily", "rose"], ["blue", "white", "red"]
PETALS, STEMS = [3.0, 4.5, 3.5], [4.0, 5.0, 6.5]


def find_flower(i):
    kind = rng.integers(3)
    petal, stem = rng.normal([PETALS[kind], STEMS[kind]], [0.6, 1.0])
    colour = COLOURS[kind] if rng.random() < 0.6 else rng.choice(COLOURS)
    return [i, f"{petal:.2f}", f"{stem:.2f}", colour, rng.integers(100), KINDS[kind]]


path = Path(tempfile.mkdtemp()) / "flowers.csv"
with path.open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["id", "petal", "stem", "colour", "noise", "kind"])
    table.writerows(find_flower(i) for i in range(1000))

print(*path.read_text().splitlines()[:5], sep="\n")

# %% [markdown]
# ## Loading it
#
# `jpc.data.load` takes a path as well as the name of a data set. The last column is what
# to predict, unless you say otherwise with `target=`. Words become inputs of 0 and 1,
# numbers get mean 0 and standard deviation 1, and a fifth of the rows is set apart as a
# test set. Row numbers are left out.

# %%
data = jpc.data.load(path)
(x, y), (test_x, test_y) = data.train, data.test
print("features:", ", ".join(data.schema.features))
print("words:", ", ".join(word for words in data.schema.words for word in words))
print("classes:", ", ".join(data.classes))
print(
    "inputs of the network:", x.shape[1], "- to train:", len(x), "- to test:", len(test_x)
)

# %% [markdown]
# ## Training
#
# As always, you need a model, an optimiser, and `jpc.fit`. The learning rule is one option
# of the step, so a baseline is one more line.


# %%
def train(rule):
    model = jpc.make_mlp(
        jax.random.key(0), x.shape[1], 32, 3, len(data.classes), "tanh", use_bias=True
    )
    optim = optax.adam(3e-3)
    fitted = jpc.fit(
        functools.partial(jpc.make_pc_step, inference=rule, loss_id="ce"),
        dict(
            model=model,
            optim=optim,
            opt_state=optim.init(eqx.filter(model, eqx.is_array)),
        ),
        data.train,
        epochs=EPOCHS,
        batch_size=32,
        key=jax.random.key(1),
        test=data.test,
        evaluate=functools.partial(jpc.evaluate_discriminative, loss_id="ce"),
        progress=False,
    )
    return fitted.state["model"], [record["test_acc"] for record in fitted.history]


model, accuracies = train(jpc.Descent(0.1, 20))
_, baseline = train(jpc.Backprop())
common = 100 * np.max(np.bincount(test_y)) / len(test_y)
print(f"always the most common kind  {common:.1f} %")
print(f"backpropagation              {baseline[-1]:.1f} %")
print(f"predictive coding            {accuracies[-1]:.1f} %")

# %%
plt.figure(figsize=(5, 3), layout="constrained")
plt.plot(
    range(1, EPOCHS + 1), accuracies, "o-", color="#4c72b0", label="predictive coding"
)
plt.plot(range(1, EPOCHS + 1), baseline, "o-", color="#999999", label="backpropagation")
plt.axhline(common, linestyle=":", color="k", label="the most common kind")
plt.xticks(range(2, EPOCHS + 1, 2))
plt.xlabel("epochs")
plt.ylabel("test accuracy, %")
plt.legend()
plt.show()

# %% [markdown]
# Both are far above the dotted line, and close to each other: on 200 test rows one row is
# half a point.
#
# ## Its mistakes
#
# Which kinds does the network mistake for which?

# %%
outputs = jpc.feedforward_batch(model, jnp.asarray(test_x))[-1]
guesses = np.argmax(outputs, axis=1)
counts = np.zeros((3, 3), int)
np.add.at(counts, (test_y, guesses), 1)

plt.figure(figsize=(3.6, 3), layout="constrained")
plt.imshow(counts, cmap="Blues")
for i, j in np.ndindex(3, 3):
    plt.text(
        j, i, counts[i, j], ha="center", color="white" if counts[i, j] > 30 else "black"
    )
plt.xticks(range(3), data.classes)
plt.yticks(range(3), data.classes)
plt.xlabel("what the network says")
plt.ylabel("what it is")
plt.show()

# %% [markdown]
# Right answers are on the diagonal. Everything else is a mistake.
#
# ## New rows
#
# New data go through the same preparation, with the same means and the same words.
# `jpc.data.read_like` does that.

# %%
new = path.with_name("new.csv")
new.write_text(
    "petal,stem,colour,noise\n2.9,3.8,blue,12\n4.6,5.1,white,70\n3.8,5.4,red,55\n"
)
found = jpc.data.read_like(new, data.schema)
outputs = jpc.feedforward_batch(model, jnp.asarray(found[0]))[-1]
for row, chances in zip(new.read_text().splitlines()[1:], jax.nn.softmax(outputs)):
    best = int(np.argmax(chances))
    print(f"{row:20s} {data.classes[best]} ({100 * chances[best]:.0f} %)")

# %% [markdown]
# ## What to try next
#
# - Load a file of your own: a table, an `.npz`, or a folder of images ([what is
#   understood](../docs/data.md#data-of-your-own)).
# - Without Python: `jpc train --dataset flowers.csv --out runs/flowers`, and then `jpc
#   predict`. It saves checkpoints, and writes a report ([the command](../docs/cli.md)).
# - If the target is a number, the task is regression: try `target="stem"`.
