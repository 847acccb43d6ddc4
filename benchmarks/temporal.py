"""Temporal predictive coding beside Kalman's filter and smoother: tracking, a linear-Gaussian
system, learning it, and learning it from streams. Prints the tables of docs/variants/temporal.md.

    python benchmarks/temporal.py --size full --picture docs/results/variants/temporal.png
        --out docs/results/variants/temporal.csv
"""

import argparse
import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from common import add_out, record

import jpc

# What torch.manual_seed(200); torch.randn(3, 3) gives on a CPU, to eight digits.
TRACKING_C = np.array(
    [
        [0.014368961, -2.6372979, -0.43314537],
        [0.4472149, 1.9158707, -0.49029765],
        [0.3366436, 0.007837693, 1.5306402],
    ]
)
SIZES = dict(
    quick=dict(steps=200, seeds=4, sequences=32, epochs=20),
    full=dict(steps=1000, seeds=10, sequences=256, epochs=60),
)
COUNTS = (1, 5, 10, 20)
EXACT = jpc.Equilibrium(chords=2, max_steps=0)


def linear(matrix):
    layer = eqx.nn.Linear(*matrix.shape[::-1], use_bias=False, key=jr.key(0))
    return eqx.tree_at(lambda layer: layer.weight, layer, jnp.asarray(matrix))


def simulate(A, C, seeds, steps):
    """States and observations, [time, batch, ...], from zero on and with noise of variance 1."""
    states, seen = np.zeros((steps, len(seeds), len(A))), np.zeros((steps, len(seeds), len(C)))
    for i, seed in enumerate(seeds):
        rng, z = np.random.default_rng(seed), np.zeros(len(A))
        for t in range(steps):
            z = A @ z + rng.normal(size=len(A))
            states[t, i], seen[t, i] = z, C @ z + rng.normal(size=len(C))
    return states, seen


def kalman(A, C, x):
    """The filter, the smoother and the predictive covariance at the end, for Q = R = I and a
    start that is known. `x` is [time, batch, ...].
    """
    Q, R = np.eye(len(A)), np.eye(len(C))
    m, P = np.zeros((x.shape[1], len(A))), np.zeros_like(Q)
    means, covs, priors = [], [], []
    for seen in x:
        m, P = m @ A.T, A @ P @ A.T + Q
        priors.append((m, P))
        K = P @ C.T @ np.linalg.inv(C @ P @ C.T + R)
        m, P = m + (seen - m @ C.T) @ K.T, P - K @ C @ P
        means.append(m)
        covs.append(P)
    smooth = [means[-1]]
    for t in reversed(range(len(x) - 1)):
        G = covs[t] @ A.T @ np.linalg.inv(priors[t + 1][1])
        smooth.append(means[t] + (smooth[-1] - priors[t + 1][0]) @ G.T)
    return np.array(means), np.array(smooth[::-1]), priors[-1][1]


def closed_form(A, C, x):
    """The equilibrium of each step, (I + C'C)^-1 (C'x + A z_before)."""
    z, estimates = np.zeros((x.shape[1], len(A))), []
    for seen in x:
        z = np.linalg.solve(np.eye(len(A)) + C.T @ C, (seen @ C + z @ A.T).T).T
        estimates.append(z)
    return np.array(estimates)


def filters(A, C, x):
    """The estimates of temporal predictive coding by a few steps of descent, and exactly."""
    params, start = [linear(A), linear(C)], np.zeros((x.shape[1], len(A)))
    methods = {f"tPC, steps of 0.1: {n}": jpc.Descent(optax.sgd(0.1), n) for n in COUNTS}
    methods["tPC at equilibrium"] = EXACT
    infer = ft.partial(jpc.filter_sequence, jpc.PCEnergy(), params=params, start=start)
    return {name: np.asarray(infer(m, observations=x)) for name, m in methods.items()}


