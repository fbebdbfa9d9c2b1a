"""The way in and out: scenario files, runner, proof, comparison, reports, command line."""
