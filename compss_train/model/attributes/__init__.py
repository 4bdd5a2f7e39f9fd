"""State outside the state_dict: what objects keep in attributes, read and set by paths.

A path is that of a program: ``network.0.begun``, ``loss.center``, ``training_step.teacher.weight``.
Values become plain ones, which checkpoints hold; a tensor or container with several paths stays
one, and parameters of the network are references to their names. What is neither plain nor an
object that a new copy has at the same path cannot be kept: a ``NotKept`` stands for it.

``reader`` reads the attributes as plain values, ``writer`` sets them, and ``changes`` are what a
worker keeps. Objects with immutable values only are compared by ``immutable``, and not read.
"""
