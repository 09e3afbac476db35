# Race (b): the last fragment errs at its sender, but it had arrived.
#
# With the handshake for fragments, too (`handshake`), the sender has to ask: it says NOTIFY about a message that the
# receiver has whole and has forgotten. The answer is RESTART-NACK, and the send is complete. Nothing is sent again.

set protocol fragments
set handshake always

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
deliver rail 0 0->1 RNDV length 20000
deliver rail 0 1->0 ACK offset 4080 until 20000
arrive rail 0 0->1 FRAG offset 4080
arrive rail 0 0->1 FRAG offset 12248
expect received m whole
expect sent m waits

break rail 0 at 0
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 0->1 NOTIFY restart 1
expect sent m waits
deliver rail 1 1->0 RESTART-NACK restart 1
expect sent m ok

settle
expect 0 counter restarts 1
expect 0 counter frags_sent 2
expect nothing left
