"""Secure aggregation: the server learns the sum of the clients' messages, and no single one of them.

Every client adds masks to its message that cancel in the sum over a group: one for each pair of clients, and one of its
own. Both can be recovered from shares that the clients hold of one another's secrets, so that clients may drop out at
any time; below a threshold nothing is revealed and the round is abandoned. `client.py` and `server.py` are the two
sides, `fixed_point.py` makes messages integers whose sums are exact, and `primitives.py` is all the cryptography there
is: that of Flower and of the libraries that Flower depends on.

It protects from a server that follows the protocol and looks at everything it receives. A server that lies, for example
about the clients' public keys, is out of scope.

Reference: Bonawitz et al., 2017, https://eprint.iacr.org/2017/281
"""
