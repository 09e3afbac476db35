# Race (a): both sides see the error, and their words cross.
#
# Rank 1 reads a message from the memory of rank 0 when rail 0 breaks at both ends. The sender stops and says NOTIFY; the
# receiver asks for a restart with ERROR, as it cannot know that the sender has seen the same. ERROR comes when the sender
# has said NOTIFY already: it is about an attempt that is over, and must not begin another handshake. NOTIFY comes after
# ERROR was sent, and is handled as if there had been none.

rails 2
set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
expect wire rail 0 1->0 READ length 90000

break rail 0 at 0
break rail 0 at 1
expect wire rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 ERROR restart 0
expect 0 counter late_word 1
expect no wire rail 1 0->1 NOTIFY restart 2

deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 RESTART-ACK restart 1
deliver rail 1 0->1 RGET restart 2 restarted 1
deliver rail 1 1->0 READ length 90000
deliver rail 1 1->0 FIN restart 2
settle

expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect 0 counter late_word 1
expect 1 counter late_word 0
expect nothing left
