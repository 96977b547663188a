"""The page of a report: verdict first, then modes, summary, figures, settings."""

import base64
import hashlib
import importlib.metadata
import importlib.resources
import pathlib
import platform
from html import escape
from typing import Any

import numpy as np

from parvi.results.plots.style import MOST
from parvi.results.report.figures import Picture, pictures
from parvi.results.report.words import Verdict
from parvi.results.table import in_digits, parameters_first
from parvi.run.files import replaced
from parvi.samplers.default import pfg
from parvi.status import Status

_VERSIONS = ("parvi", "jax", "numpy")
# Letters of a name that needs a wider column.
_LONG = 14
_LEGEND = (
    "drift: how far the run's own transitions moved the mean or the variance, in standard errors. "
    "stein_ratio: 1 is right; it is smaller where the particles are too narrow. verdict: ok, or "
    "what is wrong by more than chance; in doubt: something is wrong, but not with one parameter."
)
_CLASSES = {True: "good", False: "bad", None: "unknown"}


def write_report(result: Any, path: Any, title: str, names: list[str] | None) -> pathlib.Path:
    """Write the page whole or not at all."""
    text = page(result, title, names)
    with replaced(path) as file:
        file.write(text.encode())
    return pathlib.Path(path)


def page(result: Any, title: str, names: list[str] | None) -> str:
    """The HTML of the report."""
    verdict, modes = result.verdict(), result.known_modes()
    if names is None:
        names = [str(name) for name in parameters_first(result.summary()).index[:MOST]]
    style, script = (_text(name) for name in ("page.css", "page.js"))
    # Nothing may be loaded, and no other script may run, whatever a name contains.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
        f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(title)}</h1>",
        _verdict(verdict),
        f'<p class="soft">{escape(_facts(result))}</p>',
        _modes(modes),
        _summary(result),
        *(_figure(picture) for picture in pictures(result, names)),
        _settings(result),
        f"</main>\n<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _text(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _verdict(verdict: Verdict) -> str:
    lines = [f'<section class="verdict {_CLASSES[verdict.believable]}" aria-label="Verdict">']
    lines.append(f"<p>{escape(verdict.headline)}</p>")
    for heading, sentences in (("", verdict.reasons), (verdict.heading, verdict.advice)):
        if sentences:
            lines.append(f"<p><strong>{heading}</strong></p>" if heading else "")
            items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
            lines.append(f"<ul>{items}</ul>")
    return "\n".join([*lines, "</section>"])


def _facts(result: Any) -> str:
    return (
        f"{result.num_particles} particles of {len(result.names)} numbers; {result.status.name} "
        f"after {result.num_steps} steps and {result.num_gradients / result.num_particles:.0f} "
        f"gradients per particle; {result.timing.seconds:.1f} s, "
        f"{result.timing.compile_seconds:.1f} s of them compiling."
    )


def _modes(modes: Any) -> str:
    if modes is None:
        return ""
    lines = [f"<h2>Modes</h2>\n<p>{escape(str(modes))}</p>"]
    if len(modes.weights) > 1:
        rows = "".join(
            f"<tr><td>{k + 1}</td><td>{weight:.3f}</td><td>{_number(error)}</td></tr>"
            for k, (weight, error) in enumerate(
                zip(modes.weights, modes.standard_errors, strict=True)
            )
        )
        header = "".join(
            f'<th scope="col">{word}</th>' for word in ("mode", "weight", "standard error")
        )
        lines.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="Modes"><table><thead><tr>'
            f"{header}</tr></thead><tbody>{rows}</tbody></table></div>"
        )
    return "\n".join(lines)


def _summary(result: Any) -> str:
    table = parameters_first(result.summary())
    # The word that matters most is beside the name, where a phone shows it.
    table = table[sorted(table.columns, key=lambda name: name != "verdict")]
    columns = ["parameter", *table.columns]
    header = "".join(
        f'<th scope="col"><button type="button">{escape(str(name))}</button></th>'
        for name in columns
    )
    rows = []
    lines = zip(table.index, table["sd"], table.itertuples(index=False), strict=True)
    for name, row_sd, values in lines:
        cells = "".join(
            _cell(value, "" if isinstance(value, str) else in_digits(column, value, row_sd))
            for column, value in zip(table.columns, values, strict=True)
        )
        rows.append(f"<tr><td>{escape(str(name))}</td>{cells}</tr>")
    long = " long" if any(len(str(name)) > _LONG for name in table.index) else ""
    return (
        "<h2>Parameters</h2>\n"
        '<p><label for="filter">Show only parameters that contain </label>'
        '<input id="filter" type="search" autocomplete="off"> '
        f'<span id="count" class="soft" role="status">{len(rows)} parameters</span></p>\n'
        '<div class="scroll" tabindex="0" role="region" aria-label="Parameters">'
        f'<table class="summary{long}"><thead><tr>{header}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
        f'<p class="soft">{escape(_LEGEND)}</p>'
    )


def _cell(value: Any, digits: str) -> str:
    if isinstance(value, str):
        mark = "" if value in ("ok", "") else ' class="wrong"'
        return f"<td{mark}>{escape(value)}</td>"
    return f'<td data-value="{float(value)!r}">{digits}</td>'


def _number(value: Any) -> str:
    return f"{value:.4g}" if np.isfinite(value) else "-"


def _figure(picture: Picture) -> str:
    words = escape(picture.words)
    return (
        f"<h2>{escape(picture.title)}</h2>\n<figure>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(picture.title)}">'
        f'<picture><source srcset="{picture.dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{picture.light}" alt="{words}"></picture></div>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _settings(result: Any) -> str:
    facts = {
        "key": result.key,
        **{name: importlib.metadata.version(name) for name in _VERSIONS},
        "Python": platform.python_version(),
    }
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()
    )
    settings = result.settings
    num = None if settings is None else settings.num_steps
    # A file does not say how many steps were asked for, but such a run has made all of them.
    num = result.num_steps if result.status == Status.MAX_STEPS else num
    is_default = result.sampler == repr(pfg())
    words = ["target", "init", "" if is_default else "sampler=sampler", f"key={result.key}"]
    words.append("" if num is None else f"num_steps={num}")
    code = (
        f"result = parvi.sample({', '.join(word for word in words if word)})\n"
        "# init: the first particles of this run; if there were none, leave it out, and give\n"
        f"# num_particles={result.num_particles}.\n"
        f"{'' if is_default else '# sampler: as above, under Sampler.' + chr(10)}"
        "# The same version, processor and number of cores give the same particles, bit for bit."
    )
    return (
        f"<h2>Settings</h2>\n<dl>{lines}</dl>\n<details><summary>Sampler</summary>"
        f"<pre><code>{escape(result.sampler)}</code></pre></details>\n<h2>How to reproduce</h2>\n"
        f"<pre><code>{escape(code)}</code></pre>"
    )
