"""A local MLflow store for all tests of a process: creating its tables takes seconds."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a database of MLflow."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
