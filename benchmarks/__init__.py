"""Scripts that print a table and write JSON; none of them is a test."""
