"""Callbacks for training frameworks. They mark phases and steps; `ncclwatch.attach()` does everything else.

A verdict is right without them: what they add is the name of the phase in it, and patience that fits the phase.
Each module imports its framework, and says so plainly where that is missing.
"""
