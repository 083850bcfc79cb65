"""Flower as the network of a deployment: TLS, nodes that sign with their keys, messages that wait for slow nodes.

    messages   records.py     byte strings as the content of Flower's messages
               grid.py        the server's transport over Flower's grid
               node.py        a node in one process, which talks to the SuperLink itself
    apps       server_app.py  the ServerApp: `fedmime.deploy.server` with that transport
               client_app.py  the ClientApp: a short-lived process that hands a message to the node's worker
               worker.py      the worker: a long-lived process that holds the node's data and compiled programs
               hire.py        how it is found or started; channel.py how byte strings reach it
               builders.py    what workers and nodes are built from
    operation  keys.py        certificates and keys; admission.py who is let in
               superlink.py   Flower's SuperLink behind a guard; control.py what its operator does
               keeper.py      a process that lets no other outlive the launcher; launcher.py what is started
               session.py     the conversation of a launcher with its ServerApp; launched.py the apps that it starts
               operate.py     a deployment from its beginning to its end

Flower is an extra, `fedmime[deploy]`, and is only imported in functions of this package.
"""
