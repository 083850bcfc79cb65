"""`fedmime deploy`: what it refuses before anything starts, and the keys that it makes."""

from pathlib import Path

import pytest

from faults.program import said

pytest.importorskip("flwr")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["local", "--nodes", 0], "deploy: nodes must be a whole number of at least 1, got 0"),
        (["local", "--nodes", 3, "--cohort", 4], "setting: cohort=4 exceeds the 3 nodes; lower it, or wait for more"),
        (["local", "--deadline", 0], "deploy: deadline must be positive, got 0.0"),
        (["local", "--task", "nothing"], "task: there is no 'nothing'"),
        (["local", "--task", "digits-logistic", "--nodes", 51], "regroup: clients must lie in [1, 50], got 51"),
        (
            ["server", "--keys", "nowhere"],
            "keys: 'nowhere' holds no server's certificate; fedmime deploy keys --server",
        ),
        (["client", "--server", "host"], "server: it must be HOST:PORT, got 'host'"),
        (["client", "--server", "host:1"], "authority: there is no file 'ca.crt'"),
        (["keys", "here"], "keys: say --server with its names and addresses, or --node with its name, and not both"),
        (["keys", "here", "--node", "../a"], "name: a node's name has letters, digits,"),
    ],
)
def test_refusals(words: list[object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    ended = said(["deploy", *words], capsys)
    assert ended.code == 2
    assert ended.err.startswith(f"fedmime: {told}")
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_keys_of_a_server_and_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    ended = said(["deploy", "keys", "federation", "--server", "10.0.0.1"], capsys)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "give nodes federation/ca.crt, and put their public keys into federation/nodes\n"
    ended = said(["deploy", "keys", "mine", "--node", "hospital-a"], capsys)
    assert ended.out == "mine/hospital-a stays here; give the server mine/hospital-a.pub\n"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "ca.crt", "hospital-a", "hospital-a.pub", "server.key", "server.pem",
    ]  # fmt: skip


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = said(["deploy", "keys", "here", "--node", "a"], capsys)
    assert (ended.code, ended.err) == (2, "fedmime: deploying is an extra: pip install 'fedmime[deploy]'\n")
