from tests.buffers.kinds import make, numbers


def test_samples_come_in_the_order_in_which_they_were_put():
    fifo = make("FIFO", 4)
    got = []
    for number in range(0, 30, 3):
        fifo.put_many([number, number + 1, number + 2])
        got += [fifo.get(), *fifo.get_batch(2)]
    assert got == list(range(30))


def test_a_batch_waits_for_all_of_its_samples_until_reception_is_over():
    fifo = make("FIFO", 4)
    fifo.put_many([0, 1, 2])
    assert numbers(fifo.get_batch(2)) == [0, 1]
    fifo.signal_reception_over()
    assert fifo.get_batch(3) == [2]
