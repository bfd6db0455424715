"""Uses a multiprocessing.Pool of two, then a Queue that carries 4 MiB from a child."""
import multiprocessing


def square(x: int) -> int:
    return x * x


def produce(queue):
    queue.put(bytes(4 << 20))


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        assert pool.map(square, range(100)) == [x * x for x in range(100)]
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=produce, args=(queue,))
    child.start()
    assert len(queue.get(timeout=20)) == 4 << 20
    child.join()
    print("pool and queue are right")
