"""What a trainer's times say of the cost model: fitted coefficients, their error, and who is slow.

`nnls.py` and `fit.py` find non-negative seconds for each unit of work in spite of outliers; `drift.py` tells
when they no longer hold, for all or for one rank; `calibrator.py` puts the three together over a bounded
history; `no_harm.py` decides whether a plan made by them may be used. Pure: no clock, no thread, no file.
"""

from dataloader_balancers.calibrate.calibrator import Calibrator, Observation
from dataloader_balancers.calibrate.drift import Cusum, SlowRanks
from dataloader_balancers.calibrate.fit import Fit, fit_seconds
from dataloader_balancers.calibrate.nnls import nnls
from dataloader_balancers.calibrate.no_harm import no_harm

__all__ = ["Calibrator", "Cusum", "Fit", "Observation", "SlowRanks", "fit_seconds", "nnls", "no_harm"]
