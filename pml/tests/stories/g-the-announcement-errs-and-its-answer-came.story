# Race (g): the announcement errs at its sender after it arrived, and the receiver's answer is here before the error.
#
# BFO has to restart then, as it cannot tell what else was lost. Here the rail gives back what it cannot answer for: the
# announcement, and the fragments that the answer asked for. The announcement goes again and is a duplicate by its sequence
# number; the fragments go again and are taken. No handshake.

set protocol fragments

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
arrive rail 0 0->1 RNDV restart 0
deliver rail 0 1->0 ACK offset 4080 until 20000
expect wire rail 0 0->1 FRAG offset 4080
expect wire rail 0 0->1 FRAG offset 12248

break rail 0 at 0
deliver rail 1 0->1 RNDV restart 0 restarted 0
expect 1 counter duplicate 1
expect no wire rail 1 1->0 ACK
expect no wire rail 0 1->0 ACK
deliver rail 1 0->1 FRAG offset 4080
deliver rail 1 0->1 FRAG offset 12248

expect received m whole
expect sent m ok
settle
expect 0 counter restarts 0
expect nothing left
