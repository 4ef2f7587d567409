"""The searching side: batches become Jobs, and results of Jobs become costs."""
