"""The report: its words, its safety, and what a real browser makes of it."""

import html.parser
import pathlib
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import parvi
from parvi.results.checks import Check
from parvi.results.modes import Modes
from parvi.results.report.words import Call, verdict_of
from parvi.results.sought import Sought
from parvi.results.table import in_digits, parameters_first
from parvi.results.verdicts import Verdicts, doubted

pytest.importorskip("matplotlib")

NAME = "<script>alert('x')</script>"


# One function, so that all runs and checks share their programs.
TARGET = parvi.Target(
    lambda p: -0.5 * jnp.sum((p[NAME] - 1) ** 2) - 0.5 * (p["scale"] - 2) ** 2,
    like={NAME: np.zeros(2, np.float32), "scale": np.float32(1)},
)


def made(**settings):
    return parvi.sample(TARGET, num_particles=64, **settings)


@pytest.fixture(scope="module")
def good():
    return made()


@pytest.fixture(scope="module")
def bad():
    return made(sampler=parvi.svgd(), num_steps=3)


@pytest.fixture(scope="module")
def page(good, tmp_path_factory):
    return good.report(tmp_path_factory.mktemp("report") / "report.html", title="A & B")


@pytest.fixture(scope="module")
def bad_page(bad, tmp_path_factory):
    return bad.report(tmp_path_factory.mktemp("bad") / "bad.html")


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.references, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [v for k, v in attrs if k in ("src", "href", "srcset")]

    def handle_data(self, data):
        self.words.append(data.strip())


def parsed(path):
    tags = Tags()
    tags.feed(path.read_text())
    return tags


def test_names_are_text_and_nothing_is_fetched(page):
    tags = parsed(page)
    assert tags.tags.count("script") == 1
    assert f"{NAME}[0]" in tags.words
    assert all(reference.startswith("data:image/png") for reference in tags.references)
    assert not re.search(r"https?://", page.read_text())


def test_the_verdict_comes_first(page, bad_page):
    words = [word for word in parsed(page).words if word]
    first = words.index("A & B", words.index("A & B") + 1)
    assert words[first + 1].startswith("These particles can be taken for a sample")
    words = [word for word in parsed(bad_page).words if word]
    first = words.index("parvi report", words.index("parvi report") + 1)
    assert words[first + 1].startswith("Do not take these particles for a sample")


def test_how_to_reproduce_names_what_was_asked_for(page, bad_page):
    assert "parvi.sample(target, init, key=0)" in page.read_text()
    text = bad_page.read_text()
    assert "parvi.sample(target, init, sampler=sampler, key=0, num_steps=3)" in text


@pytest.mark.slow
def test_a_saved_result_has_the_same_report(good, page, tmp_path):
    good.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    assert loaded.verdict() == good.verdict()
    again = loaded.report(tmp_path / "again.html", title="A & B")
    assert parsed(again).words == parsed(page).words


def test_a_file_without_findings_says_so(good, tmp_path):
    plain = made(key=1)
    plain.save(tmp_path / "plain.npz")
    verdict = parvi.load(tmp_path / "plain.npz").verdict()
    assert verdict.believable is None
    assert "result.check()" in verdict.reasons[0]


def test_a_failed_run_has_a_report(good, tmp_path):
    failed = good.with_status(parvi.Status.DIVERGED)
    assert set(failed.summary()["verdict"]) == {"failed"}
    assert failed.known_modes() is None
    words = [word for word in parsed(failed.report(tmp_path / "failed.html")).words if word]
    assert "The run failed (DIVERGED). Do not use these particles." in words
    assert str(failed.verdict()).startswith("The run failed (DIVERGED)")


def modes_of(*weights, error):
    labels = np.zeros(256, int)
    return Modes(np.array(weights), np.full(len(weights), error), labels, ())


WORSE = Check(False, ("Too narrow.", "The mean is off.", "The shape is off."), {}, {})
FINE, WRONG = Check(True, (), {}, {}), Check(False, ("Too narrow.",), {}, {})
DONE, MOST = parvi.Status.CONVERGED, parvi.Status.MAX_STEPS


@pytest.mark.parametrize(
    ("status", "check", "modes", "shape", "believable", "first"),
    [
        (DONE, FINE, modes_of(1.0, error=np.nan), (256, 4), True, "can be taken for a sample"),
        (DONE, FINE, modes_of(0.4, 0.6, error=0.01), (256, 4), True, "can be taken for a sample"),
        (DONE, FINE, None, (20, 4), None, "Nobody can tell whether these 20 particles are"),
        (DONE, FINE, None, (100, 200), True, "not their correlations: there are too few of them"),
        (DONE, WRONG, modes_of(0.4, 0.6, error=np.nan), (256, 4), False, "in 2 separated modes"),
        (DONE, WRONG, modes_of(1.0, error=np.nan), (256, 4), False, "the tests below failed"),
        (DONE, WRONG, None, (12, 30), False, "there are too few of them, 12 for 30 parameters"),
        (MOST, FINE, None, (256, 4), False, "all steps were made before the run was done"),
        (MOST, WORSE, None, (256, 4), False, "all steps were made before the run was done"),
    ],
)
def test_the_first_line_says_what_matters_most(status, check, modes, shape, believable, first):
    verdict = verdict_of(status, check, modes, shape)
    assert verdict.believable is believable
    assert first in verdict.headline
    assert verdict.headline.startswith("Do not take") == (believable is False)
    assert str(verdict).splitlines()[0] == verdict.headline


