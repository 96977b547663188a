"""``--report`` without a file: beside the result, or ``report.html``."""

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

_DEFAULT = "report.html"


class Reporting(TyperCommand):
    """A command whose ``--report`` works without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give ``--report`` a file if it has none."""
        return super().parse_args(ctx, with_report(args))


def with_report(args: list[str]) -> list[str]:
    """The arguments, with a file after a ``--report`` that ends them or stands before an option.

    It has the name of the result, if that is saved.
    """
    out = args[args.index("--out") + 1 :][:1] if "--out" in args else []
    name = str(Path(out[0]).with_suffix(".html")) if out else _DEFAULT
    found = []
    for word, following in zip(args, [*args[1:], "-"], strict=True):
        found.append(word)
        if word == "--report" and following.startswith("-"):
            found.append(name)
    return found
