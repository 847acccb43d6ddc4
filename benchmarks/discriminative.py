"""The first tutorial of predictive coding: MNIST, 784-256-256-10 relu, 20 steps of inference.

    JPC_DATA_DIR=... python benchmarks/discriminative.py [--epochs 10] [--out FILE.csv]

Batches of 500, steps of 0.01 on each example's own energy, Adam 1e-3 on the weights, pixels in
[0, 1]: the settings of the widely used tutorial. Test accuracy after each epoch.
"""

import argparse
import functools as ft

import equinox as eqx
import jax.random as jr
import optax
from common import add_out, record

import jpc
import jpc.data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    add_out(parser)
    args = parser.parse_args()
    data = jpc.data.load("mnist", flatten=True, normalise=False)
    model = jpc.make_mlp(jr.key(0), 784, 256, 3, 10, "relu", use_bias=True)
    optim = optax.adam(1e-3)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    fitted = jpc.fit(
        ft.partial(jpc.make_pc_step, inference=jpc.Descent(0.01, 20)),
        dict(model=model, optim=optim, opt_state=opt_state),
        data.train,
        epochs=args.epochs,
        batch_size=500,
        key=jr.key(1),
        test=data.test,
        evaluate=jpc.evaluate_discriminative,
    )
    for epoch, told in enumerate(fitted.history, start=1):
        record(args.out, epoch=epoch, accuracy=told["test_acc"])


if __name__ == "__main__":
    main()
