"""Tests run in float64, with float32 asked for where it is meant; a warning is an error."""

import gc
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
# Compiling is most of what tests cost: they ask for less optimized programs, which compute the same. The comparison of
# the engine with a plain loop is run again as users run it, see the Makefile. One module of machine code a program is
# faster to make than the many that are compiled side by side, and takes fewer mapped regions.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)
# And a program that another test or process of this run has compiled is not compiled again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{tempfile.gettempdir()}/fedmime-tests-{os.getpid()}")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import pytest

# No test cuts the power, so this process waits for no disk. Those that tests kill do, as users' do.
os.fsync = lambda _: None

hypothesis.settings.register_profile("fedmime", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("fedmime")

FACTS = pytest.StashKey[dict[str, list[float]]]()
LOOKED = pytest.StashKey[int]()  # programs that had been built when mapped regions were counted


@pytest.fixture
def fact(request: pytest.FixtureRequest):
    """Record a figure under a heading; the summary at the end of the run names how many there are and the largest."""

    def record(heading: str, value: float = 0.0) -> None:
        request.node.user_properties.append(("fact", (heading, float(value))))

    return record


def pytest_collection_finish() -> None:
    """Look for unreachable objects less often: tests and JAX's programs are many objects that stay."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


_MOST_MAPS, _LOOK_EVERY = 50_000, 100  # a process may have 65,530 mapped regions; a compiled program takes about 20


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let go of compiled programs before there are too many for one process; to count regions takes milliseconds."""
    if "jax" not in sys.modules:
        return
    import jax

    import compiled

    if compiled.programs() - item.config.stash.get(LOOKED, 0) < _LOOK_EVERY:
        return
    item.config.stash[LOOKED] = compiled.programs()
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def pytest_unconfigure() -> None:
    programs = os.environ["JAX_COMPILATION_CACHE_DIR"]
    if programs.endswith(f"fedmime-tests-{os.getpid()}"):  # this run's own, and this is not one of its workers
        shutil.rmtree(programs, ignore_errors=True)


def pytest_terminal_summary(terminalreporter) -> None:
    facts: dict[str, list[float]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "fact":
                facts.setdefault(value[0], []).append(value[1])
    if facts:
        terminalreporter.section("what was shown")
    for heading, values in sorted(facts.items()):
        worst = f", largest {max(values):.2g}" if max(values) > 0 else ""
        terminalreporter.write_line(f"{heading}: {len(values)} shown{worst}")
