"""Entry points of the container images."""
