"""What several tests of the app watch."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from tests.kit.peers import Log


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Log]:
    """Everything that the server logs meanwhile."""
    with capture_logs() as entries:
        yield Log(entries, caplog)
