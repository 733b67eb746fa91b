"""Two runs, or two sweeps, against one another.

:mod:`opening` tells what the two things are, :mod:`sides` makes sides of them, :mod:`tables` and :mod:`words` set side
against side, :mod:`outcome` is what a caller gets, :mod:`page` writes it down. The package is not called ``compare``,
because that is the name of the function: ``simkv.compare(a, b)``.
"""

from simkv.comparison.outcome import Comparison, compare

__all__ = ["Comparison", "compare"]
