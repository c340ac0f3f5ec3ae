"""Answers people and programs over HTTP: routes, and the values they give."""
