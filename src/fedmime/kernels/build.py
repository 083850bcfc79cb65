"""Compile the C kernels for this machine and register them with XLA.

The kernels use the widest vector registers of the CPU at hand (`-march=native`), so they are not distributed as
binaries: a library of them is compiled when one of its kernels is first needed, which takes a second or two, and kept
in the user's cache for later processes. Without a C compiler, on an accelerator, or with `FEDMIME_NATIVE=0`, there are
no kernels and every operation takes its definition in JAX; results then differ in the last digits.
"""

from __future__ import annotations

import ctypes
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
_HEADERS = ("matrix.h", "vectors.h")
_FLAGS, _LINK = ("-O3", "-march=native", "-fPIC"), ("-shared", "-lm")
_PATIENCE = 120  # seconds that one command of the compiler may take before it is given up
_FOLDER = Path(__file__).parent


class Library(NamedTuple):
    """Kernels that are compiled together because a model that needs one of them needs nearly all.

    Attributes:
        name: for the file in the cache.
        sources: the source files, the longest to compile first.
        kernels: what they define, as functions `fedmime_<kernel>`.
    """

    name: str
    sources: tuple[str, ...]
    kernels: tuple[str, ...]


COMMON = Library(
    "common",
    ("linear.c", "matrix.c", "entropy.c", "rows.c"),
    ("inner_products", "outer_sum", "products", "cross_entropy", "take"),
)
LIBRARIES = (
    COMMON,
    Library("convolution", ("convolution.c",), ("convolve", "kernel_gradient")),
    Library("recurrence", ("recurrence.c",), ("lstm_backward", "lstm_forward")),
)
_HOME = {kernel: library for library in LIBRARIES for kernel in library.kernels}


class LoadedLibrary(NamedTuple):
    """A library of kernels, loaded into this process.

    Attributes:
        library: the shared object. The reference keeps it loaded as long as XLA may call it.
        where: the path of its file in the cache, or a remark that there is none, for `status`.
    """

    library: ctypes.CDLL
    where: str


def target(kernel: str) -> str:
    """The name under which a kernel is registered with XLA, which is also the name of its C function."""
    return f"fedmime_{kernel}"


def start_loading() -> None:
    """Start to load the kernels that every model uses, without waiting for them.

    The compiler is a process of its own, so it runs while this process starts JAX and compiles other programs.
    """
    _loading(COMMON)


def ready(kernel: str) -> bool:
    """Whether a kernel can be called. The first call compiles or loads its library and registers it."""
    return isinstance(_loading(_HOME[kernel]).result(), LoadedLibrary)


def available() -> bool:
    """Whether this machine has kernels: whether those that every model uses can be called."""
    return isinstance(_loading(COMMON).result(), LoadedLibrary)


def status() -> str:
    """The paths of all kernel libraries, or the reason why one is missing, for `fedmime doctor`."""
    found = [loading.result() for loading in [_loading(library) for library in LIBRARIES]]
    reasons = [reason for reason in found if isinstance(reason, str)]
    return reasons[0] if reasons else ", ".join(each.where for each in found if isinstance(each, LoadedLibrary))


@functools.cache
def _loading(library: Library) -> Future[LoadedLibrary | str]:
    """Call `_load` in a thread, once per process."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(_load, library)
    pool.shutdown(wait=False)
    return future


def _load(library: Library) -> LoadedLibrary | str:
    """Find or compile a library and register its kernels with XLA.

    Returns:
        The loaded library, or the reason in words why there are no kernels. A compiler that fails is not an error: the
        package works without kernels.
    """
    if os.environ.get(SWITCH) == "0":
        return f"off ({SWITCH}=0)"
    if jax.default_backend() != "cpu":
        return f"off (for CPUs; this is {jax.default_backend()})"
    compiler = _compiler()
    if compiler is None:
        return "off (no C compiler found: install one, or name it in CC)"
    try:
        name = f"kernels-{library.name}-{_digest(compiler, library)}.so"
        content, where = cache.kept(name, lambda: _built(compiler, library))
        loaded = cache.load(content)
    except (OSError, subprocess.SubprocessError) as error:
        return f"off ({compiler} failed: {_reason(error)})"
    for kernel in library.kernels:
        jax.ffi.register_ffi_target(target(kernel), jax.ffi.pycapsule(getattr(loaded, target(kernel))), platform="cpu")
    return LoadedLibrary(loaded, where)


def _compiler() -> str | None:
    """The C compiler: what `CC` names, else the first of cc, gcc and clang that is installed; None without one."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _digest(compiler: str, library: Library) -> str:
    """The key of a library in the cache: a digest of everything its machine code depends on.

    These are the sources, the compiler's version, the CPU, the flags, and the version of jaxlib, whose headers define
    the calling interface. Sixteen hexadecimal digits, 64 bits, make an accidental collision practically impossible.
    """
    texts = [(_FOLDER / name).read_bytes() for name in (*_HEADERS, *library.sources)]
    parts = [
        *texts,
        _run(compiler, "--version"),
        _cpu(),
        version("jaxlib").encode(),
        " ".join((*_FLAGS, *_LINK)).encode(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _built(compiler: str, library: Library) -> bytes:
    """Compile a library's sources, each in its own process and as many at a time as there are cores, and link them.

    Returns:
        The content of the shared object.
    """

    def compiled(name: str) -> str:
        """Compile one source and return the path of its object file."""
        made = f"{scratch}/{name}.o"
        _run(compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", "-c", str(_FOLDER / name), "-o", made)
        return made

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        linked = Path(scratch) / "kernels.so"
        _run(compiler, *pool.map(compiled, library.sources), *_LINK, "-o", str(linked))
        return linked.read_bytes()


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
