"""A cluster of Ray on the loopback interface whose machines come and go: a script that reads what to do, line by line.

It says the address of its head, which has one core. `add` adds a machine with one core, `kill` ends the last one with
all that runs there. It ends with its input.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # 0: loopback only


def main() -> None:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    nodes = []
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            nodes.append(cluster.add_node(**small))
        else:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
