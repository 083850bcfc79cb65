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

import jax

from fedmime.files import user_cache, whole_file

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


def target(kernel: str) -> str:
    """The name by which XLA knows a kernel, and the name of its function."""
    return f"fedmime_{kernel}"


def ready() -> bool:
    """Whether the kernels can be called; compiles and registers them at the first question."""
    return isinstance(_load(), Path)


def status() -> str:
    """Where the kernels are, or why there are none."""
    return str(_load())


@functools.cache
def _load() -> Path | str:
    if os.environ.get(SWITCH) == "0":
        return f"off ({SWITCH}=0)"
    if jax.default_backend() != "cpu":
        return f"off (for CPUs; this is {jax.default_backend()})"
    compiler = _compiler()
    if compiler is None:
        return "off (no C compiler found: install one, or name it in CC)"
    try:
        path = _compiled(compiler)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        return f"off ({compiler} failed: {_reason(error)})"
    for kernel in KERNELS:
        jax.ffi.register_ffi_target(target(kernel), jax.ffi.pycapsule(getattr(library, target(kernel))), platform="cpu")
    return path


def _compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _compiled(compiler: str) -> Path:
    """The library for these sources, this compiler and this CPU."""
    folder = Path(__file__).parent
    texts = [(folder / name).read_bytes() for name in (*_HEADERS, *_SOURCES)]
    parts = [
        *texts,
        _run(compiler, "--version"),
        _cpu(),
        version("jaxlib").encode(),
        " ".join((*_FLAGS, *_LINK)).encode(),
    ]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    path = user_cache() / "native" / f"kernels-{digest}.so"
    if path.is_file():
        return path

    def compiled(name: str) -> str:
        made = f"{scratch}/{name}.o"
        _run(compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", "-c", str(folder / name), "-o", made)
        return made

    # another process may be doing the same
    with (
        whole_file(path) as whole,
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        _run(compiler, *pool.map(compiled, _SOURCES), *_LINK, "-o", str(whole))
    return path


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
