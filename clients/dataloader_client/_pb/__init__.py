"""Generated from proto/ by `make proto`. Never edited."""
