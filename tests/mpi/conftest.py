import pytest

from dpmpi.network.transport.mpi import open_world


@pytest.fixture(scope="session")
def world():
    return open_world(deadline=20.0)


@pytest.fixture
def on_all(world):
    """Assert on every rank what holds on every rank: a lone failure would leave the others waiting."""

    def verdict(holds, message=""):
        texts = world.collect(["" if holds else f"rank {world.rank}: {message or 'failed'}"])
        failed = [text for text in texts if text]
        assert not failed, failed

    return verdict
