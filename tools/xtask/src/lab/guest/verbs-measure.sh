# doorbell beside the library's own tools and UCX, over the same device, turns interleaved. What precedes this file says what a
# host is. TURNS is how often each is measured, MORE what is measured that takes one host.

export DOORBELL_WAIT=lowest-latency
# At the usual 67 ms, an emulated machine repeats packets by itself. Datagrams have no such time.
export DOORBELL_VERBS_TIMEOUT=18
# Without the check, UCX takes the kind of a datagram from where only some cards report it.
ucx="env UCX_UD_VERBS_ETH_DGID_CHECK=n"

figure() { if [ -n "$2" ]; then echo "LAB figure: $1 $2"; else echo "no figure: $1"; missing="$missing $1"; fi; }

# beside PORT SERVER CLIENT: the client's output in $said.
beside() {
    local status
    in_shell_of_b "$on_b $2 > server.log 2>&1 & server=\$!"
    within 30 listens $1
    said=$(timeout 100 $on_a $3 2>&1)
    status=$?
    in_shell_of_b 'within 20 has_ended $server || kill $server; wait $server' > /dev/null 2>&1
    [ $status = 0 ] || { echo "$3: exit $status"; tail -n 3 <<< "$said"; said=; }
}
listens() { at b ss -Hltn "sport = :$1" | grep -q .; }

# perftest PROGRAM DEVICE-OPTIONS...: its line of figures in $said.
perftest() {
    beside 18515 "$1 -d $(device b 0) -x 1 ${*:2}" "$1 -d $(device a 0) -x 1 ${*:2} $control"
    said=$(grep -E '^ *[0-9]+ +[0-9]+ +[0-9.]+' <<< "$said" | tail -n 1)
}
# other TRANSPORTS OPTIONS...: UCX, its last line in $said.
other() {
    local with="UCX_TLS=$1"
    shift
    beside 13337 "$ucx $with UCX_NET_DEVICES=$(device b 0):1 ucx_perftest $*" \
        "$ucx $with UCX_NET_DEVICES=$(device a 0):1 ucx_perftest $control $*"
    said=$(grep '^Final:' <<< "$said" | tail -n 1)
}
word() { awk -v at="$1" '{ print $at }' <<< "$said"; }
# mib WORD: in MB/s.
mib() { awk -v at="$1" '{ if ($at > 0) print $at * 1.048576 }' <<< "$said"; }

# ours KIND VERB OPTIONS...: a measurement, its row in $said with commas as spaces.
ours() {
    local kind=$1 verb=$2
    shift 2
    in_shell_of_b "serving ours $on_b doorbell $verb --serve --once --bind $control --key-file key --rail $(rail_of $(device b 0) $kind)"
    said=$(timeout 100 $on_a doorbell $verb --connect $control --key-file key --rail $(rail_of $(device a 0) $kind) --no-reference --csv - "$@" 2> client.err)
    [ $? = 0 ] || { echo "doorbell $verb, $kind: $(tail -n 2 client.err)"; said=; }
    in_shell_of_b 'within 20 has_ended $server || kill $server; wait $server' > /dev/null 2>&1
    said=$(tail -n 1 <<< "$said" | awk -F, '{ for (at = 1; at <= NF; at++) printf "%s ", $at == "" ? "-" : $at; print "" }')
}
scaled() { awk -v at="$1" -v by="$2" '{ if ($at > 0) print $at / by }' <<< "$said"; }

turn() {
    local kind
    perftest ib_send_lat -c RC -s 64 -n 1000 -u 18
    figure rc.ib_send_lat.typical "$(word 5)"
    figure rc.ib_send_lat.min "$(word 3)"
    for kind in $KINDS; do
        ours $kind pingpong --sizes 64 --samples 1000
        figure $kind.doorbell.typical "$(scaled 9 1000)"
        figure $kind.doorbell.min "$(scaled 8 1000)"
    done
    other rc_verbs,ud_verbs:aux,self -t tag_lat -s 64 -n 1000 -w 100
    figure rc.ucx.typical "$(word 3)"
    perftest ib_send_lat -c UD -s 64 -n 1000
    figure ud.ib_send_lat.typical "$(word 5)"
    figure ud.ib_send_lat.min "$(word 3)"
    other ud_verbs,self -t tag_lat -s 64 -n 1000 -w 100
    figure ud.ucx.typical "$(word 3)"
    perftest ib_read_bw -s 1048576 -n 40 -u 18
    figure read_bw "$(mib 4)"
    perftest ib_write_bw -s 1048576 -n 40 -u 18
    figure write_bw "$(mib 4)"
    # Where a packet takes the kernel's time, an end that polls takes it away: those of the tools sleep, too.
    for kind in $KINDS; do
        DOORBELL_WAIT=sleep ours $kind stream --sizes 1Mi --seconds 3
        figure $kind.doorbell.stream "$(scaled 16 1000000)"
    done
    other rc_verbs,ud_verbs:aux,self -t tag_bw -s 1048576 -n 40 -w 4
    figure rc.ucx.stream "$(mib 7)"
    other ud_verbs,self -t tag_bw -s 1048576 -n 20 -w 2
    figure ud.ucx.stream "$(mib 7)"
    [ -n "$MORE" ] || return
    for kind in $KINDS; do
        ours $kind stream --sizes 64 --seconds 2 --window 64
        figure $kind.doorbell.rate "$(scaled 17 1000)"
    done
    other rc_verbs,ud_verbs:aux,self -t tag_bw -s 64 -O 64 -n 20000 -w 1000
    figure rc.ucx.rate "$(scaled 9 1000)"
    other ud_verbs,self -t tag_bw -s 64 -O 64 -n 20000 -w 1000
    figure ud.ucx.rate "$(scaled 9 1000)"
    perftest ib_write_bw -s 8 -t 1 -Q 1 -n 2000 -u 18
    # Millions a second.
    figure write "$(awk '{ if ($5 > 0) print 1 / $5 }' <<< "$said")"
    # The target of ours polls; so does a processor here.
    in_shell_of_b "$on_b sh -c 'while :; do :; done' & polls=\$!"
    perftest ib_write_bw -s 8 -t 1 -Q 1 -n 2000 -u 18
    figure write_beside_polling "$(awk '{ if ($5 > 0) print 1 / $5 }' <<< "$said")"
    in_shell_of_b 'kill $polls; wait $polls' > /dev/null 2>&1
    for kind in $KINDS; do
        said=$(timeout 100 doorbell onesided --rail $(rail_of rxe0 $kind) --size 64Ki --seconds 2 2>&1)
        grep -q '^ *put ' <<< "$said" || tail -n 4 <<< "$said"
        figure $kind.doorbell.put "$(awk '$1 == "put" { print $2; exit }' <<< "$said")"
    done
}

hosts
wired
missing=
for number in $(seq $TURNS); do
    turn
    echo "turn $number: load $(cut -d' ' -f1 /proc/loadavg)"
done
if [ -z "$missing" ]; then ok "everything was measured $TURNS times"; else failed "everything was measured $TURNS times" "not these: $(tr ' ' '\n' <<< "$missing" | sort | uniq -c | tr '\n' ' ')"; fi
parted
finish
