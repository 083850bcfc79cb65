"""The report in a real browser, without a window: opens without complaint, shows the numbers of the runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fedmime.report import html
from fedmime.report.recorded import load
from report.tables import expected_headline, table
from report.written import write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--dump-dom",
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")


def _open(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page as the browser has it after loading, and what the browser's console says."""
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_report_opens_without_errors_and_shows_the_runs(tmp_path: Path) -> None:
    for label in ("FedAvg", "Mime"):
        write_run(tmp_path / "runs" / label, label, rounds=60)
    page = html.write(tmp_path / "runs/report.html", "Two runs", load(tmp_path / "runs"))
    shown, complaints = _open(page, tmp_path / "profile")
    assert complaints == []
    assert table(shown, "headline") == [expected_headline(tmp_path / "runs" / x, 0.75) for x in ("FedAvg", "Mime")]
    assert shown.count("<figure ") == 10

    wrong = "<main><script>undefined.x</script><img src='https://0.0.0.0/'>"
    page.write_text(html.page("Wrong").replace("<main>", wrong))
    assert len(_open(page, tmp_path / "profile")[1]) == 2, "complaints must be seen, and scripts and images refused"
