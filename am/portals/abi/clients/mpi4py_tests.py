"""Runs one module of mpi4py's own tests: `mpi4py_tests.py FOLDER MODULE [--only TEST | --without TEST...]`.

FOLDER is the `test` of an mpi4py tree; `mpi4py_tests.py FOLDER` alone lists its modules. `--only` and
`--without` name test functions: a test that ends the process is run by itself, and the others without it.
`cargo xtask clients` runs each module with mpi4py over Open MPI over libportals.
"""

import glob
import os
import sys
import unittest


def tests_of(suite):
    """The tests of a suite, one by one."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def function_of(test):
    """The name of a test's function; of a module that could not be loaded, the loader's own."""
    return test.id().rsplit(".", 1)[-1]


def main():
    folder, *words = sys.argv[1:]
    if not words:
        for path in sorted(glob.glob(os.path.join(folder, "test_*.py"))):
            print(os.path.basename(path)[: -len(".py")])
        return
    module, *words = words
    how, names = (words[0], words[1:]) if words else ("--without", [])
    if how not in ("--only", "--without"):
        sys.exit(f"mpi4py_tests.py: {how} is neither --only nor --without")
    sys.path.insert(0, folder)
    found = tests_of(unittest.defaultTestLoader.loadTestsFromName(module))
    chosen = [test for test in found if (function_of(test) in names) == (how == "--only")]
    if not chosen:
        sys.exit(f"mpi4py_tests.py: {module} has no such test")
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(chosen))
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
