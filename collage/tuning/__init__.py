"""Schedule search for TVM kernels with an effect on the plan, and the records of its trials."""
