import jax
import pytest


@pytest.fixture(autouse=True)
def float64():
    """Closed forms are checked to rounding, and rounding is that of float64."""
    with jax.enable_x64(True):
        yield
