"""The process beside the driver speaks for one that was ended suddenly, and only for such a one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedmime.engine.backends.ray import head


@pytest.mark.parametrize(
    ("said", "told"), [(head.FAREWELL, ""), ("", f"fedmime: ray: {head._SUDDEN}; {head._RESUME}\n")]
)
def test_words_are_said_for_a_driver_without_farewell(said: str, told: str) -> None:
    command = [sys.executable, "-P", head.__file__, "watch"]
    ended = subprocess.run(command, input=said, capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("{}\n", told)
