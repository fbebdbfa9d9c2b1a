"""Many admissions or simulations from one file: journaled, ranked, the same bytes however they were run."""
