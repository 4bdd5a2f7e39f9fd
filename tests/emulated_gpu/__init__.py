"""Two CUDA devices that are not there, for tests: ``python -m tests.emulated_gpu [arguments of
pytest]``.

Tensors of a device are wrappers of CPU tensors, and every operation runs on the CPU's kernels:
results have the CPU's bits, and what a real device refuses is refused (``tensors.py``). A library
tells torch that there are devices (``devices.cpp``), and ``torch.cuda`` is replaced (``cuda.py``).
``site/`` installs all of it in every process that imports torch. Speed, memory use of kernels, and
orders of sums cannot be seen this way.
"""
