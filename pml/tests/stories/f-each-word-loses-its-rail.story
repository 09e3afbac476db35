# Race (f): rails fail in the middle of the handshake, here under every word of it, one after the other.
#
# Each word is given back and goes over the next rail with the same number. The announcement that is given back named memory
# which can be reached over its own rail only, so it goes on as a plain one, and the bytes come as fragments.

rails 5
set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0

break rail 0 at 0
break rail 0 at 1
expect wire rail 1 0->1 NOTIFY restart 1
expect wire rail 1 1->0 ERROR restart 0

break rail 1 at 0
break rail 1 at 1
deliver rail 2 0->1 NOTIFY restart 1
expect wire rail 2 1->0 RESTART-ACK restart 1

break rail 2 at 0
break rail 2 at 1
deliver rail 3 1->0 RESTART-ACK restart 1
expect wire rail 3 0->1 RGET restart 2

break rail 3 at 0
break rail 3 at 1
deliver rail 4 0->1 RNDV restart 2 restarted 1
deliver rail 4 1->0 ACK restart 2 offset 0 until 90000
settle

expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect 0 counter paths_down 4
expect nothing left
