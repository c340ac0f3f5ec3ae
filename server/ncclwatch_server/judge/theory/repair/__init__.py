"""Finds the rank whose smallest change would have ended a hang, by replaying recorded calls with edits."""
