"""Jobs: their queue and states, the workers that take them, and what these report."""
