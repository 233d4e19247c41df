"""What the demo, the crash tests and the benchmarks run on: a known workload with its known result."""
