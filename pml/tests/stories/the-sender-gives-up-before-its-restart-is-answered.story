# The sender has said NOTIFY when its user gives the send up. It has its memory back at once, as nothing is under way.
#
# What is left of the send waits for the answer. The receiver is ready for a restart: it gets its announcement, which names no
# memory, asks for the bytes, and is told then that they will not come.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
break rail 0 at 0
break rail 0 at 1
0 abort m -> now
deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 RESTART-ACK restart 1
deliver rail 1 0->1 RNDV restart 2 restarted 1
deliver rail 1 1->0 ACK restart 2
deliver rail 1 0->1 NACK restart 2
expect received m aborted
expect sent m aborted
settle
expect nothing left
