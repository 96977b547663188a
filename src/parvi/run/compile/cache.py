"""Compiled programs kept on disk, for the command line."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

# JAX adds its settings as attributes at run time, so its types do not know them.
_settings: Any = jax.config


def keep_compiled() -> pathlib.Path | None:
    """Look for compiled programs in the user's cache folder, and keep new ones there.

    JAX's own settings come first: a ``JAX_COMPILATION_CACHE_DIR`` is left alone, and with
    ``JAX_ENABLE_COMPILATION_CACHE=false`` nothing is kept. Returns the folder, or None.
    """
    if _settings.jax_compilation_cache_dir or not _settings.jax_enable_compilation_cache:
        return None
    folder = platformdirs.user_cache_path("parvi") / "compiled"
    _settings.update("jax_compilation_cache_dir", str(folder))
    return folder


@contextlib.contextmanager
def nothing_from_disk() -> Iterator[None]:
    """Compile everything, whatever is on disk."""
    before = _settings.jax_enable_compilation_cache
    _settings.update("jax_enable_compilation_cache", False)
    # JAX reads the setting once and remembers it until the cache is reset.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        _settings.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
