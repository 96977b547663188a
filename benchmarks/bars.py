"""The bars of speed, each met or missed, from the figures that were saved; and their page."""

import pathlib
from typing import NamedTuple

import numpy as np
from rich.console import Console

from benchmarks import million, record
from benchmarks.accuracy import OURS
from benchmarks.breakdown import RECORD as BREAKDOWN
from benchmarks.cold import arrays, constant
from benchmarks.scaling import BATCHED

_OURS = "PFG Algorithm 1"
PAGE = pathlib.Path("docs/benchmarks.md")


class Verdict(NamedTuple):
    bar: str
    wanted: str
    measured: str
    met: bool | None


def _per_thousand(figures, name, count):
    return figures["particles"].get(name, {}).get(str(count), {}).get("seconds")


def _ratios():
    """Text, the slower one, the faster one, particles, and how much faster it should be."""
    for count, least in ((5, 50), (100, 50), (2000, 10)):
        text = f"Algorithm 1 against PyTorch, n = {count}"
        yield text, "PyTorch Algorithm 1", _OURS, count, least
    for peer in ("blackjax SVGD", "NumPyro SVGD"):
        yield f"a step of Algorithm 1 against {peer}, n = 1000", peer, _OURS, 1000, 200
        yield f"the same, fit on 256 of the particles, against {peer}", peer, BATCHED, 1000, 200
        yield f"our SVGD against {peer}, n = 1000", peer, "SVGD", 1000, 15


def _ratio(bar, figures, slow, fast, count, least) -> Verdict:
    wanted = f"at least {least}x"
    above, below = _per_thousand(figures, slow, count), _per_thousand(figures, fast, count)
    if above is None or below is None:
        return Verdict(bar, wanted, "not measured", None)
    return Verdict(bar, wanted, f"{above / below:.1f}x", above / below >= least)


def verdicts() -> list[Verdict]:
    found = []
    scaling = record.load("scaling")
    if scaling:
        for text, slow, fast, count, least in _ratios():
            found.append(_ratio(text, scaling, slow, fast, count, least))
        for name in ("PFG (default)", _OURS, BATCHED):
            found.append(_exponent(scaling, name))
        for name in ("PFG (default)", _OURS):
            found.append(_memory_exponent(scaling, name))
    accuracy = record.load("accuracy")
    if accuracy:
        for rows, found_there in accuracy.items():
            found.append(_sooner(rows, found_there))
    breakdown = record.load(BREAKDOWN)
    if breakdown:
        for count in ("10000", "100000"):
            share = breakdown[count]["products"] / breakdown[count]["fit"]
            found.append(
                Verdict(
                    f"fit's rate, n = {count}",
                    "40 % of the products'",
                    f"{100 * share:.0f} %",
                    share >= 0.4,
                )
            )
    cold = record.load("cold")
    if cold:
        seconds = float(np.median([row["sample"] for row in cold["cold"]]))
        imported = float(np.median([row["import"] for row in cold["cold"]]))
        text = f"{seconds:.2f} s (and {imported:.2f} s of import)"
        found.append(
            Verdict("first result of a cold parvi.sample, 10-d", "below 3 s", text, seconds < 3)
        )
        for name, rows in cold["memory"].items():
            times = arrays(rows)
            text = f"{times:.1f} (and {constant(rows) / 1e6:.0f} MB)"
            found.append(
                Verdict(
                    f"memory of 1 000 000 particles, {name}",
                    "at most 4 arrays",
                    text,
                    round(times, 1) <= 4,
                )
            )
    return found


def _sooner(rows, found) -> Verdict:
    ours = found[OURS]
    ratio = _fastest_nuts(found, "cold") / ours["cold"]
    return Verdict(
        f"time to accuracy against NUTS, cold, {rows} rows",
        "at least 10x, energy ratio below 1",
        f"{ratio:.1f}x, energy ratio {ours['energy_ratio']:.2f}",
        bool(ratio >= 10 and ours["energy_ratio"] < 1),
    )


def _fastest_nuts(found, which) -> float:
    """The fastest of those that were run: the peer to beat is the best of them."""
    return min(row[which] for name, row in found.items() if name.endswith("NUTS"))


def _exponent(scaling, name) -> Verdict:
    rows = scaling["particles"].get(name, {})
    bar, wanted = f"exponent of the time in n, {name}", "at most 1.0"
    if not {"1000", "1000000"} <= set(rows):
        return Verdict(bar, wanted, "not measured", None)
    exponent = np.log10(rows["1000000"]["seconds"] / rows["1000"]["seconds"]) / 3
    return Verdict(bar, wanted, f"{exponent:.2f}", bool(exponent <= 1.0))


def _memory_exponent(scaling, name) -> Verdict:
    rows = scaling["particles"].get(name, {})
    bar, wanted = f"exponent of the peak memory in n, {name}", "at most 1.0"
    peaks = [rows.get(count, {}).get("peak") for count in ("1000", "100000", "1000000")]
    if None in peaks:
        return Verdict(bar, wanted, "not measured", None)
    base, few, many = peaks
    exponent = float(np.log10((many - base) / (few - base)))
    return Verdict(bar, wanted, f"{exponent:.2f}", round(exponent, 2) <= 1.0)


