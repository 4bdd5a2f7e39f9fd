"""The local engine: tasks on worker processes of this machine."""
