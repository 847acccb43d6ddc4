# %% [markdown]
# # A research loop
#
# A question, a sweep, a test whether the difference is real, and a figure for a paper.
# This example is a small piece of research from beginning to end, in a form that you can
# grow.
#
# The question: *how many steps of inference does a network of six layers need?* What you
# will see: some settings really differ, and for others five seeds cannot tell.

# %%
import functools
import json
import os
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from scipy.stats import ttest_ind

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer runs.
SEEDS, EPOCHS = (2, 1) if SMALL else (5, 5)
STEPS = (1, 20) if SMALL else (1, 5, 20, 80)
folder = Path(tempfile.mkdtemp())  # Yours would be a folder that stays.

# %% [markdown]
# ## 1. Decide before you look
#
# Choose by validation data, and touch the test set only once, at the end. `validation=`
# sets some of the training data apart, always the same examples. A seed decides the
# weights and the order of the data.

# %%
digits = jpc.data.load("digits", flatten=True, validation=200)
optim = optax.adam(1e-3)


@functools.cache
def find_step(steps):
    """A step of training, the same for all seeds, so that it compiles once."""
    return functools.partial(
        jpc.make_pc_step, inference=jpc.Descent(0.1, steps, throw=False)
    )


def run(steps, seed):
    """What came out of one run, as plain numbers."""
    model = jpc.make_mlp(jax.random.key(seed), 64, 32, 6, 10, "tanh")
    fitted = jpc.fit(
        find_step(steps),
        dict(
            model=model,
            optim=optim,
            opt_state=optim.init(eqx.filter(model, eqx.is_array)),
        ),
        digits.train,
        epochs=EPOCHS,
        batch_size=32,
        key=jax.random.key(100 + seed),
        validation=digits.validation,
        test=digits.test,
        evaluate=jpc.evaluate_discriminative,
        progress=False,
    )
    last = fitted.history[-1]
    return dict(steps=steps, seed=seed, val=last["val_acc"], test=last["test_acc"])


# %% [markdown]
# ## 2. Run, and write everything down
#
# Write one line for each run, as soon as it is done. If the loop is killed, start it
# again, and it continues where it stopped.

# %%
path = folder / "runs.jsonl"
path.touch()
known = [json.loads(line) for line in path.read_text().splitlines()]
done = {(row["steps"], row["seed"]) for row in known}
for steps in STEPS:
    for seed in range(SEEDS):
        if (steps, seed) not in done:
            with path.open("a") as file:
                file.write(json.dumps(run(steps, seed)) + "\n")

rows = [json.loads(line) for line in path.read_text().splitlines()]
print(len(rows), "runs; the first:", {k: round(v, 2) for k, v in rows[0].items()})

# %% [markdown]
# ## 3. Look at the runs
#
# Here are the means, and the standard deviations of the runs.

# %%
val = {n: np.array([row["val"] for row in rows if row["steps"] == n]) for n in STEPS}
for n, values in val.items():
    print(f"{n:2d} steps: {values.mean():.2f} ± {values.std(ddof=1):.2f} %")

# %% [markdown]
# ## 4. Is the difference real?
#
# Compare the best setting with each of the others. Welch's test says how likely such a
# difference would be by chance. Since there are several comparisons, Holm's correction
# raises the bar: the smallest probability counts as many times as there are comparisons,
# the next one once less, and so on.


# %%
def holm(chances):
    """Corrected for there being several of them."""
    order, corrected, least = np.argsort(chances), np.zeros(len(chances)), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(chances) - rank) * chances[i]))
        corrected[i] = least
    return corrected


best = max(val, key=lambda n: val[n].mean())
others = [n for n in STEPS if n != best]
chances = [ttest_ind(val[best], val[n], equal_var=False).pvalue for n in others]
corrected = dict(zip(others, holm(np.array(chances))))
print(f"the best is {best} steps")
for n, chance in corrected.items():
    points = val[best].mean() - val[n].mean()
    word = "different" if chance < 0.05 else "cannot tell"
    print(f"  against {n:2d}: {points:+.2f} points, by chance {chance:.3f}: {word}")

# %% [markdown]
# "Cannot tell" is a result, too. It does not say that two settings are the same. It says
# that these runs are not enough to know.
#
# ## 5. The figure
#
# The figure has the width of one column, with a font that is still legible there, and is
# saved as a vector file.

# %%
figure, axis = plt.subplots(figsize=(3.4, 2.6), layout="constrained")
for i, (n, values) in enumerate(val.items()):
    axis.plot(np.full(len(values), i), values, "o", color="#8fabd3", markersize=4)
    axis.plot([i - 0.25, i + 0.25], [values.mean()] * 2, color="#1f3a63", linewidth=2)
    if corrected.get(n, 1) < 0.05:
        axis.annotate("*", (i, values.max()), ha="center", va="bottom", fontsize=12)
axis.set_xticks(range(len(val)), list(val))
axis.set(xlabel="steps of inference", ylabel="validation accuracy, %")
axis.margins(y=0.15)
figure.savefig(folder / "steps.pdf")
plt.show()

# %% [markdown]
# Dots are runs and lines are means. A star marks settings that differ from the best.
#
# ## 6. The test set, once
#
# Evaluate the test set now, and only for the setting that you chose:

# %%
test = np.array([row["test"] for row in rows if row["steps"] == best])
mean, deviation = test.mean(), test.std(ddof=1)
print(f"{best} steps: {mean:.2f} ± {deviation:.2f} % of the test images, {SEEDS} seeds")

# %% [markdown]
# ## What to try next
#
# - Take ten seeds instead of five. Delete nothing: the loop only runs the new ones.
# - Each setting deserves a learning rate of its own. Add it to the sweep, and choose by
#   validation.
# - `jpc sweep` and `jpc compare` do all of this from the command line, with a report
#   ([the command](../docs/cli.md)).
