"""Convolutions that are products of matrices on a CPU. The oracle is Equinox's."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import assert_close

import jpc
from jpc import _conv

SHAPE = (3, 9, 8)
X = jr.normal(jr.key(1), SHAPE)


def both(*args, **named):
    return [of(*args, **named, key=jr.key(0)) for of in (jpc.Conv2d, eqx.nn.Conv2d)]


def value_and_slopes(conv, x):
    parts, rest = eqx.partition(conv, eqx.is_array)
    made = lambda parts, x: jnp.sum(jnp.sin(eqx.combine(parts, rest)(x)))
    return conv(x), jax.tree.leaves(jax.grad(made, argnums=(0, 1))(parts, x))


def is_convolved(conv, x=X):
    return "conv_general_dilated" in str(jax.make_jaxpr(conv)(x))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "use_bias"),
    [
        *itertools.product([1, 3], [1, 2], [0, 1], [1], [True]),
        (2, 3, 1, 2, False),
        ((3, 2), (1, 2), ((1, 2), (0, 3)), (2, 1), True),
        (5, 1, 2, 1, False),
    ],
)
def test_values_and_derivatives_are_those_of_equinox(kernel, stride, padding, dilation, use_bias):
    ours, theirs = both(3, 4, kernel, stride, padding, dilation, use_bias=use_bias)
    assert not is_convolved(ours)
    assert is_convolved(theirs)
    assert_close(value_and_slopes(ours, X), value_and_slopes(theirs, X), rtol=1e-9)


@pytest.mark.parametrize(
    "named", [dict(groups=3), dict(padding_mode="REFLECT"), dict(padding="SAME")]
)
def test_what_is_unusual_is_left_to_equinox(named):
    ours, theirs = both(3, 6, 3, **(dict(padding=1) | named))
    assert is_convolved(ours)
    np.testing.assert_array_equal(ours(X), theirs(X))


def test_an_accelerator_convolves(monkeypatch):
    ours, theirs = both(3, 4, 3, padding=1)
    monkeypatch.setattr(_conv, "accelerated", lambda: True)
    assert is_convolved(ours)
    np.testing.assert_array_equal(ours(X), theirs(X))


def test_images_that_do_not_fit():
    conv = jpc.Conv2d(3, 4, 5, key=jr.key(0))
    with pytest.raises(ValueError, match=r"padded to \(9, 4\), is smaller than the kernel"):
        conv(X[:, :, :4])
    with pytest.raises(ValueError, match="needs to have rank 3"):
        conv(X[0])


@pytest.mark.parametrize("size", ["vgg5", "resnet10"])
def test_networks_of_the_package_have_them(size):
    model = jpc.make_cnn(jr.key(0), (1, 16, 16), 4, size=size, channels=2)
    predict = lambda x: jpc.feedforward(model, x)[-1]
    assert not is_convolved(predict, jnp.zeros((1, 16, 16)))
