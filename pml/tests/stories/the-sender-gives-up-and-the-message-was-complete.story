# The sender has said NOTIFY when its user gives the send up; but the receiver has had the whole message for long, and its FIN
# was lost with the rail. What is left of the send ends with the FIN that comes again, or with RESTART-NACK: the second of the
# two names nothing any more.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
deliver rail 0 1->0 READ
expect wire rail 0 1->0 FIN
break rail 0 at 0
0 abort m -> now
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 RESTART-NACK restart 1
expect 0 counter stale_request 0
deliver rail 1 1->0 FIN
expect 0 counter stale_request 1
expect received m whole
expect sent m aborted
settle
expect nothing left
