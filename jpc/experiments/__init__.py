"""The paper's experiments: `jpc reproduce fig1`."""

from ._figures import FIGURES as FIGURES, SIZES as SIZES, Figure as Figure
from ._run import reproduce as reproduce
