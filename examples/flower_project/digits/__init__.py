"""Mime on scanned digits: a Flower project."""