def whitened(A, C, x, P):
    """tPC with the predictive covariance P: in coordinates in which P is one."""
    root = np.linalg.cholesky(P)
    params = [linear(np.linalg.solve(root, A @ root)), linear(C @ root)]
    start = np.zeros((x.shape[1], len(A)))
    return np.asarray(jpc.filter_sequence(jpc.PCEnergy(), EXACT, params, start, x)) @ root.T


def score(estimates, states):
    """The squared error of the state: its mean over time, for each seed."""
    return np.mean(np.sum((estimates - states) ** 2, axis=-1), axis=0)


def show(out, title, rows, form="{:.2f}"):
    """Prints a table of means and standard deviations, and adds it to a csv."""
    print(f"\n{title}\n")
    task = title.partition(",")[0]
    for name, values in rows.items():
        mean, spread = float(np.mean(values)), float(np.std(values))
        record(out, task=task, row=name, mean=mean, deviation=spread)
        numbers = [mean, spread] if np.size(values) > 1 else [mean]
        print(f"| {name} | {' +- '.join(map(form.format, numbers))} |")


def constant_acceleration(dt=1e-3):
    """How position, velocity and acceleration move."""
    return np.array([[1, dt, dt**2 / 2], [0, 1, dt], [0, 0, 1]])


def track(out, steps, seeds):
    """The tracking task."""
    A = constant_acceleration()
    states, x = simulate(A, TRACKING_C, range(seeds), steps)
    means, _, P = kalman(A, TRACKING_C, x)
    found = {"Kalman filter": means} | filters(A, TRACKING_C, x)
    found["tPC with Kalman's covariance"] = whitened(A, TRACKING_C, x, P)
    rows = {name: score(z, states) for name, z in found.items()}
    show(out, f"Tracking, {steps} steps, {seeds} seeds: squared error of the state", rows)
    return states, found


def system():
    """A linear-Gaussian system of 3 states and 3 observations."""
    rng = np.random.default_rng(0)
    A = 0.95 * np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return A, rng.normal(size=(3, 3))


def gaussian(out, steps=60, sequences=10):
    """Filtering and smoothing of short sequences."""
    A, C = system()
    states, x = simulate(A, C, range(sequences), steps)
    means, smooth, P = kalman(A, C, x)
    found = {"Kalman filter": means} | filters(A, C, x)
    found["tPC with Kalman's covariance"] = white = whitened(A, C, x, P)
    found["Kalman's smoother"] = smooth
    params, start = [linear(A), linear(C)], np.zeros((sequences, 3))
    method = jpc.Equilibrium(chords=2, max_steps=0, dense=3 * steps)
    found["tPC, smoothing"] = jpc.smooth_sequence(jpc.PCEnergy(), method, params, start, x)
    rows = {name: score(z, states) for name, z in found.items()}
    show(out, f"Linear-Gaussian, {steps} steps, {sequences} sequences: squared error", rows)
    worst = lambda a, b: np.max(np.abs(a - b))
    exact = found["tPC at equilibrium"]
    rows = {
        "equilibrium, against its closed form": worst(exact, closed_form(A, C, x)),
        "smoothing, against Kalman's smoother": worst(found["tPC, smoothing"], smooth),
        "Kalman's covariance, against Kalman's filter, after 30 steps": worst(
            white[30:], means[30:]
        ),
    }
    show(out, "Largest difference", rows, "{:.0e}")


def ahead(params, x):
    """The mean squared error of observations that are predicted one step ahead."""
    A, C = (np.asarray(layer.weight) for layer in params)
    return np.mean((closed_form(A, C, x)[:-1] @ A.T @ C.T - x[1:]) ** 2)


