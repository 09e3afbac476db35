# Race (j) from the sender's side: its writes into the receiver's memory fail three hundred times.

set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV can-put 1
deliver rail 0 1->0 PUT restart 0
repeat 300
    fail rail 0 0->1 WRITE as indeterminate
    deliver rail 0 0->1 NOTIFY
    deliver rail 0 1->0 RESTART-ACK
    deliver rail 0 0->1 RNDV restarted 1
    deliver rail 0 1->0 PUT
end
deliver rail 0 0->1 WRITE
deliver rail 0 0->1 FIN restart 600
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 300
expect 0 counter late_word 0
expect 1 counter late_word 0
expect nothing left
