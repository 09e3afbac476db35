# A message is read in parts. The rail breaks after two of three: the third is read over the other rail, and no byte that had
# arrived comes again.

set protocol get
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
deliver rail 1 1->0 FIN restart 2
settle
expect received m whole
expect sent m ok
expect 1 counter gets 4
expect 1 counter resumed_bytes 60000
expect nothing left
