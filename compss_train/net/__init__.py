"""One transport for all that listens: ZeroMQ, encrypted by CURVE over TCP, at socket files on one machine.

Nothing is parsed, routed or kept for a connection before it has authenticated. What messages mean is up to others.
"""
