# In the middle of a restart, the receiver's user gives the receive up, and its read has not ended.
#
# The user has to wait for the read, which may still write the memory. Then the sender is told that nobody waits for its
# message any more: that it had asked for a restart meanwhile changes nothing.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
break rail 0 at 1 keeping operations
break rail 0 at 0
deliver rail 1 0->1 NOTIFY restart 1
1 abort m -> wait
wait 1000 ms
1 abort m -> wait

fail rail 0 1->0 READ as indeterminate
1 abort m -> now
reuse m
expect no wire rail 1 1->0 RESTART-ACK
deliver rail 1 1->0 FIN
expect sent m ok
expect received m aborted
settle
expect m untouched
expect nothing left
