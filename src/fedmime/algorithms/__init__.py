"""The algorithms, one file each; see `algorithm.py` for what they have in common."""

from fedmime import devices
from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply, State, params
from fedmime.algorithms.centralized import centralized
from fedmime.algorithms.diloco import diloco
from fedmime.algorithms.fedacg import fedacg
from fedmime.algorithms.fedavg import fedavg
from fedmime.algorithms.fedcm import fedcm
from fedmime.algorithms.feddyn import feddyn
from fedmime.algorithms.fedexp import fedexp
from fedmime.algorithms.fednova import fednova
from fedmime.algorithms.fedprox import fedprox
from fedmime.algorithms.fedvarp import fedvarp
from fedmime.algorithms.ghbm import ghbm
from fedmime.algorithms.mime import mime, mime_lite
from fedmime.algorithms.mvr import mime_lite_mvr, mime_mvr
from fedmime.algorithms.scaffold import scaffold
from fedmime.algorithms.server_only import server_only, server_only_mvr

devices.use_all_cores()  # before anything starts JAX

__all__ = [
    "Algorithm",
    "Client",
    "Replies",
    "Reply",
    "State",
    "centralized",
    "diloco",
    "fedacg",
    "fedavg",
    "fedcm",
    "feddyn",
    "fedexp",
    "fednova",
    "fedprox",
    "fedvarp",
    "ghbm",
    "mime",
    "mime_lite",
    "mime_lite_mvr",
    "mime_mvr",
    "params",
    "scaffold",
    "server_only",
    "server_only_mvr",
]
