"""Flower as the network of a deployment: TLS, nodes that sign with their keys, messages that wait for slow nodes.

    grid.py        the server's transport over Flower's grid
    server_app.py  the ServerApp: a run of `fedmime.deploy.server` with that transport
    client_app.py  the ClientApp: a short-lived process that hands a message to the node's worker
    worker.py      the worker: a long-lived process that holds the node's data and compiled programs
    channel.py     how those two exchange byte strings
    superlink.py   Flower's SuperLink behind a guard that bounds what strangers can send and reach

Flower is an extra, `fedmime[deploy]`, and is only imported in functions of this package.
"""
