"""Does Euler need small steps?

    JPC_DATA_DIR=... python benchmarks/euler.py [--dataset mnist] [--hidden 10] [--t1 200]
        [--steps 2 5 20] [--batches 96] [--seeds 3] [--out FILE.csv]

Networks as in the paper's figure 1 (300 tanh units a layer, Adam 1e-3, batch 64, one epoch or
fewer batches), trained with Euler of the batch's mean energy to the same T with steps of different
size: how many gradients an inference takes, and the test accuracy, mean and standard deviation of
the seeds.
"""

import argparse

from common import add_out, device, record

from jpc.experiments._cell import Cell
from jpc.experiments._tables import best_accuracy, last_accuracy, spread
from jpc.experiments._train import run_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--hidden", type=int, default=10)
    parser.add_argument("--t1", type=float, default=200.0)
    parser.add_argument("--steps", type=float, nargs="+", default=[2.0, 5.0, 20.0])
    parser.add_argument("--batches", type=int, help="an epoch of them unless given")
    parser.add_argument("--seeds", type=int, default=3)
    add_out(parser)
    args = parser.parse_args()
    print(f"{device()}; {args.dataset}, H = {args.hidden}, T = {args.t1:g}")
    print(f"{'dt':>6s}  {'gradients':>9s}  {'highest, %':>14s}  {'last, %':>14s}")
    for dt in args.steps:
        network: dict = dict(dataset=args.dataset, hidden=args.hidden, measure="accuracy")
        training: dict = dict(solver="euler", t1=args.t1, dt=dt, steps=args.batches, points=30)
        cells = [Cell(**network, **training, seed=seed) for seed in range(args.seeds)]
        rows = [row for cell in cells for row in run_cells([cell], lambda part: None)[0]]
        (best, off), (last, _) = best_accuracy(rows), last_accuracy(rows)
        named = dict(dataset=args.dataset, hidden=args.hidden, t1=args.t1, dt=dt)
        named |= dict(batches=args.batches, seeds=args.seeds)
        record(args.out, **named, highest=best, deviation=off, last=last)
        found = [spread(*measure(rows), args.seeds) for measure in (best_accuracy, last_accuracy)]
        print(f"{dt:6g}  {args.t1 / dt + 1:9.0f}  {found[0]:>14s}  {found[1]:>14s}", flush=True)


if __name__ == "__main__":
    main()
