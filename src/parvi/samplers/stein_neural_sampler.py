"""The Stein neural sampler (Hu, Chen, Sun, Bai, Ye and Cheng 2018).

A generator G turns noise into particles and is trained against a critic f:

    min_G max_f E[ grad log p(x) . f(x) + div f(x) - 1/2 |f(x)|^2 ],    x = G(z), z ~ N(0, I)

Thanks to the L2 penalty, the best critic is grad log p - grad log q for the density q of G(z), and
the maximum is half the Fisher divergence between them. The trained generator gives any number of
new draws, at one forward pass each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from parvi.cloud import Cloud
from parvi.fields.affine_network import AffineNetwork
from parvi.fields.pfg.functions import Parameters
from parvi.geometry.frame import DenseFrame
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.stopping import Never


class Training(NamedTuple):
    """The noise behind the particles, and the two players with their optimisers."""

    noise: Float[Array, "n d"]
    generator: PyTree[Array]
    generator_optimizer: PyTree[Array]
    critic: PyTree[Array]
    critic_optimizer: PyTree[Array]


class SteinNeuralSampler(AbstractSampler):
    """Trains a generator of particles; ``generate`` then draws new ones.

    The generator is G(z) = b + A z + W s(V z + c). It starts as the inverse of the affine map that
    whitens the initial particles, and their noise is the whitened particles: at first G(z_i) = x_i.
    It is trained on new noise at every step, so the particles are a sample of it like any other,
    if the initial ones were Gaussian.

    Lengths are measured in the frame of the generated particles: the critic sees them whitened, its
    penalty is in that metric, in units of their mean squared score, and the gradient of the output
    weights is taken there. Otherwise the Fisher divergence would square the condition number of the
    target. A Fisher divergence is still blind to the weights of separate modes, and the generator
    settles in one of them.

    A step costs ``num_critic_steps`` of O(n d (d + width)), and one gradient of the score, about
    three gradients of the log density, at n points of fresh noise, beside n for the particles.

    Parameters
    ----------
    generator_optimizer, critic_optimizer
        Optax optimisers. Build them once, as a new object triggers a new compilation.
    width
        Number of hidden units of the generator and of the critic.
    num_critic_steps
        Number of critic steps before each step of the generator.
    stopping_rule, max_steps
        The end of a run.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, parvi
    >>> from parvi.run.run import Run
    >>> log_density = lambda x: -0.5 * jnp.sum((x - 3) ** 2)
    >>> sampler = parvi.stein_neural_sampler()
    >>> start = jax.random.normal(jax.random.key(0), (64, 2))
    >>> run = Run.begin(log_density, start, sampler, key=0)
    >>> run.advance(200)
    >>> sampler.generate(jax.random.key(1), run.memory, 1000).shape
    (1000, 2)
    """

    generator_optimizer: optax.GradientTransformation
    critic_optimizer: optax.GradientTransformation
    width: int = 32
    num_critic_steps: int = 5
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 1000

    def __check_init__(self):
        if self.width < 1 or self.num_critic_steps < 1:
            raise ValueError(
                "width and num_critic_steps must be at least 1, got "
                f"{self.width} and {self.num_critic_steps}."
            )

    def init(self, key, cloud):
        key_generator, key_critic = jax.random.split(key)
        frame = DenseFrame.of(cloud.particles)
        network = AffineNetwork(self.width)
        generator = network.init(key_generator, cloud.particles).trainable
        generator = generator | {"shift": frame.mean, "slope": frame.factor}
        critic = network.init(key_critic, cloud.particles).trainable
        generator_optimizer = self.generator_optimizer.init(generator)
        critic_optimizer = self.critic_optimizer.init(critic)
        noise = frame.enter(cloud.particles)
        return Training(noise, generator, generator_optimizer, critic, critic_optimizer)

    def propose(self, key, cloud, memory):
        noise = jax.random.normal(key, cloud.shape, cloud.dtype)
        fresh = Cloud.at(cloud.log_density, self._push(memory.generator, noise))
        frame = DenseFrame.of(fresh.particles)
        # The critic's scale is known, so it need not be learned.
        unit = jnp.sqrt(jnp.mean(frame.pull(fresh.scores) ** 2))
        unit = jnp.where(jnp.isfinite(unit) & (unit > 0), unit, 1.0)

        critic, critic_optimizer = self._train_critic(memory, fresh, frame, unit)
        value, generator, generator_optimizer = self._train_generator(
            memory, critic, noise, cloud.log_density, frame, unit
        )
        new = Training(memory.noise, generator, generator_optimizer, critic, critic_optimizer)
        return self._push(generator, memory.noise), (memory, new, value)

    def conclude(self, cloud, pending, arrived):
        old, new, value = pending
        finite = arrived.finite
        memory = jax.tree_util.tree_map(lambda n, o: jnp.where(finite, n, o), new, old)
        # These are the scores at the fresh noise, and about three times that for the gradient of
        # the scores in the generator's loss. There is no KL rate, because the particles follow the
        # generator and not the critic.
        gradients, extra = 4 * cloud.shape[0], {"discrepancy": value}
        return True, memory, Info.of(cloud, jnp.ones(()), gradients=gradients, extra=extra)

    def generate(self, key: Key[Array, ""], memory: Training, num: int) -> Float[Array, "num d"]:
        """New draws: new noise, pushed through the generator.

        Parameters
        ----------
        key
            Random key for the noise.
        memory
            Memory of a trained sampler.
        num
            Number of draws.
        """
        noise = jax.random.normal(key, (num, memory.noise.shape[1]), memory.noise.dtype)
        return self._push(memory.generator, noise)

    def _push(self, generator, noise):
        return AffineNetwork(self.width).values(Parameters((), generator), noise)

    def _discrepancy(self, critic, points, scores, frame, unit):
        """The objective in the frame, divided by the square of the unit; f = unit * network."""
        inside, pulled = frame.enter(points), frame.pull(scores) / unit
        network, parameters = AffineNetwork(self.width), Parameters((), critic)
        values, divergences = network.with_divergences(parameters, inside)
        gain = jnp.sum(values * pulled, axis=1) + divergences / unit
        return jnp.mean(gain - 0.5 * jnp.sum(values**2, axis=1))

    def _train_critic(self, memory, cloud, frame, unit):
        def loss(critic):
            return -self._discrepancy(critic, cloud.particles, cloud.scores, frame, unit)

        def body(_, carry):
            critic, optimizer = carry
            gradient = jax.grad(loss)(critic)
            updates, optimizer = self.critic_optimizer.update(gradient, optimizer, critic)
            return optax.apply_updates(critic, updates), optimizer

        start = (memory.critic, memory.critic_optimizer)
        return jax.lax.fori_loop(0, self.num_critic_steps, body, start)

    def _train_generator(self, memory, critic, noise, log_density, frame, unit):
        outputs = {name: memory.generator[name] for name in ("shift", "slope", "outputs")}
        inputs = {name: memory.generator[name] for name in ("directions", "offsets")}

        def stretched(change):
            return {name: outputs[name] + (frame.factor @ change[name]) for name in outputs}

        def loss(weights):
            change, inputs = weights
            points = self._push(stretched(change) | inputs, noise)
            scores = jax.vmap(jax.grad(log_density))(points)
            return self._discrepancy(critic, points, scores, frame, unit)

        still = jax.tree_util.tree_map(jnp.zeros_like, outputs)
        value, (gradient, bend) = jax.value_and_grad(loss)((still, inputs))
        # One optimiser moves all weights; the output weights are changes within the frame.
        updates, optimizer = self.generator_optimizer.update(
            gradient | bend, memory.generator_optimizer, memory.generator
        )
        moved = {name: inputs[name] + updates[name] for name in inputs}
        return value, stretched(updates) | moved, optimizer