def test_a_clean_verdict_says_how_far_modes_were_looked_for():
    wide = verdict_of(DONE, FINE, None, (256, 4), Sought(11.0, 400.4, "tau"))
    assert "That is 11 standard deviations" in str(wide)
    assert "for tau, and more for others" in str(wide)
    assert wide.headline.endswith("no test found anything wrong.")
    tight = verdict_of(DONE, FINE, None, (256, 4), Sought(3.1, 3.6, "tau"))
    assert tight.believable
    assert tight.headline.endswith(
        "no modes farther than 3.6 standard deviations away were looked for."
    )
    unsought = verdict_of(DONE, FINE, None, (256, 4))
    assert "No modes were looked for but those in which particles lie" in str(unsought)


def test_scouts_begin_where_the_verdict_says(good, bad):
    flat = np.random.default_rng(0).normal(size=(1000, 2))
    start = np.array([[-0.5, 0.0], [0.5, 0.2]])
    found = Sought.of(start, flat / flat.std(axis=0), ["a", "b"])
    assert found.name == "b"
    # Four times farther out than the start's centre: b from 0.1 - 0.4 to 0.1 + 0.4, a up to 2.
    np.testing.assert_allclose(found[:2], [0.5, 2.0], atol=0.1)
    # A start of N(0, 1), and particles of N(1, 1) and N(2, 1).
    assert 6 < good.sought.least < 16
    assert bad.sought is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call(limited=True), ["Leave num_steps (--steps) out, so that the run ends"]),
        (Call(limited=False), ["Give every parameter a proper prior"]),
        (Call(), ["Leave num_steps (--steps) out if it was given", "Give every parameter"]),
        (Call("Flow(\n  field=SVGD(", False), ["Make more steps (num_steps, --steps)"]),
        (Call("Langevin(", True), ["Make more steps (num_steps, --steps)"]),
    ],
)
def test_advice_on_steps_fits_the_call(call, words):
    advice = verdict_of(MOST, FINE, None, (256, 4), call=call).advice
    for sentence, start in zip(advice, [*words, "Use more particles."], strict=False):
        assert sentence.startswith(start)


def test_nobody_is_told_to_compare_nuts_with_itself():
    assert "nuts" not in str(verdict_of(DONE, WRONG, None, (256, 4), call=Call("NUTS(")))
    assert "nuts" in str(verdict_of(DONE, WRONG, None, (256, 4)))


@pytest.mark.parametrize(
    ("num", "words"),
    [(12, "Use at least 122 particles, better 610."), (512, "Use more particles, better 610.")],
)
def test_advice_never_asks_for_fewer_particles_than_there_are(num, words):
    assert words in verdict_of(DONE, WRONG, None, (num, 61)).advice


@pytest.mark.parametrize(
    ("column", "value", "sd", "text"),
    [
        ("mean", -6.483e-05, 0.9998, "0.000"),
        ("5%", 1997.4421, 1.7336, "1997.44"),
        ("mean", 2e16, 1.7e8, "2e+16"),
        ("sd", 1.234e-9, 1.234e-9, "1.234e-09"),
        ("mean", 3.0, 0.0, "3"),
        ("mean", np.nan, np.nan, "-"),
        ("drift", 2.1738, 1.0, "2.17"),
    ],
)
def test_numbers_have_the_digits_that_their_width_gives_them(column, value, sd, text):
    assert in_digits(column, value, sd) == text


def test_per_parameter_verdicts(good, bad):
    table = good.summary()
    assert set(table["verdict"]) == {"ok"}
    np.testing.assert_allclose(table["stein_ratio"], 1, atol=0.1)
    assert np.isfinite(table["drift"]).all()
    narrow = made(sampler=parvi.svgd(), num_steps=0, init=lambda key, n: narrowed(n)).summary()
    assert narrow.loc["scale", "verdict"] == "too narrow"
    assert np.isnan(narrow["drift"]).all()


@pytest.mark.slow
def test_parameters_in_modes_that_nobody_weighed_are_not_ok():
    """Two modes of one weight, nine tenths of the particles in one: each fits within its mode."""
    rng = np.random.default_rng(0)
    side = np.where(np.arange(200) < 180, 8.0, -8.0)[:, None]
    particles = (side + rng.normal(size=(200, 1))).astype(np.float32)

    def log_density(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 8) ** 2), -0.5 * jnp.sum((x + 8) ** 2))

    result = parvi.sample(log_density, particles, sampler=parvi.svgd(), num_steps=0)
    assert set(result.summary()["verdict"]) == {"ok"}
    assert not result.check()
    assert set(result.summary()["verdict"]) == {"unweighed"}


