"""Feeds what others send, changed at random, to everything that reads it.

A surface is one module of `surfaces`: seeds, a way to change an input, and a check that raises on what must never be.
The corpus holds each input that once broke something, as it was found.

    make fuzz                        every surface for a minute, with a seed of its own that is printed
    make fuzz SECONDS=600 SURFACE=rings SEED=7
"""
