"""Compilation: the programs, the compiler's effort, and the cache on disk."""