def test_words_agree_with_what_a_check_finds(tmp_path):
    """Coordinates of the right mean and variance that are skewed, or correlated as they are not."""
    rng = np.random.default_rng(0)
    particles = rng.multivariate_normal(np.zeros(2), [[1, 0.8], [0.8, 1]], 256)
    particles = np.column_stack([particles, rng.exponential(size=256) - 1]).astype(np.float32)
    particles = (particles - particles.mean(axis=0)) / particles.std(axis=0)

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    result = parvi.sample(log_density, particles, sampler=parvi.svgd(), num_steps=0)
    assert list(result.summary()["verdict"]) == ["ok", "ok", "ok"]
    assert not result.check()
    assert list(result.summary()["verdict"]) == ["in doubt", "in doubt", "skewed"]
    result.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    assert list(loaded.summary()["verdict"]) == ["in doubt", "in doubt", "skewed"]


def test_doubts_of_unconstrained_numbers_are_of_the_array():
    words = np.array(["ok", "ok", "drifts", "ok", ""])
    names = ["p[0]", "p[1]", "p[2]", "tau", "p_twice"]
    said = doubted(words, names, {"p[0]": "skewed"})
    assert list(said) == ["skewed", "ok", "drifts", "ok", ""]
    # A simplex of three has two unconstrained numbers, whose names need not be those of its own.
    said = doubted(words, names, {"p_free[1]": "skewed", "tau": "disputed", "": "in doubt"})
    assert list(said) == ["in doubt", "in doubt", "drifts", "disputed", ""]
    said = doubted(words, names, {"p[3]": "skewed"})
    assert list(said) == ["skewed", "skewed", "drifts", "ok", ""]


def test_words_are_those_of_the_number_with_the_name():
    class Columns:
        """A layout whose flat vectors have the first index of an array run fastest."""

        paths, shapes, labels = ("m", "w"), ((2, 2), (3,)), None

        def flat_names(self):
            return ["w[0]", "w[1]", "m[0,0]", "m[1,0]", "m[0,1]", "m[1,1]"]

    ratios = np.array([1.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    found = Verdicts(np.zeros(6), ratios, np.ones(6)).per_name(Columns())
    np.testing.assert_array_equal(found.ratios, [4, 6, 5, 7, 3, 3, 3])


def test_scores_that_overflow_are_no_warning():
    flat = np.random.default_rng(0).normal(size=(8, 1)) * 1e5
    found = Verdicts.of(flat, np.full((8, 1), 1e305) * np.sign(flat), None)
    assert not np.isfinite(found.ratios).any()


def narrowed(num):
    rng = np.random.default_rng(0)
    wide = {NAME: 1 + rng.normal(size=(num, 2)), "scale": 2 + 0.3 * rng.normal(size=num)}
    return {name: value.astype(np.float32) for name, value in wide.items()}


def test_what_is_computed_comes_after_the_parameters():
    table = pd.DataFrame({"sd": 1.0, "verdict": ["", "ok", "", "drifts"]}, index=list("dbca"))
    assert list(parameters_first(table).index) == ["b", "a", "d", "c"]
    # A file from before verdicts has none.
    assert list(parameters_first(table[["sd"]]).index) == list("dbca")


def test_predictions(good):
    doubled = good.predict(lambda p: {"twice": 2 * p["scale"]})
    np.testing.assert_allclose(doubled["twice"], 2 * good.particles["scale"], rtol=1e-6)
    # A function that needs numbers, not tracers.
    signs = good.predict(lambda p: np.float32(1 if float(p["scale"]) > 2 else -1))
    np.testing.assert_array_equal(signs, np.where(good.particles["scale"] > 2, 1, -1))
    import jax

    drawn = good.predict(lambda key, p: p["scale"] + jax.random.normal(key), key=0)
    assert np.std(drawn - good.particles["scale"]) > 0.7
    assert len(np.unique(drawn - good.particles["scale"])) == 64


@pytest.mark.slow
def test_in_a_browser(page, bad_page):
    """No error, no request, sorting and filtering work, and axe finds nothing."""
    playwright = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed.")
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for path in (page, pathlib.Path(bad_page)):
            for width, theme in ((390, "dark"), (1200, "light")):
                look(browser, axe, path, width, theme)
        browser.close()


def look(browser, axe, path, width, theme):
    shown = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    errors, requests = [], []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    shown.on("request", lambda request: requests.append(request.url))
    shown.goto(path.as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.click("table.summary th:nth-child(3) button")
    cells = "table.summary tbody tr:not([hidden]) td:nth-child(3)"
    means = [float(text) for text in shown.locator(cells).all_inner_texts()]
    assert means == sorted(means)
    shown.click("table.summary th:nth-child(3) button")
    falling = [float(text) for text in shown.locator(cells).all_inner_texts()]
    assert falling == sorted(means, reverse=True)
    shown.fill("#filter", "scale")
    assert shown.locator(cells).count() == 1
    assert axe.Axe().run(shown).response["violations"] == []
    assert errors == []
    assert all(url.startswith(("file:", "data:")) for url in requests)
