"""``python -m benchmarks``: all of them, or the ones named."""

import importlib
import sys

from rich.console import Console

NAMES = ("threads", "pfg_scaling", "svgd_peers", "choosing", "collapse", "posteriors")


def main() -> None:
    # After a benchmark's name may come what it is to run: `posteriors banana`.
    chosen = sys.argv[1:2] or NAMES
    unknown = sorted(set(chosen) - set(NAMES))
    if unknown:
        sys.exit(f"Unknown benchmark {unknown}; there are {', '.join(NAMES)}.")
    console = Console()
    for name in chosen:
        importlib.import_module(f"benchmarks.{name}").main(console)


if __name__ == "__main__":
    main()
