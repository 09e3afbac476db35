# The receiver forgets the sender while it reads its memory: the rail ends the read, and with it the receive.

set protocol get

0 send 1 tag 7 length 90000 as m
1 receive 0 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
expect wire rail 0 1->0 READ
1 forget 0
expect received m lost

break rail 0 at 0 because closed
break rail 1 at 0 because closed
expect sent m lost
settle
expect nothing left
