import os
import signal

import pytest

from actograph.stack.stop_signals import SIGNALS, StopSignals


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_asks_and_the_second_insists(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert not signals.asked()
        os.kill(os.getpid(), number)
        assert signals.asked()
        assert not signals.insisted()
        os.kill(os.getpid(), number)
        assert signals.insisted()
    assert signal.getsignal(number) == before
