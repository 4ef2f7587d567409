"""Modules of the model server: protocol, executables and their queue, metrics, application."""
