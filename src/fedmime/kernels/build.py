"""Compile the C kernels for this machine and register them with XLA.

The kernels use the widest vector registers of the CPU at hand (`-march=native`), so they are not distributed as
binaries: each C file is a library that is compiled when one of its kernels is first needed, which takes a second or
two, and kept in the user's cache for later processes. Without a C compiler, on an accelerator, or with
`FEDMIME_NATIVE=0`, there are no kernels and every operation takes its definition in JAX; results then differ in the
last digits.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax

from fedmime.kernels import cache

SWITCH = "FEDMIME_NATIVE"  # the environment variable that turns the kernels off
KERNELS = {  # by library: each is the file `<library>.c`, which defines functions `fedmime_<kernel>`
    "linear": ("inner_products", "outer_sum"),
    "rows": ("take",),
    "convolution": ("convolve", "kernel_gradient"),
    "recurrence": ("lstm_backward", "lstm_forward"),
}
_COMMON = ("linear", "rows")  # libraries that every model uses
_LIBRARY = {kernel: library for library, kernels in KERNELS.items() for kernel in kernels}
_FLAGS = ("-O3", "-march=native", "-fPIC", "-shared")
_PATIENCE = 120  # seconds that one command of the compiler may take before it is given up
_FOLDER = Path(__file__).parent


class Outcome(NamedTuple):
    """What became of a library.

    Attributes:
        loaded: whether its kernels can be called.
        told: the path of its file in the cache, or the reason in words why there are no kernels.
    """

    loaded: bool
    told: str


def target(kernel: str) -> str:
    """The name under which a kernel is registered with XLA, which is also the name of its C function."""
    return f"fedmime_{kernel}"


def start_loading() -> None:
    """Start to load the kernels that every model uses, without waiting for them.

    The compiler is a process of its own, so it runs while this process starts JAX and compiles other programs.
    """
    for library in _COMMON:
        _loading(library)


def ready(kernel: str) -> bool:
    """Whether a kernel can be called. The first call compiles or loads its library and registers it."""
    return _loading(_LIBRARY[kernel]).result().loaded


def available() -> bool:
    """Whether this machine has kernels: whether those that every model uses can be called."""
    return all(_loading(library).result().loaded for library in _COMMON)


def status() -> str:
    """The paths of all kernel libraries, or the reason why one is missing, for `fedmime doctor`."""
    found = [loading.result() for loading in [_loading(library) for library in KERNELS]]
    missing = [outcome.told for outcome in found if not outcome.loaded]
    return missing[0] if missing else ", ".join(outcome.told for outcome in found)


@functools.cache
def _loading(library: str) -> Future[Outcome]:
    """Call `_load` in a thread, once per process."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(_load, library)
    pool.shutdown(wait=False)
    return future


def _load(library: str) -> Outcome:
    """Find or compile a library and register its kernels with XLA.

    A compiler that fails is not an error: the package works without kernels.
    """
    if os.environ.get(SWITCH) == "0":
        return Outcome(False, f"off ({SWITCH}=0)")
    if jax.default_backend() != "cpu":
        return Outcome(False, f"off (for CPUs; this is {jax.default_backend()})")
    compiler = _compiler()
    if compiler is None:
        return Outcome(False, "off (no C compiler found: install one, or name it in CC)")
    try:
        name = f"kernels-{library}-{_digest(compiler, library)}.so"
        content, where = cache.library(name, lambda: _built(compiler, library))
        loaded = cache.load(content)
    except (OSError, subprocess.SubprocessError) as error:
        return Outcome(False, f"off ({compiler} failed: {_reason(error)})")
    for name in map(target, KERNELS[library]):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, name)), platform="cpu")
    return Outcome(True, where)


def _compiler() -> str | None:
    """The C compiler: what `CC` names, else the first of cc, gcc and clang that is installed; None without one."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _digest(compiler: str, library: str) -> str:
    """The key of a library in the cache: a digest of everything its machine code depends on.

    These are the source and its header, the compiler's version, the CPU, the flags, and the version of jaxlib, whose
    headers define the calling interface. Sixteen hexadecimal digits, 64 bits, make an accidental collision practically
    impossible.
    """
    texts = [(_FOLDER / name).read_bytes() for name in ("vectors.h", f"{library}.c")]
    facts = [_run(compiler, "--version"), _cpu(), version("jaxlib").encode(), " ".join(_FLAGS).encode()]
    return hashlib.sha256(b"\0".join([*texts, *facts])).hexdigest()[:16]


def _built(compiler: str, library: str) -> bytes:
    """Compile a library and return the content of the shared object."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "kernels.so"
        _run(compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_FOLDER / f"{library}.c"), "-o", str(made))
        return made.read_bytes()


def _run(*words: str) -> bytes:
    """Run a command and return its output.

    It raises `subprocess.SubprocessError` if the command fails or takes longer than `_PATIENCE`.
    """
    return subprocess.run(words, capture_output=True, timeout=_PATIENCE, check=True).stdout  # noqa: S603


def _cpu() -> bytes:
    """The model and the instruction set extensions of this CPU, as text.

    A home directory, and with it the cache, may be mounted on machines with different CPUs; code compiled for one of
    them could contain instructions that another does not have.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor().encode() + platform.machine().encode()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()


def _reason(error: Exception) -> str:
    """Why a command failed, in one line of at most 200 characters: the compiler's first error if it printed one."""
    said = getattr(error, "stderr", None)
    lines = said.decode(errors="replace").strip().splitlines() if said else []
    return next((line for line in lines if "error" in line), str(error))[:200]
