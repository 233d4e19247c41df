"""For users that test: a store that fails on purpose."""
