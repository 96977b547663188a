"""Models: log densities ready to be sampled, and those that other libraries wrote."""

from parvi.models import recognised as recognised
