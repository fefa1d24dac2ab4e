"""`python -m worker`: the worker that `grasp serve` starts, which ends with it."""

from worker.main import main

if __name__ == "__main__":
    main(with_parent=True)
