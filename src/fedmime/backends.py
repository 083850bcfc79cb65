"""Where the clients of a round run.

`local`, `reference` and `ray` return a back end for `fm.simulate(…, backend=…)`, which also takes their names as text.
`by_name` makes a problem or a population that workers of Ray can make again.

>>> import fedmime as fm
>>> fm.backends.local(devices=1)
Local(devices=1, layout=None)
"""

from fedmime.engine.backends.specification import local, ray, reference
from fedmime.origin import by_name

__all__ = ["by_name", "local", "ray", "reference"]
