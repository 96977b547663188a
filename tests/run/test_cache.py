"""Compiled programs on disk: the second process finds them."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import jax, jax.numpy as jnp
from parvi.run.compile.cache import keep_compiled
folder = keep_compiled()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((7, 7))).block_until_ready()
print(folder)
"""


def run(tmp_path, script=SCRIPT, **settings):
    # The suite has a folder of its own.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    own = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    env = inherited | own | settings
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


def programs(tmp_path):
    return sorted(path.name for path in tmp_path.rglob("*-cache"))


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    folder = run(tmp_path)
    assert folder.startswith(str(tmp_path))
    kept = programs(tmp_path)
    assert kept
    run(tmp_path)
    assert programs(tmp_path) == kept


@pytest.mark.slow
def test_the_users_own_settings_come_first(tmp_path):
    assert run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false") == "None"
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own")) == "None"
    assert not (tmp_path / "parvi").exists()


@pytest.mark.slow
def test_the_command_says_nothing_of_what_it_finds(tmp_path):
    """XLA would, on standard error; ``parvi_command`` sets its level before JAX is there."""
    script = """
import os, sys
import parvi_command
assert "jax" not in sys.modules
sys.argv = ["parvi", "--version"]
try:
    parvi_command.main()
finally:
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
"""
    env = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("parvi ")


AROUND = """
import os, jax, jax.numpy as jnp
from parvi.run.compile.cache import keep_compiled, nothing_from_disk
folder = keep_compiled()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.jit(lambda x: x @ x)(jnp.ones((5, 5))).block_until_ready()
first = len(os.listdir(folder))
with nothing_from_disk():
    jax.jit(lambda x: x @ x + 1)(jnp.ones((6, 6))).block_until_ready()
inside = len(os.listdir(folder))
jax.jit(lambda x: x @ x + 2)(jnp.ones((7, 7))).block_until_ready()
print(first, inside, len(os.listdir(folder)))
"""


@pytest.mark.slow
def test_nothing_from_disk_is_for_a_while(tmp_path):
    first, inside, after = map(int, run(tmp_path, AROUND).split())
    assert 0 < first == inside < after
