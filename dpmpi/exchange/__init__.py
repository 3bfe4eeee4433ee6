"""How requests become hops."""

from dpmpi.exchange.plain import PlainExchange

EXCHANGES = {"plain": PlainExchange}
