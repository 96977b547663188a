"""Runs the code of pages, which makes their figures: ``python docs/run_pages.py [PAGE ...]``.

Blocks of one page run one after another, with the folder of its figures as the working one.
"""

import contextlib
import os
import pathlib
import re
import sys

TUTORIALS = pathlib.Path(__file__).parent / "tutorials"


def code_of(page: pathlib.Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def run(page: pathlib.Path, folder: pathlib.Path) -> dict:
    """Run a page in a folder, and return the names that its code defines."""
    names: dict = {"__name__": page.stem}
    with contextlib.chdir(folder):
        for number, code in enumerate(code_of(page)):
            exec(compile(code, f"{page.name}, block {number + 1}", "exec"), names)
    return names


def main() -> None:
    """Run all tutorials, or those that are named."""
    import matplotlib

    matplotlib.use("Agg")
    folder = TUTORIALS / "figures"
    folder.mkdir(exist_ok=True)
    for page in sorted(TUTORIALS.glob("*.md")):
        if len(sys.argv) < 2 or page.stem in sys.argv[1:]:
            print(f"# {page.stem}", flush=True)
            run(page, folder)
    for file in folder.iterdir():
        # Reports and models belong to whoever runs the page.
        if file.suffix != ".png":
            os.remove(file)


if __name__ == "__main__":
    main()
