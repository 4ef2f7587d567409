"""The dataflow graph of a function, sets of its nodes, sub-graphs, and cut points."""
