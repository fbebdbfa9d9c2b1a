"""What exists: machines, links, models, workloads, placements. Data only; reads files."""
