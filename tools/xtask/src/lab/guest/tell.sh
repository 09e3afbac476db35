# What every script has: saying how a check came out. `failed` remembers for the script's end.
failures=0
now() { local up; read -r up _ < /proc/uptime; echo -n "[$up] "; }
ok() { now; echo "LAB ok: $1"; }
failed() { now; echo "LAB failed: $1 -- ${2//$'\n'/; }"; failures=$((failures + 1)); }

# check WHAT COMMAND...: it succeeds.
check() {
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then ok "$what"; else failed "$what" "exit $?: $(tail -n 3 <<< "$said")"; fi
}

# says WHAT TEXT PATTERN: the text has a line with the pattern.
says() { if grep -qE -- "$3" <<< "$2"; then ok "$1"; else failed "$1" "no $3 in: $(tail -n 5 <<< "$2")"; fi; }

# within SECONDS COMMAND...: succeeds at last.
within() {
    local until=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -ge $until ] && return 1
        sleep 0.1
    done
}

# bring FILE: its bytes come out of the machine, under its name.
bring() {
    xxd -p -c 128 "$1" | awk -v name="$(basename "$1")" '{ print "LAB file " name " " NR " " $0 } END { print "LAB file " name " end " NR }'
}

# finish: the script's status.
finish() { exit $((failures > 0)); }
