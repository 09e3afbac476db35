# The functions of every script that report the outcome of a check. `failed` is remembered for the script's end.
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

has_ended() { ! kill -0 "$1" 2> /dev/null; }

# serving WHAT COMMAND...: starts a server, in $server, and waits for `serving on` in server.log.
serving() {
    local what=$1
    shift
    # Emptied first: the command empties it only when it starts, and until then it has the line of the server before.
    : > server.log
    "$@" > server.log 2>&1 &
    server=$!
    within 30 grep -q '^serving on' server.log && return
    failed "$what: it serves" "$(tail -n 3 server.log)"
    return 1
}

# served WHAT: the server has to end well, and soon: one that lost its client must not keep the machine up to its limit.
served() {
    within 90 has_ended $server || kill $server $(pidof doorbell)
    if wait $server; then ok "$1: served"; else failed "$1: served" "exit $?: $(tail -n 4 server.log)"; fi
}

# bring FILE: its bytes come out of the machine, under its name.
bring() {
    xxd -p -c 128 "$1" | awk -v name="$(basename "$1")" '{ print "LAB file " name " " NR " " $0 } END { print "LAB file " name " end " NR }'
}

# Machines that run at the same time have a line between them, a serial port: the first one meets the other, which attends.
join_line() { stty -F /dev/ttyS1 raw -echo 115200 && exec 8<> /dev/ttyS1; }

# there WORDS...: the shell of the other machine's script runs them; prints their output, and has their status. What they
# check is reported by that machine.
there() {
    local text number
    number=${EPOCHREALTIME//[^0-9]/}
    printf 'do %s %s\n' $number "$*" >&8
    while read -r -t ${answer:-240} text <&8; do
        case $text in
            "= $number "*) return "${text##* }" ;;
            "> $number "*) printf '%s\n' "${text#"> $number "}" ;;
        esac
    done
    echo "the other machine does not answer"
    return 255
}

meet() {
    local until=$((SECONDS + 180))
    join_line
    until answer=2 there true > /dev/null; do
        [ $SECONDS -lt $until ] || { failed "both machines run" "nothing came over the line"; return 1; }
    done
    ok "both machines run"
}

# attend: runs what the first machine sends, until it takes leave.
attend() {
    local text number status
    join_line
    while read -r -t 400 text <&8; do
        [ "$text" = leave ] && return
        [[ $text = "do "* ]] || continue
        text=${text#do }
        number=${text%% *}
        eval "${text#* }" > line.out 2>&1 < /dev/null 8>&-
        status=$?
        cat line.out
        grep -v 'LAB ' line.out | tail -n 80 | cut -c 1-600 | sed "s/^/> $number /" >&8
        printf '= %s %s\n' $number $status >&8
    done
    failed "the first machine takes leave" "nothing came over the line for 400 s"
}
leave() { printf 'leave\n' >&8; }

# finish: the script's status.
finish() { exit $((failures > 0)); }
