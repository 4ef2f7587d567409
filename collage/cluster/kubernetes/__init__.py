"""Kubernetes as Collage uses it: the calls, the Jobs and their manifests."""
