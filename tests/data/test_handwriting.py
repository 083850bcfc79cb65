"""The embedded population: the same for everybody, different from writer to writer, kept once drawn."""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from fedmime.data import from_store
from fedmime.data.handwriting import handwriting, sheet, writer
from fedmime.data.population import Population
from fedmime.data.strokes import CHARACTERS, SHAPES
from fedmime.data.strokes_curve import POINTS, skeletons
from fedmime.data.strokes_hand import class_mix
from fedmime.data.strokes_pen import draw
from fedmime.errors import ConfigError

MODULE = importlib.import_module("fedmime.data.handwriting")  # its name in the package is the function's
WRITERS = 60


@pytest.fixture(scope="module")
def hands() -> list[tuple[np.ndarray, np.ndarray]]:
    return [writer(0, index) for index in range(WRITERS)]


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return handwriting(clients=12, cache_dir=tmp_path_factory.mktemp("cache"))


def same(a: Population, b: Population) -> bool:
    """Whether two populations hold the same clients, tests included."""
    assert a.test_clients is not None
    assert b.test_clients is not None
    pairs = [(a.pool(), b.pool()), (a.test_clients.pool(), b.test_clients.pool()), (a.test or {}, b.test or {})]
    return list(a.ids) == list(b.ids) and all(np.array_equal(p[name], q[name]) for p, q in pairs for name in "xy")


# --- shapes and writers


def test_every_class_has_a_shape_and_every_shape_is_a_curve_of_even_steps() -> None:
    form = skeletons()
    assert list(SHAPES) == list(CHARACTERS)
    assert len(CHARACTERS) == 62
    assert form.points.shape == (sum(map(len, SHAPES.values())), POINTS, 2)
    assert form.first[-1] == len(form.points)
    steps = np.linalg.norm(np.diff(form.points, axis=1), axis=2) * form.down
    assert steps.max() < 0.1
    assert np.isfinite(form.points).all()
    assert np.isfinite(form.rounded).all()
    assert form.points[..., 0].min() > -0.2
    assert form.points[..., 0].max() < 1.2
    assert form.points[..., 1].min() > -1.2
    assert form.points[..., 1].max() < 0.5


def test_a_straight_stroke_has_its_width_in_ink() -> None:
    points = np.stack([np.full(64, 14.0), np.linspace(4, 24, 64)], axis=1)[None].astype(np.float32)
    image = draw(points, np.ones((1, 63), np.float32), np.array([1.2], np.float32), edge=0.5)[0]
    assert image.shape == (28, 28)
    assert image[14, 14] >= 254
    assert image[:, 14].sum() > 3 * image[:, 13].sum()
    assert image[14].sum() / 255 == pytest.approx(1.2 * 1.0645, rel=0.03)  # a Gaussian is 1.0645 half-widths
    assert not image[0].any()
    assert not image[:, :11].any()
    assert not image[:, 18:].any()


def test_ink_outside_the_image_leaves_no_trace() -> None:
    away = np.stack([np.linspace(-9, -4, 64), np.linspace(40, 60, 64)], axis=1)[None].astype(np.float32)
    assert not draw(away, np.ones((1, 63), np.float32), np.array([1.5], np.float32), edge=1.0).any()


def test_a_writer_is_a_function_of_seed_and_number() -> None:
    x, y = writer(3, 7)
    again = writer(3, 7)
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    assert x.dtype == np.uint8
    assert x.shape == (len(y), 28, 28)
    assert y.dtype == np.int32
    for other in (writer(4, 7), writer(3, 8)):
        assert x.shape != other[0].shape or not np.array_equal(x, other[0])


def test_statistics_are_those_of_emnist(hands: list[tuple[np.ndarray, np.ndarray]]) -> None:
    x = np.concatenate([x for x, _ in hands]) / 255
    y = np.concatenate([y for _, y in hands])
    assert set(y) == set(range(62))
    assert 0.45 < (y < 10).mean() < 0.57
    assert 0.033 < x.mean() < 0.042
    assert 0.15 < x.std() < 0.175
    rows = np.any(x > 0.3, axis=2)
    heights = 28 - rows.argmax(1) - rows[:, ::-1].argmax(1)
    assert 9.5 < heights.mean() < 11.5  # EMNIST: 10.5
    assert (x.reshape(len(x), -1).max(1) > 0.6).all()  # nothing is empty


