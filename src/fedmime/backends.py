"""Where the clients of a round run: `fm.simulate(…, backend=…)` takes a name or what one of these functions returns.

>>> import fedmime as fm
>>> fm.backends.local(devices=1)
Local(devices=1, layout=None)
"""

from fedmime.engine.backends.specification import local, ray, reference
from fedmime.origin import by_name

__all__ = ["by_name", "local", "ray", "reference"]
