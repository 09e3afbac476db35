# Real devices through the kernel's VFIO, behind an emulated IOMMU: two virtual functions of an 82576, and two NICs
# on a conventional bus, which no IOMMU can tell apart.
#
# IOMMU  `on`, or `off`: then only the refusal is checked

devices=/sys/bus/pci/devices

# A NIC's address, by the driver that has it.
of_driver() { ls /sys/bus/pci/drivers/"$1" | grep -m 1 :; }

driver() { basename "$(readlink $devices/"$1"/driver)" 2> /dev/null; }
group() { basename "$(readlink $devices/"$1"/iommu_group)"; }

# fix TEXT: runs the commands that the text names between its first back-ticks.
fix() {
    local commands
    commands=$(grep -m 1 '^fix: ' <<< "$1" | cut -d'`' -f2)
    # There is no index of modules here; all of them are loaded.
    bash -c "${commands//modprobe vfio-pci; /}"
}

# broken WHAT STEP PATTERN COMMAND...: the command's chain is broken at the step, with a reason and a fix in one line each.
broken() {
    local what=$1 step=$2 pattern=$3 status
    shift 3
    said=$("$@" 2>&1)
    status=$?
    if [ $status = 3 ]; then ok "$what: refused"; else failed "$what: refused" "exit $status: $said"; fi
    says "$what: at the step \"$step\"" "$said" "^broken $step: .*$pattern"
    says "$what: with a fix" "$said" '^fix: .{20}'
}

as_user() { su -s /bin/bash rail -c "$1"; }

made() {
    echo rail:x:1000:1000:rail:/tmp:/bin/bash >> /etc/passwd
    echo rail:x:1000: >> /etc/group
    pf=$(of_driver igb)
    ip link set "$(ls $devices/"$pf"/net)" up
    check "two virtual functions are made" bash -c "echo 2 > $devices/$pf/sriov_numvfs"
    vf0=$(basename "$(readlink $devices/"$pf"/virtfn0)") vf1=$(basename "$(readlink $devices/"$pf"/virtfn1)")
}

# The chain of a device that is not prepared, and that running the commands of its fix is enough.
bound() {
    local vf
    for vf in "$vf0" "$vf1"; do
        broken "$vf, the kernel's" driver 'driver `igbvf`' vfio-lab chain "$vf"
        fix "$said"
        check "$vf: doing what was said binds it" test "$(driver "$vf")" = vfio-pci
    done
    said=$(vfio-lab chain "$vf0" 2>&1)
    echo "$said"
    says "the chain: a virtual function of the right one" "$said" "^holds device: 8086:10ca, virtual function 0 of $pf"
    says "the chain: the group has no other devices" "$said" '^holds group: no other devices'
    says "the chain: to the end" "$said" '^holds answers: 8086:10ca, BAR 0'
    if grep -qE '^(broken|open|fix)' <<< "$said"; then failed "the chain: nothing is left open" "$said"; else ok "the chain: nothing is left open"; fi
}

used() {
    if said=$(vfio-lab use "$vf0" "$vf1" 2>&1); then ok "two at once: used"; else failed "two at once: used" "$said"; fi
    echo "$said"
    says "two at once: open" "$said" '^2 open at once'
    says "two at once: registers" "$said" "^$vf1: 8086:10ca, by group and container, status 0x"
    says "two at once: normal pages" "$said" "^$vf1: 2097152 bytes in pages of 4096 shared"
    says "two at once: huge pages" "$said" "^$vf1: 2097152 bytes in pages of 2097152 shared"
    says "two at once: memory taken back" "$said" "^$vf1: all of it taken back"
    says "two at once: interrupts" "$said" "^$vf1: 3 MSI-X vectors"
    says "two at once: reset" "$said" "^$vf1: reset, and it answers again"
    says "two at once: closed and opened again" "$said" "^$vf0: opened again"
}

# held WHAT BDF: a process that has it open, in $holder, with its output in held.log.
held() {
    vfio-lab hold "$2" > held.log 2>&1 &
    holder=$!
    check "$1: somebody holds it" within 20 grep -q '^held' held.log
}

busy() {
    held busy "$vf0"
    broken "busy" free "/dev/vfio/$(group "$vf0") is already open in process $holder \(vfio-lab\)" vfio-lab chain "$vf0"
    check "busy: the other one is free" vfio-lab chain "$vf1"
    kill -KILL $holder
    wait $holder 2> /dev/null
    check "killed: the next one has it" vfio-lab use "$vf0"
}

forbidden() {
    local file
    file=/dev/vfio/$(group "$vf0")
    broken "another user" device-file "user 1000 may not open $file, which is user 0's" as_user "vfio-lab chain $vf0"
    chown 1000 "$file"
    broken "64 KiB" memlock 'memory is 8192 KiB, and this process may lock 64 KiB' as_user "ulimit -l 64; vfio-lab chain $vf0 8192"
    check "64 KiB: less fits" as_user "ulimit -l 64; vfio-lab chain $vf0 32"
    check "16 MiB: enough" as_user "ulimit -l 16384; vfio-lab chain $vf0 8192"
    check "16 MiB: the user uses it" as_user "ulimit -l 16384; vfio-lab use $vf0"
    chown 0 "$file"
}

# Two NICs behind a bridge to a conventional bus share a group, whichever process has them.
shared() {
    local one two
    one=$(of_driver e1000)
    two=$(ls $devices/"$one"/iommu_group/devices | grep -v "$one" | while read -r other; do
        [ "$(driver "$other")" = e1000 ] && echo "$other"
    done)
    ip link set "$(ls $devices/"$one"/net)" down
    fix "$(vfio-lab chain "$one")"
    check "a shared group: the first is bound" test "$(driver "$one")" = vfio-pci
    broken "a shared group" group "$two \(driver .e1000.\)" vfio-lab chain "$one"
    fix "$said"
    check "a shared group: doing what was said binds the other" test "$(driver "$two")" = vfio-pci
    check "a shared group: the first opens" vfio-lab chain "$one"
}

# The process that has a device open which is unplugged is requested to release it, and does; nothing waits forever.
unplugged() {
    held unplugged "$vf1"
    check "unplugged: it goes away" timeout 60 bash -c "echo 0 > $devices/$pf/sriov_numvfs"
    if wait $holder; then ok "unplugged: the holder ends well"; else failed "unplugged: the holder ends well" "$(< held.log)"; fi
    says "unplugged: it was asked, and gave it back" "$(< held.log)" '^given back'
    broken "unplugged" device "there is no PCI device $vf1" vfio-lab chain "$vf1"
}

made
if [ "$IOMMU" = off ]; then
    broken "no IOMMU" iommu "no IOMMU restricts the memory accesses of device $vf0" vfio-lab chain "$vf0"
    says "no IOMMU: what to boot with" "$said" 'intel_iommu=on'
    finish
fi
echo 4 > /proc/sys/vm/nr_hugepages
bound
used
busy
forbidden
shared
unplugged
finish
