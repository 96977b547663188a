"""``python -m benchmarks`` runs the benchmarks of speed, or the ones that are named.

Names of targets choose among those of ``posteriors`` and ``gym``:
``python -m benchmarks posteriors banana``.
"""

import importlib
import sys

from rich.console import Console

# The first six are `make bench`; the others take longer and are asked for by name.
SPEED = ("scaling", "breakdown", "cold", "million", "accuracy", "bars")
NAMES = (
    *SPEED,
    "threads",
    "choosing",
    "posteriors",
    "modes",
    "wild",
    "unseen",
    "gym",
    "maps",
    "estimators",
    "calibration",
    "fronts",
)
# Those that run only the targets that are named.
SELECTIVE = ("posteriors", "gym", "maps", "estimators", "calibration", "wild", "unseen")


def main() -> None:
    names = sys.argv[1:]
    chosen = [name for name in names if name in NAMES] or ([] if names else list(SPEED))
    rest = [name for name in names if name not in NAMES]
    if rest and not (len(chosen) == 1 and chosen[0] in SELECTIVE):
        sys.exit(f"Unknown benchmark {', '.join(rest)}; there are {', '.join(NAMES)}.")
    console = Console()
    for name in chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(console, rest) if rest else module.main(console)


if __name__ == "__main__":
    main()
