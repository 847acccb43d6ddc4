from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from ._functional import call, solve
from ._init import Sizes, ffwd, init_activities_from_normal, init_activities_with_amort
from ._metrics import compute_accuracy
from ._options import FlowOptions, Options, Skips, data, setup
from ._types import Layers, Number, Scalar


def test_discriminative_pc(
    model: Layers,
    output: ArrayLike,
    input: ArrayLike,
    *,
    skip_model: Skips = None,
    **options: Unpack[Options],
) -> tuple[Scalar, Scalar]:
    """How well a network predicts: the loss and the accuracy, in percent, of a feedforward
    pass from `input` to `output`.
    """
    params = (model, skip_model)
    options_ = setup(params, options)
    preds = ffwd(options_, params, data("input", input))[-1]
    accuracy = _accuracy(output, preds, "output")
    return jnp.mean(jax.vmap(options_.loss)(data("output", output), preds)), accuracy


def _accuracy(truths: ArrayLike, preds: Array, name: str) -> Scalar:
    if preds.shape != (shape := data(name, truths).shape):
        raise ValueError(f"The {name} has shape {shape}, the network's {preds.shape}.")
    return compute_accuracy(jnp.asarray(truths), preds)


def test_generative_pc(
    model: Layers,
    output: ArrayLike,
    input: ArrayLike,
    key: PRNGKeyArray,
    layer_sizes: Sizes,
    batch_size: int,
    *,
    sigma: Number = 0.05,
    **options: Unpack[FlowOptions],
) -> tuple[Scalar, Array]:
    """How well a generative network infers and generates.

    **Arguments:**

    - `model`: the layers from the input (say a label) to the output (say an image).
    - `output`, `input`: batches of both.
    - `key`, `layer_sizes`, `batch_size`, `sigma`: random activities to start from, see
        [`jpc.init_activities_from_normal`][].
    - `options`: see [`jpc.FlowOptions`][]; `max_t1` is 500 by default.

    **Returns:**

    The accuracy, in percent, of the input that is inferred from the output; and the output
    that is predicted from the input.
    """
    start = init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)
    (accuracy,), preds = _infer_input(model, [start], output, input, options, 500.0)
    return accuracy, preds


def _infer_input(model, starts, output, input, options, max_t1):
    """The accuracy of the input inferred from each start, and the output predicted from it."""
    params = (model, None)
    options_ = setup(params, options, max_t1=max_t1)
    ends = [call(solve, options_, params, start, output, None, None)[0] for start in starts]
    preds = ffwd(options_, params, data("input", input))[-1]
    return [_accuracy(input, end[0], "input") for end in ends], preds


def test_hpc(
    generator: Layers,
    amortiser: Layers,
    output: ArrayLike,
    input: ArrayLike,
    key: PRNGKeyArray,
    layer_sizes: Sizes,
    batch_size: int,
    *,
    sigma: Number = 0.05,
    **options: Unpack[FlowOptions],
) -> tuple[Scalar, Scalar, Scalar, Array]:
    """How well a hybrid network infers and generates.

    **Arguments:** those of [`jpc.test_generative_pc`][] with the generator as the model, and
    the amortiser; `max_t1` is 300 by default.

    **Returns:**

    The accuracies, in percent, of the input that the amortiser guesses from the output, of
    the one that inference finds from that guess, and of the one that it finds from random
    activities; and the output that is predicted from the input.
    """
    guess = init_activities_with_amort(amortiser, generator, output)
    start = init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)
    starts = [guess, start]
    (hybrid, generative), preds = _infer_input(generator, starts, output, input, options, 300.0)
    return _accuracy(input, guess[0], "input"), hybrid, generative, preds


for _fn in (test_discriminative_pc, test_generative_pc, test_hpc):
    vars(_fn)["__test__"] = False  # They are named like tests, but pytest must leave them.
