# shellcheck shell=bash disable=SC2034,SC2154
# Functions shared by laptop.sh and slurm.sh, which source this file after setting `script` to their own name.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    printf '%s: %s\n' "$script" "$1" >&2
    exit "${2:-2}"
}

# The usage text is the comment at the top of a script.
usage() {
    sed -n '2,/^$/ s/^# \{0,1\}//p' "$1"
}

# The path of a program of COMPSs, from the PATH or COMPSS_HOME.
find_compss() {
    local installed=${COMPSS_HOME:+$COMPSS_HOME/Runtime/scripts/user/$1}
    if command -v "$1"; then
        return
    elif [ -x "$installed" ]; then
        printf '%s\n' "$installed"
    else
        fail "there is no $1 on the PATH or in COMPSS_HOME. Install COMPSs
(https://compss-doc.readthedocs.io) and source its environment script;
compss-train doctor --engine compss checks what else is missing.
Without COMPSs the same program trains on this machine's processes: python ${app:-APP}" 127
    fi
}

# The Python to use: $PYTHON, or the active one, by an absolute path as workers start elsewhere.
find_python() {
    local wanted=${1:-${PYTHON:-}} candidate
    for candidate in ${wanted:-python python3}; do
        if candidate=$(command -v "$candidate"); then
            case $candidate in
                /*) printf '%s\n' "$candidate" ;;
                *) printf '%s\n' "$PWD/$candidate" ;;
            esac
            return
        fi
    done
    fail "there is no Python ${wanted:-on the PATH}; name one with --python_interpreter=PATH"
}

# COMPSs's scripts pass arguments on unquoted: blanks split them, and a job script would execute $( ).
check_words() {
    local word
    for word in "$@"; do
        case $word in
            '' | '#'*) fail "the argument '$word' would be lost in COMPSs's scripts; leave it out" ;;
            *[!A-Za-z0-9_@%+=:,./#-]*)
                fail "the argument '$word' would not survive COMPSs's scripts, which pass arguments on unquoted; \
use letters, digits and _@%+=:,./#- (for anything else, let the application read a file)" ;;
        esac
    done
}

# The application as an absolute path. It must exist: a misspelt flag would be taken for the application otherwise.
find_app() {
    [ $# -gt 0 ] || fail "which application? Give the path of a Python file; see $script --help"
    [ -f "$1" ] || fail "there is no file $1 (flags with a value are written --flag=VALUE, before the application)"
    printf '%s\n' "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
}