def main(console: Console) -> None:
    found = verdicts()
    for verdict in found:
        console.print(
            f"{_word(verdict)}: {verdict.bar}: {verdict.measured} (wanted: {verdict.wanted})",
            highlight=False,
        )
    lines = [
        "# Speed, measured",
        "",
        f"Made by `make bench`, from the figures in `results/bench/`, on {_machine()}, in float32.",
        "Times are medians, after compilation, and every ratio is between two times of one run.",
        "The peers are blackjax and NumPyro as their users run them, and the paper's Algorithm 1",
        "in plain PyTorch.",
        "",
        *_origin(),
        "| bar | wanted | measured | |",
        "|---|---|---|---|",
        *(f"| {v.bar} | {v.wanted} | {v.measured} | {_word(v)} |" for v in found),
        "",
        *_reasons(found),
    ]
    scaling = record.load("scaling")
    if scaling:
        lines += ["![Seconds for 1000 steps](benchmarks/scaling.png)", ""]
        for what, head in (("particles", "n"), ("dimensions", "d")):
            lines += _table(scaling[what], head)
        lines += _memory_table(scaling["particles"])
        _plot(scaling)
    breakdown = record.load(BREAKDOWN)
    if breakdown:
        lines += [
            "## A step of Algorithm 1, milliseconds",
            "",
            "*Products*: the matrix products of the T' = 5 inner steps alone, of the same shapes.",
            "",
            "| n | step | score | fit | rest | products | fit's rate |",
            "|---|---|---|---|---|---|---|",
        ]
        for count, row in breakdown.items():
            names = ("step", "score", "fit", "rest", "products")
            cells = " | ".join(f"{1e3 * row[name]:.2f}" for name in names)
            lines.append(f"| {count} | {cells} | {100 * row['products'] / row['fit']:.0f} % |")
        lines.append("")
    accuracy = record.load("accuracy")
    if accuracy:
        lines += [
            "## Time to accuracy, 61-d logistic regression, 512 particles or effective draws",
            "",
            "Seconds with compilation and of a second run; *energy ratio*: the energy distance to",
            "a long reference over that of as many independent draws.",
            "",
            "| rows | | s, cold | s, again | energy ratio | smallest ESS | peak MB |",
            "|---|---|---|---|---|---|---|",
        ]
        for rows, methods in accuracy.items():
            for name, row in methods.items():
                size = f"{row['ess']:.0f}" if "ess" in row else ""
                lines.append(
                    f"| {rows} | {name} | {row['cold']:.2f} | {row['again']:.2f} | "
                    f"{row['energy_ratio']:.2f} | {size} | {row['peak'] / 1e6:.0f} |"
                )
        lines.append("")
    whole = record.load("million")
    if whole:
        lines += ["## A million particles", "", million.text(whole), ""]
    cold = record.load("cold")
    if cold:
        lines += ["## The first result of a new process, 10-d problem, 512 particles", ""]
        for name, text in (("cold", "nothing compiled"), ("cached", "JAX's persistent cache")):
            seconds = {
                part: float(np.median([row[part] for row in cold[name]]))
                for part in ("import", "sample")
            }
            lines.append(
                f"- {text}: import {seconds['import']:.2f} s, sample {seconds['sample']:.2f} s"
            )
        lines.append("")
    PAGE.write_text("\n".join(lines))
    console.print(f"Page: {PAGE}", highlight=False)


def _reasons(found):
    """For each bar that was missed: where the time goes, from the figures that were measured."""
    missed = [verdict.bar for verdict in found if verdict.met is False]
    scaling, breakdown = record.load("scaling"), record.load(BREAKDOWN)
    accuracy, cold = record.load("accuracy"), record.load("cold")
    lines = []
    if scaling and breakdown and any("PyTorch" in bar for bar in missed):
        lines.append(_why_torch(scaling, breakdown))
    if (
        scaling
        and breakdown
        and any("a step of" in bar or "the same, fit" in bar for bar in missed)
    ):
        lines.append(_why_svgd(scaling, breakdown))
    if scaling and any("exponent" in bar for bar in missed):
        lines.append(_why_exponent(scaling))
    if accuracy and any("accuracy" in bar for bar in missed):
        lines.append(_why_accuracy(accuracy))
    if cold and any("cold parvi.sample" in bar for bar in missed):
        cached = float(np.median([row["sample"] for row in cold["cached"]]))
        lines.append(
            "**First result.** Nearly all of it is tracing and compiling the default, with the "
            "compiler at its least effort (docs/decisions/0011); with the programs on disk it is "
            f"{cached:.2f} s."
        )
    if f"memory of 1 000 000 particles, {_OURS}" in missed:
        lines.append(
            "**Memory of Algorithm 1.** A step has particles and scores, the velocity, the "
            "proposals and their scores, each of the particles' size; only the default does "
            "without most of them (docs/decisions/0012)."
        )
    if not lines:
        return []
    return ["## Why some are missed", "", *(part for line in lines for part in (line, ""))]


