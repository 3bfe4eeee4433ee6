"""Every party starts its own ranks: `dpmpi join`."""
