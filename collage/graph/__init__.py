"""The dataflow graph of a function, sets of its nodes, sub-graphs, and where a graph can be cut."""
