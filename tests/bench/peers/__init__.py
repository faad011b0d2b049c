"""The service beside the loaders that people use, on the same data, in one go.

    make bench-peers                                  all of it, several times; medians and ratios
    python -m tests.bench.peers --workload text --peer webdataset --repeats 1

`table.py` names the peers, `environments.py` gives each the Python environment it needs, `material.py`
makes the data, which every peer converts into the format it likes best. `loaders/` has one file a peer:
what an expert user of it would write, with the settings its own documentation advises. `child.py` runs in
the peer's environment and imports nothing but that file. docs/benchmarks.md says what is fair about it and
what is not.
"""
