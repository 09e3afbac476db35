# A rail that is full, and a user who gives a send up whose write waits for room. Nothing is under way: the memory is back at
# once, and the receiver is told when there is room.

rails 1
set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV
full rail 0 at 0
deliver rail 0 1->0 PUT
0 abort m -> now
expect no wire rail 0 0->1 WRITE
free rail 0 at 0
deliver rail 0 0->1 NACK
expect received m aborted
expect sent m aborted
settle
expect nothing left
