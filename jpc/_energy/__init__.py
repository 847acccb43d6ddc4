from .amortised import AmortisedEnergy as AmortisedEnergy
from .base import AbstractEnergy as AbstractEnergy, AddEnergy as AddEnergy
from .loss import cross_entropy as cross_entropy, squared_error as squared_error
from .pc import PCEnergy as PCEnergy
from .penalty import (
    ActivityDecay as ActivityDecay,
    SpectralPenalty as SpectralPenalty,
    WeightDecay as WeightDecay,
)
