# Sourced by other scripts: makes a virtual environment with the project, if it is not there yet.
#
#   environment DIRECTORY EXTRAS [REQUIREMENT...]
#
# EXTRAS are the project's extras ("plot,mpich"); a REQUIREMENT is a further pip requirement ("tensorflow==2.16.2").
# Sets PYTHON and puts the environment's programs first on PATH.

environment() {
    local directory=$1 extras=$2
    shift 2
    local stamp="$directory/.installed" wanted
    wanted="$extras $* $(cksum <setup.cfg)"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "== installing tfdist[$extras] $* into $directory (a minute or two)"
        "${PYTHON:-python3}" -m venv --clear "$directory"
        "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" "$@"
        echo "$wanted" >"$stamp"
    fi
    PYTHON=$PWD/$directory/bin/python
    PATH=$PWD/$directory/bin:$PATH
    # Without these, Open MPI refuses root and more ranks than cores; other MPIs ignore them.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
}
