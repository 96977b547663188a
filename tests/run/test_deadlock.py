"""The installed JAX must not deadlock on batched LAPACK (docs/decisions/0001-jax-range.md)."""

import subprocess
import sys

import jax

# Three independent batched solves in a scan: with jaxlib 0.10.2 this hangs for ever on two cores.
PROGRAM = """
import jax, jax.numpy as jnp

def body(carry, _):
    a = jnp.eye(20) + 0.01 * carry[:, :, None] * carry[:, None, :]
    one = jnp.linalg.solve(a, carry[..., None])[..., 0]
    two = jnp.linalg.solve(a + jnp.eye(20), carry[..., None])[..., 0]
    three = jnp.linalg.cholesky(a)[:, :, 0]
    return carry * 0.9 + 1e-3 * (one + two + three), None

x = jax.random.normal(jax.random.key(0), (64, 20))
out, _ = jax.jit(lambda x: jax.lax.scan(body, x, length=200))(x)
assert bool(jnp.all(jnp.isfinite(jax.block_until_ready(out))))
print("ended")
"""


def test_several_batched_solves_end():
    # Seconds where it works; the watchdog only has to tell slow from never.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "ended", done.stderr


def test_jax_is_within_the_tested_range():
    version = tuple(int(part) for part in jax.__version__.split(".")[:3])
    assert (0, 9, 2) <= version < (0, 10)
