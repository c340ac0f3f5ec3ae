"""Notes a verdict in the runs of experiment trackers that a training script has open.

A tracker is looked for among the modules that the job has imported; nothing is imported for it. `trackers.add` takes
further ones.
"""
