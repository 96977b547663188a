"""Finds the coupling that straightens a funnel or a bent ridge, from particles and their scores.

Take some coordinates as leaders, and let the others be Gaussian given them, with covariance
C(t) = W exp(2 g(t)) W^T, a diagonal matrix in the middle. This holds exactly for the groups of a
linear hierarchy given one scale, whose precision is A + B / tau^2. The scores then give all parts
of it:

1. If q = -C^-1 (y - m) is linear in y, the geometric mean of Cov(y) and Cov(q)^-1 is C, whatever
   the distribution of y. It is found in the lower and the upper half of each leader, and W
   diagonalises all of these together (Cardoso & Souloumiac 1996).
2. In the coordinates of W, exp(2 g) q^2 + exp(-2 g) (y - m)^2 has its smallest mean at the right g:
   a convex problem, for particles that need not be at the target.
3. y + exp(2 g) q is the mean m itself, so m is found by least squares.

*Bentness* is log det Cov(x) + log det E[s s^T]: 0 for a Gaussian, positive otherwise, and the same
in all affine frames. One half of the particles makes a coupling and the other half judges it by
this number; all particles make the one that is used. Candidates are the coordinates along which
the scores of others bend most.

The fits are NumPy on the host: matrices of every size would each have to be compiled.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from parvi.evaluation import quickly
from parvi.geometry.coupling import SHARPNESS, Coupling

# Fewest particles per dimension (a quarter of them give a covariance, which takes 1.5 per
# dimension), most dimensions, and most particles that are looked at.
_FEWEST, _MOST_DIMENSIONS, _MOST_PARTICLES = 6, 128, 8192
# The sum of squares of the scores, in the particles' frame, that has to bend along a candidate; and
# their number. Regressions have up to 0.3, hierarchies 0.5 to 1.5, the funnel 1.9.
_BENDS, _MOST_CANDIDATES = 0.4, 4
# Most leaders, and the quantiles at which scales bend along them.
_MOST_LEADERS, _KNOTS = 3, (0.3, 0.7)
# Rounds of scale and mean; the most Newton steps, their bound, and the ridge in particles.
_NUM_ROUNDS, _NUM_STEPS, _SMALL, _RIDGE = 3, 30, 1e-5, 1.0
# A mean bends by itself, not only with its scale, if that halves its error and the error counts.
_HALVED, _COUNTS = 0.5, 0.05
# A log scale with a standard deviation below this is only the noise of its fit.
_STEADY = 0.2
# The fall of the bentness that the other half must show. Stages in new coordinates have to be
# compiled, and a smaller fall is not worth that: regressions have up to 0.7, hierarchies 2 to 4.
_LEAST_GAIN = 1.0


def straightened(
    particles: Float[np.ndarray, "n d"],
    scores: Float[np.ndarray, "n d"],
    present: Coupling | None = None,
) -> Coupling | None:
    """A coupling in which the particles are more Gaussian than they are in x, if there is one.

    It must be better than the ``present`` one, too. Particles and scores are those in x.
    """
    num, dim = particles.shape
    if dim < 2 or dim > _MOST_DIMENSIONS or num < _FEWEST * dim:
        return None
    every = -(-num // _MOST_PARTICLES)
    x, s = (np.asarray(rows[::every], np.float64) for rows in (particles, scores))
    if not (np.isfinite(x).all() and np.isfinite(s).all() and (x.std(axis=0) > 0).all()):
        return None
    # Scores of 1e200 are finite, but their squares are not.
    with np.errstate(all="ignore"):
        try:
            return _judged(x, s, present)
        except np.linalg.LinAlgError:
            return None


def _judged(x, s, present) -> Coupling | None:
    """The coupling by which one half of the particles makes the other more Gaussian."""
    candidates = _candidates(x, s)
    made, rest = (x[::2], s[::2]), (x[1::2], s[1::2])
    leaders: list[int] = []
    least = bentness(*rest)
    # A leader without followers straightens nothing.
    while len(leaders) < min(_MOST_LEADERS, x.shape[1] // 2):
        others = [k for k in candidates if k not in leaders]
        if not others:
            break
        tried = {k: bentness(*seen(fitted(*made, [*leaders, k]), *rest)) for k in others}
        best = min(tried, key=tried.__getitem__)
        if not tried[best] < least - _LEAST_GAIN:
            break
        least = tried[best]
        leaders.append(best)
    if not leaders or (present is not None and not least < bentness(*seen(present, *rest))):
        return None
    return fitted(x, s, leaders)


def bentness(x: Float[np.ndarray, "n d"], s: Float[np.ndarray, "n d"]) -> float:
    """log det Cov(x) + log det E[s s^T]: 0 for a Gaussian, positive otherwise."""
    covariance, fisher = np.cov(x.T), s.T @ s / len(s)
    return float(np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(fisher)[1])


def seen(coupling: Coupling, x, s) -> tuple[np.ndarray, np.ndarray]:
    """The particles and scores in the coordinates of a coupling."""
    z, scores = _entered(coupling, x, s)
    return np.asarray(z, np.float64), np.asarray(scores, np.float64)


@quickly
def _entered(coupling, x, s):
    return jax.vmap(coupling.entered)(x, s)


def _candidates(x, s) -> list[int]:
    """The coordinates along which the scores bend most.

    In the particles' own frame, the residual of each score after a linear regression on the
    particles is compared with z_j u_k, which would come from a scale that follows coordinate k,
    and with u_k^2, which would come from a mean. The noise of so many products is subtracted.
    """
    num, dim = x.shape
    u = (x - x.mean(axis=0)) / x.std(axis=0)
    factor = np.linalg.cholesky(np.cov(x.T).reshape(dim, dim))
    z, pulls = np.linalg.solve(factor, (x - x.mean(axis=0)).T).T, (s - s.mean(axis=0)) @ factor
    left = pulls - z @ np.linalg.lstsq(z, pulls, rcond=None)[0]
    noise = np.sum(left**2) / num**2
    bends = np.zeros(dim)
    for k in range(dim):
        for values in (z * u[:, [k]], u[:, [k]] ** 2):
            values = values - values.mean(axis=0)
            shares = (left * values).mean(axis=0) / (values.std(axis=0) + np.finfo(float).tiny)
            bends[k] = max(bends[k], float(np.sum(shares**2)) - noise)
    order = np.argsort(-bends)[:_MOST_CANDIDATES]
    return [int(k) for k in order if bends[k] > _BENDS]


def fitted(
    x: Float[np.ndarray, "n d"], s: Float[np.ndarray, "n d"], leaders: list[int]
) -> Coupling:
    """The coupling of these particles in which all other coordinates follow the leaders."""
    dim, centre, spread = x.shape[1], x.mean(axis=0), x.std(axis=0)
    rest = np.delete(np.arange(dim), leaders)
    t = ((x - centre) / spread)[:, leaders]
    y, q = (x - centre)[:, rest] / spread[rest], s[:, rest] * spread[rest]
    w = _common_axes(t, y, q)
    y, q = y @ np.linalg.inv(w).T, q @ w
    knots = np.quantile(t, _KNOTS, axis=0)
    features = _features(t, knots)
    # The first mean is that of particles whose scale does not depend on the leaders.
    bends = np.column_stack([np.ones(len(t)), _polynomial(t)])
    means = bends @ np.linalg.lstsq(bends, y + q, rcond=None)[0]
    for _ in range(_NUM_ROUNDS):
        scales = _log_scales(features, q, y - means)
        weights, means = _mean_weights(t, y, q, np.exp(features @ scales))
    return _packed(centre, spread, leaders, rest, knots, spread[rest, None] * w, scales, weights)


def _common_axes(t, y, q) -> Float[np.ndarray, "p p"]:
    """W, whose columns diagonalise the covariances in both halves of every leader together."""
    found, tiny = [], 1e-6 * np.eye(y.shape[1])
    for column in t.T:
        for part in (column <= np.median(column), column > np.median(column)):
            linear = np.column_stack([np.ones(part.sum()), t[part]])
            both = np.column_stack([y[part], q[part]])
            both = both - linear @ np.linalg.lstsq(linear, both, rcond=None)[0]
            wide, steep = np.split(both, 2, axis=1)
            covariance, fisher = (r.T @ r / len(r) + tiny for r in (wide, steep))
            found.append(_geometric_mean(covariance, fisher))
    factor = np.linalg.cholesky(np.mean(found, axis=0))
    inverse = np.linalg.inv(factor)
    return factor @ _jointly_diagonal(np.stack([inverse @ c @ inverse.T for c in found]))


def _geometric_mean(wide, steep):
    """The positive solution C of C steep C = wide."""
    root, inverse = _roots(steep)
    return inverse @ _roots(root @ wide @ root)[0] @ inverse


def _roots(matrix):
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    roots = np.sqrt(np.maximum(values, 1e-12))
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def _jointly_diagonal(matrices: Float[np.ndarray, "m p p"], num_sweeps: int = 20):
    """The rotation that makes all of them as diagonal as possible, by Jacobi's rotations.

    All p / 2 pairs of a round are turned at once; p - 1 rounds, as in a tournament, are a sweep.
    """
    a, size = matrices.copy(), matrices.shape[1]
    # The eigenvectors of one difference are exact if there are two matrices, which commute.
    turned = np.linalg.eigh(a[0] - a[1])[1]
    if len(a) == 2 or size < 2:
        return turned
    a = turned.T @ a @ turned
    order = np.arange(size + size % 2)
    for _ in range(num_sweeps):
        largest = 0.0
        for _ in range(len(order) - 1):
            pairs = order.reshape(2, -1)
            p, q = pairs[:, (pairs < size).all(axis=0)]
            gap, off = a[:, p, p] - a[:, q, q], 2 * a[:, p, q]
            on, across = np.sum(gap**2 - off**2, axis=0), 2 * np.sum(gap * off, axis=0)
            angle = 0.5 * np.arctan2(across, on + np.hypot(on, across))
            largest = max(largest, float(np.abs(angle).max()))
            turn = np.eye(size)
            turn[p, p] = turn[q, q] = np.cos(angle)
            turn[q, p], turn[p, q] = np.sin(angle), -np.sin(angle)
            a, turned = turn.T @ a @ turn, turned @ turn
            order = np.concatenate([order[:1], np.roll(order[1:], 1)])
        if largest < 1e-3:
            break
    return turned


def _features(t, knots) -> Float[np.ndarray, "n f"]:
    hinges = np.logaddexp(0.0, SHARPNESS * (t[:, None] - knots)) / SHARPNESS
    return np.column_stack([np.ones(len(t)), t, hinges.reshape(len(t), -1)])


def _polynomial(t) -> Float[np.ndarray, "n m"]:
    return np.column_stack([t, t**2])


def _log_scales(features, q, y) -> Float[np.ndarray, "f p"]:
    """Weights of g for the smallest mean of exp(2 g) q^2 + exp(-2 g) y^2, by Newton's method."""
    ridge = np.full(features.shape[1], _RIDGE)
    ridge[0] = 1e-6
    tiny = np.finfo(float).tiny
    unit = np.sqrt(np.mean(q**2, axis=0) * np.mean(y**2, axis=0)) + tiny
    weights = np.zeros((features.shape[1], q.shape[1]))
    weights[0] = 0.25 * np.log((np.mean(y**2, axis=0) + tiny) / (np.mean(q**2, axis=0) + tiny))
    for _ in range(_NUM_STEPS):
        g = np.clip(features @ weights, -30, 30)
        steep, wide = np.exp(2 * g) * q**2 / unit, np.exp(-2 * g) * y**2 / unit
        slope = features.T @ (steep - wide) + ridge[:, None] * weights
        curvature = np.einsum("nf,np,ng->pfg", features, 2 * (steep + wide), features)
        curvature += np.diag(ridge)
        step = np.linalg.solve(curvature, slope.T[..., None])[..., 0].T
        largest = np.abs(step).max(axis=0)
        weights = weights - step / np.maximum(largest, 1.0)
        if largest.max() < _SMALL:
            break
    return weights


