"""Pictures that apps draw."""

import numpy as np


def assert_is_a_picture(path, least):
    """It has so many pixels along each side, and more than a few colors."""
    from matplotlib import image

    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = np.uint8(image.imread(path) * 255)
    assert min(pixels.shape[:2]) > least
    assert len(np.unique(pixels.copy().view(np.uint32))) > 20
