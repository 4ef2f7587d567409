"""TVM for the CPU and the GPU backend: regions as TIR functions, and recorded schedules."""
