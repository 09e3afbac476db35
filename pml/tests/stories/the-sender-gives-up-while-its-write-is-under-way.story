# In the middle of a restart, the sender's user gives the send up, and its write has not ended.
#
# The write reads memory that the user wants back: it has to be waited for. Then the receiver, which had asked for the
# restart, is told that nothing will come.

set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV
deliver rail 0 1->0 PUT
break rail 0 at 1
deliver rail 1 1->0 ERROR
0 abort m -> wait
deliver rail 0 0->1 WRITE
0 abort m -> now
expect no wire rail 0 0->1 NOTIFY
deliver rail 1 1->0 BROKEN path 0
deliver rail 1 0->1 NACK restart 0
expect received m aborted
expect sent m aborted
settle
expect nothing left
