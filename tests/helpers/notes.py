"""``Notes``: a list in which a test notes what the tasks of the serial engine do."""


class Notes(list):
    """A list that copies of functions and objects share, where they are made in this process.

    Tasks have copies of a user's functions, with the variables in their cells: of a plain list,
    a test would not see what they append.
    """

    def __deepcopy__(self, memo):
        return self
