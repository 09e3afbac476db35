# The last word of the handshake errs at its sender, but it had arrived: the receiver reads already.
#
# The announcement is given back and goes again over rail 2, as one that names no memory, with the same number. The receiver
# has gone on with that number, and drops it. Its read is refused, as the memory is withdrawn with rail 1, and it asks for
# fragments: in this attempt, without another handshake.

rails 3
set protocol get

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
deliver rail 0 0->1 RGET
break rail 0 at 0
break rail 0 at 1
deliver rail 1 1->0 ERROR
deliver all rail 1 0->1 BROKEN
deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 RESTART-ACK restart 1
arrive rail 1 0->1 RGET restart 2
expect wire rail 1 1->0 READ

break rail 1 at 0
deliver rail 2 0->1 RNDV restart 2 restarted 1
expect 1 counter late_word 1
deliver rail 1 1->0 READ
deliver all rail 2 0->1 BROKEN
deliver rail 2 1->0 ACK restart 2 offset 0 until 20000
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect 1 counter fallbacks 1
expect nothing left
