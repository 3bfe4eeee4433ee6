"""How bytes travel: inside this process (`loopback`), by MPI (`mpi`, imported only when used), counted (`meter`)."""
