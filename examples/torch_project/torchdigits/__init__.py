"""Mime with Adam on scanned digits: a Flower project with clients in PyTorch."""
