"""Our pages in a real browser, on a desk and on a telephone: what a click changes, and that nothing is fetched."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from fedaccord.config import parse_experiment
from fedaccord.experiment import run_experiment
from fedaccord.recording import Watcher
from fedaccord.runs.compare import write_comparison
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.watching import serving

pytestmark = pytest.mark.chromium

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DIGITS = """
name = "small"

[data]
dataset = "digits"
samples = 300
partition = { kind = "iid", sites = 3 }

[model]
name = "mlp"
hidden = [16]

[method]
rounds = 3
steps = 3

[run]
workers = 0
"""
DRAWN = """return [...document.querySelectorAll('[data-figure]')].every(
    box => box.querySelector('.scatterlayer path.js-line, .heatmaplayer image'))"""
CURVES = "return document.querySelectorAll('#box-accuracy .scatterlayer path.js-line').length"
CELLS = "return [...document.querySelectorAll('#box-confusion-0 .heatmap-label')].map(cell => cell.textContent)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods with two seeds each, for real, in folders that the pages are made from."""
    parent = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            experiment = parse_experiment(DIGITS, [f'method.name="{method}"', f"seed={seed}"])
            run_experiment(experiment, parent, RunFolder(parent / f"{method}-{seed}"))
    return parent


@pytest.fixture(scope="module")
def coarse_run(tmp_path_factory):
    """A run in which two sites use names of their own."""
    folder = tmp_path_factory.mktemp("coarse") / "run"
    views = ["data.views.site-1={kind='coarse',correspondence='shape'}"]
    views += ["data.views.site-2={kind='coarse',correspondence='parity'}"]
    run_experiment(parse_experiment(DIGITS, views), folder.parent, RunFolder(folder))
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    profile = tmp_path_factory.mktemp("profile")
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()
    deadline = time.monotonic() + 10
    while (left := processes_naming(str(profile))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left


def processes_naming(word):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


@pytest.fixture(params=[1280, 390])
def open_page(browser, request):
    """Opens a page at a width; in the end it must fit that width, have no complaint and have asked for nothing."""
    size = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened = []

    def open_(path):
        for log in ("browser", "performance"):
            browser.get_log(log)  # what earlier pages said is not about this one
        opened.append(path.as_uri())
        browser.get(path.as_uri())
        until(browser, DRAWN)
        return browser

    yield open_
    assert fits(browser, request.param)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == opened  # plotly paints into those


def until(browser, script, answer=True):
    WebDriverWait(browser, 30, poll_frequency=0.1).until(lambda _: browser.execute_script(script) == answer, script)


def fits(browser, width):
    seen, whole = browser.execute_script(
        "const page = document.documentElement; return [page.clientWidth, page.scrollWidth]"
    )
    return whole <= seen <= width


def test_each_sites_curve_comes_and_goes_with_its_tick(runs, open_page):
    page = open_page(runs / "fedavg-0" / "report.html")
    key = page.find_element(By.CSS_SELECTOR, ".switch .keys")
    before, tick = page.execute_script(CURVES), page.find_element(By.ID, "each-site")
    assert not key.is_displayed()
    tick.click()
    until(page, CURVES, before + 3)
    assert key.is_displayed()
    assert key.text.split() == ["site-0", "site-1", "site-2"]
    tick.click()
    until(page, CURVES, before)
    assert not key.is_displayed()


def test_the_selector_shows_another_confusion_matrix(runs, open_page):
    page = open_page(runs / "fedavg-0" / "report.html")
    choice = Select(page.find_element(By.CSS_SELECTOR, "select[data-for=box-confusion-0]"))
    assert [option.text for option in choice.options] == [
        "global model, round 3",
        "site site-0, round 3",
        "site site-1, round 3",
        "site site-2, round 3",
    ]
    counts = page.execute_script("return [0, 1].map(at => figures[`confusion-${at}`].data[0].text.flat())")
    assert sum(counts[0]) > sum(counts[1]) > 0
    assert page.execute_script(CELLS) == list(map(str, counts[0]))
    choice.select_by_index(1)
    until(page, CELLS, list(map(str, counts[1])))


def test_the_selector_shows_what_another_site_s_names_stand_for(coarse_run, open_page):
    page = open_page(coarse_run / "report.html")
    box = "document.querySelector('#box-correspondence-0')"
    rows = f"return [...{box}.querySelectorAll('.ytick')].map(tick => tick.textContent)"
    assert page.execute_script(rows) == ["round", "straight", "open"]
    height = page.execute_script(f"return {box}.clientHeight")
    Select(page.find_element(By.CSS_SELECTOR, "select[data-for=box-correspondence-0]")).select_by_visible_text("site-2")
    until(page, rows, ["even", "odd"])
    assert page.execute_script(f"return {box}.clientHeight") < height  # fewer rows need less room
    cells = page.execute_script(f"return [...{box}.querySelectorAll('.heatmap-label')].map(cell => cell.textContent)")
    assert sorted(filter(None, cells)) == ["1"] * 10


def test_the_page_begins_with_the_verdict_and_shows_the_calibration_of_each_site(runs, open_page):
    page = open_page(runs / "fedavg-0" / "report.html")
    said = page.find_element(By.CSS_SELECTOR, "main > :first-child")
    summary = json.loads((runs / "fedavg-0" / "summary.json").read_text(encoding="utf-8"))
    assert said.text == summary["verdict"]["text"] != ""
    box = "document.querySelector('#box-calibration-0')"
    before = page.execute_script(f"return {box}.data[1].x")
    assert before == [row[1] for row in summary["quality"]["global"]["calibration"]]
    choice = Select(page.find_element(By.CSS_SELECTOR, "select[data-for=box-calibration-0]"))
    choice.select_by_visible_text("site-1")
    until(page, f"return {box}.data[1].x", [row[1] for row in summary["quality"]["sites"]["site-1"]["calibration"]])


def test_the_page_follows_the_theme_and_is_light_on_paper(runs, open_page):
    page = open_page(runs / "fedavg-0" / "report.html")
    back = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('#box-accuracy .xtick text').style.fill"
    try:
        for theme, paper, letters in (("dark", "rgb(20, 25, 30)", 230), ("light", "rgb(255, 255, 255)", 31)):
            features = [{"name": "prefers-color-scheme", "value": theme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            until(page, back, paper)
            until(page, f"{ink}.startsWith('rgb({letters}, ')")
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
        page.execute_script("dispatchEvent(new Event('beforeprint'))")
        until(page, back, "rgb(255, 255, 255)")
        until(page, f"{ink}.startsWith('rgb(31, ')")
        assert page.execute_cdp_cmd("Page.printToPDF", {})["data"].startswith("JVBERi0")  # %PDF-
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_the_settings_unfold(runs, open_page):
    page = open_page(runs / "fedavg-0" / "report.html")
    settings = page.find_element(By.CSS_SELECTOR, "details pre")
    assert not settings.is_displayed()
    page.find_element(By.CSS_SELECTOR, "details summary").click()
    assert settings.is_displayed()
    assert json.loads(settings.text)["rounds"] == 3


def test_the_comparison_draws_all_contestants_and_scrolls_only_its_tables(runs, open_page):
    folders = [runs / f"{method}-{seed}" for method in ("fedavg", "local") for seed in (0, 1)]
    page = open_page(write_comparison(folders, runs / "comparison.html"))
    assert page.title == "Comparison of fedavg, local"
    headings = [heading.text for heading in page.find_elements(By.CSS_SELECTOR, ".pair h3")]
    assert headings == [f"{scope}, {m}" for scope in ("Global model", "Mean over sites") for m in ("accuracy", "nll")]
    strokes = page.find_elements(By.CSS_SELECTOR, ".keys .stroke")
    assert [stroke.find_element(By.XPATH, "..").text for stroke in strokes] == ["fedavg, 2 seeds", "local, 2 seeds"]
    for key, contestants in (("global-accuracy", 1), ("sites-accuracy", 2)):  # local has no global model
        assert len(page.find_elements(By.CSS_SELECTOR, f"#box-{key} .scatterlayer path.js-fill")) == contestants
    wide = page.find_element(By.CSS_SELECTOR, ".box")
    page.execute_script("arguments[0].scrollLeft = 1000", wide)
    moved = page.execute_script("return [arguments[0].scrollLeft > 0, window.scrollX]", wide)
    assert moved == [page.execute_script("return window.innerWidth") == 390, 0]


class SteppedRun:
    """A real run in a thread of its own, which stops after each round until it may go on."""

    def __init__(self, folder):
        self.folder, self.may_go_on, self.finished = folder, threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._play)
        self.thread.start()
        assert self.finished.acquire(timeout=60)

    def _play(self):
        folder = RunFolder(self.folder)
        run_experiment(parse_experiment(DIGITS), self.folder.parent, folder, Watcher(round=self._pause))
        folder.close()

    def _pause(self, record):
        self.finished.release()
        assert self.may_go_on.acquire(timeout=60)

    def go_on(self):
        self.may_go_on.release()
        if self.thread.is_alive():
            self.finished.acquire(timeout=5)

    def end(self):
        for _ in range(3):
            self.may_go_on.release()
        self.thread.join(60)


PROGRESS = "return document.querySelector('.progress')?.textContent ?? ''"


def test_a_watched_run_updates_the_page_and_keeps_what_the_reader_did(browser, tmp_path):
    size = {"width": 1280, "height": 600, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    run = SteppedRun(tmp_path / "run")
    try:
        with serving(tmp_path / "run") as address:
            browser.get(address)
            until(browser, PROGRESS, "Round 1 of 3, running: figures are those of the last evaluated round.")
            until(browser, DRAWN)
            browser.find_element(By.ID, "each-site").click()
            browser.execute_script("document.querySelector('details').open = true; window.scrollTo(0, 500)")
            run.go_on()
            until(browser, PROGRESS, "Round 2 of 3, running: figures are those of the last evaluated round.")
            until(browser, DRAWN)
            assert browser.execute_script("return figures.accuracy.data[0].x.length") == 2
            assert browser.find_element(By.ID, "each-site").is_selected()
            assert browser.execute_script("return document.querySelector('details').open")
            assert browser.execute_script("return window.scrollY") == 500
            assert browser.find_element(By.CSS_SELECTOR, ".switch .keys").is_displayed()
            run.end()
            until(browser, PROGRESS, "")
            choice = Select(browser.find_element(By.CSS_SELECTOR, "select[data-for=box-confusion-0]"))
            assert choice.options[0].text == "global model, round 3"
            assert browser.get_log("browser") == []  # the policy of the page allows what it does
        status = "return document.getElementById('live').textContent"
        until(browser, status, "no longer live: fedaccord watch has ended")
    finally:
        run.end()
