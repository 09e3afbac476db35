# Race (b) again, as it is without `handshake`: a rail gives back what its peer may not have taken, so that nothing has to
# be agreed on. The fragments go again over the next rail; the receive that they name has ended, its number is stale, and
# they are dropped. Its slot is in use again by then, for a message that must not see them.

set protocol fragments

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
deliver rail 0 0->1 RNDV length 20000
deliver rail 0 1->0 ACK offset 4080 until 20000
arrive rail 0 0->1 FRAG offset 4080
arrive rail 0 0->1 FRAG offset 12248
expect received m whole
expect sent m ok

1 receive 0 tag 8 length 20000 as n
0 send 1 tag 8 length 20000 as n
deliver rail 0 0->1 RNDV length 20000
expect wire rail 0 1->0 ACK offset 4080 until 20000

break rail 0 at 0
expect no wire rail 1 0->1 NOTIFY
deliver rail 1 0->1 FRAG offset 4080
deliver rail 1 0->1 FRAG offset 12248
expect 1 counter stale_request 2
expect 1 counter frags_received 2
expect received n waits

settle
expect received n whole
expect sent n ok
expect 0 counter restarts 0
expect nothing left
