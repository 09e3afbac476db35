# `doorbell doctor` on real devices: its verdict on a virtual function that is not prepared, step by step, and that
# the commands which it prints, and nothing else, make it ready.
#
# IOMMU  `on`; `shared`: on, with one group for the whole card; `off`: the kernel was told not to use it; `none`: there is none

export COLUMNS=500
devices=/sys/bus/pci/devices

# There is no index of modules here; all of them are loaded.
fixes() { doorbell doctor "$1" --fix | sed 's/modprobe [a-z-]*; //'; }

# breaks WHAT STEP PATTERN COMMAND...: the chain ends at this step, with this text and a fix.
breaks() {
    local what=$1 step=$2 pattern=$3 status
    shift 3
    said=$("$@" 2>&1)
    status=$?
    if [ $status = 1 ]; then ok "$what: status 1"; else failed "$what: status 1" "exit $status: $said"; fi
    says "$what: at the step $step" "$said" "^  broken +$step +.*$pattern"
    says "$what: with a fix" "$said" '^ +fix: .{10}'
}

as_user() { su -s /bin/bash rail -c "$1"; }

echo rail:x:1000:1000:rail:/tmp:/bin/bash >> /etc/passwd
echo rail:x:1000: >> /etc/group
pf=$(ls /sys/bus/pci/drivers/igb | grep -m 1 :)
eth=$(ls $devices/"$pf"/net)
ip link set "$eth" up

breaks "no virtual function" virtual 'without virtual ones' doorbell doctor "$pf"
check "no virtual function: done as printed" bash -c "$(fixes "$pf")"
vf=$(basename "$(readlink $devices/"$pf"/virtfn0)")
check "no virtual function: there it is" test -e "$devices/$vf"
check "the physical one is no fault then" doorbell doctor "$pf"

ip link set "$eth" down
breaks "physical function down" parent "$pf \($eth\) is down" doorbell doctor "igbvf:$vf"
check "physical function down: done as printed" bash -c "$(fixes "$vf")"
check "physical function down: it has its link" within 20 grep -q 1 "/sys/class/net/$eth/carrier"

if [ "$IOMMU" = shared ]; then
    check "a foreign device in the group: bound as printed" bash -c "$(fixes "$vf")"
    breaks "a foreign device in the group" group "$pf" doorbell doctor "$vf"
    says "a foreign device in the group: not to be taken from the kernel" "$said" 'Access Control Services'
    echo "$said"
    fixes "$vf"
    finish
fi
if [ "$IOMMU" != on ]; then
    breaks "no IOMMU" iommu 'no IOMMU is on' doorbell doctor "$vf"
    if [ "$IOMMU" = off ]; then
        says "no IOMMU: the kernel was told not to" "$said" 'cause: the kernel.s command line has intel_iommu=off'
        says "no IOMMU: the line that mends it" "$said" 'sed -i .*intel_iommu=on.* /etc/default/grub'
    else
        says "no IOMMU: there is none" "$said" 'cause: the firmware shows the kernel no IOMMU'
    fi
    finish
fi

breaks "the kernel's driver" driver 'driver `igbvf`' doorbell doctor "$vf"
check "the kernel's driver: done as printed" bash -c "$(fixes "$vf")"
said=$(doorbell doctor "$vf")
if [ $? = 0 ]; then ok "bound: nothing is broken"; else failed "bound: nothing is broken" "$said"; fi
echo "$said"
says "bound: to the device's own answers" "$said" '^  ok +answers +.*8086:10ca'
says "bound: the physical function answers" "$said" '^  ok +rings +.*two send queues'
says "bound: an interrupt came" "$said" '^  ok +interrupt '
says "bound: a frame through the rings was answered" "$said" "^  ok +frame +$eth answered a request"
says "unnamed: it is looked at" "$(doorbell doctor)" "^igbvf:$vf: "

vfio-lab hold "$vf" > held.log 2>&1 &
holder=$!
check "in use: somebody has it" within 20 grep -q '^held' held.log
breaks "in use" free "in process $holder" doorbell doctor "$vf"
kill -KILL $holder
wait $holder 2> /dev/null
check "in use: no more" doorbell doctor "$vf"

ulimit -l unlimited
file=/dev/vfio/$(basename "$(readlink $devices/"$vf"/iommu_group)")
breaks "another user" device-file "user 1000 may not open $file" as_user "COLUMNS=500 doorbell doctor $vf"
check "another user: done as printed" bash -c "$(as_user "doorbell doctor $vf --fix")"
check "another user: may open it" test "$(stat -c %u "$file")" = 1000
breaks "64 KiB" memlock '3.8 MiB needed, and this process may lock 64 KiB' as_user "ulimit -S -l 64; COLUMNS=500 doorbell doctor $vf"
check "64 KiB: done as printed" as_user "ulimit -S -l 64; eval \"\$(doorbell doctor $vf --fix)\"; doorbell doctor $vf"
finish
