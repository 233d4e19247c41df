"""What the demo and the tests run on: a known workload with its known result, and a simulated world."""
