from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from ._checks import checked_jit, raise_if
from ._energy import Node
from ._functional import call, solve
from ._init import Sizes, ffwd, init_activities_from_normal, init_activities_with_amort
from ._metrics import accuracy, same_shape
from ._options import (
    FlowOptions,
    Options,
    Params,
    Setup,
    Skips,
    data,
    input_data,
    network,
    problems,
    refuse_masks,
    reported_loss,
    setup,
)
from ._types import Given, Layers, Number, Scalar


def test_discriminative_pc(
    model: Given[Layers],
    output: Given[ArrayLike],
    input: Given[ArrayLike],
    *,
    skip_model: Skips = None,
    **options: Unpack[Options],
) -> tuple[Scalar, Scalar]:
    """How well a network predicts: the loss and the accuracy, in percent, of a feedforward
    pass from `input` to `output`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    labels = jnp.eye(2)[jnp.arange(5) % 2]
    loss, accuracy = jpc.test_discriminative_pc(model, labels, x)
    ```
    """
    refuse_masks("jpc.test_discriminative_pc", options)
    params = (model, skip_model)
    options_ = setup(params, options)
    return _score(options_, params, data("output", output), input_data(params, input))


@checked_jit
def _score(setup: Setup, params: Params, output: Array, input: Array) -> tuple[Scalar, Scalar]:
    output = raise_if(problems(setup, output, None), output)
    preds = ffwd(setup, params, input)[-1]
    loss = reported_loss(setup, network(setup, params, input)[0])
    percent = accuracy(*same_shape(output, preds))
    return jnp.mean(jax.vmap(Node(loss=loss).given_cost)(preds, output)), percent


def test_generative_pc(
    model: Given[Layers],
    output: Given[ArrayLike],
    input: Given[ArrayLike],
    key: Given[PRNGKeyArray],
    layer_sizes: Sizes,
    batch_size: Given[int],
    *,
    sigma: Given[Number] = 0.05,
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

    **Example**, after [these lines](index.md#the-examples):

    ```python
    labels = jnp.eye(4)[jnp.arange(5) % 4]
    named = dict(key=jr.key(0), layer_sizes=[4, 8, 8, 2], batch_size=5, max_t1=5)
    accuracy, outputs = jpc.test_generative_pc(model, y, labels, **named)
    ```
    """
    refuse_masks("jpc.test_generative_pc", options)
    start = init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)
    (percent,), preds = _infer_input(model, [start], output, input, options, 500.0)
    return percent, preds


def _infer_input(model, starts, output, input, options, max_t1):
    """The accuracy of the input inferred from each start, and the output predicted from it."""
    params = (model, None)
    options_ = setup(params, options, max_t1=max_t1)
    preds = ffwd(options_, params, input := input_data(params, input))[-1]
    ends = [call(solve, options_, params, start, output, None, None)[0] for start in starts]
    return [accuracy(*same_shape(input, end[0])) for end in ends], preds


def test_hpc(
    generator: Given[Layers],
    amortiser: Given[Layers],
    output: Given[ArrayLike],
    input: Given[ArrayLike],
    key: Given[PRNGKeyArray],
    layer_sizes: Sizes,
    batch_size: Given[int],
    *,
    sigma: Given[Number] = 0.05,
    **options: Unpack[FlowOptions],
) -> tuple[Scalar, Scalar, Scalar, Array]:
    """How well a hybrid network infers and generates.

    **Arguments:** those of [`jpc.test_generative_pc`][] with the generator as the model, and
    the amortiser; `max_t1` is 300 by default.

    **Returns:**

    The accuracies, in percent, of the input that the amortiser guesses from the output, of
    the one that inference finds from that guess, and of the one that it finds from random
    activities; and the output that is predicted from the input.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    labels = jnp.eye(4)[jnp.arange(5) % 4]
    named = dict(key=jr.key(0), layer_sizes=[4, 8, 8, 2], batch_size=5, max_t1=5)
    found = jpc.test_hpc(model, back, y, labels, **named)
    ```
    """
    refuse_masks("jpc.test_hpc", options)
    output, input = data("output", output), data("input", input)
    guess = init_activities_with_amort(amortiser, generator, output)
    start = init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)
    starts = [guess, start]
    (hybrid, generative), preds = _infer_input(generator, starts, output, input, options, 300.0)
    return accuracy(*same_shape(input, guess[0])), hybrid, generative, preds


for _fn in (test_discriminative_pc, test_generative_pc, test_hpc):
    vars(_fn)["__test__"] = False  # They are named like tests, but pytest must leave them.
