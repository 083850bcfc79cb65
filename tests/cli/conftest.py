"""Programs that the command line compiles in this process are not kept on disk."""

import pytest


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
