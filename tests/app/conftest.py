"""What several tests of the app watch and use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.db.base import Database
from app.people.accounts import Accounts
from app.people.groups import Groups
from app.people.invitations import Invitations
from app.people.keys import Keys
from app.people.logins import Logins
from app.people.throttle import Throttle
from tests.kit.peers import Log, open_engine
from tests.kit.people import Clock, quick_passwords
from tests.kit.serving import Serving, serving


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Log]:
    """Everything that the server logs meanwhile."""
    with capture_logs() as entries:
        yield Log(entries, caplog)


@pytest.fixture
def empty_house(tmp_path: Path, database_url: str) -> Iterator[Serving]:
    """As `house`, but of one test alone, which begins without people."""
    with serving(tmp_path, open_engine, database_url=database_url) as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounts(db: Database, clock: Clock) -> Accounts:
    return Accounts(db, passwords=quick_passwords(), now=clock)


@pytest.fixture
def logins(db: Database, accounts: Accounts, clock: Clock) -> Logins:
    return Logins(db, accounts, throttle=Throttle(clock.seconds))


@pytest.fixture
def invitations(db: Database, accounts: Accounts) -> Invitations:
    return Invitations(db, accounts)


@pytest.fixture
def groups(db: Database) -> Groups:
    return Groups(db)


@pytest.fixture
def keys(db: Database, accounts: Accounts) -> Keys:
    return Keys(db, accounts)
