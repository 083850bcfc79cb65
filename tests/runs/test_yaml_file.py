"""YAML that nobody vouches for: what is written is read again, and what would cost memory or mislead is refused."""

from pathlib import Path

import pytest
import yaml

from fedmime.runs.yaml_file import read_mapping


def test_shared_values_are_read_as_written(tmp_path: Path) -> None:
    """PyYAML writes a list that occurs twice as an anchor and an alias."""
    shared = [1, 2, {"a": "b"}]
    told = {"one": shared, "two": shared, "empty": {}, "number": 1e-3}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(told))
    assert "*id001" in (tmp_path / "a.yaml").read_text()
    assert read_mapping(tmp_path / "a.yaml") == told


def test_devices_are_read_no_further_than_files() -> None:
    with pytest.raises(ValueError, match="more than 1,000,000 bytes"):
        read_mapping(Path("/dev/zero"))


@pytest.mark.parametrize("deep", ["a: " + "[" * 20 + "]" * 20, "a: " + "{b: " * 20 + "1" + "}" * 20])
def test_nesting_is_bounded(deep: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(deep)
    with pytest.raises(ValueError, match=r"^no valid YAML: line 1: nested more than 20 deep$"):
        read_mapping(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("a: " + "[" * 18 + "]" * 18)
    assert read_mapping(tmp_path / "a.yaml")


def test_merged_aliases_multiply_too(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="more than 100,000 values"):
        read_mapping(tmp_path / "a.yaml")