def test_classes_sum_to_one_and_are_half_digits() -> None:
    assert class_mix().sum() == pytest.approx(1)
    assert class_mix()[:10].sum() == pytest.approx(0.51)


# --- writers differ


def test_sizes_are_heavy_tailed() -> None:
    sizes = np.array([MODULE._writer(1, index)[2] for index in range(300)])
    assert 150 < sizes.mean() < 270
    assert sizes.min() >= 20
    assert sizes.max() <= 1000
    assert sizes.mean() > 1.08 * np.median(sizes)
    assert sizes.max() > 2.5 * sizes.mean()


def test_class_mixes_differ_more_than_by_chance(hands: list[tuple[np.ndarray, np.ndarray]]) -> None:
    mix = class_mix()
    excess = [((np.bincount(y, minlength=62) - len(y) * mix) ** 2 / (len(y) * mix)).sum() / 61 for _, y in hands]
    assert np.median(excess) > 3  # chi-squared by degree of freedom: 1 if all drew from the same mix


@pytest.mark.parametrize("trait", ["slant", "ink", "size"])
def test_styles_differ_between_writers(trait: str, hands: list[tuple[np.ndarray, np.ndarray]]) -> None:
    values, writers = [], []
    for index, (x, y) in enumerate(hands):
        digits = x[y < 10] / 255
        values.append(_traits(digits)[trait])
        writers.append(np.full(len(digits), index))
    value, of = np.concatenate(values), np.concatenate(writers)
    counts = np.bincount(of)
    means = np.bincount(of, value) / counts
    within = ((value - means[of]) ** 2).sum() / (len(value) - WRITERS)
    between = (counts * (means - value.mean()) ** 2).sum() / (WRITERS - 1)
    assert between / within > 5  # the F statistic: 1 if writers were alike


def _traits(x: np.ndarray) -> dict[str, np.ndarray]:
    """Slant, ink per height and height of images."""
    mass, pixel = x.sum((1, 2)), np.arange(28)
    down = pixel[:, None] - ((x.sum(2) @ pixel) / mass)[:, None, None]
    right = pixel - ((x.sum(1) @ pixel) / mass)[:, None, None]
    spread = (x * down**2).sum((1, 2)) / mass
    slant = -(x * down * right).sum((1, 2)) / mass / (spread + 1)
    return {"slant": slant, "ink": mass / np.sqrt(spread), "size": np.sqrt(spread)}


# --- the population


def test_columns_are_what_models_expect(population: Population) -> None:
    for source in (population, population.test_clients):
        assert source is not None
        columns = source.client_at(0)
        assert columns["x"].dtype == np.float32
        assert columns["x"].shape[1:] == (28, 28, 1)
        assert columns["y"].dtype == np.int32
        assert len(columns["x"]) == len(columns["y"]) == source.sizes[0]
        assert columns["x"].min() == 0
        assert columns["x"].max() <= 1


def test_pixels_are_bytes_over_255(population: Population) -> None:
    x = population.client("writer_00003")["x"]
    assert np.array_equal(x, (np.rint(x * 255).astype(np.uint8) / 255).astype(np.float32))


def test_train_and_test_share_out_each_writer(population: Population) -> None:
    held_out = population.test_clients
    assert held_out is not None
    assert list(held_out.ids) == list(population.ids)
    for index in range(len(population)):
        x, y = writer(0, index)
        parts = [population.client_at(index), held_out.client_at(index)]
        assert np.array_equal(np.concatenate([part["y"] for part in parts]), y)
        assert np.array_equal(np.concatenate([part["x"] for part in parts])[..., 0] * 255, x.astype(np.float32))
        assert 0.05 <= len(parts[1]["y"]) / len(y) < 0.15


