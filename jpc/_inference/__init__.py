from .base import (
    RESULTS as RESULTS,
    AbstractInference as AbstractInference,
    Inferred as Inferred,
    Record as Record,
    Trajectory as Trajectory,
    raise_if_not_finite as raise_if_not_finite,
)
from .flow import GradientFlow as GradientFlow
