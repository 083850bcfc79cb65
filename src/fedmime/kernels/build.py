"""Compile the kernels once for this machine and make them known to XLA."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax

from fedmime.kernels import cache

SWITCH = "FEDMIME_NATIVE"
_SOURCES = {
    "convolution.c": ("convolve", "kernel_gradient"),
    "entropy.c": ("cross_entropy",),
    "linear.c": ("inner_products", "outer_sum", "products"),
    "matrix.c": (),
    "recurrence.c": ("lstm_backward", "lstm_forward"),
    "rows.c": ("take",),
}
_HEADERS = ("matrix.h", "vectors.h")
KERNELS = tuple(kernel for kernels in _SOURCES.values() for kernel in kernels)
_FLAGS, _LINK = ("-O3", "-march=native", "-fPIC"), ("-shared", "-lm")
_PATIENCE = 120  # seconds
_FOLDER = Path(__file__).parent


class Loaded(NamedTuple):
    """The kernels in this process."""

    library: ctypes.CDLL
    where: str  # they are kept


def target(kernel: str) -> str:
    """The name by which XLA knows a kernel, and the name of its function."""
    return f"fedmime_{kernel}"


def ready() -> bool:
    """Whether the kernels can be called; compiles and registers them at the first question."""
    return isinstance(_load(), Loaded)


def status() -> str:
    """Where the kernels are, or why there are none."""
    found = _load()
    return found.where if isinstance(found, Loaded) else found


@functools.cache
def _load() -> Loaded | str:
    if os.environ.get(SWITCH) == "0":
        return f"off ({SWITCH}=0)"
    if jax.default_backend() != "cpu":
        return f"off (for CPUs; this is {jax.default_backend()})"
    compiler = _compiler()
    if compiler is None:
        return "off (no C compiler found: install one, or name it in CC)"
    try:
        content, where = cache.kept(f"kernels-{_digest(compiler)}.so", lambda: _built(compiler))
        library = cache.load(content)
    except (OSError, subprocess.SubprocessError) as error:
        return f"off ({compiler} failed: {_reason(error)})"
    for kernel in KERNELS:
        jax.ffi.register_ffi_target(target(kernel), jax.ffi.pycapsule(getattr(library, target(kernel))), platform="cpu")
    return Loaded(library, where)


def _compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _digest(compiler: str) -> str:
    """What tells the library for these sources, this compiler and this CPU from others."""
    texts = [(_FOLDER / name).read_bytes() for name in (*_HEADERS, *_SOURCES)]
    parts = [
        *texts,
        _run(compiler, "--version"),
        _cpu(),
        version("jaxlib").encode(),
        " ".join((*_FLAGS, *_LINK)).encode(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _built(compiler: str) -> bytes:
    """Compile the sources and link them."""

    def compiled(name: str) -> str:
        made = f"{scratch}/{name}.o"
        _run(compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", "-c", str(_FOLDER / name), "-o", made)
        return made

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        linked = Path(scratch) / "kernels.so"
        _run(compiler, *pool.map(compiled, _SOURCES), *_LINK, "-o", str(linked))
        return linked.read_bytes()


def _run(*words: str) -> bytes:
    return subprocess.run(words, capture_output=True, timeout=_PATIENCE, check=True).stdout  # noqa: S603


def _cpu() -> bytes:
    """What tells this CPU from another on which the user's cache may also be mounted."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor().encode() + platform.machine().encode()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    lines = said.decode(errors="replace").strip().splitlines() if said else []
    return next((line for line in lines if "error" in line), str(error))[:200]
