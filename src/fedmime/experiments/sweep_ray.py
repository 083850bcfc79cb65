"""Workers of a sweep on Ray: actors that train shares, for a few seconds at a time.

After every stretch they answer, saved, and all points are dealt again. So nobody has to be interrupted, points of a
worker that has died go to others, and a signal ends the sweep within a stretch.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmime.engine.backends.ray import cluster
from fedmime.engine.backends.ray.worker import Facts
from fedmime.engine.backends.specification import Ray
from fedmime.errors import ClusterError, ConfigError
from fedmime.experiments.sweep_processes import variables
from fedmime.experiments.sweep_rounds import Stop
from fedmime.experiments.sweep_share import train_share
from fedmime.experiments.sweep_spread import Answer, Share
from fedmime.kernels import build

_STRETCH = 5.0  # seconds
_LOOK = 1.0  # seconds between looks at the head
_RESUME = "what was saved last is whole: the same call goes on from there"
_log = logging.getLogger(__name__)


class ShareActor:
    """The worker."""

    def hello(self, expected: Facts, mark: str) -> str:
        """Say where this is; refuse to work with other versions than the driver's, or without its directory.

        Args:
            expected: the driver's.
            mark: a file that the driver has put into the directory of the shelf.
        """
        where = socket.gethostname()
        for name, ours, theirs in zip(Facts._fields, Facts.here(), expected, strict=True):
            if ours != theirs:
                raise ConfigError(f"sweep: a worker on {where} has {name} {ours!r}, the driver has {theirs!r}")
        if not Path(mark).exists():
            words = f"sweep: {str(Path(mark).parent)!r}, where points are kept, is not there on {where}"
            raise ConfigError(f"{words}; name a directory that all machines share")
        return where

    def train(self, job: str, share: Share, until: int, seconds: float) -> tuple[Answer, int]:
        """Train points for so long, but at least a round; gives also how many rounds were done."""
        rounds, end = 0, time.monotonic() + seconds

        def on_round() -> None:
            nonlocal rounds
            rounds += 1

        answer = train_share(job, share, until, on_round, lambda: time.monotonic() > end)
        return answer, rounds


class Actors:
    """The actors of a sweep. One that dies or hangs is not replaced: others train its points.

    Args:
        specification: how many, where, and on how many cores.
        job: the sweep's, see `sweep_share.job`.
        directory: of the shelf, which all machines must share.
    """

    def __init__(self, specification: Ray, job: str, directory: Path) -> None:
        import ray

        self._job, self._deadline, facts = job, specification.deadline, Facts.here()
        options, resources = specification.options, ray.cluster_resources()
        here = variables(options.cores, options.address is None) | {build.SWITCH: str(int(facts.kernels))}
        given: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "runtime_env": {"env_vars": here}}
        actor: Any = ray.remote(ShareActor).options(**options.claims(resources), **given)
        self._alive = [actor.remote() for _ in range(max(options.room(resources), 1))]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory) as mark:
                list(self._answers({each.hello.remote(facts, mark.name): each for each in self._alive}))
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """See `Workers.count`."""
        return len(self._alive)

    def run(
        self, shares: Sequence[Share], until: int, on_round: Callable[[], None], stop: Stop
    ) -> tuple[list[Answer], Any]:
        """See `Workers.run`."""
        pairs = zip(self._alive, shares, strict=False)
        answers = []
        for answer, rounds in self._answers(
            {actor.train.remote(self._job, share, until, _STRETCH): actor for actor, share in pairs}
        ):
            answers.append(answer)
            for _ in range(rounds):
                on_round()
        return answers, stop and stop()

    def close(self) -> None:
        """See `Workers.close`. What was done since the last answer is lost: five seconds, or a round."""
        import ray

        for actor in self._alive:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._alive = []

    def _answers(self, refs: dict[Any, Any]) -> Iterator[Any]:
        """What actors answer, as soon as they do; those that do not are lost."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        until = time.monotonic() + self._deadline
        while refs:
            ready, _ = ray.wait(list(refs), num_returns=1, timeout=_LOOK)
            for ref in ready:
                actor = refs.pop(ref)
                try:
                    found = ray.get(ref)
                except RayTaskError as error:
                    cause = error.cause if isinstance(error.cause, Exception) else error
                    cause.add_note(str(error))
                    raise cause from None
                except RayError as error:
                    self._lose(actor, str(error).strip().rpartition("\n")[2].strip())
                else:
                    yield found
            if not ready and not cluster.CLUSTER.alive():
                raise ClusterError(f"ray: the head of the cluster does not answer any more; {_RESUME}")
            if time.monotonic() > until:
                for actor in refs.values():
                    self._lose(actor, f"no answer for {self._deadline:g} seconds")
                return

    def _lose(self, actor: Any, why: str) -> None:
        import ray

        self._alive.remove(actor)
        with contextlib.suppress(Exception):
            ray.kill(actor)
        if not self._alive:
            raise ClusterError(f"sweep: no Ray worker is left ({why}); {_RESUME}")
        _log.warning("sweep: a Ray worker is lost (%s); the others train its points", why)


class OnRay:
    """Starts actors, and holds Ray between them and the back end that trains one point on all workers."""

    def __init__(self, specification: Ray) -> None:
        self._specification, self._held = specification, False

    def start(self, job: str, directory: Path) -> Actors:
        """Actors for a job."""
        cluster.check(self._specification.address)
        if not self._held:
            cluster.CLUSTER.take(self._specification.address)
            self._held = True
        return Actors(self._specification, job, directory)

    def close(self) -> None:
        """Let go of Ray."""
        if self._held:
            cluster.CLUSTER.release()
            self._held = False
