"""Algorithm 1 to the letter, against a transcription of its pseudo-code in plain loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from oracle import exact
from parvi.cloud import Cloud
from parvi.fields.pfg.descent import GradientDescent
from parvi.fields.pfg.field import PFG
from parvi.fields.pfg.functions import MLP
from parvi.fields.pfg.objective import Convex, Quadratic
from parvi.fields.pfg.preconditioners import FisherDiagonal, Identity
from parvi.run.step import step
from parvi.samplers.flow import Flow
from parvi.steppers import Constant

# float64; the same sums in another order, over 4 outer and 3 inner steps.
ROUNDING = 1e-11
DIM, NUM, WIDTH = 3, 6, 5
NUM_STEPS, NUM_INNER = 4, 3
ETA, ETA_INNER = 0.2, 0.05
DECAY, DAMPING = 0.9, 1e-3


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4 + jnp.sin(x[0] + 2 * x[1])


def half_square(f, h):
    return 0.5 * jnp.sum(h * f**2)


def cubic(f, h):
    return jnp.sum(f**2) ** 1.5 / 3


def identity(scores, history):
    return jnp.ones(DIM), history


def fisher_diagonal(scores, history):
    """The moving average of E[s^2], its weights summing to one, damped by a share of its mean."""
    history = [*history, jnp.mean(scores**2, axis=0)]
    weights = [DECAY ** (len(history) - 1 - i) for i in range(len(history))]
    average = sum(w * e for w, e in zip(weights, history, strict=True)) / sum(weights)
    return average + DAMPING * jnp.mean(average), history


def network(theta, x):
    """W2 sigmoid(W1 x + b1) + b2."""
    hidden = 1 / (1 + jnp.exp(-(theta["W1"] @ x + theta["b1"])))
    return theta["W2"] @ hidden + theta["b2"]


def transcription(particles, theta, regulariser, estimate, shift):
    """The particles after T steps of Algorithm 1, U = -log p, base function f0 = shift s / h."""
    grad_u = jax.jit(jax.grad(lambda x: -log_density(x)))

    def term(theta, x, gradient, h):
        f = network(theta, x)
        jacobian = jax.jacfwd(lambda point: network(theta, point))(x)
        return regulariser(f - shift * gradient / h, h) + f @ gradient - jnp.trace(jacobian)

    grad_term = jax.jit(jax.grad(term))
    history = []
    for _ in range(NUM_STEPS):
        gradients = [grad_u(x) for x in particles]
        h, history = estimate(jnp.stack(gradients), history)
        for _ in range(NUM_INNER):
            slopes = [
                grad_term(theta, x, gradient, h)
                for x, gradient in zip(particles, gradients, strict=True)
            ]
            theta = {
                name: value - ETA_INNER * sum(slope[name] for slope in slopes) / NUM
                for name, value in theta.items()
            }
        particles = [
            x + ETA * (network(theta, x) - shift * gradient / h)
            for x, gradient in zip(particles, gradients, strict=True)
        ]
    return np.stack(particles), theta


CASES = {
    "plain": (half_square, Quadratic(), identity, Identity(), 0.0),
    "fisher_diagonal": (
        half_square,
        Quadratic(),
        fisher_diagonal,
        FisherDiagonal(decay=DECAY, damping=DAMPING),
        0.0,
    ),
    "cubic": (
        cubic,
        Convex(lambda f: jnp.sum(f**2) ** 1.5 / 3),
        identity,
        Identity(),
        0.0,
    ),
    "base_shift": (half_square, Quadratic(), identity, Identity(), 0.3),
    "base_shift_preconditioned": (
        half_square,
        Quadratic(),
        fisher_diagonal,
        FisherDiagonal(decay=DECAY, damping=DAMPING),
        0.3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_to_the_letter(name):
    regulariser, own_regulariser, estimate, preconditioner, shift = CASES[name]
    solver = GradientDescent(optax.sgd(ETA_INNER), num_steps=NUM_INNER)
    field = PFG(MLP(WIDTH), preconditioner, solver, base_shift=shift, regulariser=own_regulariser)
    sampler = Flow(field, Constant(ETA))
    start = jnp.asarray(np.random.default_rng(0).normal(size=(NUM, DIM)))
    cloud = Cloud.at(log_density, start)
    memory = sampler.init(jax.random.key(0), cloud)
    theta = memory.field.solver.parameters.trainable

    move = eqx.filter_jit(step)
    for i in range(NUM_STEPS):
        cloud, memory, *_ = move(jax.random.key(i), cloud, memory, sampler)
    expected, expected_theta = transcription(list(start), theta, regulariser, estimate, shift)
    assert exact.relative_error(cloud.particles, expected) < ROUNDING
    fitted = memory.field.solver.parameters.trainable
    for part, value in expected_theta.items():
        assert exact.relative_error(fitted[part], value) < ROUNDING
    # Something happened: the net was trained and the particles moved.
    assert exact.relative_error(fitted["W2"], theta["W2"]) > 1e-3
    assert exact.relative_error(cloud.particles, start) > 1e-2


def test_ready_made_algorithm_1_has_momentum_and_warm_up():
    """``parvi.pfg_algorithm_1`` is the same algorithm with the optimiser that it says."""
    ready = parvi.pfg_algorithm_1(
        ETA,
        WIDTH,
        NUM_INNER,
        learning_rate=ETA_INNER,
        momentum=0.9,
        preconditioner=Identity(),
        warm_up=2,
    )
    optimizer = optax.sgd(ETA_INNER, momentum=0.9)
    solver = GradientDescent(optimizer, num_steps=NUM_INNER, warm_up=2)
    parts = Flow(PFG(MLP(WIDTH), None, solver), Constant(ETA))
    start = np.random.default_rng(0).normal(size=(NUM, DIM))
    one = parvi.sample(log_density, start, sampler=ready, num_steps=3)
    other = parvi.sample(log_density, start, sampler=parts, num_steps=3)
    np.testing.assert_array_equal(one.particles, other.particles)
