"""Alerts of our own: who is told of an incident, in which form, and how the news gets there when the network fails."""
