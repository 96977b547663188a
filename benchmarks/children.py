"""Measurements in processes of their own, which are cold and have a peak memory of their own."""

import json
import os
import pathlib
import re
import subprocess
import sys


def run(script: str, *arguments: str, env: dict[str, str] | None = None) -> dict:
    """Run a Python script that prints JSON as its last line."""
    words = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        words, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def peak_bytes() -> int:
    """The most memory this process had: not ``getrusage``, which begins with its parent's."""
    path = pathlib.Path("/proc/self/status")
    if path.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", path.read_text())[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
