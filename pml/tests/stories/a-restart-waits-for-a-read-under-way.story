# The receiver reads the sender's memory, and its rail breaks, but the read has not ended: it may still write our memory.
#
# The receiver reports that it is ready only once the read has ended, whatever the sender sends meanwhile.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
break rail 0 at 1 keeping operations
expect no wire rail 1 1->0 ERROR
break rail 0 at 0
deliver rail 1 0->1 NOTIFY restart 1
expect no wire rail 1 1->0 RESTART-ACK
wait 1000 ms
expect no wire rail 1 1->0 RESTART-ACK

fail rail 0 1->0 READ as indeterminate
expect no wire rail 1 1->0 ERROR
deliver rail 1 1->0 RESTART-ACK restart 1
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect nothing left
