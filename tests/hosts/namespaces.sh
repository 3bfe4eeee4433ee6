#!/usr/bin/env bash
# Runs a command on the front end of a small cluster that exists for as long as the command runs. Needs root and
# iproute2.
#
#   tests/hosts/namespaces.sh 4 sh -c 'mpirun --hostfile $HOSTFILE --map-by ppr:5:node hostname'
#
# A host is a set of Linux namespaces: it has its own network interface and address, name, processes, shared memory and
# folder /media/private, empty at first, which also serves for temporary files and state. The rest of the disk is shared, as on a
# cluster. The hosts node1, node2, ... hang on a bridge; the front end, where the command runs, has the bridge itself.
# All processes live in one PID namespace, all mounts and links in namespaces without a name, so nothing outlives the
# command.
#
# The command finds
#   HOSTFILE                  a host file of all nodes with SLOTS (default 1) slots each
#   PRTE_MCA_plm_ssh_agent, HYDRA_LAUNCHER_EXEC
#                             `enter` below, which takes the place of ssh for Open MPI 5 and MPICH
#   DPMPI_HOSTS               a folder with
#     enter HOST COMMAND...     runs a command on a host; like ssh, with hardly any environment
#     cut HOST                  pulls the host's network cable
set -euo pipefail

if [ "${1-}" != --inside ]; then
    [ $# -ge 2 ] || { echo "usage: namespaces.sh HOSTS COMMAND [ARGUMENT ...]" >&2; exit 2; }
    exec unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc -- "$0" --inside "$@"
fi
# What follows would change the machine's own name and network.
[ $$ = 1 ] && [ "$(ls /proc/sys/net/ipv4/conf)" = "$(printf 'all\ndefault\nlo')" ] ||
    { echo "namespaces.sh: --inside is for the script itself" >&2; exit 2; }

hosts=$2
shift 2
mount -t sysfs sysfs /sys # the one that is there shows the caller's interfaces
mount -t tmpfs tmpfs /media
here=/media/hosts
mkdir "$here" /media/private

enter() { # HOST COMMAND...: the words become one line for a shell, as with ssh
    while [[ $1 = -* ]]; do shift; done # options of ssh that take no argument
    local host=$1
    shift
    exec nsenter --target "$(cat "$here/$host.pid")" --all -- \
        env -i PATH="$PATH" HOME="$HOME" USER=root TMPDIR=/media/private XDG_STATE_HOME=/media/private/state sh -c "$*"
}
cut() { # HOST
    ip link set "to-$1" down
}
for tool in enter cut; do
    printf '#!/usr/bin/env bash\nhere=%s\n%s\n%s "$@"\n' "$here" "$(declare -f $tool)" $tool > "$here/$tool"
    chmod +x "$here/$tool"
done

hostname front
ip link set lo up
ip link add lan type bridge
ip addr add 10.77.0.254/24 dev lan
ip link set lan up
{
    printf '127.0.0.1 localhost\n10.77.0.254 front\n'
    for ((k = 1; k <= hosts; k++)); do echo "10.77.0.$k node$k"; done
} > "$here/names"
mount --bind "$here/names" /etc/hosts

for ((k = 1; k <= hosts; k++)); do
    host=node$k
    mkfifo "$here/$host.ready"
    # bash, as the first process of the host, buries its orphans.
    unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc -- bash -c '
        hostname "$1"
        mount -t sysfs sysfs /sys
        mount -t tmpfs tmpfs /dev/shm
        mount -t tmpfs tmpfs /media/private
        echo > "$2"
        sleep infinity
        :' host "$host" "$here/$host.ready" < /dev/null > /dev/null &
    read -r < "$here/$host.ready"
    pid=$(tr -d ' ' < /proc/$!/task/$!/children)
    echo "$pid" > "$here/$host.pid"
    ip link add "to-$host" mtu 9000 type veth peer name eth0 netns "$pid" mtu 9000
    # Frames as a wire carries them: without the limit the counters see larger ones, with fewer headers.
    nsenter --target "$pid" --net sh -e -c "
        ip link set lo up
        ip addr add 10.77.0.$k/24 dev eth0
        ip link set eth0 gso_max_segs 1 up"
    ip link set "to-$host" master lan up
    echo "$host slots=${SLOTS:-1}" >> "$here/hostfile"
done

export TMPDIR=/media/private DPMPI_HOSTS=$here HOSTFILE=$here/hostfile
export PRTE_MCA_plm_ssh_agent=$here/enter HYDRA_LAUNCHER_EXEC=$here/enter
# UCX would recognise the one kernel and take its shared memory from host to host.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp
"$@"
