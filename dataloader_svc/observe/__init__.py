"""What the service says of itself, and proofs from what it delivered. Decides nothing."""
