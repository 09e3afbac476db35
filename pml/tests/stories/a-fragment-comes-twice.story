# One fragment of two had arrived when its rail broke. Both are given back and go again; the bytes that are there already are
# not counted twice, or the message would end with a hole.

set protocol fragments

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
deliver rail 0 0->1 RNDV
deliver rail 0 1->0 ACK offset 4080 until 20000
arrive rail 0 0->1 FRAG offset 4080
break rail 0 at 0
deliver rail 1 0->1 FRAG offset 4080
expect 1 counter repeated_bytes 1
expect received m waits
deliver rail 1 0->1 FRAG offset 12248
expect received m whole
expect sent m ok
settle
expect nothing left
