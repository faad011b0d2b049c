"""Batch constructors: build each rank's batches from plans and samples, and hold a bounded window of them."""
