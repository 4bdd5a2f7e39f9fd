"""The COMPSs engine: tasks of PyCOMPSs, run on the nodes of its runtime. Only this package imports
pycompss.
"""
