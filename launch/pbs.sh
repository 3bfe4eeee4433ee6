#!/usr/bin/env bash
# Trains on a PBS cluster, one rank per line of the node file. Submit it from the folder that holds .venv. qsub passes
# no arguments on, so the settings come from a TOML file:
#
#   qsub -v CONFIG=experiment.toml launch/pbs.sh
#   qsub -l select=4:ncpus=8:mpiprocs=8 -v CONFIG=experiment.toml launch/pbs.sh
#   qsub -v CONFIG=experiment.toml,SWEEP=flags.txt -J 1-12 launch/pbs.sh     task K adds the flags on line K of the file
#
# A run that is longer than the time limit is continued: two minutes before the end the ranks are told to write a
# checkpoint, and the script submits itself again, with RUN naming the run to go on with.
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
    # --map-by: a variable that allows more ranks than cores would put all of them on the first host.
    *"Open MPI"*) launch=(mpirun --hostfile "$PBS_NODEFILE" --map-by slot) ;;
    *) launch=(mpirun -f "$PBS_NODEFILE") ;;
esac
run=${RUN:-runs/dpmpi-${PBS_JOBID%%[.[]*}${PBS_ARRAY_INDEX:+_$PBS_ARRAY_INDEX}}
if [ -e "$run/checkpoint/manifest.json" ]; then
    flags=(--resume "$run")
else
    more=()
    if [ -n "${PBS_ARRAY_INDEX-}" ]; then
        : "${SWEEP:?an array needs SWEEP, a file with the flags of task K on line K}"
        line=$(sed -n "${PBS_ARRAY_INDEX}p" "$SWEEP")
        [ -n "$line" ] || { echo "$SWEEP has no line $PBS_ARRAY_INDEX: give -J as many tasks as lines" >&2; exit 2; }
        read -ra more <<< "$line"
    fi
    flags=(--config "${CONFIG:?submit with -v CONFIG=experiment.toml}" --ranks "$ranks"
        --checkpoint-every "${CHECKPOINT:-300s}" --out "$run" "${more[@]}")
fi

resource() { # NAME: what the job was given of it
    qstat -f "$PBS_JOBID" | awk -v name="Resource_List.$1" '$1 == name { print $3 }'
}
seconds() { # HH:MM:SS
    awk -F: '{ for (k = 1; k <= NF; k++) all = 60 * all + $k; print all }' <<< "$1"
}
"${launch[@]}" -n "$ranks" python -m dpmpi.run "${flags[@]}" &
launched=$!
# PBS gives no warning, so a clock does, two minutes (or WARNING seconds) before the limit.
walltime=$(resource walltime) || true
left=$(($(seconds "${walltime:-0}") - ${WARNING:-120})) clock=
if [ $left -ge 0 ]; then
    {
        read -rt $left <> <(:) || true # sleeps, without a process that outlives us
        kill -USR1 $launched # mpirun passes it on to the ranks
    } 2> /dev/null &
    clock=$!
fi
code=0
wait $launched || code=$?
# 75: the ranks have written a checkpoint. If the clock is still running, somebody wants the run to end.
if [ -n "$clock" ] && ! kill $clock 2> /dev/null && [ $code = 75 ]; then
    exec qsub -l "select=$(resource select)" -l "walltime=$walltime" -v "RUN=$run" "${SCRIPT:-launch/pbs.sh}"
fi
exit $code
