# Race (g), the other half: the announcement errs after it arrived, and no answer has come.
#
# It is simply sent again, and dropped as a duplicate. The answer to the first one was on its way over the rail that broke:
# its sender hears of that over rail 1, and answers again there. It must not be answered twice for coming twice.

set protocol fragments

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
arrive rail 0 0->1 RNDV restart 0
expect wire rail 0 1->0 ACK offset 4080 until 20000

break rail 0 at 0
deliver rail 1 0->1 RNDV restart 0
expect 1 counter duplicate 1
expect no wire rail 1 1->0 ACK
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 1->0 ACK offset 4080 until 20000
expect no wire rail 1 1->0 ACK
settle

expect received m whole
expect sent m ok
expect 0 counter restarts 0
expect 0 counter wrong_state 0
expect nothing left
