# The same with `resume zero`, which is what BFO does: everything is read again.

set protocol get
set resume zero
set one-sided 30000

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
deliver rail 0 1->0 READ length 30000
deliver rail 0 1->0 READ length 30000
break rail 0 at 0
break rail 0 at 1
deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 1->0 RESTART-ACK restart 1
deliver rail 1 0->1 RGET restart 2
deliver rail 1 1->0 READ length 30000
deliver rail 1 1->0 READ length 30000
deliver rail 1 1->0 READ length 30000
settle
expect received m whole
expect sent m ok
expect 1 counter gets 6
expect 1 counter resumed_bytes 0
expect nothing left
