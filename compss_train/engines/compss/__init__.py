"""The COMPSs engine: tasks of PyCOMPSs on its nodes. Only this package imports pycompss."""
