"""The notebook of the docs runs in a real kernel, and shows what it says."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's packages
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(PAGE, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what is committed is what people write
    where = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where, coalesce_streams=True).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    progress, card = outputs[1]
    assert progress.name == "stdout"  # standard error is red in notebooks
    assert progress.text.rpartition("\r")[2].startswith("round 40/40, test accuracy 0.")
    assert card.data["text/plain"].startswith("Run(40 rounds, test accuracy ")
    assert card.data["text/html"].count("<svg ") == 3
    rounds = dict(line.split() for line in outputs[3][0].text.splitlines())
    assert int(rounds["Mime"]) < 40