def _why_torch(scaling, breakdown):
    each = []
    for count in ("5", "100", "2000"):
        step = _per_thousand(scaling, "PyTorch Algorithm 1", count)
        if step is None or count not in breakdown:
            continue
        row = breakdown[count]
        text = f"{step / (1e3 * row['products']):.0f}x at n = {count} ({step:.1f} ms per step of "
        text += f"PyTorch over {1e3 * row['products']:.2f} ms of products by XLA"
        if "torch_products" in row:
            text += f"; PyTorch's own products take {1e3 * row['torch_products']:.2f} ms"
        each.append(f"{text})")
    return (
        "**Algorithm 1 against PyTorch.** A step of PyTorch loses time by its calls, about the "
        "same at every n. From a hundred particles on, our step is matrix products, in five calls "
        "of a few microseconds each, and their time differs by a half from one process to the "
        "next. If our step were nothing but the products, it would be "
        + "; ".join(each)
        + ". Gradients by hand, one thread, XLA's other schedulers and vector widths, and its "
        "oneDNN, XNNPACK and YNNPACK products were tried, without a gain beyond the noise."
    )


def _why_svgd(scaling, breakdown):
    row = breakdown["1000"]
    peer = _per_thousand(scaling, "blackjax SVGD", 1000)
    return (
        f"**A step against other SVGDs, n = 1000.** 200x below blackjax's {peer:.0f} ms is "
        f"{peer / 200:.2f} ms; the scores of 1000 particles alone take {1e3 * row['score']:.2f} "
        f"ms, and the products of the inner steps {1e3 * row['products']:.2f} ms."
    )


def _why_exponent(scaling):
    rows = scaling["particles"][_OURS]
    slope = np.log10(rows["1000000"]["seconds"] / rows["10000"]["seconds"]) / 2
    return (
        "**Exponent.** 1000 particles of 61 numbers fit into the CPU's cache, and a million do "
        "not: the work is linear in n, but the time per number is not constant (from 10 000 on the "
        f"exponent is {slope:.2f})."
    )


def _why_accuracy(accuracy):
    each = [
        f"{rows} rows: {_fastest_nuts(row, 'again') / row[OURS]['again']:.1f}x"
        for rows, row in accuracy.items()
    ]
    return (
        "**Time to accuracy.** With up to 10 000 rows our seconds are compilation, and so are most "
        "of those of NUTS. Without compilation on either side, the ratios to the faster NUTS are: "
        + ", ".join(each)
        + "."
    )


def _word(verdict) -> str:
    return {True: "met", False: "missed", None: "not measured"}[verdict.met]


def _table(rows, head):
    counts = sorted({int(count) for row in rows.values() for count in row})
    yield f"## Seconds for 1000 steps against {head}"
    yield ""
    yield "| | " + " | ".join(f"{head} = {count}" for count in counts) + " | compiling |"
    yield "|---" * (len(counts) + 2) + "|"
    for name, row in rows.items():
        cells = [f"{row[str(c)]['seconds']:.3g}" if str(c) in row else "" for c in counts]
        compiling = float(np.median([one["compile"] for one in row.values()])) if row else 0.0
        yield f"| {name} | " + " | ".join(cells) + f" | {compiling:.1f} |"
    yield ""


def _memory_table(rows):
    counts = [
        n for n in (1000, 10_000, 100_000, 1_000_000) if any(str(n) in r for r in rows.values())
    ]
    yield "## Peak memory of the process against n, MB"
    yield ""
    yield "| | " + " | ".join(f"n = {count}" for count in counts) + " |"
    yield "|---" * (len(counts) + 1) + "|"
    for name, row in rows.items():
        cells = [f"{row[str(c)]['peak'] / 1e6:.0f}" if str(c) in row else "" for c in counts]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def _origin() -> list[str]:
    """From which code the figures are."""
    named: dict[str, list[str]] = {}
    for benchmark, commit in record.commits().items():
        named.setdefault(commit, []).append(benchmark)
    if not named:
        return []
    said = "; ".join(f"{', '.join(names)}: {commit}" for commit, names in named.items())
    return [f"*Commits on which they were measured: {said}.*", ""]


def _machine() -> str:
    return " or ".join(str(number) for number in record.cores()) + " CPU cores"


def _plot(scaling) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names = list(dict.fromkeys(name for rows in scaling.values() for name in rows))
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    labels = ("particles (d = 61)", "dimensions (100 particles)")
    for axis, what, label in zip(axes, ("particles", "dimensions"), labels, strict=True):
        for name, row in scaling[what].items():
            counts = [int(count) for count in row]
            seconds = [one["seconds"] for one in row.values()]
            axis.loglog(counts, seconds, marker="o", label=name, color=colours[name])
        axis.set_xlabel(label)
        axis.set_ylabel("seconds for 1000 steps")
    axes[0].legend(fontsize=8)
    folder = PAGE.with_suffix("")
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "scaling.png", dpi=130)
    plt.close(figure)
