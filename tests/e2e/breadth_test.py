"""The narrow choice of combinations must still find what it is meant to find: breadth_test.py"""
import itertools
import unittest

import breadth

SETTINGS = [[1, 2, 3, 8], [1, 2, 3], ["shm", "tcp"], [None, 7, 64], [None, 40, 77]]


class Pairs(unittest.TestCase):
    def test_a_fault_of_any_two_settings_shows(self):
        chosen = breadth.pairs(SETTINGS)
        for (i, first), (k, second) in itertools.combinations(enumerate(SETTINGS), 2):
            for a, b in itertools.product(first, second):
                self.assertTrue(any(c[i] == a and c[k] == b for c in chosen),
                                f"{a} of {i} never meets {b} of {k}")

    def test_they_are_few(self):
        self.assertLessEqual(len(breadth.pairs(SETTINGS)), 14)

    def test_one_dimension_is_all_its_values_with_the_other(self):
        self.assertEqual(sorted(breadth.pairs([[1, 2], [3, 4]])), [(1, 3), (1, 4), (2, 3), (2, 4)])


if __name__ == "__main__":
    unittest.main()
