"""Differentially private decentralized optimization as real MPI processes.

Importing this package imports neither mpi4py (which would initialise MPI) nor numpy.
"""

__version__ = "0.2.0"
