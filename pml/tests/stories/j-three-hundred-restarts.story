# Race (j): one message is restarted more often than a byte can count.
#
# BFO's number has eight bits on the wire and is compared with one of 32: after 128 cycles nothing fits any more, and every
# word is dropped. Here it has 32 bits everywhere. Three hundred cycles that the receiver asks for, and the numbers go on.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
repeat 300
    fail rail 0 1->0 READ as not-done
    deliver rail 0 1->0 ERROR
    deliver rail 0 0->1 NOTIFY
    deliver rail 0 1->0 RESTART-ACK
    deliver rail 0 0->1 RGET restarted 1
end
deliver rail 0 1->0 READ
deliver rail 0 1->0 FIN restart 600
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 300
expect 0 counter late_word 0
expect 1 counter late_word 0
expect nothing left