def test_the_pooled_test_set_is_a_sample(
    population: Population, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert population.test is not None
    assert population.test_clients is not None
    assert len(population.test["y"]) == population.test_clients.sizes.sum()
    monkeypatch.setattr(MODULE, "LARGEST_TEST", 50)
    tests = [handwriting(clients=12, cache_dir=tmp_path).test for _ in range(2)]
    assert tests[0] is not None
    assert tests[1] is not None
    assert len(tests[0]["y"]) == 50
    assert np.array_equal(tests[0]["x"], tests[1]["x"])


def test_fewer_clients_are_the_first_of_more(population: Population, tmp_path: Path) -> None:
    few = handwriting(clients=3, cache_dir=tmp_path)
    assert list(few.ids) == list(population.ids[:3])
    for index in range(3):
        a, b = few.client_at(index), population.client_at(index)
        assert np.array_equal(a["x"], b["x"])
        assert np.array_equal(a["y"], b["y"])


def test_identities_tell_populations_apart(population: Population, tmp_path: Path) -> None:
    others = [handwriting(clients=2, cache_dir=tmp_path), handwriting(clients=2, seed=1, cache_dir=tmp_path)]
    assert len({population.identity(), *(other.identity() for other in others)}) == 3


def test_saved_it_reads_back_equal(tmp_path: Path) -> None:
    population = handwriting(clients=3, cache_dir=tmp_path / "cache")
    population.save(tmp_path / "copy")
    assert same(population, from_store(tmp_path / "copy"))


@pytest.mark.parametrize(
    "arguments",
    [{"clients": 0}, {"clients": 100_001}, {"clients": 2.5}, {"clients": True}, {"seed": -1}, {"seed": "0"}],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))) as caught:
        handwriting(cache_dir=tmp_path, **arguments)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# --- the cache


def test_the_second_call_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = handwriting(clients=4, cache_dir=tmp_path)
    monkeypatch.setattr(MODULE, "writer", lambda seed, index: pytest.fail("drawn again"))
    assert same(first, handwriting(clients=4, cache_dir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["handwriting-v1-4-0"]


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path / "here"))
    handwriting(clients=1)
    assert (tmp_path / "here" / "handwriting-v1-1-0").is_dir()


def _flip(directory: Path) -> None:
    file = directory / "field_0.bin"
    data = bytearray(file.read_bytes())
    data[1000] ^= 255
    file.write_bytes(data)


DAMAGE = {
    "flipped bits": _flip,
    "truncated": lambda directory: (directory / "test_clients" / "field_1.bin").write_bytes(b"123"),
    "no schema": lambda directory: (directory / "schema.json").unlink(),
    "garbage schema": lambda directory: (directory / "schema.json").write_text("{"),
    "missing file": lambda directory: (directory / "starts.bin").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_rebuilt(damage: str, tmp_path: Path) -> None:
    whole = handwriting(clients=2, cache_dir=tmp_path / "whole")
    handwriting(clients=2, cache_dir=tmp_path / "cache")
    DAMAGE[damage](tmp_path / "cache" / "handwriting-v1-2-0")
    assert same(whole, handwriting(clients=2, cache_dir=tmp_path / "cache"))
    from_store(tmp_path / "cache" / "handwriting-v1-2-0", verify=True)


def test_another_population_in_its_place_is_replaced(tmp_path: Path) -> None:
    handwriting(clients=2, seed=1, cache_dir=tmp_path)
    (tmp_path / "handwriting-v1-2-1").rename(tmp_path / "handwriting-v1-2-0")
    assert same(handwriting(clients=2, cache_dir=tmp_path), handwriting(clients=2, cache_dir=tmp_path / "fresh"))


def test_without_a_place_to_write_it_is_drawn_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    with caplog.at_level(logging.WARNING):
        population = handwriting(clients=2, cache_dir=tmp_path / "file")
    assert "drawn in memory" in caplog.text
    cached = handwriting(clients=2, cache_dir=tmp_path / "cache")
    assert same(population, cached)
    assert population.identity() == cached.identity()


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seed: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        raise KeyboardInterrupt

    monkeypatch.setattr(MODULE, "writer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handwriting(clients=2, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_sheet_shows_every_character_of_every_writer() -> None:
    picture = sheet(writers=3)
    assert picture.dtype == np.uint8
    assert picture.shape == (3 * 28, 62 * 28)
    cells = picture.reshape(3, 28, 62, 28).min((1, 3))
    assert (cells < 100).all()
    assert np.median(picture) == 255


def test_without_a_home_it_is_drawn_in_memory(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    for name in ("FEDMIME_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert len(handwriting(clients=1)) == 1
    assert "drawn in memory" in caplog.text
