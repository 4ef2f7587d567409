"""Entry points that run inside the images."""
