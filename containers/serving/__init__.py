"""The model server's parts: the protocol, the executables with their queue, metrics, the application."""
