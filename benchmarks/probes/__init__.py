"""Measurements that need a process of their own: each takes JSON as its argument and prints JSON."""
