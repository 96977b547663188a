"""Which objects are models of other libraries, and what makes targets of them.

``parvi.models`` registers one function for each library. They look in ``sys.modules``, so nothing
is imported to find out: an object of a library that was never imported does not exist.
"""

from collections.abc import Callable
from typing import Any

from parvi.targets.target import AbstractTarget

Recogniser = Callable[[Any], AbstractTarget | None]
_recognisers: list[Recogniser] = []


def recognises(recogniser: Recogniser) -> Recogniser:
    """Register a function that makes a target of a model it knows, and None of anything else."""
    _recognisers.append(recogniser)
    return recogniser


def recognised(thing: Any) -> AbstractTarget | None:
    """The target of a model of another library; None for any other object."""
    targets = (recogniser(thing) for recogniser in _recognisers)
    return next((target for target in targets if target is not None), None)
