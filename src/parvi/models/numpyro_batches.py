"""Mini-batches of NumPyro models. Needs NumPyro.

With a plate of N rows of which B are seen, the log density of a step is

    log prior(x) + N/B sum over the B rows of log p(row | x).

``MiniBatch`` draws the plate's indices, and the model itself picks its data by them.
"""

from collections.abc import Callable

import jax.numpy as jnp
from numpyro import handlers
from numpyro.infer.util import _unconstrain_params

from parvi.models.extras import TRACING
from parvi.models.numpyro_sites import SubsampledPlate, WithRows


class Batch:
    """The log prior and the log likelihood of some rows, as ``MiniBatch`` takes them."""

    def __init__(self, model, args, kwargs, unpacked: Callable, batch: SubsampledPlate):
        self.model, self.args, self.kwargs = model, args, kwargs
        self.unpacked, self.batch = unpacked, batch

    def log_prior(self, flat):
        """Everything outside the plate, and the Jacobian."""
        sites = self._sites(flat, jnp.zeros(1, jnp.int32))
        found = [_scaled(site, 1.0) for site, inside in sites if not inside]
        return sum((jnp.sum(each) for each in found), jnp.zeros((), flat.dtype))

    def log_likelihood(self, flat, rows):
        """The log likelihood of each row."""
        total = jnp.zeros(len(rows), flat.dtype)
        for site, inside in self._sites(flat, rows):
            if inside:
                # The plate has scaled it for all rows, and MiniBatch does so itself.
                found = _scaled(site, len(rows) / self.batch.num_rows)
                found = jnp.moveaxis(found, found.ndim + inside[0].dim, 0)
                total = total + jnp.sum(found.reshape(len(rows), -1), axis=1)
        return total

    def _sites(self, flat, rows):
        """The sample sites of a trace, each with its frame of the plate, if it is inside."""
        model = _unconstrain_params(
            WithRows(self.model, self.batch.plate, rows), self.unpacked(flat)
        )
        with TRACING:
            trace = handlers.trace(model).get_trace(*self.args, **self.kwargs)
        return [
            (site, [f for f in site["cond_indep_stack"] if f.name == self.batch.plate])
            for site in trace.values()
            if site["type"] == "sample"
        ]


def _scaled(site, factor: float):
    """The log probabilities of a site, scaled as its handlers say and by a factor."""
    value, intermediates = site["value"], site["intermediates"]
    fn = site["fn"]
    found = fn.log_prob(value, intermediates) if intermediates else fn.log_prob(value)
    return factor * (1.0 if site["scale"] is None else site["scale"]) * found
