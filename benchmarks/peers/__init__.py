"""The entrants: scripts run in environments of their own, and the little they share."""
