# Race (d): NOTIFY errs at its sender, but it had arrived, and the answer is on its way.
#
# Rail 1 breaks after it carried NOTIFY and before it carried the answer. Both words are given back and go over rail 2. The
# second NOTIFY has the number of the first: it is dropped, and answered by nothing, as the answer is on its way.

rails 3
set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
break rail 0 at 0
arrive rail 1 0->1 NOTIFY restart 1
deliver rail 1 0->1 BROKEN path 0
expect wire rail 1 1->0 RESTART-ACK restart 1

break rail 1 at 0
break rail 1 at 1
deliver rail 2 0->1 NOTIFY restart 1
expect 1 counter late_word 1
deliver rail 2 1->0 RESTART-ACK restart 1
expect no wire rail 2 1->0 RESTART-ACK

deliver rail 2 0->1 RGET restart 2
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect 0 counter late_word 0
expect nothing left
