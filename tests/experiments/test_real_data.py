"""The three published tasks learn from the real files, where those are here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REAL = Path(os.environ.get("FEDMIME_DATA_DIR") or Path(__file__).parents[3] / "shared" / "data" / "tff")
LAUNCH = "from fedmime.cli.main import script; script()"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (REAL / "fed_emnist_train.h5").is_file(), reason="the real subset is not here")
@pytest.mark.parametrize(("task", "cohort"), [("shakespeare", 5), ("emnist-cnn", 5), ("stackoverflow", 4)])
def test_five_rounds_lower_the_loss(task: str, cohort: int, tmp_path: Path, fact) -> None:
    """As people run it: another process, in single precision."""
    words = ["train", "--task", task, "--data-dir", REAL, "--rounds", 5, "--cohort", cohort, "--evaluate-every", 5]
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-c", LAUNCH, *map(str, words), "--out", str(tmp_path), "--quiet"]
    subprocess.run(command, env=usual, check=True)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    fact(f"{task}: loss of the last of five rounds over the first", losses[-1] / losses[0])
    assert len(losses) == 5
    assert losses[-1] < losses[0]
