from .backprop import ZIL as ZIL, Backprop as Backprop, FixedPrediction as FixedPrediction
from .base import (
    RESULTS as RESULTS,
    AbstractInference as AbstractInference,
    Inferred as Inferred,
    Record as Record,
    Trajectory as Trajectory,
    finish as finish,
)
from .descent import Descent as Descent
from .equilibrium import Equilibrium as Equilibrium
from .flow import GradientFlow as GradientFlow
from .forward import Forward as Forward
from .in_errors import InErrors as InErrors
from .langevin import Langevin as Langevin
from .minimise import Minimise as Minimise
from .nudged import Nudged as Nudged, check_infers as check_infers
