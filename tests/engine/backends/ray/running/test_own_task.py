"""A task and an algorithm of a user's own file: workers open them by name, and another version is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine.backends.specification import Ray
from fedmime.experiments import train
from fedmime.experiments.setting import Setting

_SOURCE = Path(__file__).parents[4] / "cli" / "own_task.py"
_ALGORITHM = """
import fedmime as fm
from fedmime.algorithms.fedavg import FedAvg
from fedmime.hyperparameters import recipe


@recipe
class Halved(FedAvg):
    def local(self, message, client):
        reply = super().local(message, client)
        return reply._replace(send=0.5 * reply.send)


def halved(eta):
    plain = fm.algorithms.fedavg(eta)
    return Halved(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
"""


def test_workers_find_what_a_file_names(ray: Ray, tmp_path: Path) -> None:
    file, other = tmp_path / "mine_on_ray.py", tmp_path / "halved_on_ray.py"
    shutil.copy(_SOURCE, file)
    other.write_text(_ALGORITHM)
    prepared = train.prepare(Setting(f"{file}:mine", f"{other}:halved", rounds=2, eta=0.1))
    ours, theirs = (train.run(prepared, backend=backend) for backend in (ray, "local"))
    np.testing.assert_allclose(ours.history["test_loss"], theirs.history["test_loss"], 1e-5)  # in float32
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-6), ours.params, theirs.params)


def test_another_version_of_the_file_is_refused(ray: Ray, tmp_path: Path) -> None:
    file = tmp_path / "edited_on_ray.py"
    shutil.copy(_SOURCE, file)
    prepared = train.prepare(Setting(f"{file}:mine", "fedavg", rounds=1))
    file.write_text(file.read_text() + "# edited after this process has read it\n")
    with pytest.raises(fm.FedmimeError, match=f"another version of {str(file)!r}"):
        train.run(prepared, backend=ray)
