"""Settings from files: nested or dotted, of the right kind, and back again."""

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedmime.cli.compare import Compare
from fedmime.cli.options import Asked
from fedmime.errors import ConfigError
from fedmime.experiments.kinds import fitted
from fedmime.experiments.setting import ALGORITHMS, BASES, Optimizer, Setting, Taking, merged, plain, read

finite = st.floats(allow_nan=False, allow_infinity=False)
SETTINGS = st.builds(
    Setting,
    task=st.text(),
    algorithm=st.sampled_from(ALGORITHMS),
    base=st.none() | st.sampled_from(BASES),
    eta=st.none() | finite,
    mu=finite,
    split=st.booleans(),
    rounds=st.none() | st.integers(),
    seed=st.integers(),
    optimizer=st.builds(Optimizer, beta=st.none() | finite, eps=st.none() | finite),
    participation=st.builds(Taking, sampler=st.sampled_from(["uniform", "diurnal"]), drop_out=finite),
)


@given(SETTINGS)
def test_what_is_written_is_read_again(setting: Setting) -> None:
    text = yaml.safe_dump(plain(setting), sort_keys=False)
    assert merged(Setting(), yaml.safe_load(text), "a file") == setting


def test_nested_and_dotted_fields_are_the_same(tmp_path: Path) -> None:
    texts = [
        "optimizer: {beta: 0.5, eps: 1e-3}\nparticipation:\n  drop_out: 0.1\n",
        "optimizer.beta: 0.5\noptimizer.eps: 0.001\nparticipation.drop-out: 0.1\n",
        "optimizer.beta: 0.5\noptimizer: {eps: .001}\nparticipation: {drop-out: 1e-1}\n",
    ]
    found = []
    for i, text in enumerate(texts):
        (tmp_path / str(i)).write_text(text)
        found.append(read(tmp_path / str(i), Setting()))
    expected = Setting(optimizer=Optimizer(beta=0.5, eps=1e-3), participation=Taking(drop_out=0.1))
    assert found == [expected] * 3


def test_fields_of_the_command_line_are_read_too(tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    file.write_text("out: runs/a\nkeep: 2\nfresh: true\nmethods: [fedavg, mime]\n")
    asked = read(file, Compare())
    assert (asked.out, asked.keep, asked.fresh, asked.methods) == (Path("runs/a"), 2, True, ("fedavg", "mime"))
    with pytest.raises(ConfigError, match="unknown field 'methods'"):
        read(file, Asked())


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (float, 3, 3),
        (float, "1e-3", 1e-3),
        (float | None, None, None),
        (int, 3, 3),
        (bool, False, False),
        (str, "3", "3"),
        (Path | None, "a/b", Path("a/b")),
        (Literal["a", "b"], "b", "b"),
        (tuple[str, ...], ["a", "b"], ("a", "b")),
    ],
)
def test_values_that_fit(kind: object, value: object, found: object) -> None:
    assert fitted(kind, value) == found
    assert type(fitted(kind, value)) is type(found)


@pytest.mark.parametrize(
    ("kind", "value", "accepted"),
    [
        *((float, value, "a number") for value in (True, None, "fast", "nan", [1.0], {})),
        *((int, value, "a whole number") for value in (True, 1.0, "1", None)),
        *((bool, value, "true or false") for value in (0, 1, "yes", None)),
        *((str, value, "text") for value in (1, None, ["a"])),
        *((Path, value, "a path") for value in (1, None, ["a"])),
        *((Literal["a", "b"], value, "one of a, b") for value in ("c", 1, None, ["a"])),
        *((tuple[str, ...], value, "a list") for value in ("a", [1], None)),
        (int | None, "x", "a whole number or nothing"),
    ],
)
def test_values_that_do_not_fit(kind: object, value: object, accepted: str) -> None:
    with pytest.raises(ValueError, match=f"^{accepted}$"):
        fitted(kind, value)


def test_every_field_has_a_kind_that_is_checked() -> None:
    """A value of no kind at all is refused for each of them, in one line that names the field."""
    for kind in (Setting, Asked, Compare):
        for field in dataclasses.fields(kind):
            with pytest.raises(ConfigError, match=rf"^config: a file: {field.name} must be .*, got \(1\+2j\)$"):
                merged(kind(), {field.name: 1 + 2j}, "a file")
