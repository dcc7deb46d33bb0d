# Sourced by other scripts: makes a virtual environment with the project, if it is not there yet. A folder that this
# script has not made, or a link, stays as it is, and the script ends.
#
#   environment DIRECTORY EXTRAS [REQUIREMENT...]
#
# EXTRAS are the project's extras ("plot,mpich"); a REQUIREMENT is a further pip requirement ("tensorflow==2.16.2").
# Sets PYTHON and puts the environment's programs first on PATH.

environment() {
    local directory=$1 extras=$2
    shift 2
    local stamp="$directory/.installed" wanted python
    wanted="$extras $* $(cksum <setup.cfg)"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        # Its own stamp ends with the two numbers of a checksum.
        if [ -L "$directory" ] || { [ "$(ls -A "$directory" 2>&1)" ] && [ -e "$directory" ] &&
            ! grep -Eqs '^[a-z0-9,]+ .*[0-9]+ [0-9]+$' "$stamp"; }; then
            echo "$directory: this script has not made it, and would empty it. Move it away, or remove it" >&2
            return 1
        fi
        echo "== installing tfdist[$extras] $* into $directory (a minute or two)"
        python=$("${PYTHON:-python3}" -c 'import sys; print(sys._base_executable)') # not one in this folder
        mkdir -p "$directory"
        echo "$extras is not complete: 0 0" >"$stamp"
        find "$directory" -mindepth 1 -maxdepth 1 ! -name .installed -exec rm -rf {} +
        "$python" -m venv "$directory" &&
            "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" "$@" ||
            return 1
        echo "$wanted" >"$stamp"
    fi
    PYTHON=$PWD/$directory/bin/python
    PATH=$PWD/$directory/bin:$PATH
    # Without these, Open MPI refuses root and more ranks than cores; other MPIs ignore them.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
}
