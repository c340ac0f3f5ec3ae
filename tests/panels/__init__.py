"""Draws the shipped Grafana dashboards without Grafana. See `__main__`."""
