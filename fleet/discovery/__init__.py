"""What this machine says of itself: NVML where it answers, `/proc` and `/sys` otherwise. Nothing is guessed."""
