#!/usr/bin/env bash
# Trains on a PBS cluster, one rank per line of the node file. Submit it from the folder that holds .venv. qsub passes no
# arguments on, so the settings come from a TOML file:
#
#   qsub -v CONFIG=experiment.toml launch/pbs.sh
#   qsub -l select=4:ncpus=8:mpiprocs=8 -v CONFIG=experiment.toml launch/pbs.sh
#
#PBS -N dpmpi
#PBS -l select=2:ncpus=10:mpiprocs=10
#PBS -l walltime=01:00:00
#PBS -j oe
set -euo pipefail
cd "$PBS_O_WORKDIR"
# Load the MPI with which .venv was installed, for example:
# module load openmpi
export PATH=$PWD/.venv/bin:$PATH

ranks=$(wc -l < "$PBS_NODEFILE")
# Open MPI and MPICH name the same option differently.
case $(mpirun --version 2>&1) in
    *"Open MPI"*) hosts=--hostfile ;;
    *) hosts=-f ;;
esac
exec mpirun "$hosts" "$PBS_NODEFILE" -n "$ranks" python -m dpmpi.run \
    --config "${CONFIG:?submit with -v CONFIG=experiment.toml}" --ranks "$ranks" --out "runs/dpmpi-${PBS_JOBID%%.*}"
