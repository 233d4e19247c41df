"""Pure formats: bytes and strings in, records out. No I/O, no clock, no randomness."""
