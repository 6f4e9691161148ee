# Sourced by scripts/demo and scripts/test, from the root of the repository: the environment in .venv.

# Prints the name of the first Python that is new enough and can make environments.
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        # Run, not only looked up: the name may be a shim for a version that is not there.
        if "$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo "No Python 3.11 or newer with venv and ensurepip was found among python3, python3.13, python3.12, python3.11." \
        "Install one (on Debian and Ubuntu also python3-venv)." >&2
    return 1
}

# Installs this checkout into .venv, with its dependencies as pinned in scripts/constraints.txt.
#   $1: extras, such as "dev,examples"; none by default
# A stamp records what was installed from what, so that a second run needs no pip. It is written last: an installation
# that was cut short is done again.
install_into_venv() {
    local extras=${1:-} python=.venv/bin/python source
    local stamp=.venv/installed${extras:+-$extras}
    source="$PWD $(cat pyproject.toml scripts/constraints.txt | cksum)"
    if [[ -x $python && -f $stamp && $(<"$stamp") == "$source" ]]; then
        return
    fi
    if ! "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        local base
        base=$(find_python)
        echo "Making .venv with $("$base" --version)" >&2
        "$base" -m venv --clear .venv
    fi
    echo "Installing autofit${extras:+ with $extras} into .venv; with PyTorch this may take minutes" >&2
    "$python" -m pip install --quiet --disable-pip-version-check -c scripts/constraints.txt -e ".${extras:+[$extras]}"
    echo "$source" >"$stamp"
}
