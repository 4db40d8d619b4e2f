"""For those who write a strategy or an executor: what each must keep, as test classes to subclass (needs pytest).

`strategies.StrategyContract`, `executors.ExecutorContract` and `executors.ProcessContract` hold the tests;
`arithmetic` is a device made of arithmetic, on which a whole search takes milliseconds. Nothing of autotune imports
this package.
"""

import pytest

pytest.register_assert_rewrite("autotune.testing.strategies", "autotune.testing.executors")
