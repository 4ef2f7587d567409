"""The side of the cluster that searches: batches become Jobs, and their results costs."""
