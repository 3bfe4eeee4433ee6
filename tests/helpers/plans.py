"""Settings and plans for tests, from flags."""

from dpmpi.runtime.flags import parse
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.settings import Settings


def settings_of(*flags):
    return Settings.of(parse(list(map(str, flags))))


def plan_of(settings, records, dimension):
    """The plan of a run with so many records on each rank."""
    return make_plan(settings, settings.schedule(len(records)), records, dimension)
