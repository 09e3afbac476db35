# A restarted announcement comes in the next cycle, when the receiver waits for one again: for the one after.
#
# It had arrived over rail 1 and was given back by it; rail 2 brings it once more, late. The receiver has asked for another
# restart meanwhile, and has said that it is ready. The number tells that this announcement is not what it is ready for.

rails 3
set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
break rail 0 at 0
break rail 0 at 1
deliver rail 1 1->0 ERROR
deliver all rail 1 0->1 BROKEN
deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 RESTART-ACK restart 1
arrive rail 1 0->1 RGET restart 2
break rail 1 at 0
break rail 1 at 1
hold rail 2 0->1 RNDV restart 2 restarted 1 as late

deliver rail 2 1->0 ERROR restart 2
deliver rail 2 0->1 NOTIFY restart 3
deliver rail 2 1->0 RESTART-ACK restart 3
expect wire rail 2 0->1 RGET restart 4
release late
expect 1 counter late_word 1
expect no wire rail 2 1->0 ACK

deliver rail 2 0->1 RGET restart 4
deliver rail 2 1->0 READ length 90000
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 2
expect nothing left
