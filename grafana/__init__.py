"""The Grafana dashboards of ncclwatch, as Python that writes them: `python -m grafana`.

They are Grafana's classic JSON (schema 39), which versions 10 to 13 load from files. Each file here is one dashboard;
`panels` has the few kinds of panels that they are made of. Everything stays readable for 8 ranks and for 16,384: what
grows with ranks, groups or hosts is a heatmap, a sum by state, or a list of the worst ten.
"""
