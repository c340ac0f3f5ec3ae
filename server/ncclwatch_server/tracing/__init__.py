"""Makes a trace of a job for Perfetto (https://perfetto.dev): ranks as tracks, operations, states, incidents.

`timeline` puts together what views, states and incidents tell; `clocks` aligns the clocks of hosts by collectives;
`perfetto` writes the file.
"""
