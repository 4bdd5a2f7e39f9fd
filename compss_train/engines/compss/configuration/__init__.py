"""COMPSs's two configuration files, which declare its worker nodes and their resources: writing and reading.

Imports neither torch nor another room of compss_train, so that the doctor can use it.
"""