def learn(out, sequences, epochs, steps=60, piece=5):
    """Learning the system from whole sequences, and from pieces of them."""
    A, C = system()
    _, x = simulate(A, C, range(100, 100 + sequences), steps)
    _, test = simulate(A, C, range(100), steps)
    rng, batch = np.random.default_rng(1), sequences // 8
    params = [linear(0.3 * np.eye(3)), linear(0.5 * rng.normal(size=(3, 3)))]
    whole = x.swapaxes(0, 1)
    pieces, first = cut(whole, piece, batch)
    nothing = np.zeros((len(pieces), 3))
    anew = jpc.Masked(jnp.asarray(nothing), jnp.broadcast_to(first[:, None], nothing.shape))
    train, plain = ft.partial(fit, params, epochs, batch), jpc.PCEnergy()
    decay, start = plain + jpc.WeightDecay(0.3), np.zeros((sequences, 3))
    carry = dict(carry=np.zeros((batch, 3)))
    fitted = {
        "whole sequences": train(plain, (start, whole)),
        "weight decay 0.3": train(decay, (start, whole)),
        f"the same, pieces of {piece}, carried on": train(decay, (anew, pieces), **carry),
        f"the same, pieces of {piece}, each from zero": train(decay, (nothing, pieces)),
    }
    rows = {"before": ahead(params, test)}
    rows |= {name: ahead(f.state["params"], test) for name, f in fitted.items()}
    rows["the system itself"] = ahead([linear(A), linear(C)], test)
    show(out, f"Learning, {sequences} sequences, {epochs} epochs: error one step ahead", rows)
    history = fitted["whole sequences"].history
    energies = {
        f"{part}, {when}": history[i]["energies"][j]
        for i, when in ((0, "first epoch"), (-1, "last epoch"))
        for j, part in enumerate(("state", "observation"))
    }
    show(out, "Energies", energies)


def fit(params, epochs, batch, energy, data, **more):
    optim = optax.adam(1e-2)
    state = dict(params=params, optim=optim, opt_state=optim.init(params)) | more
    step = ft.partial(jpc.make_tpc_step, energy=energy, inference=EXACT)
    options = dict(epochs=epochs, batch_size=batch, key=jr.key(0), metrics=("energies",))
    return jpc.fit(step, state, data, shuffle=False, progress=False, **options)


def cut(sequences, piece, batch):
    """Sequences, [batch, time, ...], in pieces: of each batch of sequences all first pieces, then
    all second ones, and so on. And which pieces are the first of their sequence.
    """
    n, _, *shape = sequences.shape
    pieces = sequences.reshape(n // batch, batch, -1, piece, *shape).swapaxes(1, 2)
    first = np.broadcast_to(np.arange(pieces.shape[1])[:, None] == 0, pieces.shape[:3])
    return pieces.reshape(-1, piece, *shape), first.reshape(-1)


def draw(path, states, found):
    """The error of tracking, and a piece of the way of one state."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    errors = {name: score(z, states) for name, z in found.items()}
    shown = [errors[f"tPC, steps of 0.1: {n}"] for n in COUNTS]
    left.errorbar(COUNTS, np.mean(shown, 1), np.std(shown, 1), marker="o", label="tPC")
    for name, style in (("tPC at equilibrium", "--"), ("Kalman filter", ":")):
        left.axhline(np.mean(errors[name]), linestyle=style, color="k", label=name)
    left.set(xlabel="steps of inference", ylabel="squared error of the state", yscale="log")
    left.set_yticks([2, 5, 10, 20], labels=["2", "5", "10", "20"], minor=False)
    left.yaxis.minorticks_off()
    right.plot(states[:100, 0, 0], color="k", label="state")
    for name in ("tPC, steps of 0.1: 1", "tPC at equilibrium", "Kalman filter"):
        right.plot(found[name][:100, 0, 0], linewidth=1, label=name)
    right.set(xlabel="time", ylabel="position")
    for axes in (left, right):
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--picture", help="where to draw one")
    add_out(parser)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    size = SIZES[args.size]
    tracked = track(args.out, size["steps"], size["seeds"])
    if args.picture:
        draw(args.picture, *tracked)
    gaussian(args.out)
    learn(args.out, size["sequences"], size["epochs"])


if __name__ == "__main__":
    main()
