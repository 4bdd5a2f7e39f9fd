"""Merging: how the parameters of the workers become global parameters. Independent of the engine.

Synchronous merging averages the workers' parameters, weighted by the samples of each in the round,
as in local SGD (Stich 2019) and federated averaging (McMahan et al. 2017). Commutative merging does
so with the workers that have arrived, and adds the changes of late ones to later merges; without a
quorum it adds each worker's weighted change on arrival. Merging through a parameter server does
that layer by layer, without the engine.
"""
