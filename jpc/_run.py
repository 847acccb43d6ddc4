import os
from pathlib import Path
from typing import Any

from ._extras import TRAIN
from ._fit.folder import check_folder
from ._types import Given


def load_run(folder: Given[str | os.PathLike]) -> Any:
    """A run of `jpc train`, or of [`jpc.fit`][] with a `report`, from its folder.
    ([The command](../cli.md#from-python) has an example with a model and data.)

    **Arguments:**

    - `folder`: that of the run.

    **Returns:**

    An object with these attributes. All but the first two are read when they are asked for, and
    `jpc.fit` leaves only these: its model is where its `checkpoints` are.

    - `path`: the folder.
    - `history`: a dictionary for each epoch, as in [`jpc.Fitted`][]; `None` for what was not a
        number.
    - `config`: every option, by table: `run.config.network.width`.
    - `data`: the [`jpc.data.Dataset`][] that it was trained on, as it was then.
    - `state`: what was trained, by name, from the newest checkpoint.
    - `model`, `skip_model`: the network of that state; the generator, if it is hybrid.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    state = dict(model=model, optim=optim, opt_state=opt_state)
    options = dict(batch_size=5, key=jr.key(0), progress=False)
    jpc.fit(jpc.make_pc_step, state, (x, y), epochs=1, report="runs/one", **options)
    history = jpc.load_run("runs/one").history
    ```
    """
    check_folder("folder", folder)
    try:
        from .cli.run import Run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError(f"load_run needs {error.name}: {TRAIN}.") from None
    return Run(Path(folder))
