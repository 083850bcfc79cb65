"""The algorithms, one file each; see `algorithm.py` for what they have in common."""

from fedmime import devices
from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply, State, params
from fedmime.algorithms.centralized import centralized
from fedmime.algorithms.fedavg import fedavg
from fedmime.algorithms.feddyn import feddyn
from fedmime.algorithms.fedprox import fedprox
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
    "fedavg",
    "feddyn",
    "fedprox",
    "mime",
    "mime_lite",
    "mime_lite_mvr",
    "mime_mvr",
    "params",
    "scaffold",
    "server_only",
    "server_only_mvr",
]
