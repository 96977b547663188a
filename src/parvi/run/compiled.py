"""Compiled programs kept on disk, for the command line."""

import pathlib
from typing import Any

import jax
import platformdirs


def keep_compiled() -> pathlib.Path | None:
    """Look for compiled programs in the user's cache folder, and keep new ones there.

    JAX's own settings come first: a ``JAX_COMPILATION_CACHE_DIR`` of the user's is left alone, and
    with ``JAX_ENABLE_COMPILATION_CACHE=false`` nothing is kept. Returns the folder, or None.
    """
    # Its settings are attributes that JAX adds as it goes; its types do not know them.
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache:
        return None
    folder = platformdirs.user_cache_path("parvi") / "compiled"
    settings.update("jax_compilation_cache_dir", str(folder))
    return folder
