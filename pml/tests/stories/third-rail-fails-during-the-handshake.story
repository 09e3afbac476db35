# A third rail fails before the handshake has ended that the first one made necessary.
#
# Rail 1 takes NOTIFY along. Over rail 2 the handshake comes to its end: the memory is exposed again and is being read, when
# rail 2 breaks, too. That is another cycle, with the next numbers, over rail 3. What the first read has brought stays.

rails 4
set protocol get
set one-sided 40000

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
deliver rail 0 1->0 READ length 40000
expect wire rail 0 1->0 READ length 40000

break rail 0 at 0
break rail 0 at 1
break rail 1 at 0
break rail 1 at 1
deliver all rail 2 0->1 BROKEN
deliver rail 2 0->1 NOTIFY restart 1
deliver rail 2 1->0 RESTART-ACK restart 1
deliver rail 2 0->1 RGET restart 2
deliver rail 2 1->0 READ length 40000
expect wire rail 2 1->0 READ length 10000

break rail 2 at 1
break rail 2 at 0
expect wire rail 3 1->0 ERROR restart 2
deliver rail 3 0->1 NOTIFY restart 3
deliver rail 3 1->0 RESTART-ACK restart 3
deliver rail 3 0->1 RGET restart 4
deliver rail 3 1->0 READ length 10000
deliver rail 3 1->0 FIN restart 4
settle

expect received m whole
expect sent m ok
expect 0 counter restarts 2
expect 1 counter resumed_bytes 120000
expect nothing left
