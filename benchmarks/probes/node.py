"""A second node of a Ray on this machine, on the loopback interface; it lives until its input ends.

`ray start` takes the address of the machine's network instead, and Ray starts processes by forking, which a process
that runs JAX must not do. So this is a process of its own, which imports nothing else.
"""

import sys

from ray._private.node import Node
from ray._private.parameter import RayParams

STORE = 2 * 10**9  # bytes


def main() -> None:
    """Join the Ray at the address that is the argument."""
    asked = RayParams(
        gcs_address=sys.argv[1],
        node_ip_address="127.0.0.1",
        num_cpus=0,
        resources={"far": 1},
        object_store_memory=STORE,
        include_log_monitor=False,
    )
    node = Node(asked, head=False, shutdown_at_exit=True, spawn_reaper=False)
    sys.stdin.read()
    node.kill_all_processes(check_alive=False, allow_graceful=True)


if __name__ == "__main__":
    main()
