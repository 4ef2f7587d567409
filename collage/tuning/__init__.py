"""Search for schedules of TVM kernels where a faster one could change the plan, and keep what was found."""
