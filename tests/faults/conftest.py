"""One server of processes for all faults; programs compiled in this process are not kept on disk."""

from collections.abc import Iterator

import pytest

from faults.program import Server, server


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("forks")) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
