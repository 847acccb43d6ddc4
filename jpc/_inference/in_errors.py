import jax

from .._clamp import like
from .._energy import EPCEnergy, Unfolded, take_apart
from .._given import check_type
from .._types import Given
from .base import AbstractInference, Inferred, answered, method


class InErrors(AbstractInference):
    r"""Any other method, in the coordinates of a network's errors. It starts from the errors of
    the nodes and descends a [`jpc.EPCEnergy`][]. The states follow from where it ended,

    $$z_\ell = f_\ell(z_{\ell-1}) + e_\ell.$$

    An error at the output reaches every layer at once, while in the states it moves by one layer
    in each step. The equilibrium is the same. A [`jpc.Record`][] keeps errors.

    **Arguments:**

    - `inference`: the method, such as `jpc.Descent(0.1, 20)`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    method = jpc.InErrors(jpc.Descent(0.1, 20))
    inferred = method(energy, model, nodes, clamps)
    ```
    """

    inference: Given[AbstractInference]

    def __check_init__(self):
        check_type("inference", self.inference, AbstractInference, "jpc.Descent(0.1, 20)")

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        network, in_errors = take_apart(energy).network(params), EPCEnergy(energy)
        unfolded, free, given = Unfolded.of(network, nodes, clamps)
        start = like(nodes, jax.vmap(unfolded.coordinates)(free, given))
        ended = answered(self.inference(in_errors, params, start, clamps, record=record, key=key))
        _, errors, _ = Unfolded.of(network, ended.nodes, clamps)
        states = jax.vmap(lambda v, given: unfolded.unfold(v, given)[0])(errors, given)
        reached = like(nodes, {name: states[name] for name in errors})
        lesson = ended.lesson or (in_errors, ended.nodes)
        return Inferred(reached, ended.result, ended.stats, ended.trajectory, lesson)