def _mean_weights(t, y, q, sds) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, "n p"]]:
    """Weights of the means, and the means: of 1, t, t^2, and of the variance times t, t^2 and 1.

    In a hierarchy the mean of a group is a constant minus its variance times a function of the
    other scales. In the neck of a funnel, beyond the particles, such a mean stays where it is; a
    polynomial by itself would run away, and then there is no way into the neck. So where the scale
    varies, a mean that bends by itself is the variance times a polynomial; on a ridge of one
    width, which has no neck, it is a polynomial.
    """
    wanted, polynomial = y + sds**2 * q, _polynomial(t)
    one, num = np.ones((len(t), 1)), polynomial.shape[1]
    rows = np.repeat(np.arange(4), [1, num, num, 1])
    weights, means = np.zeros((len(rows), y.shape[1])), np.empty_like(y)
    steady = np.log(sds).std(axis=0) < _STEADY
    for i, (aim, sd) in enumerate(zip(wanted.T, sds.T, strict=True)):
        square = (sd**2)[:, None]
        every = np.hstack([one, polynomial, polynomial * square, square])
        simple, rich = rows % 3 == 0, rows != (2 if steady[i] else 1)
        tried = [(kept, *_by_least_squares(every[:, kept], aim, sd)) for kept in (simple, rich)]
        errors = [np.sqrt(np.mean(((aim - mean) / sd) ** 2)) for _, _, mean in tried]
        bends = errors[1] < _HALVED * errors[0] and errors[0] > _COUNTS
        kept, found, means[:, i] = tried[int(bends)]
        weights[kept, i] = found
    return weights, means


