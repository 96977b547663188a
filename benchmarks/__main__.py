"""``python -m benchmarks``: those of speed, or the ones named.

Names of targets choose among those of ``posteriors``: ``python -m benchmarks posteriors banana``.
"""

import importlib
import sys

from rich.console import Console

# The first six are `make bench`; the others take longer and are asked for by name.
SPEED = ("scaling", "breakdown", "cold", "million", "accuracy", "bars")
NAMES = (*SPEED, "threads", "choosing", "posteriors", "modes", "wild")


def main() -> None:
    names = sys.argv[1:]
    chosen = [name for name in names if name in NAMES] or ([] if names else list(SPEED))
    rest = [name for name in names if name not in NAMES]
    if rest and chosen != ["posteriors"]:
        sys.exit(f"Unknown benchmark {', '.join(rest)}; there are {', '.join(NAMES)}.")
    console = Console()
    for name in chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(console, rest) if rest else module.main(console)


if __name__ == "__main__":
    main()
