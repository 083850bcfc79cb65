"""Numbers of bytes in words. The command line needs them before NumPy is there."""


def size(count: float) -> str:
    """A number of bytes as people write it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
