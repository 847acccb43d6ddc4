import jax

from .._clamp import like
from .._energy import EPCEnergy, Unfolded, take_apart
from .._given import check_type
from .._types import Given
from .base import AbstractInference, Inferred, method


class InErrors(AbstractInference):
    r"""Another method, in the coordinates of a network's errors: it starts from those of the
    nodes, descends a [`jpc.EPCEnergy`][], and the states follow from where it ended,

    $$z_\ell = f_\ell(z_{\ell-1}) + e_\ell.$$

    A signal reaches every layer at once, where in the states it goes one layer a step. The
    equilibrium is the same. What is recorded are errors.

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
        ended = self.inference(in_errors, params, start, clamps, record=record, key=key)
        _, errors, _ = Unfolded.of(network, ended.nodes, clamps)
        states = jax.vmap(lambda v, given: unfolded.unfold(v, given)[0])(errors, given)
        reached = like(nodes, {name: states[name] for name in errors})
        lesson = ended.lesson or (in_errors, ended.nodes)
        return Inferred(reached, ended.result, ended.stats, ended.trajectory, lesson)
