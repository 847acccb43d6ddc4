# %% [markdown]
# # Following something that moves
#
# In the other examples a network sees one image at a time. Here it sees a sequence. At each
# moment it infers from noisy glimpses where something is. That is temporal predictive
# coding. The classical answer is Kalman's filter, and you will write that one, too, to
# compare.
#
# What you will see: predictive coding removes much of the noise with a rule that is local.
# Kalman's filter does better, because it knows how sure it is. If both may look at the
# whole sequence, their answers are the same.

# %%
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jpc

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with shorter sequences.
STEPS, SEQUENCES = (20, 4) if SMALL else (80, 20)

# %% [markdown]
# ## A world
#
# Something goes around in circles, and is pushed at random. We see where it is, with a
# lot of noise:
#
# $$z_t = A z_{t-1} + w_t, \qquad x_t = C z_t + v_t.$$

# %%
turn = 0.25
A = 0.98 * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
C = np.eye(2)
NOISE = 2.0  # Of what is seen. That of the state is 1.

rng = np.random.default_rng(0)
states, seen = np.zeros((2, STEPS, SEQUENCES, 2))
z = np.zeros((SEQUENCES, 2))
for t in range(STEPS):
    z = z @ A.T + rng.normal(size=z.shape)
    states[t], seen[t] = z, z @ C.T + NOISE * rng.normal(size=z.shape)


def score(estimates):
    """The mean squared error of a coordinate."""
    return float(np.mean((np.asarray(estimates) - states) ** 2))


print(f"error of what is seen: {score(seen):.2f}")

# %% [markdown]
# ## Temporal predictive coding
#
# One layer predicts the next state, and another layer predicts what is seen. At each
# moment the state is inferred: it should be close to what the last estimate predicts, and
# it should predict what is seen. The precisions say how much each counts. They are one
# over the variances of the noise.


# %%
def linear(matrix):
    layer = eqx.nn.Linear(*matrix.shape[::-1], use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(
        lambda layer: layer.weight, layer, jnp.asarray(matrix, jnp.float32)
    )


params, start = [linear(A), linear(C)], jnp.zeros((SEQUENCES, 2))
energy = jpc.PCEnergy(precision=[1.0, NOISE**-2])
x = jnp.asarray(seen)

errors = {}
for steps in (1, 3, 10, 30):
    method = jpc.Descent(0.2, steps)
    errors[steps] = score(jpc.filter_sequence(energy, method, params, start, x))
    print(f"{steps:2d} steps of inference: error {errors[steps]:.2f}")
exact = jpc.Equilibrium(chords=2, max_steps=0)
filtered = jpc.filter_sequence(energy, exact, params, start, x)
print(f"at equilibrium:         error {score(filtered):.2f}")

# %% [markdown]
# A few steps at each moment are enough. At equilibrium there is a closed form to check
# against: the energy is quadratic in the state, so one linear equation gives its minimum.

# %%
estimate, closed = np.zeros((SEQUENCES, 2)), []
for t in range(STEPS):
    right = estimate @ A.T + seen[t] @ C / NOISE**2
    estimate = np.linalg.solve(np.eye(2) + C.T @ C / NOISE**2, right.T).T
    closed.append(estimate)
away = np.max(np.abs(np.asarray(filtered) - np.array(closed)))
print(f"largest difference to the closed form: {away:.0e}")

# %% [markdown]
# ## Kalman's filter
#
# Kalman's filter knows one thing more: how uncertain its last estimate was, a matrix $P$.

# %%
m, P, means, ahead, covariances = np.zeros((SEQUENCES, 2)), np.zeros((2, 2)), [], [], []
for t in range(STEPS):
    m, P = m @ A.T, A @ P @ A.T + np.eye(2)  # Predict.
    ahead.append((m, P))
    gain = P @ C.T @ np.linalg.inv(C @ P @ C.T + NOISE**2 * np.eye(2))
    m, P = m + (seen[t] - m @ C.T) @ gain.T, P - gain @ C @ P  # Correct.
    means.append(m)
    covariances.append(P)
print(f"predictive coding {score(filtered):.2f}, Kalman {score(means):.2f}")

# %%
figure, (left, right) = plt.subplots(
    1, 2, figsize=(7.5, 3.2), width_ratios=[2, 1], layout="constrained"
)
left.plot(seen[:, 0, 0], ".", color="#bbbbbb", label="seen")
left.plot(states[:, 0, 0], color="k", linewidth=1, label="true state")
left.plot(filtered[:, 0, 0], color="#4c72b0", label="predictive coding")
left.plot(np.array(means)[:, 0, 0], "--", color="#c44e52", label="Kalman's filter")
left.set(xlabel="time", ylabel="first coordinate", ylim=-19)
left.legend(fontsize=8, ncols=2)
right.semilogx(
    list(errors), list(errors.values()), "o-", color="#4c72b0", label="predictive coding"
)
right.axhline(score(means), linestyle="--", color="#c44e52", label="Kalman's filter")
right.set(xlabel="steps of inference", ylabel="squared error", ylim=0)
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# On the left is one of the two coordinates. Follow the black line: the glimpses (grey)
# scatter around it, and both filters are smoother. On the right, more steps of inference
# help up to a point. What remains above the dashed line is the price for treating the
# last estimate as certain.
#
# ## Looking back
#
# If the whole sequence is known, all states can be inferred together. Then nothing has to
# be treated as certain, and the answer is that of Kalman's smoother.

# %%
whole = jpc.Equilibrium(chords=2, max_steps=0, dense=2 * STEPS)
smoothed = jpc.smooth_sequence(energy, whole, params, start, x)

back = [means[-1]]
for t in reversed(range(STEPS - 1)):
    gain = covariances[t] @ A.T @ np.linalg.inv(ahead[t + 1][1])
    back.append(means[t] + (back[-1] - ahead[t + 1][0]) @ gain.T)
difference = np.max(np.abs(np.asarray(smoothed) - np.array(back[::-1])))
print(f"error after looking back {score(smoothed):.2f}")
print(f"largest difference to Kalman's smoother: {difference:.0e}")

# %% [markdown]
# ## What to try next
#
# - Make the glimpses better or worse: change `NOISE`.
# - Learn $A$ and $C$ from the sequences with `jpc.make_tpc_step`.
# - [Temporal predictive coding](../docs/variants/temporal.md) has learning from streams,
#   and how to give predictive coding Kalman's covariance.
