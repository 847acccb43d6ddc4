from collections.abc import Callable, Sequence
from typing import Unpack

import diffrax as dfx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from ._functional import HEUN, PID, choose_inference, solve_inference
from ._inference import AbstractInference
from ._init import (
    init_activities_from_normal,
    init_activities_with_amort,
    init_activities_with_ffwd,
)
from ._metrics import compute_accuracy
from ._options import Options, data, setup
from ._types import Layers, Number, Scalar


def test_discriminative_pc(
    model: Layers,
    output: ArrayLike,
    input: ArrayLike,
    *,
    skip_model: Sequence[Callable | None] | None = None,
    **options: Unpack[Options],
) -> tuple[Scalar, Scalar]:
    """How well a network predicts: the loss and the accuracy, in percent, of a feedforward
    pass from `input` to `output`.
    """
    preds = init_activities_with_ffwd(model, input, skip_model=skip_model, **options)[-1]
    output = _like(preds, data("output", output), "output")
    loss = setup(model, options).loss
    return jnp.mean(jax.vmap(loss)(output, preds)), compute_accuracy(output, preds)


def _like(preds: Array, truths: Array, name: str) -> Array:
    if preds.shape != truths.shape:
        raise ValueError(
            f"The {name} has shape {truths.shape}, but the network predicts {preds.shape}."
        )
    return truths


def test_generative_pc(
    model: Layers,
    output: ArrayLike,
    input: ArrayLike,
    key: PRNGKeyArray,
    layer_sizes: Sequence[int | tuple[int, ...]],
    batch_size: int,
    *,
    sigma: Number = 0.05,
    ode_solver: dfx.AbstractSolver = HEUN,
    max_t1: Number = 500,
    dt: Number | None = None,
    stepsize_controller: dfx.AbstractStepSizeController = PID,
    inference: AbstractInference | None = None,
    **options: Unpack[Options],
) -> tuple[Scalar, Array]:
    """How well a generative network infers and generates.

    **Arguments:**

    - `model`: the layers from the input (say a label) to the output (say an image).
    - `output`, `input`: batches of both.
    - `key`, `layer_sizes`, `batch_size`, `sigma`: random activities to start from, see
        [`jpc.init_activities_from_normal`][].
    - the others: as in [`jpc.make_pc_step`][].

    **Returns:**

    The accuracy, in percent, of the input that is inferred from the output; and the output
    that is predicted from the input.
    """
    flow = (ode_solver, max_t1, dt, stepsize_controller)
    inference = choose_inference(inference, options, *flow, default_t1=500)
    start = init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)
    accuracy = _accuracy(model, start, output, input, inference, options)
    return accuracy, init_activities_with_ffwd(model, input, **options)[-1]


def _accuracy(model, start, output, input, inference, options) -> Scalar:
    """Of the input that is inferred from the output."""
    options = {name: value for name, value in options.items() if name != "reduction"}
    inferred = solve_inference((model, None), start, output, inference=inference, **options)[0]
    return compute_accuracy(_like(inferred, data("input", input), "input"), inferred)


def test_hpc(
    generator: Layers,
    amortiser: Layers,
    output: ArrayLike,
    input: ArrayLike,
    key: PRNGKeyArray,
    layer_sizes: Sequence[int | tuple[int, ...]],
    batch_size: int,
    *,
    sigma: Number = 0.05,
    ode_solver: dfx.AbstractSolver = HEUN,
    max_t1: Number = 300,
    dt: Number | None = None,
    stepsize_controller: dfx.AbstractStepSizeController = PID,
    inference: AbstractInference | None = None,
    **options: Unpack[Options],
) -> tuple[Scalar, Scalar, Scalar, Array]:
    """How well a hybrid network infers and generates.

    **Arguments:** those of [`jpc.test_generative_pc`][] with the generator as the model, and
    the amortiser.

    **Returns:**

    The accuracies, in percent, of the input that the amortiser guesses from the output, of
    the one that inference finds from that guess, and of the one that it finds from random
    activities; and the output that is predicted from the input.
    """
    flow = (ode_solver, max_t1, dt, stepsize_controller)
    inference = choose_inference(inference, options, *flow, default_t1=300)
    guess = init_activities_with_amort(amortiser, generator, output)
    start = init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)
    amortised = compute_accuracy(_like(guess[0], data("input", input), "input"), guess[0])
    hybrid, generative = (
        _accuracy(generator, activities, output, input, inference, options)
        for activities in (guess, start)
    )
    preds = init_activities_with_ffwd(generator, input, **options)[-1]
    return amortised, hybrid, generative, preds


for _fn in (test_discriminative_pc, test_generative_pc, test_hpc):
    _fn.__test__ = False  # pyright: ignore  # They are named like tests; pytest leaves them alone.