def _by_least_squares(columns, wanted, sds):
    """Weights of the columns in units of the sds, and what they make."""
    scaled = columns / sds[:, None]
    gram = scaled.T @ scaled
    gram[np.diag_indices_from(gram)] *= 1 + 1e-6
    weights = np.linalg.lstsq(gram, scaled.T @ (wanted / sds), rcond=None)[0]
    return weights, columns @ weights


def empty(dim: int) -> Coupling:
    """The coupling that changes nothing, in NumPy arrays."""
    most, bends = _MOST_LEADERS, len(_KNOTS)
    # The fits fill NumPy arrays in; the run makes arrays of its own dtype of them.
    coupling: Any = Coupling
    return coupling(
        centre=np.zeros(dim),
        leaders=np.zeros(most, np.int32),
        units=np.zeros(most),
        knots=np.zeros((bends, most)),
        mix=np.eye(dim),
        unmix=np.eye(dim),
        scales=np.zeros((1 + most * (1 + bends), dim)),
        means=np.zeros((2 + 4 * most, dim)),
    )


def _packed(centre, spread, leaders, rest, knots, w, scales, weights) -> Coupling:
    """The coupling, in arrays whose shapes depend on the dimension alone."""
    most, num = _MOST_LEADERS, len(leaders)
    found: Any = empty(len(centre))
    found.centre[:] = centre
    found.leaders[:num], found.units[:num] = leaders, 1 / spread[leaders]
    found.knots[:, :num] = knots
    found.mix[np.ix_(rest, rest)] = w
    found.unmix[:] = np.linalg.inv(found.mix)
    # Blocks of weights, one row for each leader, after the row of the constant.
    for full, given, count in ((found.scales, scales, 1 + len(_KNOTS)), (found.means, weights, 4)):
        full[0, rest] = given[0]
        for block in range(count):
            full[1 + block * most : 1 + block * most + num, rest] = given[1 + block * num :][:num]
    found.means[-1, rest] = weights[-1]
    return found
