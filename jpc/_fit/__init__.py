from .checkpoint import Checkpoints as Checkpoints
from .fit import (
    Fitted as Fitted,
    evaluate_discriminative as evaluate_discriminative,
    fit as fit,
    score_state as score_state,
)
from .stop import EarlyStopping as EarlyStopping
