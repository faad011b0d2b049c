"""Beside the peers in what no faster machine changes: which rows come, and which don't. One file a workload.

A workload's file has `make`, which writes the rows once, in every format that a peer reads; one function a
peer, which runs in the peer's environment and says what it delivered; and `figures`, which makes numbers of
that, the same for all. Run by `python -m tests.bench.peers.correct`.
"""
