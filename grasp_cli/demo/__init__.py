"""Something to merge: digits as other decades have scanned them, and small models trained on them.

Needs the extra `demo`; loaded by `grasp demo` when it runs, and by the examples.
"""
