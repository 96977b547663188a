"""Compiled programs kept on disk, for the command line."""

import pathlib

import jax
import platformdirs


def keep_compiled() -> pathlib.Path | None:
    """Look for compiled programs in the user's cache folder, and keep new ones there.

    JAX's own settings come first: a ``JAX_COMPILATION_CACHE_DIR`` of the user's is left alone, and
    with ``JAX_ENABLE_COMPILATION_CACHE=false`` nothing is kept. Returns the folder, or None.
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return None
    folder = platformdirs.user_cache_path("parvi") / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder
