#!/usr/bin/env bash
# Runs a command on the front end of a Slurm cluster that exists for as long as the command runs: the hosts of
# namespaces.sh, each with its own munged and slurmd, and a slurmctld on the front end. Needs root and the Debian
# packages slurmctld, slurmd, slurm-client, munge, slurm-wlm-basic-plugins, and libpmix2 for srun --mpi=pmix.
#
#   CPUS=10 tests/hosts/slurm.sh 2 sbatch --wait launch/slurm.sbatch --rounds 50
#
# CPUS is how many a node claims to have (default 4). The logs are in $DPMPI_HOSTS and vanish with the cluster.
set -euo pipefail

if [ "${1-}" != --inside ]; then
    [ $# -ge 2 ] || { echo "usage: slurm.sh HOSTS COMMAND [ARGUMENT ...]" >&2; exit 2; }
    exec "$(dirname "$0")/namespaces.sh" "$1" "$0" --inside "$@"
fi
hosts=$2
shift 2
private=/media/private # another one on each host
export SLURM_CONF=$DPMPI_HOSTS/slurm.conf
cat > "$SLURM_CONF" << CONF
ClusterName=dpmpi
SlurmctldHost=front
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$private/munge.socket
StateSaveLocation=$private/slurmctld
TmpFS=$private
SlurmdSpoolDir=$private/slurmd
SlurmctldPidFile=$private/slurmctld.pid
SlurmdPidFile=$private/slurmd.pid
# No cgroups: /proc tells which processes belong to a job.
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/none
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
KillWait=5
NodeName=node[1-$hosts] CPUs=${CPUS:-4} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
echo "CgroupPlugin=cgroup/v1" > "$DPMPI_HOSTS/cgroup.conf" # named, so that slurmd does not look for one

head -c 1024 /dev/urandom > "$DPMPI_HOSTS/munge.key"
chmod 600 "$DPMPI_HOSTS/munge.key"
# --force: munged finds the folder's rights too generous; nobody else is in here.
munge="munged --force --key-file=$DPMPI_HOSTS/munge.key --socket=$private/munge.socket --pid-file=$private/munged.pid
    --seed-file=$private/munged.seed --log-file=$private/munged.log"
$munge 2> /dev/null
for ((k = 1; k <= hosts; k++)); do
    "$DPMPI_HOSTS/enter" "node$k" $munge 2> /dev/null
    log=$DPMPI_HOSTS/slurmd-$k.log
    "$DPMPI_HOSTS/enter" "node$k" "mkdir $private/slurmd; SLURM_CONF=$SLURM_CONF slurmd -N node$k -L $log"
done
mkdir "$private/slurmctld"
slurmctld -L "$DPMPI_HOSTS/slurmctld.log"

for ((wait = 0; wait < 300; wait++)); do
    [ "$(sinfo --noheader --format=%D --states=idle 2> /dev/null)" != "$hosts" ] || exec "$@"
    sleep 0.1
done
{
    echo "slurm.sh: the nodes are not up after 30 s:"
    sinfo
    tail -n 5 "$DPMPI_HOSTS"/*.log
} >&2
exit 1
