"""`fedmime deploy`: what it refuses before anything starts, and the keys that it makes."""

from pathlib import Path

import filelock
import pytest

from faults.program import said
from fedmime.deploy.directory import LAUNCHER
from fedmime.runs.directory import LOCK

pytest.importorskip("flwr")


SECURE = ["local", "--secure", "--aggregation.clip", 1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["local", "--nodes", 0], "deploy: nodes must be a whole number of at least 1, got 0"),
        (["local", "--nodes", 3, "--cohort", 4], "setting: cohort=4 exceeds the 3 nodes; lower it, or wait for more"),
        (["local", "--deadline", 0], "deploy: deadline must be positive, got 0.0"),
        (["local", "--most-examples", 0], "deploy: most_examples must be a whole number of at least 1, got 0"),
        (
            ["local", "--task", "digits-logistic", "--nodes", 5, "--most-examples", 100],
            "deploy: a node would have ",
        ),
        (["local", "--task", "nothing"], "task: there is no 'nothing'"),
        (["local", "--task", "digits-logistic", "--nodes", 51], "regroup: clients must lie in [1, 50], got 51"),
        (
            ["server", "--keys", "nowhere"],
            "keys: 'nowhere' holds no server's certificate; fedmime deploy keys --server",
        ),
        (["client", "--server", "host"], "server: it must be HOST:PORT, got 'host'"),
        (["client", "--server", "host:1"], "authority: there is no file 'ca.crt'"),
        (["local", "--secure-minimum", 4], "secure: --secure-minimum 4 needs --secure, too"),
        (
            ["client", "--server", "host:1", "--secure-threshold", 0.8],
            "secure: --secure-threshold 0.8 needs --require-secure, too",
        ),
        (
            ["client", "--server", "host:1", "--require-secure", "--secure-minimum", 2],
            "secure: minimum must be a whole number of at least 3, got 2",
        ),
        (
            [
                "client",
                "--server",
                "host:1",
                "--authority",
                __file__,
                "--key",
                __file__,
                "--torch",
                "a:b",
                "--require-secure",
            ],
            "secure: --require-secure needs a client in JAX; one of --torch cannot mask its messages",
        ),
        (["local", "--secure"], "secure: messages must have a finite norm before they are masked; give --aggregation"),
        ([*SECURE, "--secure-threshold", 0.5], "secure: threshold must lie in (0.5, 1], got 0.5"),
        ([*SECURE, "--secure-bits", 8], "secure: bits must be larger, got 8; give more bits for messages of 271862"),
        ([*SECURE, "--nodes", 2], "secure: a group must have 3 to 128 clients with minimum=3 and bits=20, got 2"),
        (
            [*SECURE, "--aggregation.combine", "median"],
            "secure: masked messages are clipped and added and nothing else",
        ),
        (
            [*SECURE, "--aggregation.top-k", 0.1],
            "secure: masked messages are clipped and added and nothing else, got TopK",
        ),
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


@pytest.mark.parametrize("lock", [LAUNCHER, LOCK])
@pytest.mark.parametrize("action", ["local", "server"])
def test_a_directory_at_which_another_process_works(
    action: str, lock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Nothing of it is touched, whatever was asked for."""
    monkeypatch.chdir(tmp_path)
    assert said(["deploy", "keys", "federation", "--server", "localhost"], capsys).code == 0
    kept = tmp_path / "run" / "nodes" / "node_0" / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_text("what a client keeps")
    words = ["deploy", action, "--task", "digits-logistic", "--nodes", 2, "--rounds", 1, "--out", "run", "--fresh"]
    with filelock.FileLock(tmp_path / "run" / lock):
        ended = said(words, capsys)
    assert (ended.code, ended.err) == (6, "fedmime: run directory 'run' is in use by another process\n")
    assert kept.exists()
    assert not (tmp_path / "run" / "logs").exists()


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
