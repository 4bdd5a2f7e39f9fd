"""The one transport of all servers: ZeroMQ, encrypted by CURVE over TCP, or through socket files on one machine.

Nothing is parsed, routed or kept for a connection before it has authenticated. Users define what messages mean.
"""
